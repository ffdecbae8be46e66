#include "autograd/recompute.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "autograd/op.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {
namespace {

/// Returns the tensor's version, or -1 for an undefined tensor.
int64_t version_of(const Variable& v) { return v.defined() ? v.data()._version() : -1; }

[[noreturn]] void fail_other(const std::string& first, const std::string& second) {
  fail(Exit::internal, "recompute: the function ran ", second, " the second time and ", first,
       " the first time; it must run the same ops each time");
}

}  // namespace

Recomputation::Recomputation(std::function<void()> again, const Selection* selection)
    : again_(std::move(again)),
      is_selective_(selection != nullptr),
      products_only_(selection == nullptr || selection->products_only),
      draws_(DrawState::now()),
      compute_(mode().compute),
      fp8_(mode().fp8),
      cache_casts_(mode().cache_casts),
      keys_(c10::impl::tls_local_dispatch_key_set()) {}

void Recomputation::append(const std::shared_ptr<Node>& node, std::span<const Variable> inputs,
                           std::span<const at::Tensor> outputs, const Flops& forward) {
  Entry& entry = entries_.emplace_back(Entry{node, {}});
  for (const Variable& v : inputs) entry.versions.push_back(version_of(v));

  if (!is_selective_) {
    node->drop_saved();
    return;
  }
  // An in-place op is not kept, because the recomputation must change the op's input again.
  const bool is_in_place = std::any_of(inputs.begin(), inputs.end(), [&](const Variable& v) {
    return !outputs.empty() && v.data().is_same(outputs[0]);
  });
  // The inputs of a kept op are not stored: the recomputation provides them again.
  Held& held = held_.emplace_back(Held{.entry = entries_.size() - 1,
                                       .forward = is_in_place ? Flops{} : forward,
                                       .inputs = {},
                                       .inside = {},
                                       .outputs = {}});
  for (const at::Tensor& t : may_keep(held.forward) ? outputs : std::span<const at::Tensor>()) {
    held.outputs.push_back(t);
    held.versions.push_back(version_of(Variable(t)));
  }
  node->visit_saved([&](Saved& saved) {
    if (at::Tensor input = saved.detach_input(inputs); input.defined())
      held.inputs.push_back(std::move(input));
    else if (saved.defined())
      held.inside.push_back(saved.kept());
  });
}

void Recomputation::release(const at::Tensor& result) {
  for (Held& held : held_) {
    const bool is_of_it = std::any_of(held.outputs.begin(), held.outputs.end(),
                                      [&](const at::Tensor& t) { return t.is_same(result); });
    if (!is_of_it) continue;
    held.outputs.clear();
    held.forward = {};
  }
}

std::shared_ptr<Node> Recomputation::peek(const char* name) const {
  if (next_ == entries_.size()) return nullptr;
  std::shared_ptr<Node> node = entries_[next_].node.lock();
  return node && node->name() == name ? node : nullptr;
}

detail::KeptOp Recomputation::next_kept(const char* name) {
  if (next_ == entries_.size() || !entries_[next_].is_kept) return {};
  Entry& entry = entries_[next_];
  std::shared_ptr<Node> node = peek(name);
  if (!node) return {};
  return {std::move(node), std::exchange(entry.outputs, {})};
}

std::shared_ptr<Node> Recomputation::next(const char* name, std::span<const Variable> inputs) {
  if (next_ == entries_.size()) fail_other("nothing more", name);
  const Entry& entry = entries_[next_++];
  std::shared_ptr<Node> node = entry.node.lock();
  if (node && node->name() != name) fail_other(node->name(), name);
  if (entry.versions.size() != inputs.size()) fail_other("another op", name);
  for (size_t i = 0; i < inputs.size(); ++i) {
    LATHE_CHECK(entry.versions[i] == version_of(inputs[i]), "recompute: ", name, ": an input (",
                describe(inputs[i].data()),
                ") was changed in place between the forward pass and its recomputation");
  }
  return node;
}

void Recomputation::append_attribute(const at::Tensor& attribute) {
  attributes_.push_back(attribute._version());
}

void Recomputation::check_attribute(const at::Tensor& attribute) {
  if (next_attribute_ == attributes_.size()) fail_other("nothing more", "another op");
  LATHE_CHECK(
      attributes_[next_attribute_++] == attribute._version(), "recompute: ", describe(attribute),
      ", an index, mask or target of an op, was changed in place between the forward pass and its "
      "recomputation");
}

void Recomputation::append_hook(HookHandle hook) { hooks_.push_back(std::move(hook)); }

HookHandle Recomputation::next_hook() {
  if (next_hook_ == hooks_.size()) fail_other("nothing more", "register_hook");
  return hooks_[next_hook_++];
}

