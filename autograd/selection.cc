// Chooses the ops whose results recompute_selectively() keeps. In this file, a part is the part of
// a graph that one Recomputation (recompute.h) runs again.
#include <algorithm>
#include <map>
#include <set>

#include "autograd/recompute.h"

namespace lathe {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A storage that one or more tensors of a part use.
struct SharedMemory {
  double bytes = 0;
  std::map<const c10::TensorImpl*, size_t> handles;  // for each tensor, the part's references
  bool is_held = false;   // also held outside of the part, so keeping the memory costs nothing
  bool is_saved = false;  // saved by an op, so it would stay alive without recomputation
  bool is_kept = false;
};

/// The memory of a part, by storage.
class PartMemory {
 public:
  /// Counts tensors of which the part has `handles` references each.
  void add(const Tensors& tensors, size_t handles, bool is_saved) {
    for (const at::Tensor& t : tensors) {
      if (!t.defined() || !t.has_storage()) continue;
      SharedMemory& block = blocks_[t.storage().unsafeGetStorageImpl()];
      block.bytes = static_cast<double>(t.storage().nbytes());
      size_t& known = block.handles[t.unsafeGetTensorImpl()];
      // A view holds a reference to its base tensor.
      if (known == 0 && t.is_view()) ++block.handles[t._base().unsafeGetTensorImpl()];
      known += handles;
      block.is_saved |= is_saved;
    }
  }

  /// Marks memory that is also held outside of the part: a tensor in this memory has more
  /// references than the part holds, or more tensors use the memory than the part has.
  void find_held(const Tensors& tensors) {
    for (const at::Tensor& t : tensors) {
      if (!t.defined() || !t.has_storage()) continue;
      SharedMemory& block = blocks_.at(t.storage().unsafeGetStorageImpl());
      const auto is_elsewhere = [&](const at::TensorBase& one) {
        return one.use_count() > block.handles.at(one.unsafeGetTensorImpl());
      };
      block.is_held |= is_elsewhere(t) || (t.is_view() && is_elsewhere(t._base())) ||
                       t.storage().use_count() > block.handles.size();
    }
  }

  /// Returns the bytes that the part's ops would keep without recomputation.
  double saved_bytes() const {
    double bytes = 0;
    for (const auto& [storage, block] : blocks_)
      bytes += block.is_saved && !block.is_held ? block.bytes : 0;
    return bytes;
  }

  /// Returns how many more bytes are in use if these tensors are kept. If `keep` is true, also
  /// counts the tensors as kept.
  double cost(const Tensors& inside, const Tensors& outputs, bool keep) {
    std::set<SharedMemory*> needed;
    for (const Tensors* tensors : {&inside, &outputs}) {
      for (const at::Tensor& t : *tensors) {
        if (!t.defined() || !t.has_storage()) continue;
        SharedMemory& block = blocks_.at(t.storage().unsafeGetStorageImpl());
        if (!block.is_held && !block.is_kept) needed.insert(&block);
      }
    }

    double bytes = 0;
    for (SharedMemory* block : needed) {
      bytes += block->bytes;
      block->is_kept |= keep;
    }
    return bytes;
  }

 private:
  std::map<const c10::StorageImpl*, SharedMemory> blocks_;
};

}  // namespace

void Recomputation::select(Selection& selection) {
  // Two handles refer to each tensor of Held::inside: the handle in held_ and the handle of the op.
  PartMemory blocks;
  for (const Held& held : held_) {
    blocks.add(held.inputs, 1, true);
    blocks.add(held.inside, 2, true);
    blocks.add(held.outputs, 1, false);
  }
  for (const Held& held : held_) {
    for (const Tensors* tensors : {&held.inputs, &held.inside, &held.outputs})
      blocks.find_held(*tensors);
  }

  struct Candidate {
    Held* held;
    double flops_per_byte;
  };
  // A result that a later op changed in place can't be kept: the recomputation needs the original
  // values.
  const auto is_changed = [](const Held& held) {
    for (size_t i = 0; i < held.outputs.size(); ++i) {
      const at::Tensor& t = held.outputs[i];
      if (t.defined() && t._version() != held.versions[i]) return true;
    }
    return false;
  };
  std::vector<Candidate> candidates;
  for (Held& held : held_) {
    const auto node = entries_[held.entry].node.lock();
    const double flops = held.forward.matmul + held.forward.other;
    if (!may_keep(held.forward) || !node || is_changed(held)) continue;
    if (node->can_rebuild_result()) held.outputs.clear();
    const double bytes = blocks.cost(held.inside, held.outputs, /*keep=*/false);
    candidates.push_back({&held, flops / std::max(bytes, 1.0)});
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return a.flops_per_byte > b.flops_per_byte;
  });

  double left = selection.share * blocks.saved_bytes() + selection.spare;
  for (const Candidate& candidate : candidates) {
    Held& held = *candidate.held;
    if (blocks.cost(held.inside, held.outputs, /*keep=*/false) > left) continue;
    left -= blocks.cost(held.inside, held.outputs, /*keep=*/true);
    Entry& entry = entries_[held.entry];
    entry.is_kept = true;
    entry.outputs = std::move(held.outputs);
  }
  selection.spare = left;

  for (const Entry& entry : entries_) {
    const auto node = entry.node.lock();
    if (node && !entry.is_kept) node->drop_saved();
  }
  held_.clear();
}

}  // namespace lathe
