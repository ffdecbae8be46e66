// Export of runs as ONNX files, for onnxruntime and programs based on it.
#pragma once

#include "train/formats/hugging_face.h"

namespace lathe {

/// Writes a run as `out`/model.onnx, in float32 and with a free batch dimension. A model of
/// examples takes raw inputs and gives what `lathe predict` does (train/formats/onnx_examples.h). A
/// model of tokens takes "ids", int64 [batch, time], and gives "logits", float32 [batch, time,
/// vocabulary]; a BPE is written beside it as tokenizer.json, and the metadata have any other
/// tokenizer. The folder is created completely or not at all. Throws Exit::usage for a kind of
/// model or a task without a form in ONNX, for adapters, and for a dtype or chat template.
void export_onnx(const ExportOptions& options);

}  // namespace lathe