void Recomputation::run() {
  const auto again = std::exchange(again_, nullptr);
  if (!again) return;  // an earlier call ran the function
  const RestoreRngState draws(std::move(draws_));
  // Restore the dispatch keys: a backward pass runs below ATen's autograd, where new tensors may
  // have other versions than in the first run.
  const c10::impl::ForceDispatchKeyGuard keys(keys_);
  Mode& m = mode();
  m.grad = true;
  m.compute = compute_;
  m.fp8 = fp8_;
  m.cache_casts =
      cache_casts_ && m.autocast_depth > 0;  // outside of autocast, nothing would clear the cache
  m.flops = nullptr;
  m.recording = nullptr;
  m.replaying = this;
  again();
  if (next_ < entries_.size()) {
    const auto node = entries_[next_].node.lock();
    fail_other(node ? node->name() : "another op", "nothing more");
  }
  LATHE_CHECK(
      next_attribute_ == attributes_.size(),
      "recompute: an op of the forward pass had an index or mask that it does not have in the "
      "recomputation; guards such as SeparateDocuments must still exist in the backward pass, "
      "or be created in the recomputed function");
  entries_.clear();
  attributes_.clear();
  hooks_.clear();
}

detail::KeptOp detail::kept_op(const char* name) { return mode().replaying->next_kept(name); }

bool detail::was_recorded(const char* name, std::span<const Variable> inputs) {
  const std::shared_ptr<Node> node = mode().grad ? mode().replaying->peek(name) : nullptr;
  if (!node || node->next.size() != inputs.size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (node->next[i] && node->next[i].node == inputs[i].node()) return true;
  }
  return false;
}

void detail::add_needs(const char* name, std::span<bool> needs) {
  const std::shared_ptr<Node> node = mode().replaying->peek(name);
  if (!node || node->next.size() != needs.size()) return;
  for (size_t i = 0; i < needs.size(); ++i) needs[i] = needs[i] || node->next[i];
}

std::shared_ptr<Node> detail::replayed_node(const char* name, std::span<const Variable> inputs) {
  return mode().replaying->next(name, inputs);
}

void detail::record_node(const std::shared_ptr<Node>& node, std::span<const Variable> inputs,
                         std::span<const at::Tensor> outputs, const Flops& forward) {
  Recomputation* recomputation = mode().recording;
  recomputation->append(node, inputs, outputs, forward);
  node->recomputed = recomputation->shared_from_this();
}

void detail::replay_mismatch(const char* name, const Node& node) {
  fail(Exit::internal, "recompute: ", name,
       " returned other shapes or dtypes in the second run than ", node.name(),
       " did in the first; the function must run the same ops each time");
}

void detail::recompute_node(Node& node) {
  const std::shared_ptr<Recomputation> recomputation = node.recomputed;
  if (mode().recording == recomputation.get() || mode().replaying == recomputation.get()) {
    fail(Exit::internal, "recompute: the function computes a gradient through its own ",
         node.name(),
         "; call backward() and grad() outside of the function that is recomputed, or don't "
         "recompute it");
  }
  recomputation->run();
}

detail::KeptInput::KeptInput(const Variable& v) {
  SavedPacker* packer = mode().packer;
  const bool is_packed = packer != nullptr && packer->is_exact() && mode().replaying == nullptr &&
                         v.defined() && v.as_leaf() == nullptr;
  if (is_packed) packed_ = packer->pack(v.data());
  if (!packed_) {
    value_ = v;
    return;
  }
  if (v.node()) edge_ = v.edge();
  version_ = v.data()._version();
}

Variable detail::KeptInput::value() const {
  if (!packed_) return value_;
  const at::Tensor t = packed_->unpacked();
  // Restore the version, because a recomputation compares the versions of inputs.
  t.unsafeGetTensorImpl()->set_version_counter(
      c10::VariableVersion(static_cast<uint32_t>(version_)));
  return edge_ ? Variable(t, edge_) : Variable(t);
}

detail::Recording::Recording(std::function<void()> again, const Selection* selection)
    : recomputation_(std::make_shared<Recomputation>(std::move(again), selection)) {
  mode().recording = recomputation_.get();
}
detail::Recording::~Recording() = default;

std::optional<RecomputePolicy> recompute_policy(std::string_view name) {
  if (name == "none") return RecomputePolicy::none;
  if (name == "blocks") return RecomputePolicy::blocks;
  if (name == "selective") return RecomputePolicy::selective;
  if (name == "sqrt") return RecomputePolicy::sqrt;

  constexpr std::string_view prefix = "blocks.";
  if (!name.starts_with(prefix)) return std::nullopt;
  const char *at = name.data() + prefix.size(), *end = name.data() + name.size();
  size_t first = 0, last = 0;
  const auto [dash, no_first] = std::from_chars(at, end, first);
  if (no_first != std::errc() || dash == end || *dash != '-') return std::nullopt;
  const auto [stop, no_last] = std::from_chars(dash + 1, end, last);
  if (no_last != std::errc() || stop != end || first > last) return std::nullopt;
  return RecomputePolicy(first, last);
}

size_t blocks_per_group(RecomputePolicy policy, size_t n) {
  if (policy.kind != RecomputePolicy::sqrt) return 1;
  return std::max<size_t>(static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(n)))), 1);
}

}  // namespace lathe
