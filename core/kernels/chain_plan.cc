#include "core/kernels/chain_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/kernels/scratch.h"

namespace lathe {
namespace {

/// Returns the op that gives the same result as `op` if operands a and b are exchanged, such as
/// `greater` for `less`. Returns nullopt if there is no such op.
std::optional<ChainOp> mirrored(ChainOp op) {
  switch (op) {
    case ChainOp::add:
    case ChainOp::mul:
    case ChainOp::equal:
    case ChainOp::not_equal: return op;
    case ChainOp::sub: return ChainOp::sub_from;
    case ChainOp::div: return ChainOp::div_into;
    case ChainOp::less: return ChainOp::greater;
    case ChainOp::less_equal: return ChainOp::greater_equal;
    case ChainOp::greater: return ChainOp::less;
    case ChainOp::greater_equal: return ChainOp::less_equal;
    default: return std::nullopt;
  }
}

/// Returns a form of `step` that reads `value`, the result of the previous step, from vector
/// registers. In this form, operand a is -1, which stands for `value`, and b and c are other
/// values. Returns nullopt if there is no such form.
std::optional<Chain::Step> continued(Chain::Step step, int value) {
  auto& [a, b, c] = step.from;
  if (runs_on_tile(step.op) || std::count(step.from.begin(), step.from.end(), value) == 0)
    return std::nullopt;
  if (a == value && b == value && step.op == ChainOp::mul) {
    step.op = ChainOp::square;
    b = -1;
  } else if (b == value && a != value) {
    const auto other = mirrored(step.op);
    if (!other) return std::nullopt;
    step.op = *other;
    std::swap(a, b);
  }

  if (a != value || b == value || c == value) return std::nullopt;
  a = -1;
  return step;
}

}  // namespace

int Chain::add_input(const Input& input) {
  inputs_.push_back(input);
  per_row_.push_back(input.per_row);
  return static_cast<int>(inputs_.size()) - 1;
}

int Chain::add_step(Step step) {
  const bool all_per_row = std::all_of(step.from.begin(), step.from.end(),
                                       [&](int v) { return v < 0 || is_per_row(v); });
  const bool changes = step.op == ChainOp::row_sum || step.op == ChainOp::spread;
  for (int& v : step.from) {
    if (all_per_row || changes || v < 0 || !is_per_row(v)) continue;
    const auto found = spread_of_.find(v);
    const int value = found != spread_of_.end()
                          ? found->second
                          : add_step({.op = ChainOp::spread, .from = {v, -1, -1}});
    v = spread_of_[v] = value;
  }
  steps_.push_back(step);
  per_row_.push_back(changes ? step.op == ChainOp::row_sum : all_per_row);
  return static_cast<int>(per_row_.size()) - 1;
}

void Chain::add_output(int value, ChainType type) { outputs_.push_back({value, type}); }

namespace {

/// Returns the smallest number of rows whose elements fill complete vectors of ATen's functions.
int64_t rows_of_vectors(int64_t columns, bool calls, bool calls_per_row) {
  if (calls_per_row) return full_vectors;
  return calls ? full_vectors / std::gcd(columns, full_vectors) : 1;
}

}  // namespace

ChainTiles chain_tiles(int64_t columns, bool calls, bool calls_per_row) {
  // Registers of 1024 elements stay in the L1 cache, and registers of 8192 elements in the L2
  // cache.
  constexpr int64_t block = 1024, block_of_calls = 8192;
  const int64_t about = calls ? block_of_calls : columns > 0 ? 4 * block : block;
  // The slack avoids a last tile of a single element. ATen's gelu() of a tensor with a single
  // element may differ in bits from gelu() of the same element at the end of a longer tensor.
  if (columns == 0) return {.part = calls ? full_vectors : 1, .tile = about, .slack = full_vectors};

  const int64_t unit = rows_of_vectors(columns, calls, calls_per_row) * columns;
  return {.part = unit, .tile = std::max(unit, about / unit * unit)};
}

bool rows_split_alike(int64_t rows, int64_t columns, bool calls, bool calls_per_row) {
  constexpr int64_t largest_tile = 65536;
  if (rows_of_vectors(columns, calls, calls_per_row) * columns > largest_tile) return false;
  return !calls_per_row || rows <= chain_grain;
}

ChainPlan::ChainPlan(const Chain& chain)
    : chain_(chain), first_register_(chain.inputs_.size() + chain.outputs_.size()) {
  read_uses();
  load_inputs();
  for (size_t i = 0; i < chain.steps_.size(); ++i) add_step(i);
}

void ChainPlan::read_uses() {
  const size_t inputs = chain_.inputs_.size(), values = inputs + chain_.steps_.size();
  place_.assign(values, -1);
  last_use_.assign(values, 0);
  uses_.assign(values, 0);
  by_call_.assign(values, false);
  output_.assign(values, -1);

  for (size_t o = 0; o < chain_.outputs_.size(); ++o)
    output_[static_cast<size_t>(chain_.outputs_[o].value)] = static_cast<int>(o);

  for (size_t i = 0; i < chain_.steps_.size(); ++i) {
    const Chain::Step& step = chain_.steps_[i];
    const bool call = calls_aten(step.op);
    calls = calls || call;
    calls_per_row = calls_per_row || (call && chain_.is_per_row(static_cast<int>(inputs + i)));
    last_use_[inputs + i] = i;
    by_call_[inputs + i] = call;
    for (size_t k = 0; k < step.from.size(); ++k) {
      if (step.from[k] < 0) continue;
      const auto value = static_cast<size_t>(step.from[k]);
      last_use_[value] = i;
      by_call_[value] = by_call_[value] || call;
      if (std::find(step.from.begin(), step.from.begin() + k, step.from[k]) ==
          step.from.begin() + k)
        ++uses_[value];
    }
  }
}

int ChainPlan::new_register() {
  if (free_.empty()) return static_cast<int>(first_register_) + registers++;
  const int place = free_.back();
  free_.pop_back();
  return place;
}

/// Assigns a place to each input that a step reads. Inputs that are converted, broadcast or read by
/// ATen's functions are loaded into registers before the first step. Other inputs are read in
/// place.
void ChainPlan::load_inputs() {
  for (size_t i = 0; i < chain_.inputs_.size(); ++i) {
    const Chain::Input& input = chain_.inputs_[i];
    if (uses_[i] == 0) continue;
    place_[i] = static_cast<int>(i);
    const bool is_in_place = input.size == 0 || input.per_row;
    if (input.type == ChainType::f32 && is_in_place && !by_call_[i]) continue;
    place_[i] = new_register();
    code.push_back(
        {.op = ChainOp::load, .per_row = input.per_row, .to = place_[i], .a = static_cast<int>(i)});
  }
}

/// Returns whether the result of a step needs a place. The result needs none if it is not an output
/// and only the next step reads it, from vector registers.
bool ChainPlan::has_place(size_t i) const {
  const size_t value = chain_.inputs_.size() + i;
  return runs_on_tile(chain_.steps_[i].op) || by_call_[value] || output_[value] >= 0 ||
         uses_[value] != 1 || i + 1 == chain_.steps_.size() ||
         !continued(chain_.steps_[i + 1], static_cast<int>(value));
}

void ChainPlan::add_step(size_t i) {
  const Chain::Step& given = chain_.steps_[i];
  const size_t value = chain_.inputs_.size() + i;
  Chain::Step step = given;
  // The result of the previous step is in vector registers only if the last instruction is not a
  // store and does not run on a complete tile.
  const bool follows =
      i > 0 && !code.empty() && code.back().op != ChainOp::store && !runs_on_tile(code.back().op);
  if (follows) step = continued(given, static_cast<int>(value) - 1).value_or(given);

  const auto place = [&](int v) { return v < 0 ? -1 : place_[static_cast<size_t>(v)]; };
  ChainInstruction made{.op = step.op,
                        .low = step.low,
                        .per_row = chain_.is_per_row(static_cast<int>(value)),
                        .a = place(step.from[0]),
                        .b = place(step.from[1]),
                        .c = place(step.from[2]),
                        .number = step.number};

  const auto release_operands = [&] {
    for (size_t k = 0; k < given.from.size(); ++k) {
      const int v = given.from[k];
      const auto* const end = given.from.begin() + k;
      if (v < 0 || last_use_[static_cast<size_t>(v)] != i ||
          std::find(given.from.begin(), end, v) != end)
        continue;
      if (place(v) >= static_cast<int>(first_register_)) free_.push_back(place(v));
    }
  };

  const int output = output_[value];
  const bool stores =
      output >= 0 &&
      (by_call_[value] || chain_.outputs_[static_cast<size_t>(output)].type != ChainType::f32);
  const bool direct = output >= 0 && !stores;

  // The result of an instruction may overwrite an operand that no later step reads. Instructions
  // that run on a complete tile need a separate register for the result.
  if (!runs_on_tile(step.op)) release_operands();
  if (direct)
    place_[value] = static_cast<int>(chain_.inputs_.size()) + output;
  else if (has_place(i))
    place_[value] = new_register();
  if (runs_on_tile(step.op)) release_operands();
  made.to = place_[value];
  code.push_back(made);

  if (stores)
    code.push_back({.op = ChainOp::store, .per_row = made.per_row, .to = output, .a = made.to});
  if (!direct && made.to >= 0 && last_use_[value] == i) free_.push_back(made.to);
}

}  // namespace lathe
