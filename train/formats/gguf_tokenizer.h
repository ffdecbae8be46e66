// Declares functions for tokenizers in the metadata of GGUF files (the keys tokenizer.*). Includes
// no LibTorch header.
#pragma once

#include <string>

#include "core/io/gguf.h"
#include "core/io/gguf_file.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe {

/// Appends a BPE tokenizer to the metadata, with a token for each id of the model's vocabulary.
/// Throws Exit::usage if GGUF has no name for the way in which the tokenizer splits text.
void add_gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocab_size, GGUFMetadata& metadata);

/// Reads a file's tokenizer, chat template and special tokens. Supports two values of
/// tokenizer.ggml.model: "gpt2", for the ways of splitting text that add_gguf_tokenizer() writes,
/// and "llama", which is SentencePiece. The merges of "llama" are all pairs of tokens whose
/// concatenation is a token, ordered by the score of the concatenation. Throws Exit::data if the
/// tokenizer is invalid or not supported by this build.
Tokenizer read_gguf_tokenizer(const GGUFFile& file);
/// Reads only the chat templates and the names of the special tokens. The name of a special token
/// is empty if the file has no id for it. Throws Exit::data for a value that is invalid.
TokenizerSettings read_gguf_settings(const GGUFFile& file);

}  // namespace lathe
