// Declares World, the processes of a run. A process that trains alone is rank 0 of 1; its
// collectives return their argument without communication.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dist/config.h"
#include "dist/placement.h"

namespace lathe {

class DryWorld;
class Group;
class Rendezvous;

/// The sizes and the dtype of a tensor.
struct TensorForm {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
};

/// A contiguous block [first, first + count) of items that are divided among the ranks.
struct Share {
  int64_t first = 0, count = 0;
};

/// What a process is doing, in the order of a step.
enum class RankPhase : uint8_t {
  starting,
  forward,
  backward,
  exchange,
  update,
  evaluation,
  sample,
  wait_for_sample,
  saving
};

/// The position of this process among the processes of its run, and their collectives.
///
/// With dist.tensor, dist.context or dist.pipeline above 1, the processes form a grid. The ranks
/// along the tensor axis compute the same micro-batches together, each with a part of every layer;
/// the ranks along the pipeline axis compute the same micro-batches one after another, each with
/// some of the layers. The ranks along the data axis have the same part of the model, and add up
/// their gradients. The data axis contains a context axis, whose ranks compute the same
/// micro-batches together, each with some of the positions of every row. Ranks that compute the
/// same micro-batches form a batch group.
///
/// The rank of a process is ((pipeline rank * batch groups + batch group) * context ranks + context
/// rank) * tensor ranks + tensor rank. With this order, the ranks that exchange the most data are
/// usually on one machine. The rank on the data axis is context rank * batch groups + batch group.
/// The gradients of each context rank are first summed over the batch groups, in the order of
/// core/tree_sum.h, for any number of batch groups. The sums of the context ranks are added last.
///
/// Unless a comment states otherwise, all ranks must call the same collectives in the same order,
/// on the training thread. Collectives throw Exit::peer_lost if a rank was lost.
class World {
 public:
  int rank() const { return placement_.rank; }
  int size() const { return placement_.size; }
  /// Returns the position on the data axis.
  const RankAxis& data() const { return data_; }
  /// Returns the position on the context axis, which is within the data axis.
  const RankAxis& context() const { return context_; }
  /// Returns the position among the batch groups, which compute different micro-batches.
  RankAxis batches() const {
    const int groups = data_.size / context_.size;
    return {data_.rank % groups, groups};
  }
  /// Returns the position on the pipeline axis, which is the stage.
  const RankAxis& pipeline() const { return pipeline_; }
  /// Returns the position on the tensor axis.
  const RankAxis& tensor() const { return tensor_; }
  /// Returns whether this process writes the run folder and prints to the terminal.
  bool is_writer() const { return rank() == 0; }
  /// Returns this process's block of `n` micro-batches. The size of batches() must divide `n`.
  Share share(int64_t n) const {
    const auto [rank, size] = batches();
    return {rank * (n / size), n / size};
  }

  /// Returns whether `mine` is true on any rank. This call is a collective.
  bool any(bool mine);
  /// Returns `mine` [n, ...] of all ranks, concatenated in the order of ranks as [size * n, ...].
  /// This call is a collective.
  at::Tensor gather(const at::Tensor& mine) {
    return gather_over({rank(), size()}, control_.get(), mine);
  }
  /// Does the same as gather() for the data ranks. This call is a collective of the data ranks,
  /// which must not exchange gradients at the same time.
  at::Tensor gather_over_data(const at::Tensor& mine) {
    return gather_over(data_, gradients_.get(), mine);
  }
  /// Does the same as gather() for the tensor ranks. This call is a collective of the tensor ranks.
  at::Tensor gather_over_tensor(const at::Tensor& mine) {
    return gather_over(tensor_, layers_.get(), mine);
  }
  /// Does the same as gather() for the stages of a pipeline. This call is a collective of the
  /// stages.
  at::Tensor gather_over_pipeline(const at::Tensor& mine) {
    return gather_over(pipeline_, stages_.get(), mine);
  }

  /// Returns the texts of all ranks, in the order of ranks. This call is a collective.
  std::vector<std::string> gather_texts(const std::string& mine) {
    return gather_texts_over(control_.get(), mine);
  }
  /// Does the same as gather_texts() over a separate group, so that a thread that saves a
  /// checkpoint may call it while the training thread uses the other groups. Call
  /// open_saving_group() first.
  std::vector<std::string> gather_texts_of_savers(const std::string& mine) {
    return gather_texts_over(saving_.get(), mine);
  }
  /// Makes the group for gather_texts_of_savers(), unless it exists or the process is alone. This
  /// call is a collective.
  void open_saving_group();
  /// Throws Exit::usage if `mine` differs between ranks. The message names the first rank whose
  /// value differs from rank 0's value, and shows the first line in which the two values differ.
  /// `what` names the value, such as "the config". This call is a collective.
  void check_same(const std::string& what, const std::string& mine);
  /// Does the same as check_same() for each line of a text. A line is a key, a space and a value.
  /// Ranks may have different keys, but the value of a key must not differ between ranks. This call
  /// is a collective.
  void check_same_lines(const std::string& what, const std::string& mine);
  /// Returns the data ranks' group for gradients. A thread other than the training thread may use
  /// the group. This group, and the groups that the following functions return, exist only if their
  /// axis has several ranks.
  Group& gradients() { return *gradients_; }
  /// Returns the data ranks' group for sharded parameters. The training thread may use it while
  /// gradients are exchanged.
  Group& parameters() { return *parameters_; }
  /// Returns the data ranks' group for the ops of dist/collectives.h. The first call of ops() is a
  /// collective.
  Group& ops();
  /// Returns the tensor ranks' group, which the training thread uses.
  Group& layers() { return *layers_; }
  /// Returns the context ranks' group, which the training thread uses.
  Group& contexts() { return *contexts_; }
  /// Returns the group of a pipeline's stages, which the training thread uses.
  Group& stages() { return *stages_; }

