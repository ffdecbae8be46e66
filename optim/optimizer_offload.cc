// Implements optimizers whose state is in a scratch file. Each unit of the file is updated
// separately, with pointers to the elements of its pieces.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstring>
#include <type_traits>

#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "optim/optimizer.h"

namespace lathe {
namespace {

/// Returns the layout of a slot's state in the file.
OffloadedSlot offloaded(const Slot& slot, const MethodState& state) {
  OffloadedSlot of{.tensors = {},
                   .elements = slot.param.numel(),
                   .own = slot.own,
                   .is_divisible = state.divisible};
  for (size_t i = 0; i < slot.state.size(); ++i) {
    const bool is_average = i == state.tensors.size();
    of.tensors.push_back({.elements = c10::multiply_integers(slot.parts[i].sizes),
                          .item = static_cast<int64_t>(slot.state[i].element_size()),
                          .per = is_average ? 1 : state.tensors[i].per});
  }
  return of;
}

}  // namespace

/// Creates the file and writes the initial state.
void Optimizer::offload_state(const std::filesystem::path& folder,
                              const std::vector<NamedParameter>& parameters) {
  LATHE_CHECK(control_.bytes().is_cpu(), "optimizer: state in a file needs parameters on a CPU");

  const auto slot_of = [&](size_t i) -> Slot& {
    return groups_[stages_[i].group].slots[stages_[i].slot];
  };
  std::vector<OffloadedSlot> slots;
  bool has_state = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    slots.push_back(offloaded(slot_of(i), method_->state(parameters[i])));
    has_state = has_state || !slots.back().tensors.empty();
  }
  if (!has_state) {
    fail(Exit::usage, "memory.offload = \"optimizer\" has no effect: optim.kind = \"", config_.kind,
         "\" keeps no state; leave memory.offload out");
  }
  offload_ = std::make_unique<StateOffload>(folder, std::move(slots));
  if (is_dry_run()) return;

  // The file is initially zero, so write only other initial values.
  for (size_t i = 0; i < parameters.size(); ++i) {
    Slot& slot = slot_of(i);
    const MethodState state = method_->state(parameters[i]);
    if (slot.own.size() == 0) continue;
    for (size_t t = 0; t < slot.state.size(); ++t) {
      // The average, which comes last, is set by start_averages().
      if (t == state.tensors.size() || state.tensors[t].start == 0) continue;
      const at::TensorOptions options = slot.state[t].options().device(at::kCPU);
      write_state(slot.state[t], slot.parts[t],
                  at::full(slot.state[t].sizes(), state.tensors[t].start, options));
    }
  }
}

void Optimizer::settle_offload() const {
  if (offload_) offload_->settle();
}

at::Tensor Optimizer::read_state(const at::Tensor& state, const StatePart& part) const {
  if (!state.is_meta()) return state;
  const MemoryScope memory(Memory::checkpoints);
  const at::Tensor copy = at::empty(state.sizes(), state.options().device(at::kCPU));
  auto* to = static_cast<std::byte*>(copy.mutable_data_ptr());
  stream_state(part, [&](std::span<const std::byte> bytes) {
    std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  });
  return copy;
}

void Optimizer::stream_state(const StatePart& part,
                             const std::function<void(std::span<const std::byte>)>& put) const {
  offload_->read(part.slot, part.tensor, put);
}

void Optimizer::write_state(const at::Tensor& state, const StatePart& part,
                            const at::Tensor& values) {
  if (!state.is_meta()) {
    state.view({-1}).copy_(values.view({-1}));
    return;
  }
  const at::Tensor same = values.to(state.scalar_type()).contiguous();
  if (same.numel() > 0) offload_->write(part.slot, part.tensor, same.const_data_ptr());
}

/// Returns the update of a piece, whose unit is at `memory`.
SlotUpdate Optimizer::piece_of(const SlotUpdate& update, const StateOffload::Piece& piece,
                               std::byte* memory) const {
  const Stage& stage = stages_[piece.slot];
  const Slot& slot = groups_[stage.group].slots[stage.slot];
  // args.first is the first element that this process owns.
  const int64_t begin = piece.range.begin - update.args.first;
  SlotUpdate one = update;
  one.args = part_of(update.args, begin, begin + piece.range.size());
  UpdateArgs& a = one.args;
  for (size_t i = 0; i < slot.state.size(); ++i) {
    void* const data = memory + piece.offsets[i];
    if (i < slot.places.size())
      a.state[slot.places[i]] = data;
    else
      a.average = data;
  }
  return one;
}

/// Implements update_all() for state in a file, unit by unit.
void Optimizer::update_offloaded(const std::vector<SlotUpdate>& updates,
                                 const std::vector<SlotUpdate>& stay) {
  // Each parameter has an update, or an update of only its moving average.
  std::vector<const SlotUpdate*> update_of(stages_.size()), average_of(stages_.size());
  for (const SlotUpdate& one : updates) update_of[one.parameter] = &one;
  for (const SlotUpdate& one : stay) average_of[one.parameter] = &one;

  std::vector<bool> is_needed(offload_->units().size());
  for (const auto* list : {&updates, &stay}) {
    for (const SlotUpdate& one : *list) {
      for (const size_t unit : offload_->units_of(one.parameter)) is_needed[unit] = true;
    }
  }

  for (size_t u = 0; u < is_needed.size(); ++u) {
    if (!is_needed[u]) continue;
    std::byte* const memory = offload_->use(u);
    std::vector<SlotUpdate> now, averages;
    for (const StateOffload::Piece& piece : offload_->units()[u].pieces) {
      if (const SlotUpdate* one = update_of[piece.slot])
        now.push_back(piece_of(*one, piece, memory));
      else if (const SlotUpdate* average = average_of[piece.slot])
        averages.push_back(piece_of(*average, piece, memory));
    }
    if (!now.empty()) method_->update(now, rule_, control_.pointer(), /*cuda=*/false);
    if (!averages.empty()) update_averages(averages);
  }
}

}  // namespace lathe
