// Keeps an optimizer's state in a scratch file (memory.offload), so that a model whose optimizer
// state does not fit into memory can be trained.
//
// The file is divided into units, each of which is read, updated and written as a whole. A unit
// holds the state of several small parameters, or a piece of the state of a large parameter. A unit
// has at most 16 MiB, unless it holds the state of one parameter that cannot be divided. Parameters
// are cut only where processes may cut them (MethodState::divisible), so an update is bitwise equal
// to an update in memory. Units hold the parameters from the last to the first, which is roughly
// the order in which a backward pass completes gradients.
//
// A few buffers hold the unit that is being updated, the next units, and the units that were
// updated last. use() returns the memory of a unit. While the caller computes, one thread writes
// the previous unit and another thread reads the next units, which are the units that followed in
// the previous step. A buffer is reused after its unit has been used and written to the file. If
// there is no such buffer and no transfer is in progress, use() drops a unit that was read ahead.
// After the last unit of a step, the first units of the next step are read.
//
// If the state fits into free memory when the file is opened, reads and writes use the page cache,
// which is not part of the resident memory of the process. Otherwise the page cache would only add
// a copy, so transfers bypass it (O_DIRECT). If the disk fails, the next call on the training
// thread throws the error, which ends the run. The run's checkpoints do not depend on the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/element_range.h"
#include "core/io/scratch_file.h"

namespace lathe {

/// A tensor of a parameter's state in the file.
struct OffloadedTensor {
  int64_t elements = 0;  ///< number of elements of the complete tensor
  int64_t item = 0;      ///< size of an element, in bytes
  int64_t per = 1;       ///< see StateTensor::per
};

/// The state of one parameter in the file.
struct OffloadedSlot {
  std::vector<OffloadedTensor> tensors;
  int64_t elements = 0;  ///< number of elements of the complete parameter
  ElementRange own;      ///< elements of the parameter whose state this process keeps
  bool is_divisible = false;

  /// Returns the range of a state tensor's elements that belongs to a range of the parameter's
  /// elements. `range` must begin and end where the parameter may be cut.
  ElementRange part(size_t tensor, ElementRange range) const;
};

/// The state of all parameters in a scratch file. Only times() is thread-safe. Functions that
/// access the file throw FileError (Exit::io) if the disk fails.
class StateOffload {
 public:
  /// The elements of one slot that a unit holds, which are updated together.
  struct Piece {
    size_t slot = 0;
    ElementRange range{};           ///< range of the parameter's elements
    std::vector<size_t> offsets{};  ///< byte offset in the unit of each tensor's part
  };
  /// The part of the file that is read and written at a time.
  struct Unit {
    uint64_t offset = 0;  ///< offset in the file, in bytes
    size_t bytes = 0;
    std::vector<Piece> pieces{};
  };
  /// Opens the file in `folder` (see ScratchFile) with a state of zeros, and allocates the buffers.
  /// A dry run has no file.
  StateOffload(const fs::path& folder, std::vector<OffloadedSlot> slots);
  ~StateOffload();
  StateOffload(const StateOffload&) = delete;
  StateOffload& operator=(const StateOffload&) = delete;

  /// Returns the units in the order of the file.
  const std::vector<Unit>& units() const { return units_; }
  /// Returns the indices of the units that hold a slot's state, in ascending order.
  const std::vector<size_t>& units_of(size_t slot) const { return units_of_[slot]; }
  /// Returns the size of the file in bytes.
  int64_t file_bytes() const { return file_bytes_; }

  /// Waits until a unit is in memory, and returns its address. The caller may read and change the
  /// unit until the next call.
  std::byte* use(size_t unit);
  /// Ends a step: starts to write the last unit, and to read the first units of the next step.
  void end_step();

  /// Reads the part of a slot's tensor that this process keeps. Calls `put` with the bytes of each
  /// piece in order. The next piece reuses the memory of these bytes.
  void read(size_t slot, size_t tensor, const std::function<void(std::span<const std::byte>)>& put);
  /// Writes the part of a slot's tensor that this process keeps. `from` points to that part, which
  /// must be contiguous.
  void write(size_t slot, size_t tensor, const void* from);

  /// Waits until all changes are written to the file, and drops the units in memory. Throws an
  /// error that occurred in the threads.
  void settle();

  /// Returns the statistics of all transfers so far. Thread-safe.
  TransferTimes times() const;

 private:
  enum class Place { file, reading, memory, writing };
  struct Status {
    Place place = Place::file;
    bool is_used = false;  // whether use() returned the unit since it was read
    size_t buffer = 0;     // index of the first buffer that holds the unit
    int64_t last_use = 0;
  };

  void lay_out(size_t unit_bytes);
  void allocate(size_t unit_bytes);
  size_t buffers_of(size_t unit) const;
  std::byte* memory_of(size_t unit) const;
  void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_true);
  void transfer(size_t unit, bool is_write);
  void retire();
  void fetch(size_t unit, size_t buffer);
  void read_ahead();
  std::optional<size_t> free_buffers(size_t count) const;
  std::optional<size_t> least_needed(bool unused_too) const;
  bool is_moving() const;
  void evict(size_t unit);
  size_t evict_until_free(std::unique_lock<std::mutex>& lock, size_t count);
  template <class F>
  void each_part(size_t slot, size_t tensor, F&& f);

  std::vector<OffloadedSlot> slots_;
  std::vector<Unit> units_;
  std::vector<std::vector<size_t>> units_of_;
  int64_t file_bytes_ = 0;

  at::Tensor buffers_;  // all buffers, one after another
  size_t buffer_bytes_ = 0;
  std::vector<int64_t> holds_;  // index of the unit in each buffer; -1: none

  // mutex_ guards the members that the threads change.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Status> status_;
  std::exception_ptr error_;
  TransferTimes times_;

  std::optional<size_t> current_;
  int64_t uses_ = 0, uses_before_step_ = 0;  // calls of use() so far, and before the current step
  std::vector<size_t> order_, seen_;  // units in order of first use: previous and current step
  std::vector<size_t> position_;      // position of each unit in order_

  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<WorkThread> reader_, writer_;  // last, since they use the other members
};

}  // namespace lathe
