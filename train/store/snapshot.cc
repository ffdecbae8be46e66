#include "train/store/snapshot.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/dtype.h"
#include "core/io/log.h"
#include "core/mapped_memory.h"
#include "core/memory.h"
#include "dist/group.h"
#include "dist/world.h"

namespace lathe {
namespace {

bool is_saved_lower(const at::Tensor& t, std::optional<at::ScalarType> dtype) {
  return dtype && t.scalar_type() != *dtype && t.dim() >= 2;
}

/// A tensor of a checkpoint: the file that it is in, and its dtype and sizes there.
struct SavedTensor {
  bool in_model;
  std::string name;
  at::Tensor tensor;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;      ///< of this tensor rank's part, where it is cut
  int64_t own_end;                 ///< the last element that this rank has, + 1
  const TensorCut* cut = nullptr;  ///< how it is cut among tensor ranks, or null
  /// If not empty, stage s has the elements [stages[s], stages[s + 1]).
  std::vector<int64_t> stages{};
  /// If not empty, data rank r has the elements [shares[r], shares[r + 1]) of those of its stage.
  std::vector<int64_t> shares{};
  const Optimizer* optimizer = nullptr;  ///< if set, the tensor is in its scratch file
  bool is_updated = true;                ///< only an update changes it, not a forward pass
  StatePart part{};                      ///< for the optimizer

  std::vector<int64_t> full_sizes() const {
    return cut != nullptr ? cut->full_sizes(sizes) : sizes;
  }
  /// Returns whether several ranks have parts of it.
  bool is_collected() const { return !stages.empty() || !shares.empty() || cut != nullptr; }

  at::Tensor value() const {
    return optimizer != nullptr ? optimizer->read_state(tensor, part) : tensor;
  }
};

/// Returns the elements of a parameter that this process keeps, and the index after the last one.
std::pair<at::Tensor, int64_t> kept_of(const NamedParameter& p) {
  const at::Tensor& t = p.parameter.data();
  const Leaf* const leaf = p.parameter.as_leaf();
  if (leaf == nullptr || !leaf->own.elements.defined()) return {t, t.numel()};
  const auto& [elements, end] = leaf->own;
  return {elements.numel() == t.numel() ? elements.view(t.sizes()) : elements, end};
}

/// Sets `shares` of the tensors of which the first data rank of a stage has only a part, and
/// `stages` of those of which the first stage has only a part. A collective.
void find_cuts(std::vector<SavedTensor>& all) {
  at::Tensor mine = at::empty({1, static_cast<int64_t>(all.size())}, at::kLong);
  for (size_t i = 0; i < all.size(); ++i) mine.mutable_data_ptr<int64_t>()[i] = all[i].own_end;
  // The elements of a stage end with those of its last data rank.
  const at::Tensor of_data = world().gather_over_data(mine);
  const at::Tensor of_stages = world().gather_over_pipeline(of_data.narrow(0, -1, 1));
  const auto end_of = [&](const at::Tensor& of, int rank, size_t i) {
    return of.const_data_ptr<int64_t>()[static_cast<size_t>(rank) * all.size() + i];
  };

  const int stage = world().pipeline().rank;
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t begin = stage > 0 ? end_of(of_stages, stage - 1, i) : 0;
    if (end_of(of_data, 0, i) < end_of(of_stages, stage, i)) {
      all[i].shares = {0};
      for (int r = 0; r < world().data().size; ++r)
        all[i].shares.push_back(end_of(of_data, r, i) - begin);
    }
    if (end_of(of_stages, 0, i) < c10::multiply_integers(all[i].sizes)) {
      all[i].stages = {0};
      for (int s = 0; s < world().pipeline().size; ++s)
        all[i].stages.push_back(end_of(of_stages, s, i));
    }
  }
}

/// Returns, on rank 0 of a group, the concatenation of the parts of all of its ranks: rank r has
/// the elements [cuts[r], cuts[r + 1]). A collective of the group.
at::Tensor collect_flat(Group& group, bool is_first, const at::Tensor& part,
                        const std::vector<int64_t>& cuts) {
  const at::Tensor own = part.reshape({-1});
  at::Tensor flat = own;
  if (is_first) {
    flat = at::empty({cuts.back()}, own.options());
    flat.narrow(0, 0, cuts[1]).copy_(own);
  }
  world().guarded([&] { group.collect(flat, cuts); });
  return flat;
}

/// Returns the complete tensor on tensor rank 0. `part`: that of this tensor rank.
at::Tensor collect_over_tensor(const TensorCut& cut, const at::Tensor& part) {
  const at::Tensor flat =
      collect_flat(world().layers(), cut.part == 0, part, cut.flat_cuts(part.sizes()));
  return cut.part == 0 ? cut.join_flat(flat, part.sizes()) : flat;
}

/// Returns the complete tensor on rank 0, of a tensor that is_collected(). A collective.
at::Tensor collect(const SavedTensor& saved) {
  const bool is_first_of_stage = world().data().rank == 0;
  // The pipelines of other data ranks have the same tensors.
  if (!is_first_of_stage && saved.shares.empty()) return saved.tensor;
  at::Tensor own = saved.value();
  if (!saved.shares.empty())
    own = collect_flat(world().gradients(), is_first_of_stage, own, saved.shares);
  if (!is_first_of_stage) return saved.tensor;

  const bool is_first = world().pipeline().rank == 0;
  if (!saved.stages.empty()) own = collect_flat(world().stages(), is_first, own, saved.stages);
  if (saved.cut != nullptr && is_first)
    own = collect_over_tensor(*saved.cut, own.view(saved.sizes));
  return own.to(saved.dtype);
}

/// Returns all tensors of a checkpoint, in the same order on all ranks. A collective if the
/// optimizer's state is sharded.
std::vector<SavedTensor> tensors_of(const std::vector<NamedParameter>& parameters,
                                    const Optimizer& optimizer,
                                    std::optional<at::ScalarType> dtype) {
  std::vector<SavedTensor> all;
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    const auto [kept, end] = kept_of(p);
    all.push_back({.in_model = true,
                   .name = p.path,
                   .tensor = kept,
                   .dtype = is_saved_lower(t, dtype) ? *dtype : t.scalar_type(),
                   .sizes = t.sizes().vec(),
                   .own_end = end,
                   .cut = cut_of(p.parameter)});
    all.back().is_updated = p.parameter.as_leaf() != nullptr;  // running statistics are not
  }
  each_state(optimizer, [&](const std::string& name, const at::Tensor& t, const StatePart& part) {
    all.push_back({.in_model = false,
                   .name = name,
                   .tensor = t,
                   .dtype = t.scalar_type(),
                   .sizes = part.sizes,
                   .own_end = part.own.end,
                   .cut = part.cut.get()});
    all.back().is_updated = !name.ends_with(".fp8_history");
    if (!t.is_meta()) return;
    all.back().optimizer = &optimizer;
    all.back().part = part;
  });
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    if (!is_saved_lower(t, dtype)) continue;
    const auto [kept, end] = kept_of(p);
    all.push_back({.in_model = false,
                   .name = p.path + ".master",
                   .tensor = kept,
                   .dtype = t.scalar_type(),
                   .sizes = t.sizes().vec(),
                   .own_end = end,
                   .cut = cut_of(p.parameter)});
  }

  if (!collects_state(optimizer)) return all;
  // The order in which a file is written.
  std::stable_sort(all.begin(), all.end(), [](const SavedTensor& a, const SavedTensor& b) {
    return a.in_model != b.in_model ? a.in_model : a.name < b.name;
  });
  if (optimizer.is_sharded()) find_cuts(all);
  return all;
}

