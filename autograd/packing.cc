#include "autograd/packing.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "autograd/op.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/e4m3.h"
#include "core/memory.h"

namespace lathe {
namespace {

constexpr int64_t least_row = 64;
constexpr size_t least_known = 1024;  // PackSaved remembers this many tensors before it removes any

/// Returns whether `packing` makes a tensor of this dtype smaller.
bool is_packed(at::ScalarType dtype, Packing packing) {
  if (dtype == at::kFloat) return true;
  return packing == Packing::fp8 && (dtype == at::kBFloat16 || dtype == at::kHalf);
}

/// Returns whether elements of t share memory, as the elements of an expanded tensor do. A copy of
/// such a tensor would be larger.
bool is_expanded(const at::Tensor& t) {
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1 && t.stride(d) == 0) return true;
  }
  return false;
}

/// Returns the length of a row: the product of the fewest last dims that together have at least
/// least_row elements.
int64_t row_of(const at::Tensor& t) {
  int64_t n = 1;
  for (int64_t d = t.dim() - 1; d >= 0 && n < least_row; --d) n *= t.size(d);
  return n;
}

}  // namespace

std::optional<Packing> packing_of(std::string_view name) {
  if (name == "bf16") return Packing::bf16;
  if (name == "fp8") return Packing::fp8;
  return std::nullopt;
}

at::Tensor RoundedTensor::unpacked() const {
  if (!factors.defined()) return data.to(dtype);

  at::Tensor t = at::empty(data.sizes(), data.options().dtype(dtype));
  const int64_t rows = factors.numel();
  (t.is_cuda() ? cuda_api().unpack_e4m3 : unpack_e4m3)(
      data.const_data_ptr<uint8_t>(), factors.const_data_ptr<float>(), t.mutable_data_ptr(),
      element_of(dtype), rows, t.numel() / rows);
  bump_version(t);
  return t;
}

PackSaved::PackSaved(Packing packing, int64_t least)
    : packing_(packing), least_(least), scope_(Memory::activations), sweep_at_(least_known) {
  install_allocator();
  mode().packer = this;
}

std::shared_ptr<const PackedTensor> PackSaved::pack(const at::Tensor& t) {
  if (!t.defined() || !is_packed(t.scalar_type(), packing_) || t.numel() < least_ ||
      is_expanded(t) || (t.is_cpu() && category_of(t.storage().data_ptr()) != Memory::activations))
    return nullptr;

  if (const auto found = known_.find(t.unsafeGetTensorImpl()); found != known_.end()) {
    auto known = found->second.packed.lock();
    if (known && !found->second.tensor.expired() && found->second.version == t._version())
      return known;
  }

  auto packed = std::make_shared<RoundedTensor>(t.scalar_type());
  RoundedTensor& made = *packed;
  const at::Tensor whole = t.contiguous();
  if (packing_ == Packing::bf16) {
    made.data = whole.to(at::kBFloat16);
  } else {
    const int64_t row = row_of(whole), rows = whole.numel() / row;
    made.data = at::empty(whole.sizes(), whole.options().dtype(at::kByte));
    made.factors = at::empty({rows}, whole.options().dtype(at::kFloat));
    (whole.is_cuda() ? cuda_api().pack_e4m3 : pack_e4m3)(
        whole.const_data_ptr(), element_of(made.dtype), made.data.mutable_data_ptr<uint8_t>(),
        made.factors.mutable_data_ptr<float>(), rows, row);
  }

  forget_expired();
  known_.insert_or_assign(
      t.unsafeGetTensorImpl(),
      Known{.tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr()),
            .version = t._version(),
            .packed = packed});
  return packed;
}

void PackSaved::forget_expired() {
  if (known_.size() < sweep_at_) return;
  std::erase_if(known_, [](const auto& entry) {
    return entry.second.tensor.expired() || entry.second.packed.expired();
  });
  sweep_at_ = std::max(2 * known_.size(), least_known);
}

namespace {

/// Returns whether a slot is for an input that is a parameter. On a GPU, also returns true for a
/// constant or a cast of a parameter, since GPU memory has no category that identifies them.
bool is_given(const Node& node, const Saved& saved) {
  if (saved.place() != Saved::Place::input) return false;
  const Node* from = node.next[static_cast<size_t>(saved.index())].node.get();
  if (!saved.kept().is_cpu()) {
    if (from == nullptr) return true;
    if (from->name() == "cast") from = from->next[0].node.get();
  }
  return from != nullptr && from->as_leaf() != nullptr;
}

}  // namespace

void detail::pack_saved(Node& node, const OpInfo& info) {
  SavedPacker& packer = *mode().packer;
  if (info.exact && !packer.is_exact()) return;
  node.visit_saved([&](Saved& saved) {
    if (!saved.defined() || (saved.place() == Saved::Place::inside && !packer.is_exact())) return;
    if (is_given(node, saved)) return;
    if (auto packed = packer.pack(saved.kept())) {
      saved.pack(std::move(packed));
      node.packed = true;
    }
  });
}

}  // namespace lathe
