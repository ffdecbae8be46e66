#include "nn/anomaly.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/masked_select.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "autograd/op.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/io/text.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

struct Counts {
  int64_t nan = 0, infinite = 0;
  bool finite() const { return nan == 0 && infinite == 0; }
};

Counts count(const at::Tensor& t) {
  if (!t.defined() || !t.is_floating_point() || t.numel() == 0 || t.is_meta()) return {};
  const int64_t bad = t.numel() - at::isfinite(t).sum().item<int64_t>();
  if (bad == 0) return {};
  const int64_t nan = at::isnan(t).sum().item<int64_t>();
  return {nan, bad - nan};
}

/// Returns a description such as "float32[2,3], 1 NaN and 2 infinite of 6, the others from -1 to
/// 2".
std::string facts(const at::Tensor& t) {
  std::string text = describe(t);
  if (!t.defined() || !t.is_floating_point() || t.numel() == 0 || t.is_meta()) return text;
  const Counts n = count(t);
  if (!n.finite()) text += str(", ", n.nan, " NaN and ", n.infinite, " infinite of ", t.numel());
  const at::Tensor rest = n.finite() ? t : at::masked_select(t, at::isfinite(t));
  if (rest.numel() > 0) {
    text += format(n.finite() ? " from %.4g to %.4g" : ", the others from %.4g to %.4g",
                   rest.min().item<double>(), rest.max().item<double>());
  }
  return text;
}

}  // namespace

struct DetectAnomaly::Watch {
  /// The module and the inputs of an op that created a node.
  struct Made {
    std::weak_ptr<const Node> node;
    std::string where, inputs;
  };
  std::unordered_map<const Node*, Made> made;
  size_t prune_at = 1024;  // number of entries at which expired entries are removed

  static std::string where() {
    const ModuleCall* call = ModuleCall::innermost();
    return call == nullptr ? "" : " in " + call->text();
  }
  static std::string inputs_text(std::span<const Variable> inputs) {
    std::string text;
    for (const Variable& v : inputs) {
      const Leaf* leaf = v.as_leaf();
      text += (text.empty() ? "" : "; ") + facts(v.data());
      if (leaf != nullptr && !leaf->label.empty()) text += " (" + leaf->label + ")";
    }
    return text;
  }

  void check_result(const OpResult& r) {
    bool finite = true, has_nan = false;
    for (const at::Tensor& y : r.outputs) {
      const Counts n = count(y);
      finite = finite && n.finite();
      has_nan = has_nan || n.nan > 0;
    }
    // These ops may write an infinity that a mask or an argument gives, usually -infinity. A fused
    // op may contain masked_fill.
    static const std::set<std::string> fillers{"masked_fill", "masked_fill_", "pad", "fused"};
    const bool masks = fillers.contains(r.name);
    bool given_finite = true;
    for (const Variable& v : r.inputs) {
      const Counts n = count(v.data());
      given_finite = given_finite && n.finite();
      if (n.finite() || masks) continue;
      // A parameter's working copy counts as the parameter. A constant may contain infinities on
      // purpose.
      const bool parameter = v.as_leaf() != nullptr;
      if (!parameter && (v.node() != nullptr || n.nan == 0)) continue;
      fail(Exit::diverged, "anomaly: ", r.name, where(), " was given ",
           parameter ? "a parameter" : "data", " that is not finite: ", inputs_text(r.inputs));
    }
    if (!finite && given_finite && (has_nan || !masks)) {
      std::string results;
      for (const at::Tensor& y : r.outputs) results += (results.empty() ? "" : "; ") + facts(y);
      fail(Exit::diverged, "anomaly: ", r.name, where(), " produced values that are not finite (",
           results, ") from finite ones: ", inputs_text(r.inputs));
    }
    if (r.node != nullptr) remember(*r.node, r.inputs);
  }

  void remember(const Node& node, std::span<const Variable> inputs) {
    // Remove entries of nodes that no longer exist, which would accumulate over many graphs.
    if (made.size() >= prune_at) {
      std::erase_if(made, [](const auto& entry) { return entry.second.node.expired(); });
      prune_at = std::max(prune_at, 2 * made.size());
    }

    // In a recomputation, keep the node's first entry, which has the module's path in the complete
    // model.
    const auto found = made.find(&node);
    if (mode().is_recomputing && found != made.end() && !found->second.node.expired()) return;
    made[&node] = {.node = node.weak_from_this(), .where = where(), .inputs = inputs_text(inputs)};
  }

  void check_backward(const BackwardResult& r) {
    const auto found = made.find(&r.node);
    const std::string place = found == made.end() ? "" : found->second.where;
    const std::string forward =
        found == made.end() ? "" : "; in the forward pass it was given " + found->second.inputs;

    bool arrived_finite = true;
    std::string arrived;
    for (const at::Tensor& t : r.dy) {
      arrived_finite = arrived_finite && count(t).finite();
      arrived += (arrived.empty() ? "" : "; ") + facts(t);
    }

    // No earlier backward function produced this value, since the results of every backward
    // function are checked. The value comes from the loss scale, or from a sum of finite gradients.
    if (!arrived_finite) {
      fail(Exit::diverged, "anomaly: the gradient that reached the result of ", r.node.name(),
           place,
           " is not finite; either finite gradients overflowed in their sum, or backward began "
           "with this gradient: ",
           arrived, forward);
    }

    for (size_t i = 0; i < r.grads.size(); ++i) {
      if (count(r.grads[i]).finite()) continue;
      fail(Exit::diverged, "anomaly: the backward of ", r.node.name(), place,
           " produced a gradient that is not finite for its input ", i, " (", facts(r.grads[i]),
           ") from finite gradients: ", arrived, forward);
    }
  }

  std::optional<ObserveOps> observe{};
};

DetectAnomaly::DetectAnomaly(Options options) : watch_(std::make_unique<Watch>()) {
  OpObserver observer{.on_result = [w = watch_.get()](const OpResult& r) { w->check_result(r); }};
  if (options.backward)
    observer.on_backward = [w = watch_.get()](const BackwardResult& r) { w->check_backward(r); };
  watch_->observe.emplace(std::move(observer));
}
DetectAnomaly::~DetectAnomaly() = default;

}  // namespace lathe
