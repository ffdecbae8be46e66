// Flips bits in the files of a checkpoint and of prepared data: each change must be refused or have
// no effect. In JSON files and the headers of safetensors files, the tests flip one bit of each
// byte, or every bit if LATHE_TEST_FLIPS=1 is set, which takes minutes. They also flip random bits
// of complete files.
#include <cstdlib>

#include "autograd/node.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/safetensors.h"
#include "data/prepare/prepare.h"
#include "data/tokens/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/small.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

bool whole() { return std::getenv("LATHE_TEST_FLIPS") != nullptr; }

/// Calls f(changed, i) for flips of a bit in each byte i with `begin` <= i < `end`; `changed` is
/// the changed text. With LATHE_TEST_FLIPS it flips each of the 8 bits, otherwise one bit per byte.
template <class F>
void each_flip(const std::string& text, size_t begin, size_t end, F&& f) {
  for (size_t i = begin; i < end; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      if (!whole() && bit != static_cast<int>(i * 5 % 8)) continue;
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      f(changed, i);
    }
  }
}

/// Calls f(changed, i) `n` times; in `changed`, a random bit of a random byte i is flipped.
template <class F>
void random_flips(const std::string& text, int n, F&& f) {
  uint32_t x = 7;
  const auto next = [&x](size_t below) { return (x = x * 1664525u + 1013904223u) / 65536 % below; };
  for (int i = 0; i < n; ++i) {
    std::string changed = text;
    const size_t at = (static_cast<size_t>(next(65536)) * 65536 + next(65536)) % text.size();
    changed[at] = static_cast<char>(changed[at] ^ (1 << next(8)));
    f(changed, at);
  }
}

size_t header_end(const std::string& safetensors) {
  uint64_t length = 0;
  std::memcpy(&length, safetensors.data(), sizeof length);
  return sizeof length + length;
}

struct Saver : Small {
  fs::path save(const TempFolder& f, int64_t step) {
    RunState state;
    state.step = step;
    state.tokenizer = Tokenizer::characters("ab\n");
    state.scaler = ScaleState{.scale = 512, .growth_tracker = 1, .skipped = 0, .skipped_in_row = 0};
    state.val_loss = state.best_val_loss = 2.5;
    state.config = "[train]\nsteps = 5\n";
    return save_checkpoint(f.path(), state, params, optimizer, {.newest = 2});
  }
};

TEST_CASE(
    "a checkpoint with a changed byte is refused with a warning, and the previous checkpoint is "
    "used",
    "[byte_flips]") {
  const TempFolder f;
  Saver small;
  const fs::path older = small.save(f, 1), newer = small.save(f, 2);
  open_log_file((f / "log.txt").string());
  set_console_level(Level::error);

  const std::string manifest = slurp(newer / "manifest.json");
  const Json meaning = parse_json(manifest, "", Exit::internal);
  int taken = 0, refused = 0;
  const auto check = [&](const char* name, const std::string& changed, size_t at) {
    INFO(name << " byte " << at);
    write_file(newer / name, changed);
    const auto used = newest_checkpoint(f.path());
    if (used == newer) {
      // Only a change of white space in the manifest, which keeps its meaning, may be accepted.
      REQUIRE(std::string(name) == "manifest.json");
      REQUIRE(parse_json(changed, "", Exit::internal) == meaning);
      ++taken;
    } else {
      REQUIRE(used == older);
      ++refused;
    }
  };

  for (const char* name :
       {"manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"}) {
    const std::string text = slurp(newer / name);
    const auto flip = [&](const std::string& changed, size_t at) { check(name, changed, at); };
    each_flip(text, 0, std::string(name).ends_with(".json") ? text.size() : header_end(text), flip);
    random_flips(text, whole() ? 10'000 : 100, flip);
    write_file(newer / name, text);
    REQUIRE(newest_checkpoint(f.path()) == newer);
  }
  CHECK(taken < refused / 100);

  set_console_level(Level::info);
  CHECK_THAT(slurp(f / "log.txt"),
             ContainsSubstring("checkpoint step-00000002 ") && ContainsSubstring("checksum"));
}

TEST_CASE("parsers of a checkpoint return a value or throw an Error, whichever byte is changed",
          "[byte_flips]") {
  const TempFolder f;
  Saver small;
  const fs::path checkpoint = small.save(f, 1);

  const auto ends = [&](const char* name, auto&& read) {
    const std::string text = slurp(checkpoint / name);
    const auto flip = [&](const std::string& changed, size_t at) {
      INFO(name << " byte " << at);
      write_file(checkpoint / name, changed);
      try {
        read();
      } catch (const Error& e) {
        REQUIRE(e.code() == Exit::checkpoint);
        REQUIRE_THAT(e.what(), ContainsSubstring(name));
      }
    };
    each_flip(text, 0, std::string(name).ends_with(".json") ? text.size() : header_end(text), flip);
    write_file(checkpoint / name, text);
  };

  ends("state.json", [&] {
    const RunState s = read_state(checkpoint);
    REQUIRE(s.step >= 0);
    REQUIRE(s.updates <= s.step);
  });
  ends("model.safetensors", [&] { load_parameters(checkpoint, small.params); });
  ends("optimizer.safetensors", [&] { load_optimizer(checkpoint, small.optimizer); });
  ends("manifest.json", [&] {
    try {
      verify_checkpoint(checkpoint);
    } catch (const Error& e) {  // the message names the damaged file
      REQUIRE(e.code() == Exit::checkpoint);
      fail(Exit::checkpoint, "manifest.json ", e.what());
    }
  });
}

TEST_CASE(
    "a changed byte of data is noticed; a changed byte of its manifest is refused or has no effect",
    "[byte_flips]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(4000));
  prepare({.inputs = {(f / "text.txt").string()}, .out = f / "data", .tokenizer = "char"});

  // Returns all values that a run reads from the folder, as one text.
  const auto print = [&] {
    const auto m = read_manifest(f / "data");
    const TokenFile train(f / "data", "train", m), val(f / "data", "val", m);
    std::string all =
        str(train.fingerprint(), val.fingerprint(), m->vocab_size, " ", m->largest_id);
    for (const auto& c : m->tokenizer.vocabulary()) all += c;
    return all;
  };

  const std::string before = print();
  int refused = 0, same = 0;
  for (const char* name : {"manifest.json", "train.bin", "val.bin"}) {
    const std::string text = slurp(f / "data" / name);
    const bool is_manifest = std::string(name) == "manifest.json";
    const auto flip = [&](const std::string& changed, size_t at) {
      INFO(name << " byte " << at);
      write_file(f / "data" / name, changed);
      try {
        const std::string now = print();
        if (is_manifest) REQUIRE(now == before);
        // A run compares these values, so it would refuse to resume.
        if (!is_manifest) REQUIRE(now != before);
        (is_manifest ? same : refused) += 1;
      } catch (const Error& e) {
        REQUIRE(e.code() == Exit::data);
        ++refused;
      }
    };
    if (is_manifest) each_flip(text, 0, text.size(), flip);
    random_flips(text, whole() ? 10'000 : 200, flip);
    write_file(f / "data" / name, text);
  }

  CHECK(print() == before);
  CHECK(same < refused / 5);  // only changes of white space and of the key "checksum" are accepted
}

}  // namespace
