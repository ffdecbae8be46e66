// Tests that results of ops do not depend on the number of threads, to the bit. Rows of the op
// table are small, and ATen computes small tensors on one thread, so reductions are also run on
// large tensors.
#include <ATen/Parallel.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"

namespace {

using namespace lathe;
using lathe::test::op_table;
using lathe::test::OpCase;
using lathe::test::variables_of;
using Variables = std::vector<Variable>;

/// Restores the number of threads when destroyed.
class Threads {
 public:
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

/// Returns the result of `f`, and the gradients of a weighted sum of its elements with respect to
/// the inputs that require a gradient.
std::vector<at::Tensor> results_of(const std::function<Variable(const Variables&)>& f,
                                   const Variables& inputs) {
  const StepRandom random = lathe::test::step_random;
  const TrainingStep step(random);
  const Variable y = f(inputs);
  std::vector<at::Tensor> all{y.data()};
  if (!y.requires_grad()) return all;

  Variables trained;
  for (const Variable& x : inputs) {
    if (x.defined() && x.requires_grad()) trained.push_back(x);
  }
  const at::Tensor dy = at::arange(y.data().numel(), at::kLong)
                            .remainder(7)
                            .sub(3)
                            .to(y.data().scalar_type())
                            .view(y.data().sizes());
  for (const Variable& g : grad(y, trained, Variable(dy))) all.push_back(g.data());
  return all;
}

/// Returns those of the numbers of threads with which the results are not bitwise equal to the
/// results of one thread.
std::vector<int> differing_thread_counts(const std::function<Variable(const Variables&)>& f,
                                         const Variables& inputs,
                                         const std::vector<int>& counts = {2, 3, 4}) {
  const Threads restored;
  at::set_num_threads(1);
  const auto one = results_of(f, inputs);
  std::vector<int> differ;
  for (const int threads : counts) {
    at::set_num_threads(threads);
    const auto several = results_of(f, inputs);
    for (size_t i = 0; i < one.size(); ++i) {
      if (one[i].defined() && !at::equal(one[i].nan_to_num(), several[i].nan_to_num())) {
        differ.push_back(threads);
        break;
      }
    }
  }
  return differ;
}

Variables random(const std::vector<std::vector<int64_t>>& shapes, at::ScalarType dtype) {
  Variables all;
  uint64_t seed = 1;
  for (const auto& shape : shapes) {
    auto generator = at::detail::createCPUGenerator(seed++);
    all.push_back(Variable::parameter(at::randn(shape, generator).to(dtype), "x"));
  }
  return all;
}

/// Returns whether an op calls an ATen function that divides its work by the number of threads, so
/// that its result depends on that number (docs/internals/randomness.md).
bool depends_on_thread_count(const std::string& op) { return op.starts_with("conv"); }

/// Returns whether an op calls a function of ATen whose results for large tensors depend on the
/// number of threads (docs/internals/randomness.md). No built-in kind of model uses this op.
bool depends_on_thread_count_if_large(const OpCase& row) {
  return row.op == "softmax" && row.label == "first dim";
}

TEST_CASE("every op but convolutions is bitwise equal on any number of threads", "[threads]") {
  for (const OpCase& row : op_table()) {
    if (depends_on_thread_count(row.op)) continue;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      INFO(row.op << " " << row.label << " " << dtype);
      CHECK(differing_thread_counts(row.ours, variables_of(row, dtype)).empty());
    }
  }
}

TEST_CASE("ops that keep the shape of their one input are bitwise equal on large tensors",
          "[threads]") {
  // ATen gives each thread an equal part, whose last elements do not fill a vector and are often
  // computed by another function. Many threads have more of these elements.
  const std::vector<int64_t> shape{3, 50001};
  const std::vector<int> counts{2, 3, 5};
  int run = 0;
  for (const OpCase& row : op_table()) {
    if (depends_on_thread_count(row.op) || depends_on_thread_count_if_large(row) ||
        row.inputs.size() != 1)
      continue;
    const Variables small = variables_of(row, at::kFloat);
    if (results_of(row.ours, small)[0].sizes() != small[0].sizes()) continue;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Variables inputs = random({shape}, dtype);
      INFO(row.op << " " << row.label << " " << dtype);
      std::vector<int> differ;
      try {
        differ = differing_thread_counts(row.ours, inputs, counts);
      } catch (const std::exception&) {
        break;  // the arguments of the row do not fit the shape
      }
      CHECK(differ.empty());
      ++run;
    }
  }
  CHECK(run > 60);
}

