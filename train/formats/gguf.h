// Runs as GGUF files, for llama.cpp and what is built on it.
#pragma once

#include "train/formats/hugging_face.h"

namespace lathe {

/// Writes a run as `out`/model.gguf: weights, what the architecture needs to know, and the
/// tokenizer, a BPE. The folder is there whole or not at all. Exit::usage as export_hugging_face,
/// and where the tokenizer splits text in a way that GGUF has no name for.
void export_gguf(const ExportOptions& options);

}  // namespace lathe
