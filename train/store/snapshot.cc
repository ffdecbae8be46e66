#include "train/store/snapshot.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "core/dtype.h"
#include "core/io/log.h"
#include "core/mapped_memory.h"
#include "core/memory.h"
#include "dist/world.h"
#include "train/store/checkpoint_tensors.h"

namespace lathe {
namespace {

bool is_saved_lower(const at::Tensor& t, std::optional<at::ScalarType> dtype) {
  return dtype && t.scalar_type() != *dtype && t.dim() >= 2;
}

/// Describes a tensor of a checkpoint: the file in which it is stored, and its dtype and sizes in
/// this file.
struct SavedTensor {
  bool in_model;
  std::string name;
  at::Tensor tensor;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;      ///< sizes of the tensor or, if it is cut, of this rank's part
  int64_t own_end;                 ///< index after the last element that this rank has
  const TensorCut* cut = nullptr;  ///< how the tensor is cut among tensor ranks; null if it is not
                                   ///< cut
  const Optimizer* optimizer = nullptr;  ///< optimizer whose scratch file holds the tensor; null if
                                         ///< the tensor is in memory
  bool is_updated = true;                ///< whether only the optimizer's updates change the tensor
  StatePart part{};    ///< part for Optimizer::read_state(), if `optimizer` is set
  std::string note{};  ///< TensorEntry::note of the tensor

  std::vector<int64_t> full_sizes() const {
    return cut != nullptr ? cut->full_sizes(sizes) : sizes;
  }
  at::Tensor value() const {
    return optimizer != nullptr ? optimizer->read_state(tensor, part) : tensor;
  }
};

/// Returns the elements of a parameter that this process keeps, and the index after the last of
/// these elements.
std::pair<at::Tensor, int64_t> kept_elements(const NamedParameter& p) {
  const at::Tensor& t = p.parameter.data();
  const Leaf* const leaf = p.parameter.as_leaf();
  if (leaf == nullptr || !leaf->own.elements.defined()) return {t, t.numel()};
  const auto& [elements, end] = leaf->own;
  return {elements.numel() == t.numel() ? elements.view(t.sizes()) : elements, end};
}

/// Holds which process has which elements of each tensor. The elements of a stage are contiguous.
/// The elements of a data rank within its stage are contiguous as well.
class KeptElements {
 public:
  /// Gathers the ranges of all processes. This call is a collective of the data ranks and of the
  /// stages.
  explicit KeptElements(const std::vector<SavedTensor>& all) : count_(all.size()) {
    at::Tensor mine = at::empty({1, std::ssize(all)}, at::kLong), kept = at::empty_like(mine);
    for (size_t i = 0; i < count_; ++i) {
      mine.mutable_data_ptr<int64_t>()[i] = all[i].own_end;
      kept.mutable_data_ptr<int64_t>()[i] = all[i].tensor.numel();
    }
    of_data_ = world().gather_over_data(mine);
    kept_ = world().gather_over_data(kept);
    of_stages_ = world().gather_over_pipeline(of_data_.narrow(0, -1, 1));
  }
  /// Returns whether each data rank of this stage has all of the stage's elements of tensor i.
  bool is_on_all(size_t i) const {
    for (int rank = 0; rank < world().data().size; ++rank) {
      if (at(kept_, rank, i) != of_stage(i).size()) return false;
    }
    return true;
  }
  /// Returns the elements of tensor i that data rank `rank` of this stage has. Call it only if
  /// is_on_all(i) is false.
  ElementRange of_data(size_t i, int rank) const {
    return {rank > 0 ? at(of_data_, rank - 1, i) : of_stage(i).begin, at(of_data_, rank, i)};
  }
  /// Returns the elements of tensor i that this stage has. If every stage has the complete tensor,
  /// returns all elements on stage 0 and none on the other stages.
  ElementRange of_stage(size_t i) const {
    const int stage = world().pipeline().rank;
    return {stage > 0 ? at(of_stages_, stage - 1, i) : 0, at(of_stages_, stage, i)};
  }

 private:
  int64_t at(const at::Tensor& of, int rank, size_t i) const {
    return of.const_data_ptr<int64_t>()[static_cast<size_t>(rank) * count_ + i];
  }