  /// Returns the DryWorld that exists; null if there is none.
  DryWorld* dry() const { return dry_; }

  /// Returns the bytes of gradients, parameters and activations that this process has sent.
  int64_t bytes_sent() const;

  /// Records the step, counted from 1, and the phase of this process. If this process is lost, the
  /// errors of other ranks show both. Does nothing in a dry run.
  void note(int64_t step, RankPhase phase) {
    if (dry_ != nullptr) return;
    step_ = step;
    phase_ = phase;
  }
  /// Records a phase of the same step.
  void note(RankPhase phase) { note(step_, phase); }
  /// Runs `f`. If c10d throws an error, finds out which rank was lost and throws Exit::peer_lost
  /// with that rank, its host and the last step and phase that it recorded. Rethrows other errors.
  void guarded(const std::function<void()>& f);
  /// Lets the groups exchange GPU tensors, and connects the ranks of groups that use NCCL.
  /// `backend`: dist.backend. Throws Exit::usage if `backend` is "nccl" and processes share a GPU
  /// or the build has no NCCL. Returns what the groups use, for the log, such as "NCCL". Does
  /// nothing in a single process. Call it once, after open_device() and before a GPU tensor is
  /// exchanged. This call is a collective.
  std::string use_gpus(const std::string& backend);
  /// Waits until all ranks have called this function. This call is a collective.
  void wait_for_all() { any(false); }
  /// Reports to the other ranks why this process ends. Does nothing in a single process.
  void report_failure(const std::string& why);
  /// Does the same as report_failure(). On ranks other than 0, then waits for up to one second for
  /// rank 0 to report the same reason, and returns whether rank 0 did so; in that case, rank 0 also
  /// prints the reason. On rank 0, returns false. Call it for errors of the config, which all ranks
  /// notice at the same time.
  bool first_rank_reports(const std::string& why);

 private:
  friend World& world();
  friend class DryWorld;
  friend void join_world(const Placement& placement, const DistConfig& config);
  World() = default;
  void join(const Placement& placement, const DistConfig& config);
  void set_grid(const GridSizes& sizes);
  std::string data_group(const char* name) const;
  std::string tensor_group() const;
  std::string context_group() const;
  std::unique_ptr<Group> make_group(const std::string& name, const RankAxis& axis);
  void wrap_for_gpus(std::unique_ptr<Group>& group, const std::string& name, const RankAxis& axis);
  at::Tensor gather_over(const RankAxis& axis, Group* group, const at::Tensor& mine);
  std::vector<std::string> gather_texts_over(Group* group, const std::string& mine);
  std::vector<std::string> grids_of_all() const;
  void meet();
  void share_cores();
  void send_pulses(Rendezvous& store);
  std::string find_lost_rank();
  void store_answer(const std::string& lost);
  void wait_for_readers() const;
  [[noreturn]] void fail_for_lost_rank(const std::string& why);
  std::string pulse() const;

  Placement placement_;
  RankAxis data_, context_, pipeline_, tensor_;
  double timeout_ = 0;
  DryWorld* dry_ = nullptr;
  bool uses_gpus_ = false, uses_nccl_ = false;
  std::unique_ptr<Rendezvous> store_;
  std::unique_ptr<Rendezvous> monitor_;  // connection with a short timeout, to find the lost rank
  std::unique_ptr<Group> control_;       // group of all ranks
  std::unique_ptr<Group> saving_;        // group of all ranks, for saves
  std::unique_ptr<Group> gradients_, parameters_, ops_, layers_, contexts_, stages_;
  std::atomic<int64_t> step_{0};
  std::atomic<RankPhase> phase_{RankPhase::starting};
  std::atomic<int64_t> pulses_{0};
  std::mutex failure_mutex_;
  // Guarded by the mutex:
  std::string rank0_failure_;  // why rank 0 ends with an error; "" if it does not
  std::string rank0_pulse_;    // the last report of rank 0 about itself
};

/// Returns the processes of this run. The object is never destroyed, because a group with a pending
/// exchange would block the exit of a process whose peer is gone.
World& world();

/// Returns the name of this machine.
std::string host_name();

/// While this object exists, world() has `ranks` ranks and sends nothing, for a dry run
/// (core/dry_run.h) of stage `stage` of a pipeline. A process that trains alone takes the position
/// of the first tensor rank of data rank `data_rank`. If there are several processes, `ranks` must
/// be their number, and each keeps its rank and its positions on the data, context and tensor axes.
class DryWorld {
 public:
  explicit DryWorld(int ranks, const GridSizes& sizes = {}, int stage = 0, int data_rank = 0);
  ~DryWorld();
  DryWorld(const DryWorld&) = delete;
  DryWorld& operator=(const DryWorld&) = delete;

  /// Tensors that this stage sends to the next stage and receives from the previous stage, in
  /// order.
  std::vector<TensorForm> sent, received;
  size_t received_count = 0;  ///< number of tensors that this stage has received so far

 private:
  void swap_groups();

  bool is_alone_;
  RankAxis pipeline_;  // the process's position before this object was made
  std::unique_ptr<Group> control_, gradients_, parameters_, ops_, layers_, contexts_, stages_;
};

/// Joins the other processes. Call it once, before any other function of dist/. Throws
/// Exit::peer_lost with the first rank that did not join within dist.timeout, and Exit::usage if
/// two processes have the same rank, or if their WORLD_SIZE or their grids differ. The product of
/// dist.pipeline, dist.context and dist.tensor must divide the number of processes.
void join_world(const Placement& placement, const DistConfig& config);

}  // namespace lathe
