// Weights that are not trained: they are read from a checkpoint, and kept in a dtype or quantized.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "nn/models/model.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// The form of frozen weights in memory. "fp32", "bf16", "fp16": every matrix in that dtype.
/// "int8", "nf4": the linear layers of repeated blocks in that format, the other matrices in
/// `other_dtype`. Vectors stay in float32.
struct FrozenFormat {
  std::string dtype = "fp32";
  bool double_quant = false;  ///< nf4: the scales in 8 bits too
  at::ScalarType other_dtype = at::kBFloat16;
};

/// Returns `t`, the values of the parameter `found`, in frozen form: a constant on the device or,
/// for a quantized tensor or a part (cut_of()), a parameter that is neither trained nor saved.
Variable keep_frozen(const NamedParameter& found, const at::Tensor& t, const FrozenFormat& keep,
                     at::Device device);

/// Returns a model of the config's kind with a checkpoint's parameters, frozen. They are read and
/// converted one at a time, so that at most one of them is in memory twice. `change_shapes` is
/// called, if it is given, before the parameters get values. It may cut them
/// (autograd/tensor_cut.h).
std::unique_ptr<Model> load_frozen(const fs::path& checkpoint, const RunConfig& config,
                                   const ModelSizes& sizes, const FrozenFormat& keep,
                                   at::Device device,
                                   const std::function<void(Model&)>& change_shapes = {});

/// Returns the checksum of all weights of a model with their paths.
std::string weights_checksum(Model& model);

}  // namespace lathe
