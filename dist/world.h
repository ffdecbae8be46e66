// The processes of this run. A process that trains alone is rank 0 of 1, and every function here
// immediately returns its argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/config.h"
#include "dist/placement.h"

namespace lathe {

class Group;
class Rendezvous;

/// A contiguous block [first, first + count) of what all ranks share out.
struct Share {
  int64_t first = 0, count = 0;
};

/// This process among those of its run.
///
/// With dist.tensor above 1 the processes form a grid: the ranks of a row of the tensor axis
/// compute the same micro-batches together, each with a part of the layers, and those of a column
/// of the data axis compute different ones with the same parts. Rank = data rank * tensor ranks +
/// tensor rank, so that the ranks of a row are usually on one machine.
///
/// Functions called collectives must be called by every rank,
/// in the same order, from the training thread; where a rank was lost, they throw Exit::peer_lost.
class World {
 public:
  int rank() const { return placement_.rank; }
  int size() const { return placement_.size; }
  /// Returns the place among the processes that compute other micro-batches of a step.
  const RankAxis& data() const { return data_; }
  /// Returns the place among the processes that compute the same micro-batches together.
  const RankAxis& tensor() const { return tensor_; }
  /// Returns whether this process writes the run folder and talks to the user.
  bool is_writer() const { return rank() == 0; }
  /// Returns this rank's block of `n`, which the number of data ranks divides.
  Share share(int64_t n) const { return {data_.rank * (n / data_.size), n / data_.size}; }

  /// Returns whether it is true on any rank. A collective: every rank calls it at the same point.
  bool any(bool mine);
  /// Returns `mine` [n, ...] of all ranks, in the order of ranks: [size * n, ...]. A collective.
  at::Tensor gather(const at::Tensor& mine) {
    return gather_over({rank(), size()}, control_.get(), mine);
  }
  /// Returns the same of the data ranks. A collective of them, which must not send gradients
  /// meanwhile.
  at::Tensor gather_over_data(const at::Tensor& mine) {
    return gather_over(data_, gradients_.get(), mine);
  }
  /// Returns the same of the tensor ranks. A collective of them.
  at::Tensor gather_over_tensor(const at::Tensor& mine) {
    return gather_over(tensor_, layers_.get(), mine);
  }
  /// Returns the sum of `mine` over the data ranks, which is exact: of integers, or of elements
  /// that are not 0 on one rank alone. A collective, as gather_over_data().
  at::Tensor sum_over_data(const at::Tensor& mine) {
    return gather_over_data(mine.unsqueeze(0)).sum(0);
  }
  /// Returns the texts of all ranks, in the order of ranks. A collective.
  std::vector<std::string> gather_texts(const std::string& mine);
  /// Throws Exit::usage unless `mine` is the same on all ranks, with the rank that differs from
  /// rank 0 and what the two have. `what`: as in "the config". A collective.
  void check_same(const std::string& what, const std::string& mine);
  /// The data ranks' group for gradients, which a thread of its own may use.
  Group& gradients() { return *gradients_; }
  /// The data ranks' group for parameters that are shared out, which the training thread uses
  /// meanwhile.
  Group& parameters() { return *parameters_; }
  /// The data ranks' group for the ops of dist/collectives.h. Its first use is a collective.
  Group& ops();
  /// The tensor ranks' group, which the training thread uses.
  Group& layers() { return *layers_; }

  /// Returns the bytes of gradients, parameters and activations that this process has sent.
  int64_t bytes_sent() const;

  /// Records what this process is doing, for the others' error where it is lost. `phase` must be a
  /// string literal.
  void note(int64_t step, const char* phase) {
    step_ = step;
    phase_ = phase;
  }
  /// Runs `f`. Where it throws what c10d throws, finds out which rank was lost and throws
  /// Exit::peer_lost with that rank, its host and what it was last doing.
  void guarded(const std::function<void()>& f);
  /// Waits until all ranks are here. A collective.
  void wait_for_all() { any(false); }
  /// Reports to the others why this process ends. Does nothing in a single process.
  void report_failure(const std::string& why);

 private:
  friend World& world();
  friend class DryWorld;
  friend void join_world(const Placement& placement, const DistConfig& config);
  World() = default;
  void join(const Placement& placement, const DistConfig& config);
  void set_grid(int tensor_ranks);
  std::unique_ptr<Group> make_data_group(const std::string& name);
  at::Tensor gather_over(const RankAxis& axis, Group* group, const at::Tensor& mine);
  void meet();
  void send_pulses(Rendezvous& store);
  std::string find_lost_rank();
  void leave_answer(const std::string& lost);
  [[noreturn]] void fail_for_lost_rank(const std::string& why);
  std::string pulse() const;

  Placement placement_;
  RankAxis data_, tensor_;
  double timeout_ = 0;
  std::unique_ptr<Rendezvous> store_;
  std::unique_ptr<Rendezvous> monitor_;  // gives up quickly: for finding out who was lost
  std::unique_ptr<Group> control_;       // of all ranks
  std::unique_ptr<Group> gradients_, parameters_, ops_, layers_;
  std::atomic<int64_t> step_{0};
  std::atomic<const char*> phase_{"starting"};
  std::atomic<int64_t> pulses_{0};
};

/// Returns the processes of this run. Never destroyed: a group with a pending exchange would block
/// the end of a process that another one has left.
World& world();

/// While alive, world() is rank 0 of so many ranks that send nothing: for a dry run
/// (core/dry_run.h) of a process that trains alone. `tensor_ranks` must divide `ranks`.
class DryWorld {
 public:
  explicit DryWorld(int ranks, int tensor_ranks = 1);
  ~DryWorld();
  DryWorld(const DryWorld&) = delete;
  DryWorld& operator=(const DryWorld&) = delete;
};

/// Joins the other processes. Call it once, before anything else of this folder. Throws
/// Exit::peer_lost with the ranks that did not come within dist.timeout, and Exit::usage where two
/// processes have one rank. dist.tensor must divide their number.
void join_world(const Placement& placement, const DistConfig& config);

}  // namespace lathe
