// The program that Chain::run() executes: instructions on registers, which are arrays of float32 in
// memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels/chain.h"

namespace lathe {

/// An instruction. Its operands and its result are in places, which are numbered: first the inputs,
/// then the outputs, then the registers. If `a` is -1, operand a is the result of the previous
/// instruction, which is still in vector registers. If `to` is -1, the result stays in vector
/// registers and is not stored. In a load, `a` is the index of an input; in a store, `to` is the
/// index of an output. If `per_row` is true, the result has one element per row.
struct ChainInstruction {
  ChainOp op = ChainOp::copy;
  bool low = false, per_row = false;
  int to = -1, a = -1, b = -1, c = -1;
  double number = 0;
};

/// The instructions of a chain, with as few registers as the lifetimes of values permit. A float32
/// input or output is read or written in place, without a register, except by ATen's functions.
class ChainPlan {
 public:
  explicit ChainPlan(const Chain& chain);

  std::vector<ChainInstruction> code;
  int registers = 0;
  bool calls = false;          ///< some instruction calls ATen
  bool calls_per_row = false;  ///< some of these calls have one element per row

 private:
  void read_uses();
  void load_inputs();
  void add_step(size_t step);
  bool has_place(size_t step) const;
  int new_register();

  const Chain& chain_;
  size_t first_register_;
  std::vector<int> place_;        // of each value; -1 if it has none
  std::vector<size_t> last_use_;  // the last step that reads each value, or else computes it
  std::vector<int> uses_;         // how many steps read each value
  std::vector<bool> by_call_;     // whether ATen's functions read or compute the value
  std::vector<int> output_;       // of each value: its output; -1: none
  std::vector<int> free_;
};

/// The grain size of ATen's loops. A chain divides its elements among threads as ATen does. If the
/// last elements of a thread's share do not fill a vector, ATen computes them with other functions,
/// whose results may differ in their bits.
constexpr int64_t chain_grain = 32768;
/// A number of elements that fills the vectors of all of ATen's functions: two AVX-512 vectors of
/// bfloat16.
constexpr int64_t full_vectors = 64;

/// Returns whether an instruction runs on a complete tile. The other instructions run together on
/// one block of the tile after another.
constexpr bool runs_on_tile(ChainOp op) { return calls_aten(op) || needs_rows(op); }

/// How a chain divides its elements. They are divided into parts of `part` elements, of which each
/// thread gets some, and a thread's elements into tiles of `tile` elements. Only the last tile of a
/// thread may have another size, up to `tile + slack`.
struct ChainTiles {
  int64_t part = 1, tile = 0, slack = 0;
};
/// Returns how a chain with rows of `columns` elements (0: without rows) divides n elements.
ChainTiles chain_tiles(int64_t columns, bool calls, bool calls_per_row, int64_t n);

/// Returns whether a chain with rows has the same bits as its ops one by one. That is so if its
/// tiles, which consist of complete rows, can begin where ATen's vectors do, and are small enough
/// for the caches. `calls`: the chain calls ATen's functions for values that have as many elements
/// as the chain. `calls_per_row`: it calls them for values that have one element per row. There may
/// then be at most chain_grain rows, so that ATen computes these values on one thread.
bool rows_split_alike(int64_t rows, int64_t columns, bool calls, bool calls_per_row);

/// Returns whether ATen's gelu() has the same bits in a chain of n elements as on its own. ATen's
/// gelu() divides elements among threads in its own way, so bits may differ where a share ends
/// within a vector. ATen divides the elements of all other functions as a chain does.
bool gelu_splits_alike(int64_t n);

/// The memory of a tile that a thread processes.
struct ChainFrame {
  float* const* places;        ///< the addresses of all places, at the beginning of the tile
  const Chain::Input* inputs;  ///< how each input is read; `size` is 0 if it is per row
  const void* const* sources;  ///< the inputs, from their first element
  void* const* results;        ///< the outputs, from their first element
  const ChainType* types;      ///< of the outputs
  int read;                    ///< number of places that belong to inputs
};

}  // namespace lathe
