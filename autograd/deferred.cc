#include "autograd/deferred.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "autograd/chain_formula.h"
#include "autograd/chain_op.h"
#include "autograd/chain_trace.h"
#include "autograd/node.h"
#include "autograd/saved_packer.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {

/// The node of a deferred op. The node takes its position in the graph before the op runs. `made`
/// is the node of the op that later computes the output.
struct DeferredNode final : Node {
  explicit DeferredNode(const at::Tensor& output) : Node({&output, 1}) {}

  /// Sets `made` to the node of the computed result. `node` is null if no gradient flows to the
  /// inputs any more.
  void take(std::shared_ptr<Node> node) {
    if (!node) return;
    made = std::move(node);
    made->in_graph = this;
    next = made->next;
    packed = made->packed;
    backward_flops = made->backward_flops;
  }

  std::string name() const override { return made ? made->name() : "deferred"; }
  GradList<at::Tensor> backward(const GradList<at::Tensor>& dy, const NeedsList& needs,
                                GradSlots& slots) override {
    return made ? made->backward(dy, needs, slots) : GradList<at::Tensor>();
  }
  GradList<Variable> backward(const GradList<Variable>& dy, const NeedsList& needs) override {
    return made ? made->backward(dy, needs) : GradList<Variable>();
  }
  void release() override {
    if (made) made->release();
  }
  void visit_saved(const SavedVisit& visit) override {
    if (made) made->visit_saved(visit);
  }

  std::shared_ptr<Node> made;
};

namespace {

thread_local FusionCount fused_so_far;

/// Returns a contiguous tensor on the CPU that has no memory yet.
at::Tensor tensor_without_memory(at::IntArrayRef sizes, at::ScalarType dtype) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(), nullptr, false);
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                    c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                    c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

/// Gives `to` the memory and the version counter of `from`, which must not be used afterward.
void become(const at::Tensor& to, const at::Tensor& from) {
  LATHE_CHECK(from.sizes() == to.sizes() && from.scalar_type() == to.scalar_type() &&
                  from.is_contiguous() && from.storage_offset() == 0,
              "a deferred op returned ", describe(from), " instead of ", describe(to));
  c10::TensorImpl* const impl = to.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(from.storage());
  impl->set_version_counter(from.unsafeGetTensorImpl()->version_counter());
}

}  // namespace

/// Deferred ops over one shape.
class DeferredTrace final : public ChainTrace {
 public:
  explicit DeferredTrace(at::IntArrayRef sizes) : ChainTrace(sizes) {}
  /// Resizes the results of ops that never ran to zero elements, since these results have no
  /// memory.
  ~DeferredTrace() override {
    for (const auto& [t, value] : stand_ins_) {
      if (t.storage().nbytes() == 0) t.unsafeGetTensorImpl()->set_sizes_contiguous({0});
    }
  }

  bool grad() const { return grad_; }
  Variable record(const ChainForm& form, const OpInfo& info, std::span<const Variable> inputs) {
    return add(form, info, inputs);
  }
  /// Runs the ops.
  void compute();

 protected:
  at::Tensor stand_in(int value) override {
    at::Tensor t = tensor_without_memory(formula_.sizes_of(value, sizes()), formula_[value].dtype);
    stand_ins_.emplace_back(t, value);
    return t;
  }
  Variable placeholder(int value) override {
    at::Tensor t = stand_in(value);
    if (!formula_[value].needs_grad) return Variable(std::move(t));
    const auto node = std::make_shared<DeferredNode>(t);
    nodes_[value] = node;
    return Variable(std::move(t), Edge(node));
  }
  bool is_connected(const Variable& v, int value) const override {
    const auto found = nodes_.find(value);
    return v.node() == (found == nodes_.end() ? nullptr : found->second);
  }

 private:
  static constexpr int none = -1;

  /// Divides the ops into parts, one for each stored value. The part of a value is the value itself
  /// if it is stored. Otherwise, it is the only stored value that depends on the value directly or
  /// through values that are not stored. The part is `none` for inputs, and for values on which no
  /// stored value depends. Also marks as stored every value that several parts need.
  void divide();
  /// Returns whether each input gets its gradients in the same order as if the ops ran one by one.
  bool keeps_order() const;
  bool has_handle(int value) const;
  void run_part(int result);

  std::map<int, std::shared_ptr<DeferredNode>> nodes_;  // nodes of the values that need a gradient
  std::vector<at::Tensor> tensors_;                     // by value; undefined for inputs
  std::vector<bool> is_stored_;
  std::vector<int> part_;  // for each value, the stored value whose part computes it
};

bool DeferredTrace::has_handle(int value) const {
  // stand_ins_ and tensors_ hold one reference each.
  if (tensors_[static_cast<size_t>(value)].use_count() > 2) return true;
  const auto found = nodes_.find(value);
  if (found == nodes_.end()) return false;
  const DeferredNode& node = *found->second;
  return found->second.use_count() > 1 || !node.outputs[0].hooks.empty();
}

