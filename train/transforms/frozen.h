// Declares weights that are not trained: they are read from a checkpoint, and kept in some dtype or
// quantized.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "nn/models/model.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Describes the form of frozen weights in memory. A `dtype` of "fp32", "bf16" or "fp16" applies to
/// all matrices. A `dtype` of "int8" or "nf4" applies to the linear layers of repeated blocks, and
/// all other matrices have `other_dtype`. Vectors stay in float32.
struct FrozenFormat {
  std::string dtype = "fp32";
  bool double_quant = false;  ///< for nf4: whether the scales are quantized to 8 bits
  at::ScalarType other_dtype = at::kBFloat16;
};

/// Returns a copy of `t`, the values of the parameter `found`, in frozen form on the device. If the
/// copy is quantized, or if `found` is cut among tensor ranks (autograd/tensor_cut.h), the result
/// is a parameter that is neither trained nor saved. Otherwise, the result is a constant.
Variable keep_frozen(const NamedParameter& found, const at::Tensor& t, const FrozenFormat& keep,
                     at::Device device);

/// Returns a model of the config's kind with the frozen parameters of a checkpoint. The parameters
/// are read and converted one at a time, so that at most one parameter is in memory twice.
/// `change_shapes`, if given, is called before the parameters get values; it may cut them
/// (autograd/tensor_cut.h).
std::unique_ptr<Model> load_frozen(const fs::path& checkpoint, const RunConfig& config,
                                   const ModelSizes& sizes, const FrozenFormat& keep,
                                   at::Device device,
                                   const std::function<void(Model&)>& change_shapes = {});

/// Returns the checksum of the paths and the values of all weights and buffers of a model.
std::string weights_checksum(Model& model);

}  // namespace lathe
