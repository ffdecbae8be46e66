// Declares Group, a group of processes that exchange tensors. It is a thin wrapper around PyTorch's
// c10d, which uses Gloo and, between GPUs, NCCL.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/placement.h"
#include "dist/rendezvous.h"

namespace lathe {

/// Collectives of the ranks of a group, which are numbered from 0 within it. Every rank calls the
/// same functions in the same order, from one thread at a time. Tensors must be contiguous and have
/// the same size and dtype on every rank. They must be on the CPU, except in a group made by
/// through_host() or by_nccl(), where they may be on any device. Errors, such as a lost process,
/// are thrown as std::exception.
class Group {
 public:
  explicit Group(int rank) : rank_(static_cast<size_t>(rank)) {}
  virtual ~Group() = default;
  /// Sends share r of `in` to rank r: the elements [cuts[r], cuts[r + 1]). Fills `out` [ranks * n]
  /// with the shares that this rank receives, in the order of ranks. n is the size of this rank's
  /// share.
  virtual void all_to_all(at::Tensor& out, at::Tensor& in, std::span<const int64_t> cuts) = 0;
  /// Fills `flat` with the shares of all ranks. Before the call, rank r must have filled its own
  /// share, [cuts[r], cuts[r + 1]).
  virtual void all_gather(at::Tensor& flat, std::span<const int64_t> cuts) = 0;
  /// Returns the tensors `mine` of all ranks, stacked as [ranks, ...].
  virtual at::Tensor gather(const at::Tensor& mine) = 0;

  /// Starts to send `t` to one rank, and returns a function that waits until `t` was received. `t`
  /// must not change before it was received. This is not a collective: only the two ranks take
  /// part.
  virtual std::function<void()> send(const at::Tensor& t, int to) = 0;
  /// Fills `t` with the next tensor that rank `from` sends to this rank. Both tensors must have the
  /// same size and dtype.
  virtual void receive(at::Tensor& t, int from) = 0;

  /// Replaces `flat` by its sum over all ranks, in the order of c10d's all-reduce, which depends on
  /// the number of elements. Only `lathe bench collectives` uses it.
  virtual void all_reduce_of_c10d(at::Tensor& flat) = 0;
  /// Makes `out` the share of this rank of the sum of `in` over all ranks, in the order of c10d's
  /// reduce-scatter. `in` has as many elements as the outputs of all ranks together. Only `lathe
  /// bench collectives` uses it.
  virtual void reduce_scatter_of_c10d(at::Tensor& out, at::Tensor& in) = 0;

  /// Returns the number of bytes that this rank has sent in all_to_all(), all_gather() and send().
  virtual int64_t bytes_sent() const { return bytes_sent_; }

  /// Makes a group of the ranks on an axis; `name` is the group's name. Waits for these ranks, at
  /// most `timeout` seconds.
  static std::unique_ptr<Group> make(Rendezvous& store, const std::string& name,
                                     const Placement& placement, const RankAxis& axis,
                                     double timeout);
  /// Wraps `host` in a group that also exchanges GPU tensors, by copying them to CPU memory.
  static std::unique_ptr<Group> through_host(std::unique_ptr<Group> host);
  /// Returns a group that exchanges GPU tensors by NCCL, except in send() and receive(), which copy
  /// them to CPU memory. `name` and `axis` mean the same as in make(). An exchange returns once it
  /// is complete, and throws after `timeout` seconds. The ranks connect in the first exchange.
  static std::unique_ptr<Group> by_nccl(std::unique_ptr<Group> host, Rendezvous& store,
                                        const std::string& name, const RankAxis& axis,
                                        double timeout);
  /// Makes a group of `ranks` ranks for a dry run of rank `rank`. The group sends nothing, and
  /// counts the bytes that it would send.
  static std::unique_ptr<Group> make_dry(int ranks, int rank = 0);

 protected:
  int64_t share(std::span<const int64_t> cuts, size_t rank) const {
    return cuts[rank + 1] - cuts[rank];
  }
  /// Counts what all_to_all() sends: the shares of the other ranks.
  void count_all_to_all(const at::Tensor& in, std::span<const int64_t> cuts) {
    bytes_sent_ += (cuts.back() - share(cuts, rank_)) * static_cast<int64_t>(in.element_size());
  }
  /// Counts what all_gather() sends: this rank's share to each other rank.
  void count_all_gather(const at::Tensor& flat, std::span<const int64_t> cuts) {
    const auto others = static_cast<int64_t>(cuts.size()) - 2;
    bytes_sent_ += others * share(cuts, rank_) * static_cast<int64_t>(flat.element_size());
  }
  /// Counts what send() sends.
  void count_send(const at::Tensor& t) { bytes_sent_ += static_cast<int64_t>(t.nbytes()); }

  size_t rank_;

 private:
  int64_t bytes_sent_ = 0;
};

}  // namespace lathe
