// Tests of random numbers, files, safetensors, JSON, TOML and the allocator.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/io/text.h"
#include "core/io/toml.h"
#include "core/memory.h"
#include "core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("Philox4x32-10 matches the test vectors of Random123", "[random_and_files]") {
  // These vectors are from the file kat_vectors of the Random123 distribution.
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a keyed permutation visits every position once", "[random_and_files]") {
  for (uint64_t n : {1, 2, 3, 17, 64, 1000}) {
    const Permutation p(n, make_key(n, 5));
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < n; ++i) {
      REQUIRE(p(i) < n);
      seen.insert(p(i));
    }
    CHECK(seen.size() == n);
  }
  const Permutation a(1000, make_key(1, 1)), b(1000, make_key(2, 1));
  int same = 0;
  for (uint64_t i = 0; i < 1000; ++i) same += a(i) == b(i);
  CHECK(same < 20);  // two random permutations agree at one position on average
}

TEST_CASE("a safetensors file is read as it was written", "[random_and_files]") {
  const TempFolder folder;
  const std::vector<float> a{1, 2, 3, 4, 5, 6};
  const std::vector<uint8_t> b{7, 8, 9};
  write_safetensors(folder / "x.safetensors",
                    {{"b", "U8", {3}, std::as_bytes(std::span(b))},
                     {"a", "F32", {2, 3}, std::as_bytes(std::span(a))},
                     {"none", "F32", {0, 4}, {}}},
                    {{"key", "value"}});
  const SafetensorsFile file(folder / "x.safetensors");
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.at("a").shape == std::vector<int64_t>{2, 3});
  CHECK(std::ranges::equal(file.at("a").bytes, std::as_bytes(std::span(a))));
  CHECK(std::ranges::equal(file.at("b").bytes, std::as_bytes(std::span(b))));
  CHECK(file.metadata().at("key") == "value");
  CHECK_THAT(error_of([&] { file.at("c"); }),
             ContainsSubstring("x.safetensors") && ContainsSubstring("\"c\""));
}

std::string framed(const std::string& header, size_t data_bytes) {
  uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(data_bytes, 'x');
}

TEST_CASE("malformed safetensors are refused, each for its reason", "[random_and_files]") {
  const TempFolder folder;
  const auto problem = [&](const std::string& bytes) {
    write_file(folder / "bad.safetensors", bytes);
    return error_of([&] { SafetensorsFile{folder / "bad.safetensors"}; });
  };

  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(problem(framed(good, 8)) == "");

  // These files are too short or too long, or have a fault in the JSON of the header.
  CHECK_THAT(problem("1234"), ContainsSubstring("too short"));
  CHECK_THAT(problem(framed(good, 8).substr(0, 40)),
             ContainsSubstring(str(" ", good.size(), " bytes")));
  CHECK_THAT(problem(framed(good, 7)), ContainsSubstring("0 to 8"));
  CHECK_THAT(problem(framed(good, 9)), ContainsSubstring("last tensor"));
  CHECK_THAT(problem(framed("{", 0)), ContainsSubstring("line 1, column 2"));
  CHECK_THAT(problem(framed("[]", 0)), ContainsSubstring("JSON object"));

  // These files have entries whose dtype, shape and size contradict each other.
  CHECK_THAT(problem(framed(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8)),
             ContainsSubstring("\"F33\""));
  CHECK_THAT(problem(framed(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8)),
             ContainsSubstring("12 bytes"));
  CHECK_THAT(problem(framed(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)),
             ContainsSubstring("dimension"));
  CHECK_THAT(
      problem(framed(
          R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8)),
      ContainsSubstring("too large"));

  // These files refer to bytes outside the file, have gaps, overlaps or repeated names, or have
  // JSON that is nested too deep.
  CHECK_THAT(problem(framed(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8)),
             ContainsSubstring("8 to 0"));
  CHECK_THAT(problem(framed(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12)),
             ContainsSubstring("gap") && ContainsSubstring("\"a\""));
  CHECK_THAT(
      problem(framed(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          4)),
      ContainsSubstring("overlap"));
  CHECK_THAT(
      problem(framed(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
          8)),
      ContainsSubstring("\"a\"") && ContainsSubstring("twice"));
  CHECK_THAT(problem(framed(std::string(60, '['), 0)), ContainsSubstring("8 levels"));
}

