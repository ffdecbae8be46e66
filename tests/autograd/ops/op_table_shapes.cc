// Rows of the op table for shapes, indices, patterns and collectives.
#include "autograd/einops.h"
#include "autograd/ops.h"
#include "autograd/ops/shapes.h"
#include "dist/collectives.h"
#include "dist/context_ranks.h"
#include "dist/sequence_ranks.h"
#include "dist/tensor_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;
using Sizes = std::vector<int64_t>;

void add_views(std::vector<OpCase>& t) {
  const auto add = [&t](const char* op, const char* label, Sizes x, auto ours, auto oracle) {
    t.push_back({op,
                 label,
                 {{std::move(x)}},
                 [ours](V v) { return ours(v[0]); },
                 [oracle](T x) { return oracle(x[0]); }});
  };
  using X = const Variable&;
  using A = const at::Tensor&;
  add(
      "squeeze", "all", {1, 2, 1, 3}, [](X x) { return squeeze(x); },
      [](A x) { return x.squeeze(); });
  add(
      "squeeze", "a dim", {1, 2, 1, 3}, [](X x) { return squeeze(x, -2); },
      [](A x) { return x.squeeze(-2); });
  add(
      "squeeze", "a dim larger than 1", {1, 2}, [](X x) { return squeeze(x, 1); },
      [](A x) { return x.squeeze(1); });
  add("squeeze", "0-dim", {}, [](X x) { return squeeze(x, 0); }, [](A x) { return x.squeeze(0); });
  add("squeeze", "empty", {0, 1}, [](X x) { return squeeze(x); }, [](A x) { return x.squeeze(); });
  for (const int64_t n : {2, 3, 7}) {
    add(
        "chunk",
        n == 2   ? "equal"
        : n == 3 ? "a shorter last part"
                 : "more parts than rows",
        {n == 3 ? 5 : 4, 2},
        [n](X x) {
          const auto parts = chunk(x, n);
          return cat({parts.back(), parts[0] * 2.0}, 0) * static_cast<double>(parts.size());
        },
        [n](A x) {
          const auto parts = x.chunk(n);
          return torch::cat({parts.back(), parts[0] * 2}, 0) * static_cast<double>(parts.size());
        });
  }
  add(
      "chunk", "empty", {0, 2}, [](X x) { return chunk(x, 3)[2]; },
      [](A x) { return x.chunk(3)[2]; });
  add(
      "split", "by one size", {5, 2}, [](X x) { return split(x, 2)[2] + split(x, 2)[0]; },
      [](A x) { return x.split(2)[2] + x.split(2)[0]; });
  add(
      "unfold", "overlapping", {2, 7}, [](X x) { return unfold(x, 1, 3, 2); },
      [](A x) { return x.unfold(1, 3, 2); });
  add(
      "unfold", "first dim", {5, 2}, [](X x) { return unfold(x, 0, 2, 3); },
      [](A x) { return x.unfold(0, 2, 3); });
  add(
      "unfold_backward", "overlapping", {2, 3, 3},
      [](X x) { return unfold_backward(x, {2, 7}, 1, 3, 2); },
      [](A x) { return at::unfold_backward(x, {2, 7}, 1, 3, 2); });
  add("diagonal", "", {3, 4}, [](X x) { return diagonal(x); }, [](A x) { return x.diagonal(); });
  add(
      "diagonal", "last dims, above", {2, 3, 4}, [](X x) { return diagonal(x, 1, -2, -1); },
      [](A x) { return x.diagonal(1, -2, -1); });
  add(
      "diagonal", "beyond", {2, 2}, [](X x) { return diagonal(x, 3); },
      [](A x) { return x.diagonal(3); });
  add(
      "diagonal_backward", "", {2, 3}, [](X x) { return diagonal_backward(x, {2, 3, 4}, 1, 1, 2); },
      [](A x) { return at::diagonal_backward(x, {2, 3, 4}, 1, 1, 2); });
  add(
      "flip", "two dims", {2, 3, 2}, [](X x) { return flip(x, {0, -1}); },
      [](A x) { return x.flip({0, -1}); });
  add("flip", "empty", {0, 3}, [](X x) { return flip(x, 0); }, [](A x) { return x.flip(0); });
  add(
      "roll", "dims", {3, 4}, [](X x) { return roll(x, {1, -2}, {0, 1}); },
      [](A x) { return x.roll({1, -2}, {0, 1}); });
  add("roll", "all", {3, 4}, [](X x) { return roll(x, 5); }, [](A x) { return x.roll(5); });
  add("tril", "", {2, 4, 3}, [](X x) { return tril(x, -1); }, [](A x) { return x.tril(-1); });
  add("tril", "empty", {0, 3}, [](X x) { return tril(x); }, [](A x) { return x.tril(); });
  add(
      "pad", "a value", {2, 3}, [](X x) { return pad(x, {1, 2, 0, 1}, PadMode::constant, 0.5); },
      [](A x) { return torch::constant_pad_nd(x, {1, 2, 0, 1}, 0.5); });
  add(
      "pad", "cut", {2, 5}, [](X x) { return pad(x, {-1, 2}); },
      [](A x) { return torch::constant_pad_nd(x, {-1, 2}); });
  for (const auto& [mode, name] : {std::pair{PadMode::reflect, "reflect"},
                                   {PadMode::replicate, "replicate"},
                                   {PadMode::circular, "circular"}}) {
    add(
        "pad", name, {1, 2, 3, 4}, [mode = mode](X x) { return pad(x, {2, 1, 1, 2}, mode); },
        [name = name](A x) { return at::pad(x, at::IntArrayRef{2, 1, 1, 2}, name); });
  }
  add(
      "stack", "with itself", {2, 3}, [](X x) { return stack({x, x * 2.0}, -1); },
      [](A x) { return torch::stack({x, x * 2.0}, -1); });
  add(
      "stack", "0-dim", {}, [](X x) { return stack({x, x, x}); },
      [](A x) { return torch::stack({x, x, x}); });
  t.push_back({"outer",
               "",
               {{{3}}, {{2}}},
               [](V v) { return outer(v[0], v[1]); },
               [](T x) { return x[0].outer(x[1]); }});
  t.push_back({"bmm",
               "",
               {{{2, 3, 2}}, {{2, 2, 4}}},
               [](V v) { return bmm(v[0], v[1]); },
               [](T x) { return x[0].bmm(x[1]); }});
  t.push_back({"bmm",
               "no batch",
               {{{0, 3, 2}}, {{0, 2, 4}}},
               [](V v) { return bmm(v[0], v[1]); },
               [](T x) { return x[0].bmm(x[1]); }});
}

