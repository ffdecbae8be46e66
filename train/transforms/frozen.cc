#include "train/transforms/frozen.h"

#include "core/dtype.h"
#include "core/io/checksum.h"
#include "core/mapped_memory.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/quantized.h"
#include "train/store/checkpoint_tensors.h"

namespace lathe {

Variable keep_frozen(const NamedParameter& found, const at::Tensor& t, const FrozenFormat& keep,
                     at::Device device) {
  const Variable& shape = found.parameter;
  const bool quantize = keep.dtype == "int8" || keep.dtype == "nf4";
  if (quantize && found.block >= 0 && is_linear_weight(found.role)) {
    const auto format =
        keep.dtype == "int8" ? QuantizedTensor::Format::int8 : QuantizedTensor::Format::nf4;
    shape.leaf().precision.quantized =
        std::make_shared<const QuantizedTensor>(t, format, keep.double_quant, device);
    shape.leaf().is_saved = false;
    return shape;
  }
  const at::ScalarType matrices = quantize ? keep.other_dtype : dtype_from_config(keep.dtype);
  const at::Tensor kept = t.to(device, shape.dim() >= 2 ? matrices : at::kFloat,
                               /*non_blocking=*/false, /*copy=*/true);
  release_pages(kept);
  if (cut_of(shape) == nullptr) return Variable(kept);

  const Variable part = Variable::parameter(kept, found.path).requires_grad_(false);
  part.leaf().cut = shape.leaf().cut;
  part.leaf().is_saved = false;
  return part;
}

std::unique_ptr<Model> load_frozen(const fs::path& checkpoint, const RunConfig& config,
                                   const ModelSizes& sizes, const FrozenFormat& keep,
                                   at::Device device,
                                   const std::function<void(Model&)>& change_shapes) {
  const MemoryScope memory(Memory::parameters);
  const CheckpointTensors file(checkpoint, CheckpointPart::model);
  const fs::path& path = file.path();

  size_t used = 0;
  std::unique_ptr<Model> model;
  // The parameters have only shapes until their values are loaded.
  {
    const MetaInit guard;
    model = find_model_kind(config.model.kind)->make(config.model.own, sizes);
    if (change_shapes) change_shapes(*model);
  }

  replace_parameters(*model, [&](const NamedParameter& found) {
    const TensorEntry& entry = file.at(found.path);
    ++used;
    const at::Tensor values =
        own_tensor(entry, found.parameter.sizes(), cut_of(found.parameter), path);
    const Variable loaded = keep_frozen(found, values, keep, device);
    // The values were copied or quantized, so the mapped pages can be released.
    file.release(entry);
    return loaded;
  });

  replace_buffers(*model, [&](const NamedBuffer& found) {
    ++used;
    return entry_tensor(file.at(found.path), found.tensor.sizes(), path)
        .to(device, /*non_blocking=*/false, /*copy=*/true);
  });

  // Every parameter and buffer was found, so if the numbers differ, the file has unused tensors.
  if (used != file.tensors().size()) {
    fail(Exit::checkpoint, path.string(), " has ", file.tensors().size(),
         " tensors, but the model has ", used);
  }
  return model;
}

std::string weights_checksum(Model& model) {
  Checksum sum;
  const auto add = [&](const std::string& path, const at::Tensor& tensor) {
    const at::Tensor t = tensor.to(at::kCPU).contiguous();
    sum.update(path.data(), path.size());
    sum.update(t.const_data_ptr(), t.nbytes());
  };
  for (const NamedParameter& p : saved_tensors(model)) add(p.path, p.parameter.data());
  for (const NamedParameter& p : parameters(model)) add(p.path, p.parameter.data());
  return sum.hex();
}

}  // namespace lathe