TEST_CASE("bytes that are not UTF-8 become U+FFFD in JSON and in TOML", "[random_and_files]") {
  const std::string path = "fold\xE9r/\xE2\x82\xAC\xC3";
  CHECK(json_text(Json{{path, path}}) ==
        "{\"fold\xEF\xBF\xBDr/\xE2\x82\xAC\xEF\xBF\xBD\":\"fold\xEF\xBF\xBDr/"
        "\xE2\x82\xAC\xEF\xBF\xBD\"}");
  CHECK(json_text(Json{{"a", "\xE9"}}, 1) == "{\n \"a\": \"\xEF\xBF\xBD\"\n}");
  CHECK(toml_text(path) == "\"fold\\uFFFDr/\xE2\x82\xAC\\uFFFD\"");
}

TEST_CASE("json_number writes non-finite numbers as strings", "[random_and_files]") {
  CHECK(json_number(1.5).dump() == "1.5");
  CHECK(json_number(NAN).dump() == "\"nan\"");
  CHECK(json_number(-INFINITY).dump() == "\"-inf\"");
}

TEST_CASE("the allocator reuses blocks and counts bytes by category", "[random_and_files]") {
  {
    const at::Tensor warm = at::empty({1 << 20});
  }
  const MemoryStats before = memory_stats();
  {
    const MemoryScope scope(Memory::optimizer);
    const at::Tensor t = at::empty({1 << 20});
    CHECK(reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 64 == 0);
    const MemoryStats during = memory_stats();
    CHECK(during.used[static_cast<size_t>(Memory::optimizer)] -
              before.used[static_cast<size_t>(Memory::optimizer)] ==
          4 << 20);
    CHECK(during.blocks == before.blocks);
    recategorize(t.storage().data_ptr(), Memory::gradients);
    CHECK(memory_stats().used[static_cast<size_t>(Memory::gradients)] ==
          before.used[static_cast<size_t>(Memory::gradients)] + (4 << 20));
  }
  CHECK(memory_stats().total == before.total);
  CHECK_THAT(error_of([] { at::empty({int64_t{1} << 50}); }),
             ContainsSubstring(std::to_string(int64_t{1} << 52)));
}

TEST_CASE("counts, times and numbers have short, readable texts", "[random_and_files]") {
  CHECK(count_text(824) == "824");
  CHECK(count_text(25'300) == "25.3k");
  CHECK(count_text(810'000) == "0.81M");
  CHECK(count_text(124'439'808) == "124.44M");
  CHECK(count_text(8'030'261'248) == "8.03B");
  CHECK(human_time(0.0314) == "31.4 ms");
  CHECK(human_time(9) == "9.0 s");
  CHECK(human_time(900) == "15.0 minutes");
  CHECK(human_time(5.2 * 3600) == "5.2 hours");
  CHECK(human_time(30 * 3600) == "30 hours");
  CHECK(human_time(4.5 * 86400) == "4.5 days");
  CHECK(human_time(346 * 86400) == "346 days");
  CHECK(short_number(3e-5, 3) == "3e-5");
  CHECK(short_number(0.0003162, 3) == "0.000316");
  CHECK(short_number(1.5e20, 2) == "1.5e20");
  CHECK(short_number(0, 2) == "0");
  CHECK(quantity(1, "thread") == "1 thread");
  CHECK(quantity(0, "step") == "0 steps");
}

TEST_CASE("a file written in large parts is complete even if write() writes fewer bytes than asked",
          "[random_and_files]") {
  const TempFolder folder;
  const FileCalls real = file_calls;
  static ssize_t (*const write_all)(int, const void*, size_t) = real.write;
  constexpr size_t part = 8 << 20;
  std::string text(2 * part + 4097, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i % 251);

  for (const bool is_short : {false, true}) {
    // A large call of write() writes only a third of its bytes, which is usually not a multiple of
    // the page size.
    if (is_short)
      file_calls.write = [](int fd, const void* data, size_t n) {
        return write_all(fd, data, n > 5000 ? n / 3 + 1 : n);
      };
    for (const size_t size : {size_t{0}, size_t{100}, part, part + 1, text.size()}) {
      INFO(size << " " << is_short);
      OutputFile file(folder / "large", OutputFile::Open::create);
      LargeWrites writes(file);
      // Write in pieces that do not end where parts do.
      for (size_t at = 0; at < size; at += 3000001)
        writes.add(text.data() + at, std::min<size_t>(3000001, size - at));
      writes.finish();
      file.sync();
      file.close();
      CHECK(slurp(folder / "large") == text.substr(0, size));
    }
  }
  file_calls = real;
}

}  // namespace
