// Where the weights of a model that is not trained come from: a checkpoint, kept in memory as a
// dtype or quantized.
#pragma once

#include <memory>
#include <string>

#include "nn/models/model.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// How frozen weights are kept in memory. "fp32", "bf16", "fp16": every matrix in that dtype.
/// "int8", "nf4": the linear layers of repeated blocks in that format, the other matrices in
/// `rest`. Vectors stay in float32.
struct Keep {
  std::string dtype = "fp32";
  bool double_quant = false;  ///< nf4: the scales in 8 bits too
  at::ScalarType rest = at::kBFloat16;
};

/// `t`, whose parameter is `found`, kept as frozen: a constant on the device, or the parameter's
/// shape with its values quantized.
Variable keep_frozen(const NamedParameter& found, const at::Tensor& t, const Keep& keep,
                     at::Device device);

/// A model of the config's kind with a checkpoint's parameters, frozen, read and converted one at a
/// time, so that they never are in float32 all at once.
std::unique_ptr<Model> load_frozen(const fs::path& checkpoint, const RunConfig& config,
                                   const ModelSizes& sizes, const Keep& keep, at::Device device);

}  // namespace lathe
