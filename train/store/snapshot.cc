#include "train/store/snapshot.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "core/dtype.h"
#include "core/memory.h"

namespace lathe {
namespace {

bool is_saved_lower(const at::Tensor& t, std::optional<at::ScalarType> dtype) {
  return dtype && t.scalar_type() != *dtype && t.dim() >= 2;
}

/// A tensor of a checkpoint: the file that it is in, and its dtype there.
struct SavedTensor {
  bool in_model;
  std::string name;
  at::Tensor tensor;
  at::ScalarType dtype;
};

/// All of them, in the order of the parameters.
std::vector<SavedTensor> tensors_of(const std::vector<NamedParameter>& parameters,
                                    const Optimizer& optimizer,
                                    std::optional<at::ScalarType> dtype) {
  std::vector<SavedTensor> all;
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    all.push_back({true, p.path, t, is_saved_lower(t, dtype) ? *dtype : t.scalar_type()});
  }
  each_state(optimizer, [&](const std::string& name, const at::Tensor& t) {
    all.push_back({false, name, t, t.scalar_type()});
  });
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    if (is_saved_lower(t, dtype)) all.push_back({false, p.path + ".master", t, t.scalar_type()});
  }
  return all;
}

void add(Snapshot& snapshot, const SavedTensor& saved, const at::Tensor& on_host) {
  snapshot.held.push_back(on_host);
  (saved.in_model ? snapshot.model : snapshot.optimizer).push_back(make_entry(saved.name, on_host));
}

}  // namespace

std::vector<NamedParameter> saved_tensors(const ConstModuleRef& model) {
  auto all = parameters(model);
  std::erase_if(all, [](const NamedParameter& p) {
    const Leaf* leaf = p.parameter.as_leaf();
    return leaf == nullptr ||
           leaf->precision.quantised != nullptr;  // they stay in the checkpoint they came from
  });
  for (const NamedBuffer& b : buffers(model))
    all.push_back({b.path, Variable(b.tensor), Role{.name = "buffer"}});
  return all;
}

void check_finite(const std::vector<NamedParameter>& parameters, int64_t step) {
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    if (t.numel() == 0) continue;
    const auto [least, largest] = at::aminmax(t);  // both are NaN where an element is
    if (!std::isfinite(least.item<double>()) || !std::isfinite(largest.item<double>())) {
      fail(Exit::diverged, "after step ", step, " the parameter ", p.path,
           " has elements that are not finite, so no checkpoint of it is written; lower optim.lr "
           "or optim.grad_clip, "
           "and run the same command again to resume from the checkpoint before");
    }
  }
}

int64_t Snapshot::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& t : held) sum += static_cast<int64_t>(t.nbytes());
  return sum;
}

Snapshot view_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype) {
  Snapshot snapshot;
  for (const SavedTensor& saved : tensors_of(parameters, optimizer, dtype))
    add(snapshot, saved, saved.tensor.to(saved.dtype).to(at::kCPU).contiguous());
  return snapshot;
}

Snapshot copy_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype, Snapshot reused) {
  const MemoryScope memory(Memory::checkpoints);
  Snapshot snapshot;
  for (const SavedTensor& saved : tensors_of(parameters, optimizer, dtype)) {
    at::Tensor copy = snapshot.held.size() < reused.held.size() ? reused.held[snapshot.held.size()]
                                                                : at::Tensor();
    if (!copy.defined() || copy.scalar_type() != saved.dtype ||
        copy.sizes() != saved.tensor.sizes()) {
      const auto on_host =
          at::TensorOptions().dtype(saved.dtype).pinned_memory(saved.tensor.is_cuda());
      copy = at::empty(saved.tensor.sizes(), on_host);
    }
    copy.copy_(saved.tensor);
    add(snapshot, saved, copy);
  }
  return snapshot;
}

int64_t checkpoint_bytes(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         std::optional<at::ScalarType> dtype) {
  int64_t bytes = 0;
  for (const SavedTensor& saved : tensors_of(parameters, optimizer, dtype))
    bytes += saved.tensor.numel() * static_cast<int64_t>(c10::elementSize(saved.dtype));
  return bytes;
}

TensorEntry make_entry(const std::string& name, const at::Tensor& t) {
  return {name,
          safetensors_dtype(t.scalar_type()),
          t.sizes().vec(),
          {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()}};
}

}  // namespace lathe
