// Tests of tokenizers, shards in every layout, windows and the loader.
#include <ATen/TensorOperators.h>

#include <numeric>
#include <set>

#include "data/loader.h"
#include "data/tokens/sampler.h"
#include "data/tokens/token_data.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::vector<uint16_t> counting(int n) {
  std::vector<uint16_t> v(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) v[static_cast<size_t>(i)] = static_cast<uint16_t>(i % 1000);
  return v;
}
std::string llmc_header(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> words(256);
  words[0] = magic;
  words[1] = version;
  words[2] = tokens;
  return packed(words);
}

TEST_CASE("decoding the ids of a text gives the text", "[shards_and_windows]") {
  const std::string text = "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\n";
  const Tokenizer chars = Tokenizer::characters(text);
  CHECK(chars.size() == 9);
  CHECK(chars.decode(chars.encode(text)) == text);
  CHECK(chars.vocabulary().front() == "\n");
  CHECK_THAT(error_of([&] { chars.encode("x"); }),
             ContainsSubstring("\"x\"") && ContainsSubstring("vocabulary"));
  CHECK(Tokenizer::byte().decode(Tokenizer::byte().encode(text)) == text);
  CHECK(chars.decode({99}) == "\xEF\xBF\xBD");
}

TEST_CASE("text that is not UTF-8 is refused with the position of the byte",
          "[shards_and_windows]") {
  for (const char* bad : {"ab\x80", "ab\xC0\x80", "ab\xE0\x80\x80", "ab\xED\xA0\x80",
                          "ab\xF5\x80\x80\x80", "ab\xE2\x82"}) {
    CHECK_THAT(error_of([&] { Tokenizer::characters(bad); }),
               ContainsSubstring("byte 2 ") && ContainsSubstring("UTF-8") &&
                   ContainsSubstring("--tokenizer byte"));
    // The error for a prompt must not advise another --tokenizer.
    const std::string of_prompt = error_of([&] { Tokenizer::characters("ab").encode(bad); });
    CHECK_THAT(of_prompt, ContainsSubstring("byte 2 ") && ContainsSubstring("UTF-8"));
    CHECK_THAT(of_prompt, !ContainsSubstring("--tokenizer"));
  }
}

TEST_CASE("shards in every layout read as one sequence", "[shards_and_windows]") {
  const auto reads = [](const fs::path& folder, int64_t n) {
    const TokenFile tokens(folder, "train", std::nullopt);
    REQUIRE(tokens.size() == n);
    std::vector<int64_t> out(static_cast<size_t>(n));
    tokens.read(0, n, 1000, out.data());
    for (int64_t i = 0; i < n; ++i) REQUIRE(out[static_cast<size_t>(i)] == i % 1000);
  };
  const auto v = counting(500);
  const std::vector<uint16_t> first(v.begin(), v.begin() + 200), second(v.begin() + 200, v.end());
  {
    const TempFolder f;  // nanoGPT's layout: raw uint16
    write_file(f / "train.bin", packed(v));
    reads(f.path(), 500);
  }
  {
    const TempFolder f;  // llm.c's layout: two shards, one with 32-bit tokens
    write_file(f / "train_000000.bin", llmc_header(20240520, 1, 200) + packed(first));
    write_file(f / "train_000001.bin",
               llmc_header(20240801, 7, 300) +
                   packed(std::vector<uint32_t>(second.begin(), second.end())));
    reads(f.path(), 500);
  }
}

TEST_CASE("malformed shards are refused", "[shards_and_windows]") {
  const TempFolder f;
  const auto problem = [&](const std::string& bytes) {
    write_file(f / "train.bin", bytes);
    return error_of([&] { TokenFile(f.path(), "train", std::nullopt); });
  };
  CHECK_THAT(problem(""), ContainsSubstring(f.path().string()) && ContainsSubstring("train_*.bin"));
  CHECK_THAT(problem("abc"), ContainsSubstring("train.bin") && ContainsSubstring("3 bytes") &&
                                 ContainsSubstring("16-bit"));
  CHECK_THAT(problem(llmc_header(20240520, 1, 7) + "abcd"),
             ContainsSubstring("train.bin: its header") && ContainsSubstring("7 tokens") &&
                 ContainsSubstring("has 2"));
  write_file(f / "train.bin", packed(counting(50)));
  const TokenFile tokens(f.path(), "train", std::nullopt);
  std::vector<int64_t> out(50);
  CHECK_THAT(
      error_of([&] { tokens.read(0, 50, 40, out.data()); }),
      ContainsSubstring("train.bin: token 40 is 40") && ContainsSubstring("model.vocab_size"));
  CHECK_THAT(error_of([&] { TokenFile(f / "nowhere", "train", std::nullopt); }),
             ContainsSubstring((f / "nowhere").string()) && ContainsSubstring("data.dir"));
}

TEST_CASE("an epoch has every window once, and epochs differ", "[shards_and_windows]") {
  const WindowSampler sampler(1000, 16, 42);
  const int64_t n = sampler.windows_per_epoch();
  CHECK(n == (1000 - 16) / 16);

  std::vector<std::set<int64_t>> starts(2);
  std::vector<int64_t> order[2];
  for (int64_t i = 0; i < 2 * n; ++i) {
    const int64_t s = sampler.start_of(i);
    REQUIRE(s >= 0);
    REQUIRE(s + 16 < 1000);  // the last target is a token of the text
    starts[static_cast<size_t>(i / n)].insert(s);
    order[i / n].push_back(s);
  }

  for (const auto& epoch : starts) {
    CHECK(static_cast<int64_t>(epoch.size()) == n);
    for (int64_t s : epoch) CHECK((s - *epoch.begin()) % 16 == 0);
  }
  CHECK(order[0] != order[1]);
  CHECK(!std::is_sorted(order[0].begin(), order[0].end()));

  // A text of the minimum length has one window, which stays within the text.
  const WindowSampler tight(17, 16, 1);
  for (int64_t i = 0; i < 5; ++i) CHECK(tight.start_of(i) == 0);
  const WindowSampler snug(30, 16, 1);
  for (int64_t i = 0; i < 50; ++i) CHECK(snug.start_of(i) + 16 < 30);
}

