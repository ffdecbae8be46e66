// Tests of lazy zeros: they read as zeros, take memory only where they are written, and are counted
// by the bytes that will be written.
#include "core/lazy_zeros.h"

#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "autograd/engine.h"
#include "autograd/ops.h"
#include "core/memory.h"
#include "core/rng.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

constexpr int64_t page_bytes = 4096;

int64_t gradient_bytes() { return memory_stats().used[static_cast<size_t>(Memory::gradients)]; }

/// Returns the bytes of a tensor that are resident. Its memory must begin at a page boundary.
int64_t resident_bytes(const at::Tensor& t) {
  const auto bytes = static_cast<int64_t>(t.nbytes());
  std::vector<unsigned char> pages(static_cast<size_t>((bytes + page_bytes - 1) / page_bytes));
  REQUIRE(::mincore(t.mutable_data_ptr(), t.nbytes(), pages.data()) == 0);
  return page_bytes *
         std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

TEST_CASE("lazy zeros take the memory of the pages that are written, and this memory is counted",
          "[lazy_zeros]") {
  const int64_t before = gradient_bytes();
  {
    const MemoryScope memory(Memory::gradients);
    const int64_t touched = memory_stats().touched;
    const at::Tensor t = lazy_zeros({1000, 1024}, at::kFloat);
    count_written(t, 3 * page_bytes);
    CHECK(is_lazy_zeros(t));
    CHECK(is_lazy_zeros(t.view({-1})));
    CHECK(gradient_bytes() - before == 3 * page_bytes);
    CHECK(memory_stats().touched - touched == 3 * page_bytes);
    for (const int64_t row : {7, 500, 999}) t.select(0, row).fill_(2);
    CHECK(resident_bytes(t) == 3 * page_bytes);
    CHECK(t.sum().item<float>() == 3 * 1024 * 2.0F);
  }
  CHECK(gradient_bytes() == before);

  const at::Tensor ones = at::ones({1000, 1024});
  {
    const MemoryScope memory(Memory::gradients);
    at::Tensor t = lazy_zeros({1000, 1024}, at::kFloat);
    count_written(t, 3 * page_bytes);

    // The count never exceeds the size of the tensor.
    count_written(t, 5 * page_bytes);
    CHECK(gradient_bytes() - before == 8 * page_bytes);
    add_to(t, ones);
    CHECK(gradient_bytes() - before == static_cast<int64_t>(t.nbytes()));
    CHECK(at::equal(t, ones));
  }
  CHECK(gradient_bytes() == before);

  const at::Tensor dense = at::zeros({1000, 1024});
  CHECK_FALSE(is_lazy_zeros(dense));
  CHECK_FALSE(is_lazy_zeros(at::Tensor()));
  count_written(dense, page_bytes);  // has no effect on a dense tensor
}

TEST_CASE("the gradient of a large embedding takes the memory of the rows of the batch",
          "[lazy_zeros]") {
  struct Case {
    const char* name;
    int64_t rows, columns, positions;
    at::ScalarType dtype;
    bool is_lazy;
  };
  const Case table[] = {
      {"rows of one page", 3000, 1024, 200, at::kFloat, true},
      {"rows of half a page", 6000, 512, 200, at::kFloat, true},
      {"rows across pages", 4000, 700, 200, at::kFloat, true},
      {"float64 has no kernel", 3000, 1024, 200, at::kDouble, false},
      {"a small table", 300, 1024, 20, at::kFloat, false},
      {"most rows in the batch", 3000, 1024, 2000, at::kFloat, false},
  };
  for (const Case& c : table) {
    CAPTURE(c.name);
    std::vector<int64_t> drawn(static_cast<size_t>(c.positions));
    for (size_t i = 0; i < drawn.size(); ++i) {
      drawn[i] =
          static_cast<int64_t>(philox(counter(i, 0), make_key(1, hash_name("lazy_zeros")))[0] %
                               static_cast<uint64_t>(c.rows));
    }
    drawn.back() = c.rows - 1;
    drawn.front() = 0;
    const at::Tensor ids = at::tensor(drawn);
    const at::Tensor dy = at::arange(c.positions * c.columns)
                              .remainder(31)
                              .sub(15)
                              .to(c.dtype)
                              .view({c.positions, c.columns});
    const at::Tensor expected = at::embedding_dense_backward(dy, ids, c.rows, -1, false);
    const Variable weight = Variable::parameter(at::zeros({c.rows, c.columns}, c.dtype));

    const int64_t before = gradient_bytes();
    backward(embedding(ids, weight), dy);
    CHECK(is_lazy_zeros(weight.grad()) == c.is_lazy);
    CHECK(at::equal(weight.grad(), expected));

    // A second backward pass adds rows. The sum is exact, since the gradients are small integers.
    if (c.is_lazy) {
      const int64_t counted = gradient_bytes() - before;
      CHECK(counted <= static_cast<int64_t>(weight.grad().nbytes()) / 2);
      backward(embedding(ids, weight), dy);
      CHECK(is_lazy_zeros(weight.grad()));
      CHECK(at::equal(weight.grad(), expected * 2));
      CHECK(gradient_bytes() - before == 2 * counted);
    }
  }
}

TEST_CASE("a gradient of an embedding stays within the memory that is counted for it",
          "[lazy_zeros]") {
  for (const int64_t columns : {1024, 1000, 512, 2500}) {
    CAPTURE(columns);
    const int64_t before = gradient_bytes();
    const Variable weight = Variable::parameter(at::zeros({8000, columns}));
    std::vector<int64_t> drawn(150);
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = static_cast<int64_t>(i) * 50 + 7;
    const at::Tensor ids = at::tensor(drawn);
    backward(embedding(ids, weight), at::ones({150, columns}));
    const at::Tensor grad = weight.grad();
    REQUIRE(is_lazy_zeros(grad));
    CHECK(resident_bytes(grad) <= gradient_bytes() - before);
    CHECK(resident_bytes(grad) >= 150 * columns * 4);
  }
}

}  // namespace
