#include "dist/exchange.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "autograd/node.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/tree_sum.h"
#include "dist/group.h"

// OpenMP's, for the calling thread alone; clang-tidy has no omp.h.
extern "C" void omp_set_num_threads(int threads);

namespace lathe {

GradientExchange::GradientExchange(World& world, std::span<const NamedParameter> parameters,
                                   int64_t bucket_bytes, std::function<void(size_t)> complete)
    : world_(world), parameters_(parameters), complete_(std::move(complete)) {
  is_complete_.resize(parameters.size());
  had_gradient_.resize(parameters.size());
  if (world.size() > 1) make_buckets(bucket_bytes);
}

GradientExchange::~GradientExchange() {
  for (HookHandle& hook : hooks_) hook.remove();
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

/// Fills buckets in the reverse order of the parameters, about the order in which a backward pass
/// completes them. A bucket has one dtype.
void GradientExchange::make_buckets(int64_t bucket_bytes) {
  bucket_of_.resize(parameters_.size());
  for (size_t left = parameters_.size(); left-- > 0;) {
    const Leaf& leaf = parameters_[left].parameter.leaf();
    const at::ScalarType dtype = leaf.precision.grad_dtype;
    const int64_t elements = parameters_[left].parameter.numel();
    const auto width = static_cast<int64_t>(c10::elementSize(dtype));
    const bool fits = !buckets_.empty() && buckets_.back().dtype == dtype &&
                      (buckets_.back().elements + elements) * width <= bucket_bytes;
    if (!fits) buckets_.push_back({.parameters = {}, .dtype = dtype, .missing = 0});

    Bucket& bucket = buckets_.back();
    bucket.parameters.push_back(left);
    bucket.elements += elements;
    ++bucket.missing;
    bucket_of_[left] = buckets_.size() - 1;
  }
}

void GradientExchange::start_with_next_backward() {
  if (world_.size() == 1) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.push_back(parameters_[i].parameter.register_post_accumulate_grad_hook(
        [this, i](Leaf&) { note_complete(i); }));
  }
  thread_ = std::thread([this] { work(); });
}

/// Completes a parameter's gradient and sends the buckets that are full. Ranks send buckets in one
/// order, so a full bucket waits for those before it.
void GradientExchange::note_complete(size_t i) {
  complete_(i);
  if (world_.size() == 1) return;
  is_complete_[i] = 1;
  had_gradient_[i] = parameters_[i].parameter.leaf().grad.defined() ? 1 : 0;
  --buckets_[bucket_of_[i]].missing;

  const std::lock_guard lock(mutex_);
  while (sendable_ < buckets_.size() && buckets_[sendable_].missing == 0) ++sendable_;
  ready_.notify_one();
}

void GradientExchange::finish() {
  for (HookHandle& hook : hooks_) hook.remove();
  hooks_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_complete_[i] == 0) note_complete(i);
  }
  if (world_.size() == 1) return;

  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ready_.notify_one();
  thread_.join();
  if (error_) world_.guarded([&] { std::rethrow_exception(error_); });

  // A parameter that no rank has a gradient of keeps none.
  at::Tensor mine = at::empty({1, static_cast<int64_t>(parameters_.size())}, at::kByte);
  std::copy(had_gradient_.begin(), had_gradient_.end(), mine.mutable_data_ptr<uint8_t>());
  const at::Tensor all = world_.gather(mine);
  const uint8_t* had = all.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    bool anywhere = false;
    for (int r = 0; r < world_.size(); ++r)
      anywhere = anywhere || had[r * parameters_.size() + i] != 0;
    if (!anywhere) parameters_[i].parameter.leaf().grad.reset();
  }
}

/// Sends buckets as they become sendable, until all are sent or the step ends early.
void GradientExchange::work() {
  // This thread computes alone: the cores belong to the backward pass. ATen sets a new thread's
  // number at the first question for it, so ask it first.
  at::get_num_threads();
  omp_set_num_threads(1);
  const NoGrad no_grad;
  for (size_t next = 0; next < buckets_.size(); ++next) {
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [&] { return sendable_ > next || ended_; });
      if (sendable_ <= next) return;
    }
    try {
      exchange(buckets_[next]);
    } catch (...) {
      error_ = std::current_exception();
      return;
    }
  }
}

void GradientExchange::exchange(const Bucket& bucket) {
  const MemoryScope memory(Memory::gradients);
  const int64_t ranks = world_.size(), share = (bucket.elements + ranks - 1) / ranks;
  const auto options = at::TensorOptions().dtype(bucket.dtype);
  at::Tensor flat = at::empty({ranks * share}, options);

  // Lay the gradients into the bucket, and make them views of it. -0 changes no summand, not even
  // the sign of a zero; 0 would.
  int64_t offset = 0;
  for (const size_t i : bucket.parameters) {
    const Variable& parameter = parameters_[i].parameter;
    at::Tensor& grad = parameter.leaf().grad;
    const at::Tensor place = flat.narrow(0, offset, parameter.numel());
    if (grad.defined())
      place.copy_(grad.reshape({-1}));
    else
      place.fill_(-0.0);
    grad = place.view(parameter.sizes());
    offset += parameter.numel();
  }
  flat.narrow(0, offset, flat.numel() - offset).zero_();

  // Add up this rank's share in the order of the tree.
  Group& group = world_.gradients();
  at::Tensor received = at::empty_like(flat);
  group.all_to_all(received, flat);
  TreeSum<at::Tensor> sum;
  const auto plus = [](const at::Tensor& a, const at::Tensor& b) { return a.add_(b); };
  for (int64_t r = 0; r < ranks; ++r) sum.add(received.narrow(0, r * share, share), plus);
  flat.narrow(0, world_.rank() * share, share).copy_(sum.finish(plus));

  group.all_gather(flat);
}

}  // namespace lathe
