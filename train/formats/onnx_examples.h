// The inputs and outputs of an ONNX file for examples, as `lathe predict` reads and writes them. No
// LibTorch header.
#pragma once

#include <string>

#include "data/examples/example_encoding.h"
#include "train/formats/onnx_file.h"

namespace lathe {

/// Adds the inputs of a model, and their normalization. They are raw, as `lathe prepare` reads
/// them:
///   input [batch, ...]: float32 for images, which have three or more sizes, else float64; of a
///     table its columns of numbers [batch, columns], where NaN is an empty cell
///   texts [batch, columns], text: the text columns of a table, where it has some
/// The metadata names the columns. Returns the name of the normalized examples, float32 [batch,
/// ...] of the encoding's sizes.
std::string add_example_inputs(OnnxGraph& graph, const ExampleEncoding& encoding);

/// Adds the outputs of a model from y float32 [batch, outputs]:
///   class int64 [batch] and probabilities float32 [batch, classes]: of a classification
///   prediction float32 [batch, outputs]: in the units of the data
/// The metadata names the classes.
void add_example_outputs(OnnxGraph& graph, const ExampleEncoding& encoding, bool classifies,
                         const std::string& y);

}  // namespace lathe