TEST_CASE("reductions of large tensors are bitwise equal on any number of threads", "[threads]") {
  struct Case {
    std::string name;
    std::vector<std::vector<int64_t>> shapes;
    std::function<Variable(const Variables&)> f;
  };

  const std::vector<Case> cases{
      {"sum", {{300000}}, [](const Variables& v) { return sum(v[0]); }},
      {"sum of one row", {{1, 300000}}, [](const Variables& v) { return sum(v[0], 1); }},
      {"sum over rows", {{50000, 7}}, [](const Variables& v) { return sum(v[0], 0); }},
      {"mean", {{300, 1000}}, [](const Variables& v) { return mean(v[0]); }},
      {"mean of squares", {{300000}}, [](const Variables& v) { return mean(v[0] * v[0]); }},
      {"factor of all", {{300000}, {1}}, [](const Variables& v) { return v[0] * v[1]; }},
      {"batch_norm [B, C]",
       {{512, 96}, {96}, {96}},
       [](const Variables& v) { return batch_norm(v[0], v[1], v[2], 1e-5).y; }},
      {"batch_norm [B, C, 1, 1]",
       {{512, 96, 1, 1}, {96}, {96}},
       [](const Variables& v) { return batch_norm(v[0], v[1], v[2], 1e-5).y; }},
      {"batch_norm [B, C, H, W]",
       {{64, 32, 8, 8}, {32}, {32}},
       [](const Variables& v) { return batch_norm(v[0], v[1], v[2], 1e-5).y; }},
      {"layer_norm",
       {{4096, 64}, {64}, {64}},
       [](const Variables& v) { return layer_norm(v[0], v[1], v[2], 1e-5); }},
      {"linear",
       {{3000, 64}, {96, 64}, {96}},
       [](const Variables& v) { return linear(v[0], v[1], v[2]); }},
      {"lstm_layer",
       {{4, 50, 30}, {256, 30}, {256}, {256, 64}, {50, 64}, {50, 64}},
       [](const Variables& v) {
         return lstm_layer(v[0], v[1], v[2], v[3], v[4], cast(v[5], at::kFloat), false).first;
       }},
      {"lstm_layer of many units",
       {{3, 50, 30}, {1600, 30}, {1600}, {1600, 400}, {50, 400}, {50, 400}},
       [](const Variables& v) {
         return lstm_layer(v[0], v[1], v[2], v[3], v[4], cast(v[5], at::kFloat), true).first;
       }},
  };

  for (const Case& c : cases) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      INFO(c.name << " " << dtype);
      CHECK(differing_thread_counts(c.f, random(c.shapes, dtype)).empty());
    }
  }
}

TEST_CASE("additions to the same element have a fixed order on any number of threads",
          "[threads]") {
  const at::Tensor ids = at::arange(4000).mul(37).remainder(50);
  const at::Tensor others = at::arange(4000).mul(11).remainder(13);
  const at::Tensor mask = at::arange(600).remainder(3).eq(0);
  struct Case {
    std::string name;
    std::vector<int64_t> sizes;  // of the first input
    std::function<Variable(const Variables&)> f;
  };
  const std::vector<Case> cases{
      {"index of rows", {50, 40}, [&](const Variables& v) { return index(v[0], {ids}); }},
      {"index of rows from the end",
       {50, 40},
       [&](const Variables& v) { return index(v[0], {ids.reshape({40, 100}) - 50}); }},
      {"index of two dims",
       {50, 13, 20},
       [&](const Variables& v) { return index(v[0], {ids, others}); }},
      {"index of the second dim",
       {90, 50},
       [&](const Variables& v) { return index(v[0], {at::Tensor(), ids}); }},
      {"mask", {600, 200}, [&](const Variables& v) { return index(v[0], {mask}); }},
      {"index_backward",
       {4000, 40},
       [&](const Variables& v) { return index_backward(v[0], {ids}, {50, 40}); }},
      {"gather",
       {50, 40},
       [&](const Variables& v) { return gather(v[0], 0, ids.unsqueeze(1).expand({4000, 40})); }},
      {"index_add",
       {50, 40},
       [&](const Variables& v) { return index_add(v[0], 0, ids, expand(v[0][0], {4000, 40})); }},
      {"embedding", {50, 40}, [&](const Variables& v) { return embedding(ids, v[0]); }},
      {"gradient of an embedding's gradient",
       {50, 40},
       [&](const Variables& v) {
         const Variable y = embedding(ids, v[0]);
         return grad(sum(y * y * y), {v[0]}, {}, /*create_graph=*/true)[0];
       }},
      {"bags",
       {50, 40},
       [&](const Variables& v) {
         EmbeddingBag bags;
         bags.weight = v[0];
         return bags(ids.reshape({20, 200}));
       }},
  };

  for (const Case& c : cases) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      // With atomic additions, the bits differ in some runs, so try several times.
      for (int trial = 0; trial < 5; ++trial) {
        INFO(c.name << " " << dtype << " trial " << trial);
        CHECK(differing_thread_counts(c.f, random({c.sizes}, dtype)).empty());
      }
    }
  }
}

TEST_CASE("the comparison notices that ATen's sum depends on the number of threads", "[threads]") {
  const Variables x = random({{300000}}, at::kFloat);
  const auto sum_by_aten = [](const Variables& v) { return Variable(v[0].data().sum()); };
  CHECK(!differing_thread_counts(sum_by_aten, x).empty());
}

}  // namespace
