#include "train/analysis/op_list.h"

#include <algorithm>
#include <map>
#include <span>
#include <sstream>

#include "autograd/op.h"
#include "core/dtype.h"
#include "core/io/text.h"
#include "core/mode.h"
#include "nn/module_call.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

using Phase = Span::Phase;

/// The set of tensors that an op reads or writes.
class Tensors {
 public:
  void add(const at::Tensor& t) {
    const bool known = std::any_of(all_.begin(), all_.end(),
                                   [&](const at::Tensor& other) { return other.is_same(t); });
    if (t.defined() && !known) all_.push_back(t);
  }
  bool has_memory_of(const at::Tensor& t) const {
    return std::any_of(all_.begin(), all_.end(),
                       [&](const at::Tensor& other) { return other.is_alias_of(t); });
  }
  /// Returns the bytes of all tensors. An element that a broadcast repeats counts once.
  int64_t bytes() const {
    int64_t sum = 0;
    for (const at::Tensor& t : all_)
      sum += static_cast<int64_t>(std::min(t.nbytes(), t.storage().nbytes()));
    return sum;
  }
  bool empty() const { return all_.empty(); }
  std::vector<std::string> described() const {
    std::vector<std::string> out;
    for (const at::Tensor& t : all_) out.push_back(describe(t));
    return out;
  }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<at::Tensor> all_;
};

/// Sets the fields of `op` that depend on its tensors: whether it allocates and whether it is
/// elementwise, and the bytes that it reads and writes.
void count_bytes(StepOp& op, const Tensors& from, const Tensors& to) {
  Tensors fresh;
  for (const at::Tensor& t : to) {
    if (!from.has_memory_of(t)) fresh.add(t);
  }
  op.allocates = !fresh.empty();
  op.elementwise = elementwise_ops().contains(op.op);

  const bool in_place = op.op.ends_with('_');
  if (!op.allocates && !in_place) return;
  op.read = from.bytes();
  op.written = in_place ? to.bytes() : fresh.bytes();
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

std::string line_of(const StepOp& op, size_t number) {
  std::string tensors = joined(op.inputs);
  if (!op.saved.empty()) tensors += "; saved " + joined(op.saved);
  // FLOPs of a recomputation are not counted; the class Recomputation explains why.
  const std::string flops =
      op.phase == Phase::recompute ? "-" : format("%.3f", (op.flops.matmul + op.flops.other) / 1e6);
  return format("%5zu  %-10s%-24s%-28s%11.4f%11.4f%11s  %-6s", number, phase_name(op.phase),
                op.op.c_str(), op.module.c_str(), static_cast<double>(op.read) / 1e6,
                static_cast<double>(op.written) / 1e6, flops.c_str(), op.allocates ? "new" : "") +
         tensors + " -> " + joined(op.outputs) + "\n";
}

}  // namespace

OpList::OpList()
    : observe_({.on_result = [this](const OpResult& r) { add_result(r); },
                .on_saved = [this](const at::Tensor& t) { saved_.push_back(t); },
                .on_backward = [this](const BackwardResult& r) { add_backward(r); }}) {
  mode().flops = &flops_;
}

void OpList::add_result(const OpResult& r) {
  StepOp op{.phase = mode().is_recomputing ? Phase::recompute : Phase::forward, .op = r.name};
  if (const ModuleCall* call = ModuleCall::innermost()) op.module = call->path();

  Tensors from, to;
  for (const Variable& v : r.inputs) from.add(v.data());
  for (const at::Tensor& t : r.outputs) to.add(t);
  op.inputs = from.described();
  op.outputs = to.described();
  op.flops = flops_.forward;
  // The op may also read a mask or an index, which it saves for backward.
  for (const at::Tensor& t : saved_) from.add(t);
  count_bytes(op, from, to);

  if (r.node != nullptr && !(mode().is_recomputing && modules_.contains(r.node)))
    modules_[r.node] = op.module;
  ops_.push_back(std::move(op));
  flops_ = {};
  saved_.clear();
}

