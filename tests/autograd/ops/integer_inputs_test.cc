// Walks the op table with integer and bool inputs, which take no part in the graph.
#include <ATen/ops/allclose.h>

#include "autograd/engine.h"
#include "tests/support/catch.h"
#include "tests/support/messages.h"
#include "tests/support/op_case.h"

namespace {

using namespace lathe;
using lathe::test::message_of;
using lathe::test::OpCase;

TEST_CASE("ops of integer and bool tensors give LibTorch's dtype and values, or an error",
          "[integer_inputs]") {
  int64_t same = 0;
  for (const OpCase& row : lathe::test::op_table()) {
    for (const auto dtype : {at::kLong, at::kInt, at::kBool}) {
      // The minimum of bools is computed from numbers.
      if (row.op == "reduce" && dtype == at::kBool) continue;
      INFO(row.op << " (" << row.label << ") in " << c10::toString(dtype));
      std::vector<at::Tensor> tensors;
      std::vector<Variable> variables;
      for (const at::Tensor& t : lathe::test::inputs_of(row)) {
        tensors.push_back(t.defined() ? t.to(dtype) : t);
        variables.emplace_back(tensors.back().defined() ? tensors.back().clone() : at::Tensor());
      }
      at::Tensor want, got;
      const TrainingStep step(lathe::test::step_random);
      if (!message_of([&] { want = row.oracle(tensors); }).empty()) continue;
      if (!message_of([&] { got = row.ours(variables).data(); }).empty()) continue;
      ++same;
      INFO("LibTorch: " << describe(want) << ", Lathe: " << describe(got));
      REQUIRE(got.sizes() == want.sizes());
      if (got.numel() == 0) continue;
      CHECK(got.scalar_type() == want.scalar_type());
      CHECK(at::allclose(got.to(at::kDouble), want.to(at::kDouble), 1e-5, 1e-6, true));
    }
  }
  CHECK(same > 300);
}

}  // namespace