void DeferredTrace::divide() {
  const auto& values = formula_.values();
  part_.assign(values.size(), none);
  std::vector<bool> is_needed(values.size());
  for (size_t v = values.size(); v-- > 0;) {
    if (values[v].op == ChainOp::input) continue;
    if (is_stored_[v]) {
      part_[v] = static_cast<int>(v);
      is_needed[v] = true;
    }
    if (!is_needed[v]) continue;

    for (const int from : values[v].from) {
      if (from < 0 || values[static_cast<size_t>(from)].op == ChainOp::input) continue;
      const auto f = static_cast<size_t>(from);
      // Two parts need the value, so its gradients must be summed before they flow further.
      if (is_needed[f] && part_[f] != part_[v]) is_stored_[f] = true;
      is_needed[f] = true;
      part_[f] = part_[v];
    }
  }
}

bool DeferredTrace::keeps_order() const {
  // If the ops ran one by one, an input would get the gradient of its newest use first. In
  // backward, parts run newest first, and each part adds the gradients of all its uses of the
  // input.
  const auto& values = formula_.values();
  std::vector<int> last(values.size(), static_cast<int>(values.size()));
  for (size_t v = values.size(); v-- > 0;) {
    if (part_[v] == none) continue;
    for (const int from : values[v].from) {
      if (from < 0) continue;
      const auto f = static_cast<size_t>(from);
      const bool is_outside = values[f].op == ChainOp::input || is_stored_[f];
      if (!is_outside || !values[f].needs_grad) continue;
      if (part_[v] > last[f]) return false;
      last[f] = part_[v];
    }
  }
  return true;
}

void DeferredTrace::run_part(int result) {
  const auto& values = formula_.values();
  ChainFormula formula;
  std::vector<ChainInput> inputs;
  std::vector<int> place(values.size(), none);  // index of each value in the part's formula
  PerElement cost{0, 0};
  int ops = 0;

  const auto input = [&](int value) {
    int& at = place[static_cast<size_t>(value)];
    if (at != none) return at;
    const ChainValue& v = formula_[value];
    at = formula.add_input(v.dtype, v.needs_grad, v.per_row);
    ChainInput in;
    if (v.per_row) in.layout = per_row_layout();
    if (v.op == ChainOp::input) {
      in = this->inputs()[static_cast<size_t>(v.input)];
    } else {
      const at::Tensor& t = tensors_[static_cast<size_t>(value)];
      const auto node = nodes_.find(value);
      in.variable = node == nodes_.end() ? Variable(t) : Variable(t, Edge(node->second));
      in.version = t._version();
    }
    in.value = at;
    inputs.push_back(std::move(in));
    return at;
  };

  for (int v = 0; v <= result; ++v) {
    const auto i = static_cast<size_t>(v);
    if (part_[i] != result) continue;
    std::array<int, 3> from{none, none, none};
    for (size_t k = 0; k < from.size() && values[i].from[k] >= 0; ++k) {
      const int operand = values[i].from[k];
      const bool is_inside = part_[static_cast<size_t>(operand)] == result &&
                             !is_stored_[static_cast<size_t>(operand)];
      from[k] = is_inside ? place[static_cast<size_t>(operand)] : input(operand);
    }
    place[i] = formula.add_like(values[i], from);
    cost.forward += costs_[i].forward;
    if (values[i].needs_grad) cost.backward += costs_[i].backward;
    ++ops;
  }

  const at::Tensor& standing = tensors_[static_cast<size_t>(result)];
  const Variable y = [&] {
    if (ops > 1) {
      fused_so_far.ops += ops;
      ++fused_so_far.fused;
      return apply_chain(formula, inputs, place[static_cast<size_t>(result)], sizes(), cost);
    }
    std::vector<Variable> operands;
    for (const int from : values[static_cast<size_t>(result)].from) {
      if (from < 0) break;
      const int at = place[static_cast<size_t>(from)];
      operands.push_back(inputs[static_cast<size_t>(formula[at].input)].variable);
    }
    return run_value(values[static_cast<size_t>(result)], operands, operands[0].data());
  }();
  become(standing, y.data());
  if (const auto node = nodes_.find(result); node != nodes_.end()) node->second->take(y.node());
}

void DeferredTrace::compute() {
  for (const ChainInput& input : inputs()) {
    const at::Tensor& t = input.variable.data();
    LATHE_CHECK(t._version() == input.version, "a tensor ", describe(t),
                " was changed in place before a deferred op that reads it ran; change it through "
                "its Variable, or set train.fuse = \"off\"");
  }

  const auto& values = formula_.values();
  tensors_.resize(values.size());
  for (const auto& [t, value] : stand_ins_) tensors_[static_cast<size_t>(value)] = t;
  is_stored_.assign(values.size(), false);
  for (const auto& [t, value] : stand_ins_)
    is_stored_[static_cast<size_t>(value)] = has_handle(value);

  divide();
  if (!keeps_order()) {
    for (size_t v = 0; v < values.size(); ++v) is_stored_[v] = is_stored_[v] || part_[v] != none;
    divide();
  }

  for (size_t v = 0; v < values.size(); ++v) {
    if (part_[v] == static_cast<int>(v)) run_part(static_cast<int>(v));
  }
}

