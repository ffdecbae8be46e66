// Tests the order in which core/tree_sum.h adds values. The values are strings, and their sum
// records the order.
#include "core/tree_sum.h"

#include <string>

#include "tests/support/catch.h"

namespace {

using lathe::TreeSum;

std::string plus(const std::string& a, const std::string& b) { return "(" + a + b + ")"; }

/// Returns the sum of `n` leaves, which are named first, first + 1, ... modulo 10.
std::string sum_of(int first, int n) {
  TreeSum<std::string> sum;
  for (int i = 0; i < n; ++i) sum.add(std::to_string((first + i) % 10), plus);
  return sum.finish(plus);
}

TEST_CASE("values are added in the order of a binary tree", "[tree_sum]") {
  CHECK(sum_of(0, 1) == "0");
  CHECK(sum_of(0, 2) == "(01)");
  CHECK(sum_of(0, 3) == "((01)2)");
  CHECK(sum_of(0, 4) == "((01)(23))");
  CHECK(sum_of(0, 6) == "(((01)(23))(45))");
  CHECK(sum_of(0, 7) == "(((01)(23))((45)6))");
}

TEST_CASE("sums of blocks whose size is a power of two continue the same tree", "[tree_sum]") {
  for (int block : {1, 2, 4, 8}) {
    for (int blocks = 1; blocks <= 13; ++blocks) {
      INFO(blocks << " blocks of " << block);
      TreeSum<std::string> sum;
      for (int i = 0; i < blocks; ++i) sum.add(sum_of(i * block, block), plus);
      CHECK(sum.finish(plus) == sum_of(0, block * blocks));
      CHECK(sum.empty());
    }
  }
  // Blocks of three are not subtrees, so the order differs.
  TreeSum<std::string> sum;
  for (int i = 0; i < 2; ++i) sum.add(sum_of(3 * i, 3), plus);
  CHECK(sum.finish(plus) != sum_of(0, 6));
}

}  // namespace
