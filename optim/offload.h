// An optimizer's state in a scratch file (memory.offload), so that a model trains whose state
// exceeds memory.
//
// The file is divided into units of at most 16 MiB, which are read, updated and written as a whole.
// A unit holds the state of several small parameters, or a piece of a large one. Pieces are cut
// where processes may cut a parameter too (StateOf::divisible), so that every update has the bits
// of an update in memory; the state of a parameter that its method needs as a whole is one piece.
// Units follow the parameters from the last to the first, about the order in which a backward pass
// completes gradients.
//
// A few buffers hold the unit that is being updated, those that come next and those that were
// updated last. use() hands out a unit: it has the unit before written, and the next ones read, by
// a thread each, while the caller computes. The next ones are those that followed in the step
// before. A buffer is reused once its unit is on its way to the disk's cache and was used since it
// was read. After the last unit of a step the first ones of the next step are read.
//
// If the state fits into free memory when the file is opened, reads and writes pass through the
// system's cache of files, which is not resident memory of the process. Otherwise the cache would
// only copy the bytes once more, and they bypass it (O_DIRECT). An error of the disk is thrown by
// the next call on the training thread and ends the run; its checkpoints do not depend on the file.
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
  int64_t elements = 0;  ///< of the complete tensor
  int64_t item = 0;      ///< bytes of an element
  int64_t per = 1;       ///< as in StateTensor
};

/// The state of one parameter in the file.
struct OffloadedSlot {
  std::vector<OffloadedTensor> tensors;
  int64_t elements = 0;  ///< of the complete parameter
  ElementRange own;      ///< elements of the parameter whose state this process keeps
  bool is_divisible = false;

  /// Returns the elements of a tensor of state that belong to elements of the parameter. `range`
  /// begins and ends where the parameter may be cut.
  ElementRange part(size_t tensor, ElementRange range) const;
};

/// The state of all parameters in a scratch file. Not thread-safe; throws FileError with Exit::io.
class StateOffload {
 public:
  /// Elements of one slot in a unit, updated together.
  struct Piece {
    size_t slot = 0;
    ElementRange range{};           ///< of the parameter's elements
    std::vector<size_t> offsets{};  ///< in the unit's bytes, of each tensor's part
  };
  /// What is read and written at a time.
  struct Unit {
    uint64_t offset = 0;  ///< in the file
    size_t bytes = 0;
    std::vector<Piece> pieces{};
  };
  /// Reserves the file in `folder` (see ScratchFile), with a state of zeros, and allocates the
  /// buffers. In a dry run there is no file.
  StateOffload(const fs::path& folder, std::vector<OffloadedSlot> slots);
  ~StateOffload();
  StateOffload(const StateOffload&) = delete;
  StateOffload& operator=(const StateOffload&) = delete;

  /// Returns the units in the order of the file.
  const std::vector<Unit>& units() const { return units_; }
  /// Returns the numbers of the units that hold a slot's state, in ascending order.
  const std::vector<size_t>& units_of(size_t slot) const { return units_of_[slot]; }
  /// Returns the bytes of the file.
  int64_t file_bytes() const { return file_bytes_; }

  /// Returns the memory with a unit's bytes, to be read and changed until the next call.
  std::byte* use(size_t unit);
  /// Ends a step: has the last unit written and the first ones of the next step read.
  void end_step();

  /// Reads the part of a slot's tensor that this process keeps: calls `put` with its bytes, part by
  /// part in their order, in memory that the next part reuses.
  void read(size_t slot, size_t tensor, const std::function<void(std::span<const std::byte>)>& put);
  /// Writes that part.
  void write(size_t slot, size_t tensor, const void* from);

  /// Waits until the file has all changes, and drops what is in memory. Throws what went wrong in
  /// the threads.
  void settle();

  /// Returns what the transfer took so far. Thread-safe.
  TransferTimes times() const;

 private:
  enum class Place { file, reading, memory, writing };
  struct Status {
    Place place = Place::file;
    bool is_used = false;  // since it was read
    size_t buffer = 0;     // the first of its buffers
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
  size_t make_room(std::unique_lock<std::mutex>& lock, size_t count);
  template <class F>
  void each_part(size_t slot, size_t tensor, F&& f);

  std::vector<OffloadedSlot> slots_;
  std::vector<Unit> units_;
  std::vector<std::vector<size_t>> units_of_;
  int64_t file_bytes_ = 0;

  at::Tensor buffers_;  // all of them, one behind the other
  size_t buffer_bytes_ = 0;
  std::vector<int64_t> holds_;  // by buffer: its unit, or -1

  // What the threads change is guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Status> status_;
  std::exception_ptr error_;
  TransferTimes times_;

  std::optional<size_t> current_;
  int64_t uses_ = 0, uses_before_ = 0;  // in all steps, and in those before this one
  std::vector<size_t> order_, seen_;    // units of the step before and of this one, as first used
  std::vector<size_t> position_;        // of each unit in order_

  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<WorkThread> reader_, writer_;  // the last members: they use the others
};

}  // namespace lathe