TEST_CASE("batches depend only on the step, not on workers or the first step of loading",
          "[shards_and_windows]") {
  const TempFolder f;
  write_file(f / "train.bin", packed(counting(2000)));
  const TokenData tokens(f.path());
  const BatchSizes shape{.batch_size = 3, .block_size = 8, .vocab_size = 1000};
  const auto batch = [&](int64_t workers, int64_t first, int64_t n) {
    DataConfig c;
    c.workers = workers;
    c.prefetch = 2;
    Loader loader(tokens, shape, 7, first, c, at::kCPU);
    Batch b;
    for (int64_t i = first; i <= n; ++i) b = loader.next();
    // Each target is the token after its input.
    CHECK((b.targets - b.inputs).remainder(1000).eq(1).all().item<bool>());
    return b.inputs.clone();
  };
  const at::Tensor wanted = batch(0, 0, 11);
  CHECK(batch(1, 0, 11).equal(wanted));
  CHECK(batch(4, 0, 11).equal(wanted));
  CHECK(batch(2, 9, 11).equal(wanted));
  CHECK(!batch(2, 9, 12).equal(wanted));
}

TEST_CASE("a worker's error reaches the training thread", "[shards_and_windows]") {
  const TempFolder f;
  write_file(f / "train.bin", packed(counting(2000)));
  const TokenData tokens(f.path());
  Loader loader(tokens, {.batch_size = 3, .block_size = 8, .vocab_size = 10}, 7, 0, {}, at::kCPU);
  CHECK_THAT(error_of([&] { loader.next(); }),
             ContainsSubstring("train.bin") && ContainsSubstring("vocabulary of 10"));
}

TEST_CASE("evaluation scores every target once, including those of the short last window",
          "[shards_and_windows]") {
  const TempFolder f;
  write_file(f / "val.bin", packed(counting(100)));
  const TokenData tokens(f.path());
  const auto windows =
      tokens.evaluation({.batch_size = 4, .block_size = 16, .vocab_size = 1000}, 0, at::kCPU);
  std::vector<int64_t> seen;
  for (Batch b; windows->next(b);) {
    const at::Tensor t = b.targets.contiguous();
    seen.insert(seen.end(), t.const_data_ptr<int64_t>(), t.const_data_ptr<int64_t>() + t.numel());
  }
  REQUIRE(seen.size() == 99);
  for (size_t i = 0; i < 99; ++i) CHECK(seen[i] == static_cast<int64_t>(i) + 1);

  // This evaluation has two batches of one window each.
  const auto two =
      tokens.evaluation({.batch_size = 1, .block_size = 16, .vocab_size = 1000}, 2, at::kCPU);
  int64_t scored = 0;
  for (Batch b; two->next(b);) scored += b.targets.numel();
  CHECK(scored == 32);
}

TEST_CASE("a partial evaluation takes evenly spread windows, the same ones each time",
          "[shards_and_windows]") {
  const TempFolder f;
  std::vector<uint16_t> ids(1605);  // 100 complete windows, and 4 more targets
  std::iota(ids.begin(), ids.end(), uint16_t{0});
  write_file(f / "val.bin", packed(ids));
  const TokenData tokens(f.path());
  const auto windows_of = [&](int64_t batches) {
    std::vector<int64_t> begins;
    const auto windows = tokens.evaluation({.batch_size = 4, .block_size = 16, .vocab_size = 2000},
                                           batches, at::kCPU);
    for (Batch b; windows->next(b);) {
      CHECK(b.inputs.sizes() == at::IntArrayRef({4, 16}));
      for (int64_t row = 0; row < b.inputs.size(0); ++row) {
        REQUIRE(b.inputs[row][0].item<int64_t>() % 16 == 0);
        begins.push_back(b.inputs[row][0].item<int64_t>() / 16);
      }
    }
    return begins;
  };

  // The sample has one window from each of 20 equal parts. The distances between these windows
  // differ.
  const auto sample = windows_of(5);
  REQUIRE(sample.size() == 20);
  std::set<int64_t> places;
  for (size_t i = 0; i < 20; ++i) {
    CHECK(sample[i] / 5 == static_cast<int64_t>(i));
    places.insert(sample[i] % 5);
  }
  CHECK(places.size() == 5);
  CHECK(windows_of(5) == sample);
  CHECK(windows_of(25).size() == 100);  // all complete windows

  // spread_index() divides `size` indices into `count` parts. If `count` does not divide `size`,
  // the parts differ in length, but each part still gets one index.
  for (const int64_t size : {7, 23, 100}) {
    for (int64_t count = 1; count <= size; ++count) {
      for (int64_t i = 0, last = -1; i < count; ++i) {
        const int64_t at = spread_index(i, count, size);
        REQUIRE((at > last && at >= i * size / count && at < (i + 1) * size / count));
        last = at;
      }
    }
  }
}

}  // namespace
