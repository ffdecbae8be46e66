// Declares check_rows(), which runs rows of the op table in a test case.
#pragma once

#include "tests/support/catch.h"
#include "tests/support/op_case.h"

namespace lathe::test {

/// Checks every `step`-th row of the table, beginning with row `first`.
inline void check_rows(size_t first, size_t step) {
  const auto& rows = op_table();
  for (size_t i = first; i < rows.size(); i += step) {
    INFO(rows[i].op << " (" << rows[i].label << ")");
    for (const auto& failure : check_op(rows[i])) {
      INFO(failure);
      CHECK(false);
    }
    CHECK(true);
  }
}

}  // namespace lathe::test
