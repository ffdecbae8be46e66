#include "optim/offload.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/dry_run.h"
#include "core/error.h"
#include "core/free_memory.h"
#include "core/kernels/update.h"
#include "core/memory.h"
#include "core/timing.h"

namespace lathe {
namespace {

constexpr size_t page = 4096;              // alignment of units and buffers
constexpr size_t line = 64;                // alignment of tensors within a unit
constexpr size_t largest_unit = 16 << 20;  // bytes; a parameter that can't be cut may take more
constexpr size_t units_at_least = 16;      // least number of units, if parameters are small enough
constexpr size_t buffers_at_least = 4;     // one in use, two read ahead, one being written

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/// Returns the number of bytes that the state of a range of a slot's elements takes in a unit.
size_t bytes_of_state(const OffloadedSlot& slot, ElementRange range) {
  size_t bytes = 0;
  for (size_t i = 0; i < slot.tensors.size(); ++i) {
    const int64_t part = slot.part(i, range).size() * slot.tensors[i].item;
    bytes += round_up(static_cast<size_t>(part), line);
  }
  return bytes;
}

/// Returns how many elements of a slot a piece has. If the slot can't be cut, a piece has all
/// elements. Otherwise it has as many chunks of grad_sum_chunk elements as fit into a unit, but at
/// least one chunk.
int64_t elements_of_piece(const OffloadedSlot& slot, size_t unit_bytes) {
  if (!slot.is_divisible || slot.own.size() <= grad_sum_chunk) return slot.own.size();
  const size_t chunk = bytes_of_state(slot, {0, grad_sum_chunk});
  const auto chunks = static_cast<int64_t>(unit_bytes / std::max<size_t>(chunk, 1));
  return std::max<int64_t>(chunks, 1) * grad_sum_chunk;
}

}  // namespace

ElementRange OffloadedSlot::part(size_t tensor, ElementRange range) const {
  const OffloadedTensor& t = tensors[tensor];
  const auto place = [&](int64_t i) { return i == elements ? t.elements : i / t.per; };
  // The state of a parameter that is not divisible may have any number of elements. For such a
  // parameter, `range` contains all elements, so only the ends are mapped.
  return {range.begin == 0 ? 0 : place(range.begin), place(range.end)};
}

StateOffload::StateOffload(const fs::path& folder, std::vector<OffloadedSlot> slots)
    : slots_(std::move(slots)), units_of_(slots_.size()) {
  size_t all = 0;
  for (const OffloadedSlot& slot : slots_) {
    if (slot.own.size() > 0) all += bytes_of_state(slot, slot.own);
  }
  const size_t unit_bytes = std::clamp(round_up(all / units_at_least, page), page, largest_unit);

  lay_out(unit_bytes);
  allocate(unit_bytes);
  status_.resize(units_.size());
  order_.resize(units_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  position_ = order_;
  if (is_dry_run()) return;

  file_ = std::make_unique<ScratchFile>(folder, static_cast<uint64_t>(file_bytes_));
  if (file_bytes_ > free_memory()) file_->bypass_cache();
  reader_ = std::make_unique<WorkThread>();
  writer_ = std::make_unique<WorkThread>();
}

StateOffload::~StateOffload() = default;

/// Divides the state into units.
void StateOffload::lay_out(size_t unit_bytes) {
  for (size_t left = slots_.size(); left-- > 0;) {
    const OffloadedSlot& slot = slots_[left];
    const int64_t step = elements_of_piece(slot, unit_bytes);
    for (int64_t at = slot.own.begin; at < slot.own.end; at += step) {
      Piece piece{.slot = left, .range = {at, std::min(slot.own.end, at + step)}};
      const size_t bytes = bytes_of_state(slot, piece.range);
      if (units_.empty() || units_.back().bytes + bytes > unit_bytes) units_.emplace_back();

      Unit& unit = units_.back();
      for (size_t i = 0; i < slot.tensors.size(); ++i) {
        piece.offsets.push_back(unit.bytes);
        const int64_t part = slot.part(i, piece.range).size() * slot.tensors[i].item;
        unit.bytes += round_up(static_cast<size_t>(part), line);
      }
      unit.pieces.push_back(std::move(piece));
      if (units_of_[left].empty() || units_of_[left].back() != units_.size() - 1)
        units_of_[left].push_back(units_.size() - 1);
    }
  }

  uint64_t offset = 0;
  for (Unit& unit : units_) {
    unit.offset = offset;
    offset += round_up(unit.bytes, page);
  }
  file_bytes_ = static_cast<int64_t>(offset);
}

/// Allocates four buffers. Allocates fewer if all units fit into fewer, and more if the largest
/// unit takes more.
void StateOffload::allocate(size_t unit_bytes) {
  buffer_bytes_ = unit_bytes;
  size_t all = 0, largest = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    all += buffers_of(u);
    largest = std::max(largest, buffers_of(u));
  }
  holds_.assign(std::max(largest, std::min(all, buffers_at_least)), -1);

  const MemoryScope scope(Memory::optimizer);
  buffers_ = at::empty({static_cast<int64_t>(holds_.size() * buffer_bytes_ + page)}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(buffers_.mutable_data_ptr());
  buffers_ = buffers_.slice(0, static_cast<int64_t>(round_up(address, page) - address));
}

size_t StateOffload::buffers_of(size_t unit) const {
  return std::max<size_t>(1, (units_[unit].bytes + buffer_bytes_ - 1) / buffer_bytes_);
}

std::byte* StateOffload::memory_of(size_t unit) const {
  return static_cast<std::byte*>(buffers_.mutable_data_ptr()) +
         status_[unit].buffer * buffer_bytes_;
}

/// Waits until is_true() returns true. If a transfer has failed, throws its error instead.
void StateOffload::wait_until(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& is_true) {
  if (error_ == nullptr && !is_true()) {
    const Clock::time_point begin = Clock::now();
    changed_.wait(lock, [&] { return error_ != nullptr || is_true(); });
    times_.wait_s += seconds_since(begin);
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
}

/// Reads or writes a unit. Runs on the thread of reader_ or writer_.
void StateOffload::transfer(size_t unit, bool is_write) {
  const Unit& u = units_[unit];
  const Clock::time_point begin = Clock::now();
  std::exception_ptr error;
  try {
    // Transfer complete pages, as O_DIRECT requires. The file has space for them.
    const size_t bytes = round_up(u.bytes, page);
    if (is_write)
      file_->write(u.offset, memory_of(unit), bytes);
    else
      file_->read(u.offset, memory_of(unit), bytes);
    fault_point(is_write ? "offload: written" : "offload: read");
  } catch (...) {
    error = std::current_exception();
  }

  {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = error;
    status_[unit].place = Place::memory;
    times_.bytes += static_cast<int64_t>(u.bytes);
    times_.transfer_s += seconds_since(begin);
  }
  changed_.notify_all();
}

/// Starts to write the unit that was in use.
void StateOffload::retire() {
  if (!current_) return;
  const size_t unit = *std::exchange(current_, std::nullopt);
  status_[unit].place = Place::writing;
  writer_->add([this, unit] { transfer(unit, /*is_write=*/true); });
}

/// Starts to read a unit into adjacent free buffers, the first of which is `buffer`.
void StateOffload::fetch(size_t unit, size_t buffer) {
  status_[unit] = {.place = Place::reading, .buffer = buffer};
  for (size_t i = 0; i < buffers_of(unit); ++i) holds_[buffer + i] = static_cast<int64_t>(unit);
  reader_->add([this, unit] { transfer(unit, /*is_write=*/false); });
}

/// Returns the first of `count` adjacent free buffers, or nullopt if there are none.
std::optional<size_t> StateOffload::free_buffers(size_t count) const {
  size_t row = 0;
  for (size_t i = 0; i < holds_.size(); ++i) {
    row = holds_[i] < 0 ? row + 1 : 0;
    if (row == count) return i + 1 - count;
  }
  return std::nullopt;
}

/// Returns the unit in memory that was used the longest ago. If there is none and `unused_too` is
/// true, returns, of the units that were read ahead and not used yet, the unit that is needed last.
std::optional<size_t> StateOffload::least_needed(bool unused_too) const {
  std::optional<size_t> used, unused;
  for (const int64_t held : holds_) {
    if (held < 0) continue;
    const auto u = static_cast<size_t>(held);
    if (status_[u].place != Place::memory || current_ == u) continue;
    if (status_[u].is_used) {
      if (!used || status_[u].last_use < status_[*used].last_use) used = u;
    } else if (!unused || position_[u] > position_[*unused]) {
      unused = u;
    }
  }
  return used || !unused_too ? used : unused;
}

bool StateOffload::is_moving() const {
  return std::any_of(status_.begin(), status_.end(), [](const Status& s) {
    return s.place == Place::reading || s.place == Place::writing;
  });
}

void StateOffload::evict(size_t unit) {
  status_[unit].place = Place::file;
  for (int64_t& held : holds_) {
    if (held == static_cast<int64_t>(unit)) held = -1;
  }
}

/// Evicts units until `count` adjacent buffers are free, and returns the first of them.
size_t StateOffload::evict_until_free(std::unique_lock<std::mutex>& lock, size_t count) {
  for (;;) {
    if (const auto found = free_buffers(count)) return *found;
    // While a transfer is in progress, do not evict a unit that was read ahead, since it is still
    // needed. A unit that is being written frees its buffers soon.
    if (const auto unit = least_needed(/*unused_too=*/!is_moving())) {
      evict(*unit);
      continue;
    }
    LATHE_CHECK(is_moving(), "offload: no buffer is free, and none is becoming free");
    wait_until(lock, [&] { return !is_moving() || least_needed(/*unused_too=*/false); });
  }
}

/// Starts to read the units that follow the current unit, until no buffer is free without waiting.
void StateOffload::read_ahead() {
  const size_t begin = current_ ? position_[*current_] + 1 : 0;
  // One buffer is for the current unit, and one for the unit that is being written.
  const size_t most = holds_.size() > 2 ? holds_.size() - 2 : 1;
  for (size_t i = 0; i < std::min(most, order_.size()); ++i) {
    const size_t unit = order_[(begin + i) % order_.size()];
    if (status_[unit].place != Place::file) continue;

    const size_t count = buffers_of(unit);
    while (!free_buffers(count)) {
      const auto other = least_needed(/*unused_too=*/false);
      if (!other) return;
      evict(*other);
    }
    fetch(unit, *free_buffers(count));
  }
}

std::byte* StateOffload::use(size_t unit) {
  if (is_dry_run()) return memory_of(unit);
  std::unique_lock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (current_ != unit) {
    retire();
    if (status_[unit].place == Place::file) fetch(unit, evict_until_free(lock, buffers_of(unit)));
    wait_until(lock, [&] { return status_[unit].place == Place::memory; });
    current_ = unit;
    read_ahead();
  }

  Status& status = status_[unit];
  if (status.last_use <= uses_before_step_) seen_.push_back(unit);
  status.is_used = true;
  status.last_use = ++uses_;
  return memory_of(unit);
}

void StateOffload::end_step() {
  if (is_dry_run()) return;
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  retire();
  uses_before_step_ = uses_;

  // The next step is expected to use the units of this step in the same order. Units that this step
  // did not use come after them.
  std::vector<bool> is_listed(units_.size());
  std::vector<size_t> order;
  seen_.insert(seen_.end(), order_.begin(), order_.end());
  for (const size_t unit : std::exchange(seen_, {})) {
    if (is_listed[unit]) continue;
    is_listed[unit] = true;
    order.push_back(unit);
  }
  order_ = std::move(order);
  for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = i;
  read_ahead();
}

void StateOffload::settle() {
  if (is_dry_run()) return;
  std::unique_lock lock(mutex_);
  retire();
  wait_until(lock, [&] { return !is_moving(); });
  for (size_t u = 0; u < units_.size(); ++u) evict(u);
}

/// Calls f(offset in the file, offset in the tensor, bytes) for the pieces of a tensor.
template <class F>
void StateOffload::each_part(size_t slot, size_t tensor, F&& f) {
  const OffloadedSlot& s = slots_[slot];
  const int64_t item = s.tensors[tensor].item;
  const int64_t first = s.part(tensor, s.own).begin;
  for (const size_t u : units_of_[slot]) {
    for (const Piece& piece : units_[u].pieces) {
      if (piece.slot != slot) continue;
      const ElementRange part = s.part(tensor, piece.range);
      f(units_[u].offset + piece.offsets[tensor], (part.begin - first) * item,
        static_cast<size_t>(part.size() * item));
    }
  }
}

void StateOffload::read(size_t slot, size_t tensor,
                        const std::function<void(std::span<const std::byte>)>& put) {
  if (is_dry_run()) return;
  settle();
  auto* const memory = static_cast<std::byte*>(buffers_.mutable_data_ptr());
  each_part(slot, tensor, [&](uint64_t offset, int64_t, size_t bytes) {
    file_->read(offset, memory, bytes);
    put({memory, bytes});
  });
}

void StateOffload::write(size_t slot, size_t tensor, const void* from) {
  if (is_dry_run()) return;
  settle();
  each_part(slot, tensor, [&](uint64_t offset, int64_t at, size_t bytes) {
    file_->write(offset, static_cast<const std::byte*>(from) + at, bytes);
  });
}

TransferTimes StateOffload::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

}  // namespace lathe
