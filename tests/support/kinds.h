// Creates small runs of every model kind except the GPT, on data that they can learn in a second.
#pragma once

#include <string>
#include <vector>

#include "core/io/json.h"
#include "core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace lathe::test {

/// A model kind: its name, the folder of its data, which make_data() creates, and keys of [model]
/// as lines of TOML.
struct Kind {
  std::string name, data, keys;
};

/// Prepares three data folders in `f`: `images` (1 x 4 x 4 pixels, whose class is the index of the
/// brightest quarter), `numbers` (whose target is a weighted sum) and `text`.
inline void make_data(const TempFolder& f) {
  std::string images, numbers;
  for (uint64_t i = 0; i < 240; ++i) {
    const auto draw = [&](uint64_t j) {
      return unit(philox(counter(i, j), make_key(1, hash_name("kinds")))[0]);
    };
    double sum = 0;

    for (uint64_t p = 0; p < 16; ++p) {
      const uint64_t quarter = p / 8 * 2 + p % 4 / 2;
      images += std::to_string(static_cast<int>(8 * draw(p)) + (quarter == i % 4 ? 6 : 0)) + ",";
    }
    images += std::to_string(i % 4) + "\n";

    for (uint64_t p = 0; p < 5; ++p) {
      numbers += std::to_string(draw(20 + p)) + ",";
      sum += static_cast<double>(p) * draw(20 + p);
    }
    numbers += std::to_string(100 + 10 * sum) + "\n";
  }

  write_file(f / "images.csv", images);
  write_file(f / "numbers.csv", numbers);
  write_file(f / "text.txt", sample_text(20000));

  REQUIRE(lathe_in(f, {"prepare", "images.csv", "--out", "images", "--shape", "1,4,4"}).code == 0);
  REQUIRE(
      lathe_in(f, {"prepare", "numbers.csv", "--out", "numbers", "--task", "regression"}).code ==
      0);
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "text", "--tokenizer", "char"}).code == 0);
}

inline const std::vector<Kind> kinds{
    {"mlp", "images", "n_hidden = 16\ndropout = 0.1\nnorm = \"batch\"\n"},
    {"mlp", "numbers", "n_hidden = 16\nactivation = \"tanh\"\n"},
    {"convnet", "images", "n_stage = 2\nn_block = 1\nn_channel = 4\ndropout = 0.1\n"},
    {"llama", "text",
     "n_layer = 2\nn_head = 4\nn_kv_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\nqk_norm "
     "= true\n"},
    {"rnn", "text", "n_hidden = 16\nn_embd = 16\nn_layer = 2\nblock_size = 12\ndropout = 0.1\n"},
    {"rnn", "text",
     "cell = \"gru\"\nn_hidden = 16\nn_embd = 8\nn_layer = 1\nblock_size = 12\ntie_weights = "
     "false\n"},
    {"llama", "text",
     "n_layer = 2\nn_head = 4\nn_kv_head = 2\nn_embd = 32\nblock_size = 12\nsliding_window = "
     "5\nwindow_layers = \"10\"\nrope_layers = \"01\"\nnorm_position = \"both\"\nactivation = "
     "\"gelu\"\nscale_embeddings = true\nattention_softcap = 10.0\nlogit_softcap = 20.0\n"}};

/// Writes `f`/kind.toml, the config of a run of 60 steps.
inline void write_config(const TempFolder& f, const Kind& kind) {
  write_file(f / "kind.toml",
             "[model]\nkind = \"" + kind.name + "\"\n" + kind.keys + "[data]\ndir = \"" +
                 kind.data + "\"\n" + (kind.name == "convnet" ? "crop = 1\n" : "") +
                 "[optim]\nlr = 1e-2\n[schedule]\nkind = \"constant\"\nwarmup_steps = 0\n"
                 "[train]\nsteps = 60\nbatch_size = 8\ngrad_accum = 2\neval_interval = 20\n"
                 "log_interval = 1\nthreads = 1\n[checkpoint]\ninterval = 20\nkeep = 1\n");
}

/// Requires that a command succeeded, and returns the last line of its standard output as JSON.
inline Json last_line(const Finished& done) {
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  const std::string text = done.out.substr(0, done.out.size() - 1);
  return parse_json(text.substr(text.rfind('\n') + 1), "", Exit::internal);
}

}  // namespace lathe::test
