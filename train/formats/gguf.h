// Export of runs as GGUF files, for llama.cpp and programs based on it.
#pragma once

#include "train/formats/hugging_face.h"

namespace lathe {

/// Writes a run as `out`/model.gguf: weights, the architecture's metadata, and the tokenizer, which
/// must be a BPE. The folder is created completely or not at all. Throws Exit::usage as
/// export_hugging_face does, and where GGUF has no name for the way in which the tokenizer splits
/// text.
void export_gguf(const ExportOptions& options);

}  // namespace lathe
