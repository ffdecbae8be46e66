// Adds up the gradients of all ranks, with the same bits on any number of them.
//
// Each rank has the sum of its own block of micro-batches, a subtree of the step's sum
// (core/tree_sum.h). The ranks continue that tree: gradients are laid into buckets; an all-to-all
// gives every rank its share of the bucket from all others; it adds these in the order of the tree;
// and a gather returns the sums to all, unless each rank needs its own share alone. As in a ring
// all-reduce, (N - 1) / N of the bytes are sent twice. The result does not depend on a library's
// order of sums: neither the size of a bucket nor the time at which it is sent changes a bit.
#pragma once

#include <c10/core/Event.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "autograd/parameter.h"
#include "autograd/variable.h"
#include "dist/shards.h"
#include "dist/world.h"

namespace lathe {

/// For each parameter, whether any rank had a gradient of it in the previous exchange; empty before
/// the first one. The same on all ranks.
using ExchangeHistory = std::vector<char>;

/// The exchange of one backward pass. In a single process, the gradients are their own sums.
///
/// A bucket none of whose parameters had a gradient in the previous exchange, such as the weight of
/// a head that another stage of a pipeline runs, is not sent with the others. It is sent at the end
/// if a rank has a gradient now.
class GradientExchange {
 public:
  /// The sums that a rank gets: of all gradients, or only of the elements that it owns.
  enum class Result : uint8_t { all, own };

  /// `complete(i)` makes the gradient of parameter i the sum of this rank's micro-batches; it is
  /// called once for each parameter. The arguments must outlive this object.
  GradientExchange(World& world, std::span<const NamedParameter> parameters,
                   const ShardLayout& layout, Result result, ExchangeHistory& history,
                   std::function<void(size_t i)> complete);
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// Calls use(i) on this thread for each parameter that any rank has a gradient of, once that
  /// gradient is the sum over all ranks, and then frees the gradient. The calls come during the
  /// backward pass for parameters that this rank has a gradient of, and in finish() for others and
  /// for those of the last buckets. With Result::all only.
  void use_and_free(std::function<void(size_t i)> use) { use_ = std::move(use); }
  /// Sends each bucket as soon as the backward pass that begins now has made its gradients.
  void start_with_next_backward();
  /// Completes a parameter's gradient and sends the buckets that are full. The backward pass calls
  /// it for the parameters that it reaches. Call it for others, so that their buckets are sent
  /// before finish().
  void complete(size_t i);
  /// Waits until the gradient of each parameter is the sum over all ranks, or was used. A rank
  /// without a gradient of a parameter adds zero. If no rank has a gradient of it, the parameter
  /// keeps none. Throws Exit::peer_lost if a rank was lost.
  void finish();
  /// Returns, after finish() with Result::own, the sums of the elements that this rank owns, 1-D,
  /// one tensor for each parameter; undefined where no rank has a gradient. The parameters
  /// themselves then have no gradients.
  std::vector<at::Tensor> take_own() { return std::move(own_); }

 private:
  void work();
  void send_in_dry_run();
  void settle_absent(const std::vector<char>& anywhere);
  void wait_while_too_many_are_unsent();
  void use_exchanged();
  void wait_for_exchange_stream();
  void use(size_t i);
  void exchange(const Bucket& bucket);
  at::Tensor flatten(const Bucket& bucket);

  World& world_;
  std::span<const NamedParameter> parameters_;
  const ShardLayout& layout_;
  Result result_;
  ExchangeHistory& history_;
  std::vector<char> is_quiet_;  // of each bucket: it is not sent with the others
  at::Device device_;           // of the gradients
  std::function<void(size_t)> complete_, use_;
  size_t used_ = 0;  // buckets before this one were passed to use_
  std::vector<at::Tensor> own_;
  // In a dry run, the memory of the bucket that was sent last. It is held until the next one is
  // full, since memory is forecast for an exchange that is slower than the backward pass.
  std::vector<at::Tensor> in_flight_;
  std::vector<size_t> missing_;  // of each bucket: parameters whose gradient is not complete
  std::vector<char> is_complete_, had_gradient_;
  std::vector<HookHandle> hooks_;

  std::mutex mutex_;
  std::condition_variable ready_;
  size_t sendable_ = 0;  // buckets before this one may be sent, in their order
  size_t sent_ = 0;      // buckets that were exchanged
  std::vector<std::optional<c10::Event>> made_;  // on a GPU, of each bucket: it has its gradients
  std::condition_variable one_sent_;
  bool ended_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace lathe