/// Returns whether only an update changes the tensor, and its memory has the bytes of the file.
bool is_live(const SavedTensor& saved) {
  return saved.is_updated && saved.dtype == saved.tensor.scalar_type() && !saved.is_collected() &&
         saved.optimizer == nullptr && saved.tensor.is_cpu() && saved.tensor.is_contiguous() &&
         !MappedMemory::holds(saved.tensor.storage().data_ptr());
}

void add(Snapshot& snapshot, const SavedTensor& saved, TensorEntry entry) {
  (saved.in_model ? snapshot.model : snapshot.optimizer).push_back(std::move(entry));
}

void add(Snapshot& snapshot, const SavedTensor& saved, const at::Tensor& on_host) {
  snapshot.held.push_back(on_host);
  add(snapshot, saved, make_entry(saved.name, on_host));
}

TensorEntry entry_of(const SavedTensor& saved, std::function<at::Tensor()> make) {
  return make_entry(saved.name, saved.dtype, saved.full_sizes(), std::move(make));
}

/// Adds an entry that is collected from all ranks when it is written.
void add_collected(Snapshot& snapshot, const SavedTensor& saved) {
  add(snapshot, saved, entry_of(saved, [saved] { return collect(saved); }));
}

/// Adds an entry that is copied from the optimizer's scratch file when it is written.
void add_streamed(Snapshot& snapshot, const SavedTensor& saved) {
  TensorEntry entry = entry_of(saved, {});
  entry.stream = [saved](const auto& put) { saved.optimizer->stream_state(saved.part, put); };
  add(snapshot, saved, std::move(entry));
}

