// Declares the export of runs as ONNX files, for onnxruntime and programs based on it.
#pragma once

#include "train/formats/hugging_face.h"

namespace lathe {

/// Writes a run as `out`/model.onnx, in float32 and with a dynamic batch dimension. A model of
/// examples, such as images, takes raw inputs and returns what `lathe predict` writes
/// (train/formats/onnx_examples.h). A model of tokens takes "ids", int64 [batch, time], and returns
/// "logits", float32 [batch, time, vocabulary]. A BPE tokenizer is written to `out`/tokenizer.json;
/// any other tokenizer is described in the metadata of model.onnx. `out` is created completely or
/// not at all. Throws Exit::usage if this build can't write the kind of model or the task as ONNX,
/// if the run has adapters, or if the options set a chat template or a dtype other than fp32.
void export_onnx(const ExportOptions& options);

}  // namespace lathe
