// Compares causal attention on a GPU to attention on the CPU in float64, with separate documents,
// windows, groups of heads and a cache of keys. These comparisons are skipped without a GPU.
#include <algorithm>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/ops.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/attention_gpu.h"
#include "core/mode.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

namespace {

using namespace lathe;
using lathe::test::skip_without_gpu;

/// Returns the starts [2, time] of documents with different lengths, two of which have a single
/// position.
at::Tensor starts_of_documents(int64_t time) {
  const at::Tensor starts = at::zeros({2, time}, at::kLong);
  for (const auto& [row, begin] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {0, 6}, {0, 70}, {1, time - 1}}) {
    if (begin < time) starts[row].slice(0, begin).fill_(begin);
  }
  return starts;
}

struct GroupedCase {
  std::string label;
  int64_t heads, kv_heads, time, keys, width;
  bool has_documents = false;
  ScoreOptions scores{};
};

std::vector<GroupedCase> grouped_cases() {
  return {{"plain", 4, 4, 130, 130, 16},
          {"groups", 4, 2, 130, 130, 16},
          {"window", 4, 2, 130, 130, 32, false, {.window = 20}},
          {"scale", 2, 2, 70, 70, 64, false, {.scale = 0.5}},
          {"documents", 4, 4, 130, 130, 16, true},
          {"documents, groups and window", 4, 1, 130, 130, 64, true, {.window = 9}},
          {"one position", 4, 4, 1, 1, 16},
          {"a cache of keys", 4, 2, 3, 90, 16},
          {"one query with a cache and a window", 4, 2, 1, 90, 16, false, {.window = 33}},
          {"queries with a cache and a window", 4, 2, 40, 90, 16, false, {.window = 33}},
          {"capped scores", 2, 1, 40, 40, 16, true, {.scale = 1, .softcap = 3}},
          {"a head of an odd size", 2, 1, 40, 40, 12, true, {.window = 9}}};
}

/// Returns the output, and the gradients of q, k and v.
std::vector<at::Tensor> attended(const GroupedCase& c, const std::vector<at::Tensor>& qkv,
                                 const at::Tensor& dy, at::Device device, at::ScalarType dtype) {
  std::vector<Variable> in;
  for (const at::Tensor& t : qkv) in.push_back(Variable::parameter(t.to(device, dtype)));
  const at::Tensor starts = c.has_documents ? starts_of_documents(c.time).to(device) : at::Tensor();
  const Variable y = attention(in[0], in[1], in[2], c.heads, c.kv_heads, starts, {}, c.scores);
  std::vector<at::Tensor> results{y.data().to(at::kCPU, at::kDouble)};
  backward(y, dy.to(device, dtype));
  for (const Variable& v : in) results.push_back(v.grad().to(at::kCPU, at::kDouble));
  return results;
}

/// Returns the largest difference relative to the largest value, or relative to 1 if the largest
/// value is smaller. With one position, the gradients of queries and keys are zero except for
/// rounding.
double apart(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1)).item<double>();
}

TEST_CASE("a GPU's attention with groups, windows, documents and a cache matches the CPU's",
          "[gpu_attention][gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(8);

  for (const GroupedCase& c : grouped_cases()) {
    const int64_t batch = 2;
    const std::vector<at::Tensor> qkv{torch::randn({batch, c.time, c.heads * c.width}),
                                      torch::randn({batch, c.keys, c.kv_heads * c.width}),
                                      torch::randn({batch, c.keys, c.kv_heads * c.width})};
    const at::Tensor dy = torch::randn(qkv[0].sizes());

    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      INFO(c.label << " " << at::toString(dtype));
      std::vector<at::Tensor> rounded;
      for (const at::Tensor& t : qkv) rounded.push_back(t.to(dtype));
      const auto wanted = attended(c, rounded, dy.to(dtype), at::kCPU, at::kDouble);
      const auto ours = attended(c, rounded, dy.to(dtype), at::kCUDA, dtype);
      const auto again = attended(c, rounded, dy.to(dtype), at::kCUDA, dtype);

      // Two matrix products and a softmax, each of which is rounded, give this allowed error.
      const double unit = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-8 : 0x1p-5;
      for (size_t i = 0; i < wanted.size(); ++i) {
        INFO("result " << i);
        CHECK(apart(ours[i], wanted[i]) < unit);
        CHECK(ours[i].equal(again[i]));
      }

      // The comparison must notice another window. With only one key, another window changes
      // nothing.
      if (c.keys == 1) continue;
      GroupedCase other = c;
      other.scores.window = other.scores.window == 0 ? 2 : other.scores.window - 1;
      CHECK(apart(attended(other, rounded, dy.to(dtype), at::kCUDA, dtype)[0], wanted[0]) > unit);
    }
  }
}

TEST_CASE("a GPU's attention on packed projections keeps documents apart", "[gpu_attention][gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(9);
  constexpr int64_t heads = 3, time = 130, width = 16;
  const at::Tensor packed = torch::randn({2, time, 3 * heads * width}),
                   dy = torch::randn({2, time, heads * width}), starts = starts_of_documents(time);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    INFO(at::toString(dtype));
    const auto run = [&](at::Device device, at::ScalarType compute, const at::Tensor& from) {
      const Variable x = Variable::parameter(packed.to(dtype).to(device, compute));
      const Variable y = attention(x, heads, from.defined() ? from.to(device) : from);
      backward(y, dy.to(dtype).to(device, compute));
      return std::vector{y.data().to(at::kCPU, at::kDouble), x.grad().to(at::kCPU, at::kDouble)};
    };
    const auto wanted = run(at::kCPU, at::kDouble, starts), ours = run(at::kCUDA, dtype, starts),
               joined = run(at::kCUDA, dtype, {});
    const double unit = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-8 : 0x1p-5;
    for (size_t i = 0; i < 2; ++i) {
      CHECK(apart(ours[i], wanted[i]) < unit);
      CHECK(apart(joined[i], wanted[i]) > unit);  // the comparison notices joined documents
    }
  }
}

TEST_CASE("document_bounds() returns the bounds of documents, or none if the starts are invalid",
          "[gpu_attention]") {
  const at::Tensor starts = starts_of_documents(80);
  const DocumentBounds places = document_bounds(starts);
  CHECK(at::equal(places.begins, torch::tensor({0, 5, 6, 70, 80, 159, 160}, at::kInt)));
  CHECK(places.longest == 79);
  CHECK(document_bounds(starts).begins.is_same(places.begins));  // the result comes from the cache

  // A change in place is noticed.
  starts[1].slice(0, 40, 79).fill_(40);
  CHECK(document_bounds(starts).longest == 64);

  // The starts of a sliding window are not document starts.
  const at::Tensor window = (torch::arange(80) - 7).clamp_min(0).expand({2, 80}).contiguous();
  CHECK(!document_bounds(window).begins.defined());
  const at::Tensor late = at::zeros({1, 4}, at::kLong);
  late.fill_(-1);
  CHECK(!document_bounds(late).begins.defined());
}

}  // namespace
