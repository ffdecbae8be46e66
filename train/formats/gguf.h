// Export of runs as GGUF files, for llama.cpp and programs based on it.
#pragma once

#include <string>
#include <vector>

#include "train/formats/hugging_face.h"

namespace lathe {

/// Writes a run as `out`/model.gguf: weights, the architecture's metadata, and the tokenizer, which
/// must be a BPE. The folder is created completely or not at all. Throws Exit::usage as
/// export_hugging_face does, and where GGUF has no name for the way in which the tokenizer splits
/// text. Vectors and the table of positions are float32. With a quantized dtype, matrices whose
/// rows are no multiple of its block are float16, or float32 where a value is beyond that.
void export_gguf(const ExportOptions& options);
/// Returns the values of ExportOptions::dtype that only GGUF has: the types that are quantized to.
std::vector<std::string> gguf_dtypes();

}  // namespace lathe
