#include "dist/exchange.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "autograd/node.h"
#include "core/dry_run.h"
#include "core/error.h"
#include "core/lazy_zeros.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/storage.h"
#include "dist/collectives.h"
#include "dist/group.h"

// OpenMP's function, which affects only the calling thread. It is declared here because clang-tidy
// has no omp.h.
extern "C" void omp_set_num_threads(int threads);

namespace lathe {
namespace {

// The backward pass waits while more full buckets than this are unsent, including the bucket that
// is being sent.
constexpr size_t max_unsent_buckets = 1;

/// Returns the stream on which the training thread runs the backward pass of a GPU.
c10::Stream training_stream(at::Device gpu) {
  return c10::impl::VirtualGuardImpl(gpu.type()).getDefaultStream(gpu);
}

/// Returns the stream on which gradients of a GPU are exchanged while the backward pass runs.
c10::Stream exchange_stream(at::Device gpu) {
  static const c10::Stream stream =
      c10::impl::VirtualGuardImpl(gpu.type()).getStreamFromGlobalPool(gpu);
  return stream;
}

/// Returns the sum of `of_ranks` [ranks, n] over the data ranks, and may overwrite `of_ranks`.
/// `parts`: the number of context ranks, each of which has one part of the positions. If the number
/// of ranks with the same part is not a power of two, sum_over_ranks() would add some values of
/// different parts before it has added all values of one part. In that case, this function first
/// computes the sum over the ranks of each part.
at::Tensor sum_of_parts(const at::Tensor& of_ranks, int64_t parts) {
  const int64_t groups = of_ranks.size(0) / parts;
  if (parts == 1 || std::has_single_bit(static_cast<uint64_t>(groups)))
    return sum_over_ranks(of_ranks);
  std::vector<at::Tensor> sums;
  for (const at::Tensor& part : of_ranks.chunk(parts)) sums.push_back(sum_over_ranks(part));
  return sum_over_ranks(at::stack(sums));
}

/// Frees the memory of a tensor that was exchanged and is not used again. c10d holds the tensor for
/// a moment after the exchange, so without this call its memory would add to the memory of the next
/// bucket.
void free_exchanged(const at::Tensor& t) {
  if (t.is_cpu() && !is_dry_run()) free_storage(t);
}

}  // namespace

GradientExchange::GradientExchange(World& world, std::span<const NamedParameter> parameters,
                                   const ShardLayout& layout, Result result,
                                   ExchangeHistory& history, std::function<void(size_t)> complete)
    : world_(world),
      parameters_(parameters),
      layout_(layout),
      result_(result),
      history_(history),
      device_(parameters.empty() ? at::Device(at::kCPU) : parameters[0].parameter.data().device()),
      complete_(std::move(complete)) {
  is_complete_.resize(parameters.size());
  had_gradient_.resize(parameters.size());
  for (const Bucket& bucket : layout.buckets()) {
    missing_.push_back(bucket.parameters.size());
    is_deferred_.push_back(!history.empty() && !has_any_gradient(bucket, history) ? 1 : 0);
  }
  made_.resize(missing_.size());
  if (result == Result::own) own_.resize(parameters.size());
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

void GradientExchange::start_with_next_backward() {
  if (world_.data().size == 1 && !use_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.push_back(parameters_[i].parameter.register_post_accumulate_grad_hook(
        [this, i](Leaf&) { complete(i); }));
  }
  // A dry run has one thread.
  if (world_.data().size > 1 && !is_dry_run()) thread_ = std::thread([this] { work(); });
}

/// Completes the gradient of parameter i, and marks full buckets as sendable. All ranks send
/// buckets in the same order, so a full bucket waits for the buckets before it.
void GradientExchange::complete(size_t i) {
  complete_(i);
  is_complete_[i] = 1;
  if (world_.data().size == 1) return use(i);
  had_gradient_[i] = parameters_[i].parameter.leaf().grad.defined() ? 1 : 0;
  --missing_[layout_.bucket_of(i)];

  {
    const std::lock_guard lock(mutex_);
    while (sendable_ < missing_.size() &&
           (missing_[sendable_] == 0 || is_deferred_[sendable_] != 0)) {
      if (device_.is_cuda())
        made_[sendable_].emplace(device_.type()).record(training_stream(device_));
      ++sendable_;
    }
  }
  ready_.notify_one();
  if (is_dry_run())
    send_in_dry_run();
  else
    wait_while_too_many_are_unsent();
  if (use_) use_exchanged();
}

/// Waits if too many full buckets are unsent. The exchange frees gradients, so they would pile up
/// if the backward pass were faster than the exchange.
void GradientExchange::wait_while_too_many_are_unsent() {
  // With sharded parameters, do not wait, because other ranks may wait for this rank to gather the
  // next block.
  const bool has_blocks = layout_.buckets().at(0).block >= 0 || layout_.buckets().back().block >= 0;
  const bool are_freed = result_ == Result::own || use_;
  if (!are_freed || has_blocks || !thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  one_sent_.wait(lock, [&] { return sendable_ - sent_ <= max_unsent_buckets || error_; });
}

/// Calls use() for the parameters of the buckets that were exchanged since the last call. Skips a
/// parameter without a gradient on this rank, since it is not known before finish() whether another
/// rank has a gradient of that parameter.
void GradientExchange::use_exchanged() {
  size_t exchanged = 0;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    exchanged = sent_;
  }
  if (used_ < exchanged) wait_for_exchange_stream();
  for (; used_ < exchanged; ++used_) {
    if (is_deferred_[used_] != 0) continue;
    for (const size_t i : layout_.buckets()[used_].parameters) {
      if (had_gradient_[i] != 0) use(i);
    }
  }
}

/// Passes the gradient of parameter i to the function of use_and_free(), unless parameter i has no
/// gradient or was passed before.
void GradientExchange::use(size_t i) {
  at::Tensor& grad = parameters_[i].parameter.leaf().grad;
  if (!use_ || !grad.defined()) return;
  use_(i);
  grad.reset();
}

/// On a GPU, makes the training stream wait for the buckets that were sent.
void GradientExchange::wait_for_exchange_stream() {
  if (!device_.is_cuda()) return;
  c10::Event sent(device_.type());
  sent.record(exchange_stream(device_));
  sent.block(training_stream(device_));
}

void GradientExchange::send_in_dry_run() {
  const NoGrad no_grad;
  for (; sent_ < sendable_; ++sent_) {
    if (is_deferred_[sent_] == 0) exchange(layout_.buckets()[sent_]);
  }
}

void GradientExchange::finish() {
  for (HookHandle& hook : hooks_) hook.remove();
  hooks_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_complete_[i] == 0) complete(i);
  }
  if (world_.data().size == 1) return;
  // A dry run assumes that the other ranks have gradients of the same parameters.
  if (is_dry_run()) {
    in_flight_.clear();
    return resolve_missing_gradients(had_gradient_);
  }

  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ready_.notify_one();
  thread_.join();
  if (error_) world_.guarded([&] { std::rethrow_exception(error_); });
  wait_for_exchange_stream();