void add_places(std::vector<OpCase>& t) {
  t.push_back({"index_select",
               "repeated",
               {{{3, 4}}},
               [](V v) { return index_select(v[0], 1, longs({3, 0, 3}, {3}, device_of(v))); },
               [](T x) { return x[0].index_select(1, longs({3, 0, 3}, {3})); }});
  t.push_back({"index_select",
               "none",
               {{{3, 4}}},
               [](V v) { return index_select(v[0], 0, longs({}, {0}, device_of(v))); },
               [](T x) { return x[0].index_select(0, longs({}, {0})); }});
  t.push_back({"index_select",
               "0-dim",
               {{{}}},
               [](V v) { return index_select(v[0], 0, longs({0}, {1}, device_of(v))); },
               [](T x) { return x[0].index_select(0, longs({0}, {1})); }});
  t.push_back({"index_add",
               "repeated",
               {{{3, 4}}, {{3, 3}}},
               [](V v) { return index_add(v[0], 1, longs({3, 0, 3}, {3}, device_of(v)), v[1]); },
               [](T x) { return x[0].index_add(1, longs({3, 0, 3}, {3}), x[1]); }});
  t.push_back(
      {"scatter_add",
       "repeated",
       {{{3, 4}}, {{3, 3}}},
       [](V v) {
         return scatter_add(v[0], 1, longs({3, 3, 0, 1, 2, 1, 0, 0, 0}, {3, 3}, device_of(v)),
                            v[1]);
       },
       [](T x) { return x[0].scatter_add(1, longs({3, 3, 0, 1, 2, 1, 0, 0, 0}, {3, 3}), x[1]); }});
  t.push_back(
      {"scatter_add",
       "a part of src",
       {{{3, 4}}, {{3, 5}}},
       [](V v) { return scatter_add(v[0], 0, longs({2, 2, 0, 1}, {2, 2}, device_of(v)), v[1]); },
       [](T x) {
         return x[0].scatter_add(0, longs({2, 2, 0, 1}, {2, 2}),
                                 x[1].slice(0, 0, 2).slice(1, 0, 2));
       }});
  t.push_back({"gather",
               "a part of x",
               {{{3, 4}}},
               [](V v) { return gather(v[0], 1, longs({3, 3, 0, 1}, {2, 2}, device_of(v))); },
               [](T x) { return x[0].gather(1, longs({3, 3, 0, 1}, {2, 2})); }});
}

