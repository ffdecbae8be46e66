// Tests of token data: each epoch has every window once, batches stay valid, and fingerprints
// distinguish data.
#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "core/io/checksum.h"
#include "data/loader.h"
#include "data/tokens/sampler.h"
#include "data/tokens/token_data.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::string counting_bytes(int n) {
  std::string bytes;
  for (int i = 0; i < n; ++i) bytes += {static_cast<char>(i & 255), static_cast<char>(i >> 8)};
  return bytes;
}

TEST_CASE("an epoch's batches hold every window once", "[batches_and_fingerprints]") {
  const TempFolder f;
  write_file(f / "train.bin", counting_bytes(1000));
  const TokenData tokens(f.path());
  const WindowSampler sampler(1000, 8, 7);
  Loader loader(tokens, {.batch_size = 3, .block_size = 8, .vocab_size = 1000}, 7, 0, {}, at::kCPU);
  std::set<int64_t> first;
  for (int64_t n = 0; n + 3 <= sampler.windows_per_epoch(); n += 3) {
    const Batch b = loader.next();
    for (int64_t row = 0; row < 3; ++row) {
      CHECK(b.inputs[row][0].item<int64_t>() == sampler.start_of(n + row));
      CHECK(first.insert(b.inputs[row][0].item<int64_t>()).second);
    }
  }
  CHECK(first.size() == static_cast<size_t>(sampler.windows_per_epoch() / 3 * 3));
}

TEST_CASE("a batch is not changed until the next one is requested, and its version counts refills",
          "[batches_and_fingerprints]") {
  const TempFolder f;
  write_file(f / "train.bin", counting_bytes(1000));
  const TokenData tokens(f.path());
  DataConfig c;
  c.workers = 2;
  c.prefetch = 1;
  Loader loader(tokens, {.batch_size = 3, .block_size = 8, .vocab_size = 1000}, 7, 0, c, at::kCPU);
  for (int i = 0; i < 3; ++i) {
    const Batch b = loader.next();
    const at::Tensor now = b.inputs.clone();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // workers fill other buffers
    CHECK(b.inputs.equal(now));
    const auto version = b.inputs._version();
    for (int64_t n = 0; n <= c.prefetch; ++n) loader.next();  // b's buffer is filled again
    CHECK(b.inputs._version() > version);
  }
}