  size_t count_;
  at::Tensor of_data_, of_stages_;  // index after the last element that a rank has
  at::Tensor kept_;                 // number of elements that a data rank has
};

/// Returns the elements of tensor i that this process writes.
ElementRange written_range(const SavedTensor& saved, size_t i, const KeptElements& kept) {
  const ElementRange stage = kept.of_stage(i);
  // If a tensor is not cut, each tensor rank has a copy of it, so only the first of them writes it.
  if (stage.size() == 0 || (saved.cut == nullptr && world().tensor().rank > 0)) return {};
  const RankAxis& data = world().data();
  if (!kept.is_on_all(i)) return kept.of_data(i, data.rank);

  // Each data rank writes an equal share, unless the tensor has few elements or is in a scratch
  // file.
  constexpr int64_t few = int64_t{1} << 16;
  if (stage.size() < few || saved.optimizer != nullptr)
    return data.rank == 0 ? stage : ElementRange{};
  const auto cut = [&](int rank) { return stage.begin + stage.size() * rank / data.size; };
  return {cut(data.rank), cut(data.rank + 1)};
}

/// Returns the parts of the tensors that this process writes. This call is a collective.
std::vector<SavedTensor> own_parts(const std::vector<SavedTensor>& all) {
  const KeptElements kept(all);
  std::vector<SavedTensor> own;
  for (size_t i = 0; i < all.size(); ++i) {
    TensorPart part{.sizes = all[i].full_sizes(),
                    .cut = all[i].cut != nullptr ? std::optional(*all[i].cut) : std::nullopt,
                    .range = written_range(all[i], i, kept)};
    const int64_t n = part.range.size();
    // No rank keeps an element of an empty tensor, so rank 0 writes it.
    const bool is_empty = c10::multiply_integers(part.sizes) == 0;
    if (n == 0 && !(is_empty && world().is_writer())) continue;
    SavedTensor saved = all[i];
    if (n < saved.tensor.numel()) {
      const at::Tensor flat = saved.tensor.reshape({-1});
      saved.tensor = flat.narrow(0, part.range.begin - (saved.own_end - flat.numel()), n);
    }
    LATHE_CHECK(saved.tensor.numel() == n, "this process keeps ", saved.tensor.numel(), " and not ",
                n, " elements of ", saved.name);
    saved.cut = nullptr;
    saved.sizes = part.sizes;
    if (!part.is_complete() && !is_empty) {
      saved.sizes = {n};
      saved.note = part.note();
    }
    own.push_back(std::move(saved));
  }
  return own;
}

/// Returns all tensors of a checkpoint, in the same order on all ranks.
std::vector<SavedTensor> all_tensors(const std::vector<NamedParameter>& parameters,
                                     const Optimizer& optimizer,
                                     std::optional<at::ScalarType> dtype) {
  std::vector<SavedTensor> all;
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    const auto [kept, end] = kept_elements(p);
    all.push_back({.in_model = true,
                   .name = p.path,
                   .tensor = kept,
                   .dtype = is_saved_lower(t, dtype) ? *dtype : t.scalar_type(),
                   .sizes = t.sizes().vec(),
                   .own_end = end,
                   .cut = cut_of(p.parameter)});
    // Forward passes change buffers, such as running statistics, so only parameters are updated by
    // the optimizer alone.
    all.back().is_updated = p.parameter.as_leaf() != nullptr;
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
    const auto [kept, end] = kept_elements(p);
    all.push_back({.in_model = false,
                   .name = p.path + ".master",
                   .tensor = kept,
                   .dtype = t.scalar_type(),
                   .sizes = t.sizes().vec(),
                   .own_end = end,
                   .cut = cut_of(p.parameter)});
  }