/// Adds a few einops patterns, with equivalent ops of ATen as oracles.
/// tests/autograd/einops_test.cc tests hundreds of patterns.
void add_patterns(std::vector<OpCase>& t) {
  t.push_back(
      {"rearrange",
       "",
       {{{2, 6, 3}}},
       [](V v) { return rearrange(v[0], "b (h w) c -> (c b) w h 1", {{"h", 2}}); },
       [](T x) { return x[0].reshape({2, 2, 3, 3}).permute({3, 0, 2, 1}).reshape({6, 3, 2, 1}); }});
  t.push_back({"rearrange",
               "empty",
               {{{0, 6}}},
               [](V v) { return rearrange(v[0], "... (h w) -> w h ...", {{"h", 2}}); },
               [](T x) { return x[0].reshape({0, 2, 3}).permute({2, 1, 0}); }});
  t.push_back({"rearrange",
               "0-dim",
               {{{}}},
               [](V v) { return rearrange(v[0], " -> 1 1"); },
               [](T x) { return x[0].reshape({1, 1}); }});
  for (const std::string how : {"sum", "mean", "max", "min", "prod"}) {
    t.push_back({"reduce",
                 how,
                 {{{2, 6, 3}}},
                 [how](V v) { return reduce(v[0], "b (h 2) c -> c h", how); },
                 [how](T x) {
                   const at::Tensor y =
                       x[0].reshape({2, 3, 2, 3}).permute({3, 1, 0, 2}).reshape({3, 3, 4});
                   return how == "sum"    ? y.sum(-1)
                          : how == "mean" ? y.mean(-1)
                          : how == "max"  ? y.amax(-1)
                          : how == "min"  ? y.amin(-1)
                                          : y.prod(-1);
                 }});
  }
  t.push_back({"repeat",
               "",
               {{{2, 3}}},
               [](V v) { return repeat(v[0], "a b -> b (r a) 2", {{"r", 3}}); },
               [](T x) {
                 return x[0].t().unsqueeze(1).expand({3, 3, 2}).reshape({3, 6, 1}).expand(
                     {3, 6, 2});
               }});
  t.push_back({"einsum",
               "a product",
               {{{2, 3, 4}}, {{2, 4, 5}}},
               [](V v) { return einsum("bij,bjk->bik", {v[0], v[1]}); },
               [](T x) { return x[0].matmul(x[1]); }});
  t.push_back({"einsum",
               "a trace",
               {{{3, 3}}},
               [](V v) { return einsum("ii", {v[0]}); },
               [](T x) { return x[0].trace(); }});
  t.push_back({"einsum",
               "three",
               {{{3, 2}}, {{2, 4}}, {{4, 2}}},
               [](V v) { return einsum("...j,jk,kl->...l", {v[0], v[1], v[2]}); },
               [](T x) { return x[0].matmul(x[1]).matmul(x[2]); }});
  t.back().low_scale = 8;
}

/// Adds collectives in one process. tests/dist/collectives_test.cc runs several processes.
void add_collectives(std::vector<OpCase>& t) {
  const auto add = [&t](const char* op, auto ours) {
    t.push_back({op,
                 "one process",
                 {{{3, 4}}},
                 [ours](V v) { return ours(v[0]); },
                 [](T x) { return x[0].clone(); }});
  };
  using X = const Variable&;
  add("all_reduce", [](X x) { return all_reduce(x); });
  add("all_gather", [](X x) { return all_gather(x, 1); });
  add("reduce_scatter", [](X x) { return reduce_scatter(x, -1); });
  add("all_to_all", [](X x) { return all_to_all(x, 1); });
  add("copy_to_tensor_ranks", [](X x) { return copy_to_tensor_ranks(x); });
  add("reduce_from_tensor_ranks", [](X x) { return reduce_from_tensor_ranks(x); });
  add("gather_from_context_ranks", [](X x) { return gather_from_context_ranks(x); });
  add("split_sequence", [](X x) { return split_sequence(x); });
  add("join_sequence", [](X x) { return join_sequence(x); });
  add("sum_own_positions", [](X x) { return sum_own_positions(x); });
  add("gather_from_tensor_ranks",
      [](X x) { return gather_from_tensor_ranks(x, {.dim = 0, .sections = {4}}); });
  t.push_back(
      {"cross_entropy_of_tensor_ranks",
       "one process, an ignored row",
       {{{3, 4}}},
       [](V v) {
         const at::Tensor targets = longs({1, -100, 3}, {3}, device_of(v));
         return cross_entropy_of_tensor_ranks(v[0], {.dim = 0, .sections = {4}}, targets,
                                              /*divisor=*/0);
       },
       [](T x) { return torch::cross_entropy_loss(x[0], longs({1, -100, 3}).to(x[0].device())); }});
}

}  // namespace

std::vector<OpCase> shape_rows() {
  std::vector<OpCase> t;
  add_views(t);
  add_collectives(t);
  add_places(t);
  add_patterns(t);
  return t;
}

}  // namespace lathe::test