TEST_CASE("epochs differ in the order and the offset of their windows",
          "[batches_and_fingerprints]") {
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

TEST_CASE("an evaluation's limit counts batches, not rows", "[batches_and_fingerprints]") {
  const TempFolder f;
  write_file(f / "val.bin", counting_bytes(1000));
  const TokenData tokens(f.path());
  const auto two =
      tokens.evaluation({.batch_size = 3, .block_size = 16, .vocab_size = 1000}, 2, at::kCPU);
  int64_t scored = 0;
  for (Batch b; two->next(b);) scored += b.targets.numel();
  CHECK(scored == 2 * 3 * 16);
}

TEST_CASE(
    "shards of equal length and different contents are distinguished, and ids beyond the "
    "vocabulary are refused",
    "[batches_and_fingerprints]") {
  const TempFolder f;
  const auto print = [&](const std::string& bytes) {
    write_file(f / "train.bin", bytes);
    return TokenFile(f.path(), "train", std::nullopt).fingerprint();
  };
  std::string other = counting_bytes(50);
  other[20] = 9;
  CHECK(print(counting_bytes(50)) == print(counting_bytes(50)));
  CHECK(print(other) != print(counting_bytes(50)));
  const TokenData tokens(f.path());
  CHECK_THAT(error_of([&] { tokens.check_windows({.vocab_size = 49}); }),
             ContainsSubstring("train.bin") && ContainsSubstring("token 49") &&
                 ContainsSubstring("model.vocab_size"));
  CHECK(error_of([&] { tokens.check_windows({.vocab_size = 50}); }).empty());
}

TEST_CASE("stops and the number of workers do not change the windows of several epochs",
          "[batches_and_fingerprints]") {
  const TempFolder f;
  write_file(f / "train.bin", counting_bytes(500));
  const TokenData tokens(f.path());
  const BatchSizes shape{.batch_size = 3, .block_size = 8, .vocab_size = 1000};
  const WindowSampler sampler(500, 8, 7);
  const int64_t batches = (3 * sampler.windows_per_epoch() + 2) / 3;
  std::multiset<int64_t> wanted;
  for (int64_t n = 0; n < 3 * batches; ++n) wanted.insert(sampler.start_of(n));

  uint32_t x = 99;
  const auto random = [&x](int64_t below) {
    return static_cast<int64_t>((x = x * 1664525u + 1013904223u) / 65536) % below;
  };

  // After each stop, a new loader continues from the batch at which the previous loader stopped.
  for (int64_t workers = 0; workers <= 8; ++workers) {
    std::set<int64_t> stops{batches};
    while (stops.size() < 21) stops.insert(1 + random(batches - 1));
    std::multiset<int64_t> seen;
    int64_t at = 0;
    for (const int64_t stop : stops) {
      DataConfig c;
      c.workers = workers;
      c.prefetch = 1 + random(5);
      Loader loader(tokens, shape, 7, at, c, at::kCPU);
      for (; at < stop; ++at) {
        const at::Tensor first = loader.next().inputs.select(1, 0).contiguous();
        seen.insert(first.const_data_ptr<int64_t>(), first.const_data_ptr<int64_t>() + 3);
      }
    }

    INFO(workers << " workers");
    CHECK((seen == wanted));
  }
}

/// Writes a data folder with one split and no manifest.json. Returns a manifest for the folder,
/// with the checksum of the shard.
DataManifest with_manifest(const fs::path& folder, const std::string& bytes) {
  write_file(folder / "train.bin", bytes);
  DataManifest m;
  m.vocab_size = 65536;
  m.train.push_back({.file = "train.bin",
                     .tokens = static_cast<int64_t>(bytes.size() / 2),
                     .xxh3 = file_checksum(folder / "train.bin")});
  return m;
}

std::string sum_of(const std::string& text) {
  Checksum sum;
  sum.update(text.data(), text.size());
  return sum.hex();
}

TEST_CASE("fingerprints depend on contents even with a manifest, and those of earlier builds match",
          "[batches_and_fingerprints]") {
  const TempFolder f;
  const std::string bytes = counting_bytes(5000);
  const DataManifest m = with_manifest(f.path(), bytes);
  const auto open = [&] { return TokenFile(f.path(), "train", m); };
  const std::string now = open().fingerprint(), before = sum_of("5000 " + m.train[0].xxh3);

  // `before` is the fingerprint of earlier builds, which relied on the manifest's checksums.
  CHECK(now != before);
  CHECK(open().matches(now));
  CHECK(open().matches(before));
  CHECK(!open().matches(sum_of("x")));
  open().verify();

  for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 1);
    write_file(f / "train.bin", other);
    CHECK(!open().matches(now));
    CHECK_THAT(error_of([&] { open().verify(); }),
               ContainsSubstring("train.bin") && ContainsSubstring(m.train[0].xxh3));
  }

  // Without a manifest, the fingerprint is still the same as in earlier builds.
  write_file(f / "train.bin", bytes);
  const TokenFile bare(f.path(), "train", std::nullopt);
  CHECK(bare.fingerprint() == sum_of("5000 " + m.train[0].xxh3));
  CHECK(bare.matches(bare.fingerprint()));
  CHECK_THAT(error_of([&] { bare.verify(); }),
             ContainsSubstring("train.bin") && ContainsSubstring("no manifest.json"));

  CHECK_THAT(error_of([&] { open().verify([] { return true; }); }),
             ContainsSubstring("stopped") && ContainsSubstring("train.bin"));
}

TEST_CASE("a large shard's fingerprint notices most changes, and verify() notices all of them",
          "[batches_and_fingerprints]") {
  const TempFolder f;
  constexpr int64_t size = 160 << 20;  // a sparse file
  DataManifest m = with_manifest(f.path(), "");
  fs::resize_file(f / "train.bin", size);
  m.train[0] = {.file = "train.bin", .tokens = size / 2, .xxh3 = file_checksum(f / "train.bin")};
  const auto open = [&] { return TokenFile(f.path(), "train", m); };

  const std::string before = open().fingerprint();
  open().verify();
  const auto put = [&](int64_t at, char c) {
    std::fstream file(f / "train.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(c);
  };

  // The fingerprint reads samples, which may miss a changed byte. verify() reads the complete file.
  int noticed = 0;
  for (int64_t i = 0; i < 12; ++i) {
    const int64_t at = i * (size - 1) / 11;
    put(at, 1);
    noticed += open().fingerprint() != before;
    if (i == 5)
      CHECK_THAT(error_of([&] { open().verify(); }),
                 ContainsSubstring("train.bin") && ContainsSubstring(m.train[0].xxh3));
    put(at, 0);
  }

  CHECK(noticed >= 7);
  CHECK(open().fingerprint() == before);
}

}  // namespace
