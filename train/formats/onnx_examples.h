// Declares the inputs and outputs of an ONNX file for a model of examples, in the form that `lathe
// predict` reads and writes. Includes no LibTorch header.
#pragma once

#include <string>

#include "data/examples/example_encoding.h"
#include "train/formats/onnx_file.h"

namespace lathe {

/// Adds the inputs of a model, and the normalization of these inputs. The inputs are raw values, in
/// the form that `lathe prepare` reads:
///   input [batch, ...]: float32 for examples of three or more dimensions (images) whose means are
///     below 1000 standard deviations, else float64; for a table, its numeric columns [batch,
///     columns], where NaN is an empty cell
///   texts [batch, columns], strings: the text columns of a table, if it has any
/// The names of the columns are written to the metadata. Returns the name of the normalized
/// examples, float32 [batch, ...] with the encoding's input_sizes.
std::string add_example_inputs(OnnxGraph& graph, const ExampleEncoding& encoding);

/// Adds the outputs of a model whose result is `y`, float32 [batch, outputs]:
///   for a classification, class int64 [batch] and probabilities float32 [batch, classes]
///   for a regression, prediction float64 [batch, outputs], in the units of the data
/// The names of the classes are written to the metadata.
void add_example_outputs(OnnxGraph& graph, const ExampleEncoding& encoding, bool classifies,
                         const std::string& y);

}  // namespace lathe
