// What feeds a run: every window once an epoch, batches that stay, and data that is told apart.
#include <chrono>
#include <set>
#include <thread>

#include "data/loader.h"
#include "tests/catch.h"
#include "tests/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::string counting(int n) {
  std::string bytes;
  for (int i = 0; i < n; ++i) bytes += {static_cast<char>(i & 255), static_cast<char>(i >> 8)};
  return bytes;
}

TEST_CASE("an epoch's batches hold every window once", "[feed]") {
  const TempFolder f;
  write_file(f / "train.bin", counting(1000));
  const TokenFile tokens(f.path(), "train", std::nullopt);
  const WindowSampler sampler(1000, 8, 7);
  Loader loader(tokens, {3, 8, 1000}, 7, 0, {}, at::kCPU);
  std::set<int64_t> first;
  for (int64_t n = 0; n + 3 <= sampler.windows_per_epoch(); n += 3) {
    const Batch b = loader.next();
    for (int64_t row = 0; row < 3; ++row) {
      CHECK(b.ids_BT[row][0].item<int64_t>() == sampler.start_of(n + row));
      CHECK(first.insert(b.ids_BT[row][0].item<int64_t>()).second);
    }
  }
  CHECK(first.size() == static_cast<size_t>(sampler.windows_per_epoch() / 3 * 3));
}

TEST_CASE("a batch stays as it is until the next is asked for, and a graph of an older one notices", "[feed]") {
  const TempFolder f;
  write_file(f / "train.bin", counting(1000));
  const TokenFile tokens(f.path(), "train", std::nullopt);
  DataConfig c;
  c.workers = 2, c.prefetch = 1;
  Loader loader(tokens, {3, 8, 1000}, 7, 0, c, at::kCPU);
  for (int i = 0; i < 3; ++i) {
    const Batch b = loader.next();
    const at::Tensor now = b.ids_BT.clone();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // workers fill what they may
    CHECK(b.ids_BT.equal(now));
    const auto version = b.ids_BT._version();
    for (int64_t n = 0; n <= c.prefetch; ++n) loader.next();  // once around the ring
    CHECK(b.ids_BT._version() > version);
  }
}

TEST_CASE("epochs differ in their order, and in where their windows begin", "[feed]") {
  const WindowSampler sampler(1000, 16, 42);
  const int64_t n = sampler.windows_per_epoch();
  std::set<std::vector<int64_t>> orders;
  std::set<int64_t> offsets;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < n; ++i) order.push_back(sampler.start_of(epoch * n + i) / 16);
    offsets.insert(sampler.start_of(epoch * n) % 16);
    orders.insert(order);
  }
  CHECK(orders.size() == 4);
  CHECK(offsets.size() > 1);
}

TEST_CASE("an evaluation's limit counts batches, not rows", "[feed]") {
  const TempFolder f;
  write_file(f / "val.bin", counting(1000));
  const TokenFile tokens(f.path(), "val", std::nullopt);
  EvalWindows two(tokens, {3, 16, 1000}, 2, at::kCPU);
  int64_t scored = 0;
  for (Batch b; two.next(b);) scored += b.targets_BT.numel();
  CHECK(scored == 2 * 3 * 16);
}

TEST_CASE("shards of one length and other contents are told apart; the vocabulary's own size is no id", "[feed]") {
  const TempFolder f;
  const auto print = [&](const std::string& bytes) {
    write_file(f / "train.bin", bytes);
    return TokenFile(f.path(), "train", std::nullopt).fingerprint();
  };
  std::string other = counting(50);
  other[20] = 9;
  CHECK(print(counting(50)) == print(counting(50)));
  CHECK(print(other) != print(counting(50)));
  const TokenFile tokens(f.path(), "train", std::nullopt);
  CHECK_THAT(error_of([&] { tokens.check_ids(49); }), ContainsSubstring("token 49 is 49, beyond the vocabulary of 49"));
  CHECK(error_of([&] { tokens.check_ids(50); }).empty());
}

}  // namespace
