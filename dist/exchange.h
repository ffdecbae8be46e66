// Adds up the gradients of all ranks. The sums are bitwise the same for any number of ranks if the
// number of micro-batches of each rank is a power of two, dist.context is 1, and gradients are sent
// in their own dtype (dist.reduce_dtype).
//
// Each rank begins with the sum over its block of micro-batches. If their number is a power of two,
// this sum is a subtree of the step's sum (core/tree_sum.h). The ranks continue that tree in four
// steps. Gradients are copied into buckets. An all-to-all gives each rank the gradients of all
// ranks for its share of a bucket. Each rank adds up its share in the order of the tree. An
// all-gather gives the sums to all ranks, unless each rank needs only the sums of its share. As in
// a ring all-reduce, (N - 1) / N of the bytes are sent twice. No sum is computed by a communication
// library, whose order may depend on the number of elements. So neither the size of a bucket nor
// the time at which it is sent changes a bit of the sums.
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

/// For each parameter, whether any rank had a gradient of that parameter in the previous exchange;
/// empty before the first exchange. All ranks have the same history.
using ExchangeHistory = std::vector<char>;

/// Exchanges the gradients of one backward pass. In a single process, there is nothing to exchange.
///
/// A bucket is deferred, that is, not sent in its turn, if none of its parameters had a gradient in
/// the previous exchange. An example is the weight of a head that another stage of a pipeline runs.
/// finish() sends such a bucket if a rank has a gradient of one of its parameters after all.
class GradientExchange {
 public:
  /// The sums that a rank gets: of all gradients, or only of the elements that it owns.
  enum class Result : uint8_t { all, own };

  /// `complete(i)` makes the gradient of parameter i the sum over this rank's micro-batches; it is
  /// called once for each parameter. The arguments must outlive this object.
  GradientExchange(World& world, std::span<const NamedParameter> parameters,
                   const ShardLayout& layout, Result result, ExchangeHistory& history,
                   std::function<void(size_t i)> complete);
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// Calls use(i) on this thread for each parameter that any rank has a gradient of, once that
  /// gradient is the sum over all ranks, and then frees the gradient. Parameters with a gradient on
  /// this rank are used during the backward pass, except for the parameters of the last buckets.
  /// All remaining parameters are used in finish(). Call it only with Result::all.
  void use_and_free(std::function<void(size_t i)> use) { use_ = std::move(use); }
  /// Prepares for the backward pass that begins next: sends each bucket as soon as that pass has
  /// computed its gradients.
  void start_with_next_backward();
  /// Completes the gradient of parameter i, and sends the buckets that are full. The backward pass
  /// calls complete() for the parameters that it reaches. The caller may call it for other
  /// parameters, so that their buckets are sent before finish().
  void complete(size_t i);
  /// Waits until the gradient of each parameter is the sum over all ranks, or was passed to the
  /// function of use_and_free(). A rank without a gradient of a parameter adds zero. If no rank has
  /// a gradient of a parameter, the parameter has none afterwards. Throws Exit::peer_lost if a rank
  /// was lost.
  void finish();
  /// Returns, after finish() with Result::own, the sums of the elements that this rank owns: one
  /// 1-D tensor per parameter, undefined if no rank has a gradient of that parameter. After
  /// finish(), the parameters themselves have no gradients.
  std::vector<at::Tensor> take_own() { return std::move(own_); }

 private:
  void work();
  void send_buckets();
  void send_in_dry_run();
  void resolve_missing_gradients(const std::vector<char>& anywhere);
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
  std::vector<char> is_deferred_;  // per bucket: whether it is not sent in its turn
  at::Device device_;              // the device of the gradients
  std::function<void(size_t)> complete_, use_;
  size_t used_ = 0;  // number of buckets whose gradients were passed to use_, from the first bucket
  std::vector<at::Tensor> own_;
  // In a dry run, the memory of the bucket that was sent last. The forecast assumes that the
  // exchange is slower than the backward pass, so this memory is held until the next bucket is
  // full.
  std::vector<at::Tensor> in_flight_;
  std::vector<size_t> missing_;  // per bucket: number of incomplete gradients
  std::vector<char> is_complete_, had_gradient_;
  std::vector<HookHandle> hooks_;

  std::mutex mutex_;
  std::condition_variable ready_;
  size_t sendable_ = 0;  // the buckets before this index may be sent, in order
  size_t sent_ = 0;      // number of buckets that were exchanged
  std::vector<std::optional<c10::Event>> made_;  // on GPUs: for each full bucket, an event
  std::condition_variable one_sent_;
  bool ended_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace lathe
