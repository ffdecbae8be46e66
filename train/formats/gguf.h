// Declares the export of runs as GGUF files, for llama.cpp and programs based on it.
#pragma once

#include <string>
#include <vector>

#include "train/formats/hugging_face.h"

namespace lathe {

/// Writes a run as `out`/model.gguf, with its weights, the metadata of the architecture and the
/// tokenizer. If the run has no BPE tokenizer, logs a warning and writes no tokenizer. Creates the
/// folder `out` completely or not at all. Writes vectors and position embeddings in float32. If the
/// dtype is quantized and a matrix's row length is not a multiple of the block size, writes that
/// matrix in float16, or in float32 if a value exceeds float16's range. Throws Exit::usage when
/// export_hugging_face() does. Also throws Exit::usage if GGUF can't represent the model, if GGUF
/// has no name for the tokenizer's pre-tokenizer, or if a value can't be quantized.
void export_gguf(const ExportOptions& options);
/// Returns the values of ExportOptions::dtype that only GGUF supports: its quantized types.
std::vector<std::string> gguf_dtypes();

}  // namespace lathe
