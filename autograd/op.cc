#include "autograd/op.h"

#include <map>
#include <tuple>

#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/memory.h"

namespace lathe {
namespace {

thread_local detail::SavingScope* saving = nullptr;

struct CachedCast {
  Variable cast;
  std::shared_ptr<Node> parameter;  // kept alive, so that its address stays its own
  int64_t version = 0;
};
using CastKey = std::tuple<const Node*, at::ScalarType, bool>;
thread_local std::map<CastKey, CachedCast> cast_cache;

/// ATen's messages end in a backtrace and hints; the first line is the fact.
std::string first_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

}  // namespace

const at::Tensor& Saved::operator=(const at::Tensor& t) {
  tensor_ = t;
  if (!t.defined()) return tensor_;
  version_ = t._version();
  input_ = -1;
  if (saving == nullptr) return tensor_;
  // Two inputs may share a tensor and differ in their place in the graph (x and x.detach()), so the handle itself
  // counts first; what an op derived without change (contiguous()) is found by its tensor.
  for (size_t i = 0; i < saving->inputs.size() && input_ < 0; ++i) {
    if (saving->inputs[i] == &t) input_ = static_cast<int>(i);
  }
  for (size_t i = 0; i < saving->inputs.size() && input_ < 0; ++i) {
    if (saving->inputs[i]->is_same(t)) input_ = static_cast<int>(i);
  }
  return tensor_;
}

const at::Tensor& Saved::data() const {
  LATHE_CHECK(!tensor_.defined() || tensor_._version() == version_, running_node() ? running_node()->name() : "op",
              ": a tensor saved for backward (", describe(tensor_), ") was changed in place since");
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
  if (input_ >= 0) return Variable(t, node->next[static_cast<size_t>(input_)]);
  if (t.unsafeGetTensorImpl() == node->output) return Variable(t, node->shared_from_this());
  return Variable(t);
}

void clear_cast_cache() { cast_cache.clear(); }

std::set<std::string>& op_registry() {
  static std::set<std::string> names;
  return names;
}

detail::SavingScope::SavingScope(std::span<const at::Tensor* const> inputs_) : inputs(inputs_), outer(saving) {
  saving = this;
}
detail::SavingScope::~SavingScope() { saving = outer; }

Variable detail::autocast(Amp policy, const Variable& v) {
  const at::ScalarType compute = mode().compute;
  if (compute == at::kFloat || policy == Amp::promote || !v.defined() || !v.data().is_floating_point() ||
      v.dtype() == at::kDouble) {
    return v;
  }
  const at::ScalarType wanted = policy == Amp::low ? compute : at::kFloat;
  if (v.dtype() == wanted) return v;
  const auto* leaf = dynamic_cast<const Leaf*>(v.node().get());
  if (leaf == nullptr) return cast(v, wanted);
  if (leaf->low.defined() && leaf->low.scalar_type() == wanted) return Variable(leaf->low, v.node());
  const MemoryScope memory(Memory::casts);
  if (!mode().cache_casts) return cast(v, wanted);
  // Made with or without a graph, of this version of the parameter: a cast that does not fit is made anew.
  CachedCast& cached = cast_cache[{v.node().get(), wanted, mode().grad}];
  if (!cached.cast.defined() || cached.version != v.data()._version())
    cached = {cast(v, wanted), v.node(), v.data()._version()};
  return cached.cast;
}

void detail::rethrow(const char* name, std::span<const at::Tensor* const> inputs) {
  std::string call = name;
  size_t given = inputs.size();  // up to the last that is there
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
    fail(Exit::internal, call, ": ", e.what());
  }
}

}  // namespace lathe