namespace detail {
namespace {

/// The number of values after which the ops run, so that a long program of elementwise ops needs no
/// more memory than if the ops ran one by one.
constexpr size_t most_values = 64;

}  // namespace

void compute_deferred() { mode().deferred->compute(); }

Variable record_or_run(const std::optional<ChainForm>& form, const OpInfo& info,
                       std::span<const Variable> inputs) {
  if (mode().chain != nullptr) {
    if (form) return mode().chain->record(*form, info, inputs);
    abandon_chain_if_used(inputs);
    return {};
  }
  Variable y = form ? mode().deferred->record(*form, info, inputs) : Variable();
  if (!y.defined() && has_deferred_ops) compute_deferred();
  return y;
}

DeferOps::DeferOps(int64_t least, std::vector<at::Tensor> changing)
    : least_(least), changing_(std::move(changing)), mode_(mode()) {
  if (mode().deferred != nullptr) mode().deferred->compute();
  mode().deferred = this;
}

DeferOps::~DeferOps() { has_deferred_ops = false; }

/// Returns whether an operand is a constant that shares memory with a tensor that may change.
bool DeferOps::reads_changing(const ChainForm& form, std::span<const Variable> inputs) const {
  const auto may_change = [&](const at::Tensor& t) {
    return t.defined() &&
           std::ranges::any_of(changing_, [&](const at::Tensor& c) { return c.is_alias_of(t); });
  };
  return may_change(form.mask) || std::ranges::any_of(inputs, [&](const Variable& v) {
           return v.node() == nullptr && may_change(v.data());
         });
}

Variable DeferOps::record(const ChainForm& form, const OpInfo& info,
                          std::span<const Variable> inputs) {
  const Mode& m = mode();
  if (m.observers != nullptr || m.recording != nullptr || m.replaying != nullptr ||
      m.flops != mode_.flops || m.packer != mode_.packer)
    return {};
  // An op "fused" saves different tensors than the ops that it replaces, so a packer that rounds
  // would round different tensors.
  if (m.packer != nullptr && !m.packer->is_exact()) return {};

  // Variable::data() would run the deferred ops. Prevent that while this function reads `inputs`.
  has_deferred_ops = false;
  struct Restore {
    const std::unique_ptr<DeferredTrace>& trace;
    ~Restore() { has_deferred_ops = trace != nullptr; }
  } const restore{trace_};
  return record_on_cpu(form, info, inputs);
}

Variable DeferOps::record_on_cpu(const ChainForm& form, const OpInfo& info,
                                 std::span<const Variable> inputs) {
  std::vector<int64_t> sizes;
  for (const Variable& v : inputs) {
    if (!v.data().is_cpu()) return {};
    if (v.sizes() == at::IntArrayRef(sizes) || at::is_expandable_to(v.sizes(), sizes)) continue;
    if (at::is_expandable_to(sizes, v.sizes())) {
      sizes = v.sizes().vec();
    } else if (trace_ && at::is_expandable_to(sizes, trace_->sizes()) &&
               at::is_expandable_to(v.sizes(), trace_->sizes())) {
      sizes = at::infer_size(sizes, v.sizes());  // for example, a row and a column give a matrix
    } else {
      return {};
    }
  }
  if (form.mask.defined() && !at::is_expandable_to(form.mask.sizes(), sizes)) return {};
  // An op on recorded values with one element per row joins the recorded ops, although its result
  // is smaller than theirs.
  const bool is_of_rows =
      trace_ && trace_->has_rows() && sizes == per_row_sizes(trace_->sizes()) &&
      std::ranges::any_of(inputs, [&](const Variable& v) { return trace_->has(v); });
  if (!is_of_rows && c10::multiply_integers(sizes) < least_) return {};
  if (!changing_.empty() && reads_changing(form, inputs)) return {};

  if (trace_ && (trace_->grad() != mode().grad || (!is_of_rows && trace_->sizes() != sizes) ||
                 trace_->formula().values().size() >= most_values)) {
    compute();
    if (is_of_rows) return {};
  }
  if (!trace_) trace_ = std::make_unique<DeferredTrace>(sizes);
  try {
    return trace_->record(form, info, inputs);
  } catch (const ChainAbandoned&) {
    return {};  // the op runs immediately
  }
}

void DeferOps::compute() {
  has_deferred_ops = false;
  if (!trace_) return;
  const auto trace = std::move(trace_);
  const ModeGuard guard;
  const bool grad = trace->grad();
  mode() = mode_;
  mode().grad = grad;
  mode().deferred = nullptr;
  mode().compute = at::kFloat;  // the casts of autocast were recorded as ops
  trace->compute();
}

}  // namespace detail

FusionCount fusion_count() { return fused_so_far; }

}  // namespace lathe
