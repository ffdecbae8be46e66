#include "autograd/facts.h"

#include "autograd/node.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {
namespace {

bool has_storage(const at::Tensor& t) { return t.defined() && t.has_storage() && !t.is_meta(); }

/// Returns the positions of the first and the last element of the storage that the tensor covers.
std::pair<int64_t, int64_t> range_of(const at::Tensor& t) {
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d)
    last += (t.size(d) - 1) * t.stride(d);  // ATen's strides are never negative
  return {t.storage_offset(), last};
}

/// Returns the source behind an edge: "a constant", "the parameter w", "the result of mul".
std::string edge_source(const Edge& edge) {
  if (!edge) return "a constant";
  if (const Leaf* leaf = edge.node->as_leaf())
    return leaf->label.empty() ? "a parameter" : "the parameter " + leaf->label;
  return "the result of " + edge.node->name();
}

bool is_view(const at::Tensor& t) {
  return has_storage(t) && t.numel() > 0 &&
         (t.storage().use_count() > 1 || t.nbytes() < t.storage().nbytes());
}

}  // namespace

std::string describe_tensor(const at::Tensor& t) {
  std::string text = describe(t);
  if (!t.defined()) return text;
  text += ", strides " + describe(t.strides()) +
          (t.is_contiguous() ? ", contiguous" : ", not contiguous");
  if (!has_storage(t)) return text + ", a shape without storage";
  const auto bytes = t.storage().nbytes();
  if (t.numel() == 0) {
    text += ", no elements";
  } else {
    const auto [first, last] = range_of(t);
    text += str(", elements ", first, " to ", last);
  }
  const auto holders = t.storage().use_count();
  return text + str(" of a storage of ", bytes, " bytes on ", t.device().str(), " that ", holders,
                    holders == 1 ? " tensor holds" : " tensors hold");
}

std::string describe_tensor(const Variable& x) {
  std::string text = describe_tensor(x.data());
  if (!x.defined()) return text;
  if (const Leaf* leaf = x.as_leaf())
    return text + (leaf->frozen ? "; frozen parameter" : "; parameter") +
           (leaf->label.empty() ? "" : " ") + leaf->label;
  if (!x.node()) return text + (is_view(x.data()) ? "; a constant, a view" : "; a constant");
  text += (is_view(x.data()) ? "; a view, by " : "; by ") + x.node()->name();
  std::string of;
  for (const Edge& edge : x.node()->next) of += (of.empty() ? " of " : ", ") + edge_source(edge);
  return text + of;
}

bool may_share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!has_storage(a) || !has_storage(b) || a.numel() == 0 || b.numel() == 0 ||
      a.storage().unsafeGetStorageImpl() != b.storage().unsafeGetStorageImpl())
    return false;
  const auto [a0, a1] = range_of(a);
  const auto [b0, b1] = range_of(b);
  const auto size = [](const at::Tensor& t) { return static_cast<int64_t>(t.element_size()); };
  return a0 * size(a) < (b1 + 1) * size(b) && b0 * size(b) < (a1 + 1) * size(a);
}

}  // namespace lathe
