// Checks every second row of the op table (op_table_test.cc checks the other rows). Also tests that
// a row fails if it differs from its oracle by a hundredth.
#include <ATen/ops/ones.h>

#include "tests/autograd/ops/op_rows.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe::test;

TEST_CASE("odd rows of the op table agree with LibTorch and with central differences",
          "[op_table_rest]") {
  check_rows(1, 2);
}

TEST_CASE("a row that differs from its oracle by a hundredth fails", "[op_table_rest]") {
  const auto& rows = op_table();
  int tried = 0;
  for (size_t i = 0; i < rows.size(); i += 11) {
    OpCase row = rows[i];
    INFO(row.op << " (" << row.label << ")");
    if (!row.exact) continue;
    std::vector<at::Tensor> x;
    for (const Input& in : row.inputs) x.push_back(at::ones(in.shape, at::kDouble) * in.high);
    if (row.oracle(x).numel() == 0) continue;
    ++tried;
    // This oracle changes every value except -1.37, and no op returns only this value.
    row.oracle = [right = row.oracle](const std::vector<at::Tensor>& v) {
      return right(v) * 1.01 + 0.0137;
    };
    CHECK(!check_op(row).empty());
  }
  CHECK(tried > 20);
}

}  // namespace