  // Find out which parameters have a gradient on some rank.
  at::Tensor mine = at::empty({1, static_cast<int64_t>(parameters_.size())}, at::kByte);
  std::copy(had_gradient_.begin(), had_gradient_.end(), mine.mutable_data_ptr<uint8_t>());
  const at::Tensor all = world_.gather_over_data(mine);
  const uint8_t* had = all.const_data_ptr<uint8_t>();
  std::vector<char> anywhere(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (int r = 0; r < world_.data().size; ++r)
      anywhere[i] = anywhere[i] != 0 || had[r * parameters_.size() + i] != 0;
  }
  resolve_missing_gradients(anywhere);
}

/// Sends the deferred buckets that have a gradient after all. Then drops the zero gradients of
/// parameters without a gradient on any rank. `anywhere`: for each parameter, whether any rank has
/// a gradient of it.
void GradientExchange::resolve_missing_gradients(const std::vector<char>& anywhere) {
  const NoGrad no_grad;
  for (size_t b = 0; b < is_deferred_.size(); ++b) {
    const Bucket& bucket = layout_.buckets()[b];
    if (is_deferred_[b] != 0 && has_any_gradient(bucket, anywhere))
      world_.guarded([&] { exchange(bucket); });
  }
  history_ = anywhere;

  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (anywhere[i] != 0) continue;
    parameters_[i].parameter.leaf().grad.reset();
    if (result_ == Result::own) own_[i].reset();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) use(i);
}

/// Sends buckets on the exchange's thread. Hands an error to the training thread.
void GradientExchange::work() {
  try {
    send_buckets();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      ++sent_;
    }
    one_sent_.notify_one();
  }
}