void OpList::add_backward(const BackwardResult& r) {
  StepOp op{.phase = Phase::backward, .op = r.node.name()};
  if (const auto found = modules_.find(&r.node); found != modules_.end()) op.module = found->second;

  Tensors from, saved, to;
  for (const at::Tensor& t : r.dy) from.add(t);
  op.inputs = from.described();
  for (const at::Tensor& t : saved_) saved.add(t);
  op.saved = saved.described();
  for (const at::Tensor& t : saved) from.add(t);
  for (const at::Tensor& t : r.grads) to.add(t);
  op.outputs = to.described();
  op.flops = r.node.backward_flops;
  count_bytes(op, from, to);

  ops_.push_back(std::move(op));
  flops_ = {};
  saved_.clear();
}

StepOps list_step_ops(Session& s, const Data& data, int64_t step) {
  Loader loader = training_loader(s, data, 0);
  for (int64_t before = 0; before < step; ++before) run_step(s, loader, before);
  StepOps listed{.step = step};
  {
    const OpList list;
    run_step(s, loader, step);
    listed.ops = list.ops();
  }

  const FusionCount before = fusion_count();
  run_step(s, loader, step + 1);
  const FusionCount after = fusion_count();
  listed.fusion = {.ops = after.ops - before.ops, .fused = after.fused - before.fused};
  return listed;
}

std::string op_list_text(const StepOps& listed) {
  const std::vector<StepOp>& ops = listed.ops;
  struct Total {
    int64_t forward = 0, backward = 0, bytes = 0;
  };
  std::map<std::string, Total> totals;
  int64_t bytes = 0, elementwise_bytes = 0, elementwise = 0, allocations = 0;
  double flops = 0;

  std::ostringstream out;
  out << format("The ops of step %lld in their order: MB read and written, MFLOP, and \"new\" ",
                static_cast<long long>(listed.step))
      << "where a result has newly allocated memory.\n\n"
      << format("%5s  %-10s%-24s%-28s%11s%11s%11s\n", "", "", "op", "module", "read", "written",
                "MFLOP");
  for (size_t i = 0; i < ops.size(); ++i) {
    const StepOp& op = ops[i];
    out << line_of(op, i + 1);
    Total& total = totals[op.op];
    ++(op.phase == Phase::backward ? total.backward : total.forward);
    total.bytes += op.read + op.written;
    bytes += op.read + op.written;
    flops += op.flops.matmul + op.flops.other;
    allocations += op.allocates;
    if (op.elementwise) {
      ++elementwise;
      elementwise_bytes += op.read + op.written;
    }
  }

  std::vector<std::pair<std::string, Total>> sorted(totals.begin(), totals.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  out << format("\n%-24s%9s%10s%11s\n", "op", "forward", "backward", "MB");
  for (const auto& [name, total] : sorted)
    out << format("%-24s%9lld%10lld%11.3f\n", name.c_str(), static_cast<long long>(total.forward),
                  static_cast<long long>(total.backward), static_cast<double>(total.bytes) / 1e6);

  const double share =
      bytes > 0 ? 100 * static_cast<double>(elementwise_bytes) / static_cast<double>(bytes) : 0;
  out << format("\n%zu ops and backward passes, %lld with new memory for results, ", ops.size(),
                static_cast<long long>(allocations))
      << format("%.3f MB, %.3f MFLOP; ", static_cast<double>(bytes) / 1e6, flops / 1e6)
      << format("%lld of them are elementwise, with %.1f%% of the bytes.\n",
                static_cast<long long>(elementwise), share)
      << format(
             "train.fuse replaces %lld ops of the forward pass by %lld fused ops, and their "
             "backward passes likewise.\n",
             static_cast<long long>(listed.fusion.ops),
             static_cast<long long>(listed.fusion.fused));
  return out.str();
}

}  // namespace lathe
