// Declares the program that Chain::run() executes. Its instructions work on registers, which are
// arrays of float32 in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels/chain.h"

namespace lathe {

/// An instruction. Operands and results are in places, which have numbers: first the inputs, then
/// the outputs, then the registers. If `a` is -1, operand a is the result of the previous
/// instruction, which is still in vector registers. If `to` is -1, the result stays in vector
/// registers and is not stored. In a `load`, `a` is the index of an input; in a `store`, `to` is
/// the index of an output. If `per_row` is true, the result has one element per row.
struct ChainInstruction {
  ChainOp op = ChainOp::copy;
  bool low = false, per_row = false;
  int to = -1, a = -1, b = -1, c = -1;
  double number = 0;
};

/// The instructions of a chain. They use as few registers as the lifetimes of values permit. A
/// float32 input or output is read or written in place, without a register, unless one of ATen's
/// functions reads or computes it. Inputs that are broadcast are also loaded into registers.
class ChainPlan {
 public:
  explicit ChainPlan(const Chain& chain);

  std::vector<ChainInstruction> code;
  int registers = 0;
  bool calls = false;          ///< whether an instruction calls one of ATen's functions
  bool calls_per_row = false;  ///< whether one of these calls computes a value with one element per
                               ///< row

 private:
  void read_uses();
  void load_inputs();
  void add_step(size_t step);
  bool has_place(size_t step) const;
  int new_register();

  const Chain& chain_;
  size_t first_register_;
  std::vector<int> place_;        // the place of each value; -1 if the value has none
  std::vector<size_t> last_use_;  // the last step that reads each value; if no step reads it, the
                                  // step that computes it
  std::vector<int> uses_;         // number of steps that read each value
  std::vector<bool> by_call_;     // whether one of ATen's functions reads or computes each value
  std::vector<int> output_;       // for each value, its index among the outputs; -1 if the value is
                                  // not an output
  std::vector<int> free_;
};

/// The grain size of ATen's loops. A chain divides its elements among threads as ATen does. If the
/// last elements of a thread's share do not fill a vector, ATen computes these elements with other
/// functions, whose results may differ in bits.
constexpr int64_t chain_grain = 32768;
/// A number of elements that fills complete vectors in all of ATen's functions. It corresponds to
/// two AVX-512 vectors of bfloat16.
constexpr int64_t full_vectors = 64;

/// Returns whether an instruction runs on a complete tile. Other instructions run block by block:
/// consecutive ones run together on a block of the tile, then on the next block.
constexpr bool runs_on_tile(ChainOp op) { return calls_aten(op) || needs_rows(op); }

/// How a chain divides its elements. A thread gets a range of parts, which have `part` elements
/// each. The elements of a thread are divided into tiles of `tile` elements. Only the last tile of
/// a thread may have another size, up to `tile + slack`.
struct ChainTiles {
  int64_t part = 1, tile = 0, slack = 0;
};
/// Returns how a chain with rows of `columns` elements is divided. If `columns` is 0, the chain has
/// no rows. If the chain calls ATen's functions, only the last tile of all may end within a vector,
/// as in in_blocks() (core/blocks.h).
ChainTiles chain_tiles(int64_t columns, bool calls, bool calls_per_row);

/// Returns whether the results of a chain with rows are bitwise equal to the results of its ops run
/// one by one. This requires that the chain's tiles, which consist of complete rows, can begin
/// where ATen's vectors begin, and that the tiles are small enough for the caches. `calls` is true
/// if the chain calls ATen's functions for values that have as many elements as the chain.
/// `calls_per_row` is true if the chain calls them for values that have one element per row. In
/// that case, there may be at most chain_grain rows, so that ATen computes these values on one
/// thread.
bool rows_split_alike(int64_t rows, int64_t columns, bool calls, bool calls_per_row);

/// The memory of a tile that a thread processes.
struct ChainFrame {
  float* const* places;        ///< for each place, the address of the tile's first element
  const Chain::Input* inputs;  ///< layout of each input; `size` is 0 if the input has one element
                               ///< per row
  const void* const* sources;  ///< addresses of the inputs' first elements
  void* const* results;        ///< addresses of the outputs' first elements
  const ChainType* types;      ///< types of the outputs
  int read;                    ///< number of places that belong to inputs
};

}  // namespace lathe