  return all;
}

/// Returns the tensors that this process writes. This call is a collective if divides_state().
std::vector<SavedTensor> written_tensors(const std::vector<NamedParameter>& parameters,
                                         const Optimizer& optimizer,
                                         std::optional<at::ScalarType> dtype) {
  const std::vector<SavedTensor> all = all_tensors(parameters, optimizer, dtype);
  return divides_state(optimizer) ? own_parts(all) : all;
}

/// Returns whether the tensor's memory can be written to the file as it is, and only the
/// optimizer's updates change the tensor.
bool is_live(const SavedTensor& saved) {
  return saved.is_updated && saved.dtype == saved.tensor.scalar_type() &&
         saved.optimizer == nullptr && saved.tensor.is_cpu() && saved.tensor.is_contiguous() &&
         !MappedMemory::holds(saved.tensor.storage().data_ptr());
}

void add(Snapshot& snapshot, const SavedTensor& saved, TensorEntry entry) {
  entry.shape = saved.sizes;
  entry.note = saved.note;
  (saved.in_model ? snapshot.model : snapshot.optimizer).push_back(std::move(entry));
}

void add(Snapshot& snapshot, const SavedTensor& saved, const at::Tensor& on_host) {
  snapshot.held.push_back(on_host);
  add(snapshot, saved, make_entry(saved.name, on_host));
}

TensorEntry entry_of(const SavedTensor& saved, std::function<at::Tensor()> make) {
  return make_entry(saved.name, saved.dtype, saved.sizes, std::move(make));
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
    const at::Tensor t = kept_elements(p).first;
    if (t.numel() == 0) continue;
    // The data ranks and the tensor ranks of a stage may have the same complete parameter. Only the
    // first of these ranks warns about it.
    const bool is_first = world().data().rank == 0 && world().tensor().rank == 0;
    const bool warns = is_first || t.numel() < full_numel(p.parameter);
    const auto [least, largest] = at::aminmax(t);  // both are NaN if an element is NaN
    if (!std::isfinite(least.item<double>()) || !std::isfinite(largest.item<double>())) {
      fail(Exit::diverged, "after step ", step, " the parameter ", p.path,
           " has elements that are not finite, so this step is not saved; lower optim.lr, "
           "lower or set optim.grad_clip, and run the same command again to resume from the "
           "previous checkpoint");
    }
    const auto fits = [&](const at::Tensor& x) {
      return std::isfinite(x.to(*dtype).to(at::kFloat).item<float>());
    };
    if (warns && is_saved_lower(t, dtype) && !(fits(least) && fits(largest))) {
      log_warn("after step ", step, " the parameter ", p.path, " has elements beyond the range of ",
               dtype_name(*dtype),
               ", which are infinite in model.safetensors; a resumed run has their exact values, "
               "but other commands do not: set checkpoint.dtype = \"bf16\"");
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
  snapshot.is_divided = divides_state(optimizer);
  for (const SavedTensor& saved : written_tensors(parameters, optimizer, dtype)) {
    if (saved.optimizer != nullptr)
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
  snapshot.is_divided = divides_state(optimizer);
  for (const SavedTensor& saved : written_tensors(parameters, optimizer, dtype)) {
    if (is_live(saved)) {
      add(snapshot, saved, snapshot.live->add(saved.name, saved.tensor));
      continue;
    }
    at::Tensor copy = snapshot.held.size() < reused.held.size() ? reused.held[snapshot.held.size()]
                                                                : at::Tensor();
    if (!copy.defined() || copy.scalar_type() != saved.dtype ||
        copy.sizes() != at::IntArrayRef(saved.sizes)) {
      const auto on_host =
          at::TensorOptions().dtype(saved.dtype).pinned_memory(saved.tensor.is_cuda());
      copy = at::empty(saved.sizes, on_host);
    }
    copy.copy_(saved.value().reshape(saved.sizes));
    add(snapshot, saved, copy);
  }
  return snapshot;
}

bool divides_state(const Optimizer& optimizer) {
  return optimizer.is_sharded() || world().tensor().size > 1;
}

CheckpointBytes checkpoint_bytes(const std::vector<NamedParameter>& parameters,
                                 const Optimizer& optimizer, std::optional<at::ScalarType> dtype) {
  CheckpointBytes bytes;
  for (const SavedTensor& saved : all_tensors(parameters, optimizer, dtype)) {
    const auto size = static_cast<int64_t>(c10::elementSize(saved.dtype));
    bytes.all += c10::multiply_integers(saved.full_sizes()) * size;
    bytes.kept += saved.tensor.numel() * size;
  }
  return bytes;
}

}  // namespace lathe
