#include "dist/sequence_ranks.h"

#include <ATen/ops/cat.h>

#include <vector>

#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/tensor_cut.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "dist/collectives.h"
#include "dist/tensor_ranks.h"
#include "dist/world.h"

namespace lathe {
namespace {

at::Tensor own_range(const at::Tensor& whole) {
  const auto [rank, ranks] = world().tensor();
  const int64_t count = whole.size(1) / ranks;
  return whole.narrow(1, rank * count, count);
}

// Gives each rank its own positions where the residual stream enters the blocks. Outside of the
// blocks, all ranks have the same tensors.
struct SplitSequence {
  static constexpr OpInfo info{.name = "split_sequence", .each = {0, 0}};
  at::Tensor forward(const at::Tensor& whole) { return own_range(whole).clone(); }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    return {all_gather(dy, 1, Axis::tensor)};
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const { return {join_sequence(dy)}; }
};

struct JoinSequence {
  static constexpr OpInfo info{.name = "join_sequence", .each = {0, 0}};
  at::Tensor forward(const at::Tensor& x) { return all_gather(x, 1, Axis::tensor); }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {own_range(dy)}; }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const { return {split_sequence(dy)}; }
};

}  // namespace

Variable split_sequence(const Variable& whole) { return apply(SplitSequence{}, whole); }
Variable join_sequence(const Variable& x) { return apply(JoinSequence{}, x); }

bool divides_sequence(const DistConfig& config) {
  return config.sequence_parallel && world().tensor().size > 1;
}

DivideSequence::DivideSequence() : part_{world().tensor().rank, world().tensor().size} {
  if (part_.parts > 1) mode().sequence_split = this;
}

Variable DivideSequence::enter(const Variable& x) const {
  LATHE_CHECK(x.dim() == 3 && x.size(1) % part_.parts == 0, "dist.sequence_parallel: rows of ",
              describe(x.data()), " can't be divided among ", part_.parts,
              " processes along dim 1");
  ran_blocks_ = true;
  return split_sequence(x);
}

Variable DivideSequence::leave(const Variable& y) const { return join_sequence(y); }

Variable input_of_cut_outputs(const Variable& x) {
  return mode().sequence_part != nullptr ? all_gather(x, 1, Axis::tensor) : copy_to_tensor_ranks(x);
}

Variable output_of_cut_inputs(const Variable& y) {
  return mode().sequence_part != nullptr ? reduce_scatter(y, 1, Axis::tensor)
                                         : reduce_from_tensor_ranks(y);
}

Variable parameter_of_cut_outputs(const Variable& parameter) {
  return mode().sequence_part != nullptr ? parameter : copy_to_tensor_ranks(parameter);
}

void require_whole_rows(const char* layer, const char* remedy) {
  if (mode().sequence_part == nullptr) return;
  fail(Exit::usage, "dist.sequence_parallel: ", layer, " needs all positions of a row; ", remedy);
}

void sum_block_gradients(std::span<const NamedParameter> parameters,
                         const std::function<at::Tensor(size_t i)>& gradient) {
  const MemoryScope memory(Memory::gradients);
  std::vector<at::Tensor> gradients, flat;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].block < 0 || cut_of(parameters[i].parameter) != nullptr) continue;
    const at::Tensor of_part = gradient(i);
    if (!of_part.defined()) continue;
    gradients.push_back(of_part);
    flat.push_back(of_part.reshape({-1}));
  }
  if (flat.empty()) return;

  const at::Tensor sums = all_reduce(at::cat(flat), Axis::tensor);
  int64_t offset = 0;
  for (const at::Tensor& of_part : gradients) {
    of_part.copy_(sums.narrow(0, offset, of_part.numel()).view(of_part.sizes()));
    offset += of_part.numel();
  }
}

}  // namespace lathe
