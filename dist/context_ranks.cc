#include "dist/context_ranks.h"

#include <ATen/ops/cat.h>

#include <span>
#include <vector>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "dist/collectives.h"
#include "dist/world.h"

namespace lathe {
namespace {

/// Returns the numbers of all chunks in the order in which all_gather() joins them: first the
/// chunks of rank 0, then the chunks of rank 1, ...
std::vector<int64_t> chunks_by_rank(int64_t ranks) {
  std::vector<int64_t> chunks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const int64_t chunk : PositionPart{rank, ranks}.chunks()) chunks.push_back(chunk);
  }
  return chunks;
}

/// Divides dim 1 of `rows` into `count` equal chunks, and returns the chunks `numbers`, joined in
/// the order of `numbers`.
at::Tensor chunks_of(const at::Tensor& rows, int64_t count, std::span<const int64_t> numbers) {
  const int64_t length = rows.size(1) / count;
  std::vector<at::Tensor> chunks;
  for (const int64_t n : numbers) chunks.push_back(rows.narrow(1, n * length, length));
  return at::cat(chunks, 1);
}

/// Gathers the positions of all context ranks, and returns them in the order of the row.
at::Tensor gather_positions(const at::Tensor& x) {
  const std::vector<int64_t> chunks = chunks_by_rank(world().context().size);
  std::vector<int64_t> gathered_order(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i)
    gathered_order[static_cast<size_t>(chunks[i])] = static_cast<int64_t>(i);
  return chunks_of(all_gather(x, 1, Axis::context), std::ssize(gathered_order), gathered_order);
}

/// Returns the sum of complete rows over the context ranks, at the positions of this process.
at::Tensor sum_positions(const at::Tensor& whole) {
  const std::vector<int64_t> chunks = chunks_by_rank(world().context().size);
  const at::Tensor by_rank = chunks_of(whole, std::ssize(chunks), chunks);
  return reduce_scatter(by_rank, 1, Axis::context);
}

struct GatherFromContextRanks {
  static constexpr OpInfo info{.name = "gather_from_context_ranks", .each = {0, 1}};
  at::Tensor forward(const at::Tensor& x) { return gather_positions(x); }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {sum_positions(dy)}; }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    return {sum_own_positions(dy)};
  }
};

struct SumOwnPositions {
  static constexpr OpInfo info{.name = "sum_own_positions", .each = {1, 0}};
  at::Tensor forward(const at::Tensor& whole) { return sum_positions(whole); }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {gather_positions(dy)}; }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    return {gather_from_context_ranks(dy)};
  }
};

}  // namespace

DividePositions::DividePositions() : part_{world().context().rank, world().context().size} {
  if (part_.parts > 1) mode().position_part = &part_;
}

at::Tensor own_positions(const at::Tensor& rows) {
  const PositionPart* part = mode().position_part;
  if (part == nullptr || !rows.defined()) return rows;
  LATHE_CHECK(rows.size(1) % (2 * part->parts) == 0, "rows of ", rows.size(1),
              " positions can't be divided among ", part->parts, " context ranks");
  return chunks_of(rows, 2 * part->parts, part->chunks());
}

Variable gather_from_context_ranks(const Variable& x) { return apply(GatherFromContextRanks{}, x); }

Variable sum_own_positions(const Variable& rows) { return apply(SumOwnPositions{}, rows); }

Variable attention_of_context_ranks(const Variable& query, const Variable& key_value, int64_t heads,
                                    int64_t kv_heads, const at::Tensor& starts,
                                    const ScoreOptions& scores) {
  const int64_t length = query.size(1) / 2, width = key_value.size(2) / 2;
  const Variable all = gather_from_context_ranks(key_value);
  std::vector<Variable> out;
  // The queries of a chunk attend to the keys from the start of the row to the end of the chunk.
  for (const int64_t chunk : mode().position_part->chunks()) {
    const int64_t begin = length * std::ssize(out), end = begin + length;
    const Variable seen = slice(all, 1, 0, (chunk + 1) * length);
    out.push_back(attention(slice(query, 1, begin, end), slice(seen, 2, 0, width),
                            slice(seen, 2, width, 2 * width), heads, kv_heads,
                            starts.defined() ? starts.slice(1, begin, end) : starts, {}, scores));
  }
  return cat(out, 1);
}

}  // namespace lathe