/// Adds an entry that is converted to its dtype when it is written, so that only one converted
/// tensor exists at a time, and only one mapped tensor is resident.
void add_converted(Snapshot& snapshot, const SavedTensor& saved) {
  TensorEntry entry = entry_of(saved, [saved] { return saved.tensor.to(saved.dtype); });
  entry.stream = [saved, write = std::move(entry.stream)](const auto& put) {
    write(put);
    release_pages(saved.tensor);
  };
  add(snapshot, saved, std::move(entry));
}

}  // namespace

std::vector<NamedParameter> saved_tensors(const ConstModuleRef& model) {
  auto all = parameters(model);
  std::erase_if(all, [](const NamedParameter& p) {
    const Leaf* leaf = p.parameter.as_leaf();
    return leaf == nullptr || !leaf->is_saved;
  });
  for (const NamedBuffer& b : buffers(model))
    all.push_back(
        {.path = b.path, .parameter = Variable(b.tensor), .role = Role{.name = "buffer"}});
  return all;
}

void check_finite(const std::vector<NamedParameter>& parameters, int64_t step,
                  std::optional<at::ScalarType> dtype) {
  for (const auto& p : parameters) {
    const at::Tensor t = kept_of(p).first;
    if (t.numel() == 0) continue;
    const auto [least, largest] = at::aminmax(t);  // both are NaN where an element is
    if (!std::isfinite(least.item<double>()) || !std::isfinite(largest.item<double>())) {
      fail(Exit::diverged, "after step ", step, " the parameter ", p.path,
           " has elements that are not finite, so no checkpoint of it is written; lower optim.lr, "
           "lower or set optim.grad_clip, and run the same command again to resume from the "
           "previous checkpoint");
    }
    const auto fits = [&](const at::Tensor& x) {
      return std::isfinite(x.to(*dtype).to(at::kFloat).item<float>());
    };
    if (is_saved_lower(t, dtype) && !(fits(least) && fits(largest))) {
      log_warn("after step ", step, " the parameter ", p.path, " has elements beyond the range of ",
               dtype_name(*dtype),
               ", which are infinite in model.safetensors; a resumed run has "
               "their exact values, other commands do not: set checkpoint.dtype = \"bf16\"");
    }
    release_pages(t);
  }
}

int64_t Snapshot::bytes() const {
  uint64_t sum = 0;
  for (const TensorEntry& entry : model) sum += entry.size();
  for (const TensorEntry& entry : optimizer) sum += entry.size();
  return static_cast<int64_t>(sum);
}

Snapshot view_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype) {
  Snapshot snapshot;
  for (const SavedTensor& saved : tensors_of(parameters, optimizer, dtype)) {
    if (saved.is_collected())
      add_collected(snapshot, saved);
    else if (saved.optimizer != nullptr)
      add_streamed(snapshot, saved);
    else if (saved.tensor.scalar_type() != saved.dtype ||
             MappedMemory::holds(saved.tensor.storage().data_ptr()))
      add_converted(snapshot, saved);
    else
      add(snapshot, saved, saved.tensor.to(at::kCPU).contiguous());
  }
  return snapshot;
}

Snapshot copy_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                    std::optional<at::ScalarType> dtype, Snapshot reused) {
  const MemoryScope memory(Memory::checkpoints);
  Snapshot snapshot;
  snapshot.live = std::make_shared<LiveTensors>();
  for (const SavedTensor& saved : tensors_of(parameters, optimizer, dtype)) {
    if (is_live(saved)) {
      add(snapshot, saved, snapshot.live->add(saved.name, saved.tensor));
      continue;
    }
    at::Tensor copy = snapshot.held.size() < reused.held.size() ? reused.held[snapshot.held.size()]
                                                                : at::Tensor();
    if (!copy.defined() || copy.scalar_type() != saved.dtype ||
        copy.sizes() != at::IntArrayRef(saved.full_sizes())) {
      const auto on_host =
          at::TensorOptions().dtype(saved.dtype).pinned_memory(saved.tensor.is_cuda());
      copy = at::empty(saved.full_sizes(), on_host);
    }
    copy.copy_(saved.is_collected() ? collect(saved).view(saved.full_sizes()) : saved.value());
    add(snapshot, saved, copy);
  }
  return snapshot;
}

bool collects_state(const Optimizer& optimizer) {
  return optimizer.is_sharded() || world().tensor().size > 1;
}

void send_state(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                std::optional<at::ScalarType> dtype) {
  for (const SavedTensor& saved : tensors_of(parameters, optimizer, dtype)) {
    if (saved.is_collected()) collect(saved);
  }
}

int64_t checkpoint_bytes(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         std::optional<at::ScalarType> dtype) {
  int64_t bytes = 0;
  for (const SavedTensor& saved : tensors_of(parameters, optimizer, dtype))
    bytes += c10::multiply_integers(saved.full_sizes()) *
             static_cast<int64_t>(c10::elementSize(saved.dtype));
  return bytes;
}

}  // namespace lathe
