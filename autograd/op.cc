#include "autograd/op.h"

#include <map>
#include <tuple>
#include <utility>

#include "autograd/ops.h"
#include "autograd/packing.h"
#include "autograd/recompute.h"
#include "core/dtype.h"
#include "core/memory.h"

namespace lathe {
namespace {

struct CachedCast {
  Variable cast;
  std::shared_ptr<Node> parameter;  // kept alive, so that no other node gets the same address
  int64_t version = 0;
};
using CastKey = std::tuple<const Node*, at::ScalarType, bool>;
thread_local std::map<CastKey, CachedCast> cast_cache;

/// Returns the first line: ATen's messages continue with a backtrace and hints.
std::string first_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

/// Returns whether a tensor is a placeholder for a mask while fused() records. A placeholder has no
/// values that could be read or changed.
bool is_stand_in(const at::Tensor& t) {
  return mode().chain != nullptr && t.defined() && t.is_meta();
}

}  // namespace

Saved::Saved(at::Tensor attribute) : tensor_(std::move(attribute)) {
  if (!tensor_.defined() || is_stand_in(tensor_)) return;
  version_ = tensor_._version();
  if (mode().observers != nullptr) [[unlikely]]
    ObserveOps::notify(&OpObserver::on_attribute, tensor_);
  if (mode().replaying != nullptr) [[unlikely]]
    mode().replaying->check_attribute(tensor_);
  if (mode().recording != nullptr) [[unlikely]]
    mode().recording->append_attribute(tensor_);
}

namespace {
thread_local const SavedVisit* saved_visit = nullptr;
}

VisitSaved::VisitSaved(const SavedVisit& visit) : outer_(std::exchange(saved_visit, &visit)) {}
VisitSaved::~VisitSaved() { saved_visit = outer_; }

Saved::Saved(const Saved& other)
    : tensor_(other.tensor_),
      packed_(other.packed_),
      version_(other.version_),
      place_(other.place_),
      given_(other.given_),
      index_(other.index_) {
  if (saved_visit != nullptr) (*saved_visit)(*this);
}

at::Tensor Saved::detach_input(std::span<const Variable> inputs) {
  const auto i = static_cast<size_t>(index_);
  if (place_ != Place::input || i >= inputs.size() || !tensor_.is_same(inputs[i].data())) return {};
  if (!tensor_.defined() || tensor_._version() != version_) return {};
  given_ = true;
  return std::exchange(tensor_, {});
}

void Saved::reattach_input(std::span<const Variable> inputs) {
  if (!std::exchange(given_, false)) return;
  tensor_ = inputs[static_cast<size_t>(index_)].data();
  version_ = tensor_._version();
}

void Saved::pack(std::shared_ptr<const PackedTensor> packed) {
  packed_ = std::move(packed);
  tensor_.reset();
}

void Saved::unpack() {
  if (!packed_) return;
  tensor_ = std::exchange(packed_, nullptr)->unpacked();
  version_ = tensor_._version();
}

const at::Tensor& Saved::operator=(const at::Tensor& t) {
  tensor_ = t;
  if (!t.defined()) return tensor_;
  version_ = t._version();
  detail::saved_something = true;
  return tensor_;
}

Node*& running_node() {
  static thread_local Node* node = nullptr;
  return node;
}

const at::Tensor& Saved::data() const {
  LATHE_CHECK(!tensor_.defined() || tensor_._version() == version_,
              running_node() ? running_node()->name() : "op", ": a tensor saved for backward (",
              describe(tensor_), ") was changed in place after it was saved");
  if (mode().observers != nullptr && !is_stand_in(tensor_)) [[unlikely]]
    ObserveOps::notify(&OpObserver::on_saved, tensor_);
  return tensor_;
}

template <>
at::Tensor Saved::as<at::Tensor>() const {
  return data();
}

template <>
Variable Saved::as<Variable>() const {
  const at::Tensor& t = data();
  Node* node = running_node();
  if (node == nullptr || !t.defined()) return Variable(t);
  if (place_ == Place::input) return Variable(t, node->next[static_cast<size_t>(index_)]);
  if (place_ == Place::output)
    return Variable(t, Edge(node->shared_from_this(), static_cast<uint32_t>(index_)));
  return Variable(t);
}

void require_defined(const char* name, std::initializer_list<const Variable*> inputs) {
  detail::check_defined(OpInfo{.name = name}, {inputs.begin(), inputs.size()});
}

void clear_cast_cache() { cast_cache.clear(); }

void drop_cached_casts(const Leaf& weight) {
  std::erase_if(cast_cache, [&](const auto& entry) { return std::get<0>(entry.first) == &weight; });
}

std::set<std::string>& elementwise_ops() {
  static std::set<std::string> names;
  return names;
}

std::set<std::string>& op_registry() {
  static std::set<std::string> names;
  return names;
}

Variable detail::autocast(Amp policy, const Variable& v) {
  const at::ScalarType compute = mode().compute;
  if (compute == at::kFloat || policy == Amp::promote || !v.defined() ||
      !at::isFloatingType(v.dtype()) || v.dtype() == at::kDouble) {
    return v;
  }

  const at::ScalarType wanted = policy == Amp::low ? compute : at::kFloat;
  if (v.dtype() == wanted) return v;
  // Only parameters have a working copy or a cached cast.
  Leaf* leaf = v.as_leaf();
  if (leaf == nullptr) return cast(v, wanted);

  // Do not record the cast of a weight for recomputation: the cache may have the cast in one run
  // and not in the other. Do not defer the cast: the category of its memory is set here.
  const auto cast_weight = [&] {
    const ModeGuard guard;
    mode().recording = mode().replaying = nullptr;
    mode().deferred = nullptr;
    return cast(v, wanted);
  };

  if (const at::Tensor& low = leaf->precision.low; low.defined() && low.scalar_type() == wanted) {
    // Something other than the optimizer may have written to the parameter.
    leaf->precision.refresh_low(v.data());
    return Variable(low, v.edge());
  }

  if (has_deferred_ops) compute_deferred();
  const MemoryScope memory(Memory::casts);
  if (!mode().cache_casts) return cast_weight();

  // A cached cast must belong to this version of the parameter. It must also have a graph if a
  // graph is recorded now. Otherwise, cast again.
  CachedCast& cached = cast_cache[{leaf, wanted, mode().grad && v.requires_grad()}];
  if (!cached.cast.defined() || cached.version != v.data()._version())
    cached = {.cast = cast_weight(), .parameter = v.node(), .version = v.data()._version()};
  return cached.cast;
}

void detail::rethrow(const char* name, std::span<const at::Tensor* const> inputs) {
  std::string call = name;
  size_t given = inputs.size();  // number of inputs up to the last defined one
  while (given > 0 && !inputs[given - 1]->defined()) --given;
  if (given > 0) {
    call += "(";
    for (size_t i = 0; i < given; ++i) call += (i ? ", " : "") + describe(*inputs[i]);
    call += ")";
  }
  try {
    throw;
  } catch (const c10::OutOfMemoryError& e) {
    fail(Exit::memory, call, ": ", first_line(e.what_without_backtrace()),
         "; make batch_size, block_size or the model smaller");
  } catch (const c10::Error& e) {
    fail(Exit::internal, call, ": ", first_line(e.what_without_backtrace()));
  } catch (const Error& e) {
    if (e.code() != Exit::internal) throw;
    fail(Exit::internal, call, ": ", e.what());
  }
}

void detail::rethrow_backward(const char* name) {
  try {
    throw;
  } catch (const c10::Error&) {
    rethrow(str(name, " backward").c_str(), {});
  }
}

void detail::saved_is_freed(const char* name) {
  fail(Exit::internal, name,
       ": its saved tensors were freed; a second backward pass needs retain=true in the first "
       "pass");
}

void detail::check_defined(const OpInfo& info, std::span<const Variable* const> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->defined() || (info.optional >> i & 1u) != 0) continue;
    std::string given;
    for (const Variable* v : inputs) given += (given.empty() ? "" : ", ") + describe(v->data());
    fail(Exit::internal, info.name, "(", given, "): input ", i,
         " is an undefined Variable; it must hold a tensor");
  }
}

bool detail::needs_node(std::span<const Variable> inputs) {
  return mode().grad && std::any_of(inputs.begin(), inputs.end(),
                                    [](const Variable& v) { return v.requires_grad(); });
}

void detail::link(Node& node, std::span<const Variable> inputs) {
  for (const Variable& v : inputs) node.next.push_back(v.edge());
}

}  // namespace lathe