/// Sends buckets as they become sendable, until all are sent or the exchange ends early.
void GradientExchange::send_buckets() {
  // Use one core here, because the backward pass needs the other cores. at::get_num_threads() sets
  // OpenMP's number of threads when a thread calls it for the first time, so call it before
  // omp_set_num_threads().
  at::get_num_threads();
  omp_set_num_threads(1);
  const NoGrad no_grad;
  std::optional<c10::StreamGuard> on_own_stream;
  if (device_.is_cuda()) on_own_stream.emplace(exchange_stream(device_));

  const std::vector<Bucket>& buckets = layout_.buckets();
  for (size_t next = 0; next < buckets.size(); ++next) {
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [&] { return sendable_ > next || ended_; });
      if (sendable_ <= next) return;
    }
    if (device_.is_cuda()) made_[next]->block(exchange_stream(device_));
    if (is_deferred_[next] == 0) exchange(buckets[next]);

    {
      const std::lock_guard lock(mutex_);
      ++sent_;
    }
    one_sent_.notify_one();
  }
}

/// Returns the gradients of a bucket as one flat tensor. Makes the gradients views of that tensor
/// or, with Result::own, removes them from the parameters.
at::Tensor GradientExchange::flatten(const Bucket& bucket) {
  // If a bucket has a single gradient, use the gradient as the flat tensor, unless something else
  // uses the gradient's memory, or writing the sums would allocate most of that memory
  // (core/lazy_zeros.h).
  at::Tensor& first = parameters_[bucket.parameters[0]].parameter.leaf().grad;
  if (bucket.parameters.size() == 1 && device_.is_cpu() && first.defined() &&
      first.use_count() == 1 && first.storage().use_count() == 1 && first.is_contiguous() &&
      first.scalar_type() == bucket.dtype && !is_lazy_zeros(first)) {
    at::Tensor flat = first.view({-1});
    if (result_ == Result::own) first.reset();
    return flat;
  }

  // Copy the gradients into the bucket. A missing gradient becomes -0. Unlike adding 0, adding -0
  // does not change any number, not even the sign of a zero.
  at::Tensor flat =
      at::empty({bucket.elements()}, at::TensorOptions().dtype(bucket.dtype).device(device_));
  int64_t offset = 0;
  for (const size_t i : bucket.parameters) {
    const Variable& parameter = parameters_[i].parameter;
    at::Tensor& grad = parameter.leaf().grad;
    const at::Tensor place = flat.narrow(0, offset, parameter.numel());
    if (grad.defined()) {
      place.copy_(grad.reshape({-1}));
      // The allocator must not reuse the gradient's memory before the exchange stream has copied
      // the gradient.
      if (grad.is_cuda()) grad.record_stream(exchange_stream(device_));
    } else {
      place.fill_(-0.0);
    }
    grad = place.view(parameter.sizes());
    if (result_ == Result::own) grad.reset();
    offset += parameter.numel();
  }
  return flat;
}

void GradientExchange::exchange(const Bucket& bucket) {
  const MemoryScope memory(Memory::gradients);
  in_flight_.clear();
  at::Tensor flat = flatten(bucket);
  if (flat.is_cuda()) flat.record_stream(training_stream(device_));

  // Receive the values of this rank's share from all ranks, which sum_of_parts() then adds up.
  Group& group = world_.gradients();
  const auto rank = static_cast<size_t>(world_.data().rank);
  const int64_t begin = bucket.cuts[rank], share = bucket.cuts[rank + 1] - begin;
  // If gradients are sent in their own dtype, to() copies nothing, and `sent` is `flat` itself.
  at::Tensor sent = flat.to(bucket.sent);
  at::Tensor received = at::empty({world_.data().size * share}, sent.options());
  group.all_to_all(received, sent, bucket.cuts);
  if (is_dry_run()) in_flight_ = {flat, sent, received};
  const at::Tensor of_ranks = received.to(bucket.dtype);

  const at::Tensor mine =
      sum_of_parts(of_ranks.view({world_.data().size, share}), world_.context().size);

  if (result_ == Result::all) {
    sent.narrow(0, begin, share).copy_(mine);
    free_exchanged(received);
    group.all_gather(sent, bucket.cuts);
    if (bucket.sent == bucket.dtype) return;
    flat.copy_(sent);
    return free_exchanged(sent);
  }

  // Copy the sum, because it may be a view of `received`, which is freed below. Round the copy as
  // if it had been sent, so that dist.shard = "optimizer" gives bitwise the same results as "none".
  const at::Tensor kept =
      bucket.sent == bucket.dtype ? mine.clone() : mine.to(bucket.sent).to(bucket.dtype);
  for (const at::Tensor& t : {flat, sent, received}) free_exchanged(t);
  if (kept.is_cuda()) kept.record_stream(training_stream(device_));
  int64_t offset = 0;
  for (const size_t i : bucket.parameters) {
    const int64_t n = layout_.range(i, world_.data().rank).size();
    own_[i] = kept.narrow(0, offset, n);
    offset += n;
  }
}

}  // namespace lathe
