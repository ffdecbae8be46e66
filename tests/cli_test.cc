// Bad input through the command line: exit code, one sentence, fast, nothing created.
#include <algorithm>
#include <set>

#include "tests/catch.h"
#include "tests/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

struct Bad {
  std::vector<std::string> args;
  int code;
  std::string text;
};

/// Runs each in a copy of the folder's listing: nothing may appear or vanish.
void refuse(const TempFolder& f, const std::vector<Bad>& cases) {
  const auto listing = [&] {
    std::set<std::string> names;
    for (const auto& e : fs::recursive_directory_iterator(f.path())) names.insert(e.path().string());
    return names;
  };
  const auto before = listing();
  for (const auto& bad : cases) {
    std::string line;
    for (const auto& a : bad.args) line += a + " ";
    const Finished r = run({"lathe", bad.args, f.path(), {}});
    INFO(line << "\n" << r.err);
    CHECK(r.code == bad.code);
    CHECK_THAT(r.err, ContainsSubstring(bad.text));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    CHECK(r.seconds < 1);
    CHECK((listing() == before));  // in brackets: not printed
  }
}

TEST_CASE("bad command lines", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  refuse(
      f,
      {{{"trian"}, 2, "no verb trian; did you mean train?"},
       {{"train"}, 2, "usage: lathe train CONFIG"},
       {{"train", "tiny.toml", "other.toml"}, 2, "usage: lathe train"},
       {{"train", "tiny.toml", "--train.stesp=5"}, 2, "has no option --train.stesp=5; did you mean --train.steps?"},
       {{"train", "tiny.toml", "--train.steps=5", "--train.steps=6"}, 2, "--train.steps stands 2 times"},
       {{"train", "tiny.toml", "--train.steps=x"},
        2,
        "command line: --train.steps=x: train.steps must be a whole number"},
       {{"train", "tiny.toml", "--train.steps"}, 2, "train.steps"},
       {{"train", "tiny.toml", "--model.bias", "maybe"}, 2, "model.bias must be true or false"},
       {{"train", "nowhere.toml"}, 2, "cannot read nowhere.toml"},
       {{"train", "data"}, 2, "is a folder"},
       {{"train", "tiny.toml", "--model.n_embd=15"}, 2, "command line: model.n_embd = 15 is not divisible"},
       {{"train", "tiny.toml", "--data.dir=nowhere"},
        3,
        "there is no data folder nowhere; make it with `lathe prepare"},
       {{"train", "tiny.toml", "--model.vocab_size=3"}, 2, "model.vocab_size = 3 is smaller than"},
       {{"train", "tiny.toml", "--model.block_size=100000"}, 3, "too few for windows"},
       {{"train", "tiny.toml", "--checkpoint.resume=nowhere"}, 4, "nowhere is no run"},
       {{"train", "tiny.toml", "--train.device=cuda"}, 2, "train.device = \"cuda\""},
       {{"generate", "runs/none"}, 4, "runs/none is no run"},
       {{"generate", "data", "--temperature=-1"}, 2, "--temperature = -1 is not allowed"},
       {{"generate", "data", "--tokens=1.5"}, 2, "--tokens must be a whole number"},
       {{"eval", "data"}, 4, "data"},
       {{"train", "tiny.toml", "--amp.tf32=true", "--train.device=cpu"},
        2,
        "command line: amp.tf32 needs an NVIDIA card"},
       {{"train", "tiny.toml", "--model.lora=4", "--model.lora_base=nowhere"}, 4, "model.lora_base: nowhere is no run"},
       {{"eval", "data", "--load-dtype=int4"}, 2, "--load-dtype must be fp32, bf16, fp16, int8 or nf4"},
       {{"eval", "data", "--load-dtype=int8", "--double-quant=true"}, 2, "belongs to --load-dtype nf4"},
       {{"eval", "data", "--double-quant=1"}, 2, "--double-quant must be true or false"},
       {{"merge", "data"}, 2, "needs --out"},
       {{"merge", "nowhere", "--out", "new"}, 4, "nowhere is no run"},
       {{"gradients", "nowhere"}, 4, "nowhere is no run"},
       {{"bench", "accumulation", "--powers=9"}, 2, "--powers = 9 is not allowed"},
       {{"prepare", "text.txt"}, 2, "needs --out"},
       {{"prepare", "nowhere.txt", "--out", "new"}, 3, "there is no file nowhere.txt"},
       {{"prepare", "text.txt", "--out", "new", "--tokenizer", "words"}, 2, "must be byte or char"},
       {{"prepare", "text.txt", "--out", "new", "--val", "1.5"}, 2, "--val = 1.5 is not allowed"},
       {{"prepare", "text.txt", "--out", "data"}, 2, "already holds token data"},
       {{"inspect", "nowhere"}, 2, "nowhere does not exist"},
       {{"inspect", "text.txt"}, 2, "is no run"},
       {{"verify", "nowhere"}, 2, "does not exist"},
       {{"bench", "nothing"}, 2, "there are `bench step`, `bench ops`"},
       {{"bench", "ops", "--width", "100"}, 2, "--width must be a multiple of 64, not 100"},
       {{"bench", "ops", "--train.threads=1"}, 2, "`lathe bench ops` has no --train.threads"},
       {{"bench", "peak", "--batch", "3"}, 2, "`lathe bench peak` has no --batch"},
       {{"config", "kernels", "tiny.toml"}, 2, "stands alone"},
       {{"bench", "step", "tiny.toml", "--dtype=bf16"}, 2, "`lathe bench step` has no --dtype"},
       {{"train", "tiny.toml", "--data.dir=\xE9"}, 2, "data.dir must be UTF-8"},
       {{"generate", "data", "--prompt=" + std::string(100000, 'x')}, 4, "data"},
       {{"generate", "data", "--prompt=a\nb"}, 4, "data"},
       {{"config", "check"}, 2, "needs a config file"},
       {{"config", "check", "tiny.toml", "--train.batch_size=0"}, 2, "train.batch_size = 0 is not allowed"},
       {{"plan", "tiny.toml", "--data.dir=nowhere"}, 2, "model.vocab_size is 0"}});
}

TEST_CASE("bad data folders", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::string manifest = slurp(f / "data/manifest.json");
  const auto folder = [&](const std::string& name) {
    fs::copy(f / "data", f / name);
    return f / name;
  };
  fs::resize_file(folder("cut") / "train.bin", 1000);
  fs::remove(folder("missing") / "train.bin");
  write_file(folder("torn") / "manifest.json", manifest.substr(0, 50));
  write_file(folder("foreign") / "manifest.json", "{\"format\": \"other\"}");
  const fs::path ids = folder("ids");
  std::string bytes = slurp(ids / "train.bin");
  std::fill(bytes.begin(), bytes.end(), '\xff');
  write_file(ids / "train.bin", bytes);
  fs::create_directories(f / "empty");
  fs::create_directories(f / "raw");
  write_file(f / "raw/train.bin", slurp(f / "data/train.bin"));
  fs::create_directories(f / "blank");
  write_file(f / "blank/train.bin", "");
  fs::create_directories(f / "huge");
  write_file(f / "huge/train.bin", std::string(100'000'001, 'x'));
  const auto with = [](const std::string& dir) {
    return std::vector<std::string>{"train", "tiny.toml", "--data.dir=" + dir};
  };
  refuse(f, {{with("cut"), 3, "claims 18000 tokens and the file has 500"},
             {with("missing"), 3, "cannot read missing/train.bin"},
             {with("torn"), 3, "torn/manifest.json: parse error"},
             {with("foreign"), 3, "a format that this build does not know"},
             {with("ids"), 3, "beyond the vocabulary"},
             {with("empty"), 3, "has no train tokens"},
             {with("blank"), 3, "has no train tokens"},
             {with("huge"), 3, "no whole number of 16-bit tokens"},
             {with("raw"), 2, "model.vocab_size must be given"},
             {{"train", "tiny.toml", "--data.dir=raw", "--model.vocab_size=50"}, 3, "no validation tokens"}});
}

TEST_CASE("help and version", "[cli]") {
  const TempFolder f;
  const auto out = [&](std::vector<std::string> args, int code) {
    const Finished r = run({"lathe", std::move(args), f.path(), {}});
    CHECK(r.code == code);
    return r.out;
  };
  CHECK_THAT(out({"--help"}, 0), ContainsSubstring("usage: lathe VERB"));
  CHECK_THAT(out({}, 2), ContainsSubstring("usage: lathe VERB"));
  CHECK_THAT(out({"--version"}, 0), ContainsSubstring("lathe 0."));
  const std::string help = out({"train", "--help"}, 0);
  for (const char* key : {"--model.n_layer", "--optim.beta2", "--checkpoint.resume"})
    CHECK_THAT(help, ContainsSubstring(key));
  CHECK_THAT(out({"generate", "-h"}, 0), ContainsSubstring("--top-p"));
}

TEST_CASE("a plan tells parameters, memory, FLOPs, time and disk", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished r = run({"lathe", {"plan", "tiny.toml"}, f.path(), {}});
  INFO(r.err);
  CHECK(r.code == 0);
  for (const char* word : {"parameters", "memory: optimizer", "FLOPs a step", "time of a step", "disk"})
    CHECK_THAT(r.out, ContainsSubstring(word));
  CHECK(!fs::exists(f / "runs"));
}

TEST_CASE("benchmarks end in one JSON line", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished r = run({"lathe", {"bench", "step", "tiny.toml", "--train.steps=6", "--skip", "2"}, f.path(), {}});
  CHECK(r.code == 0);
  for (const char* key : {"ms_median", "ms_min", "tokens_per_s", "first_step_s", "peak_rss_mb", "final_loss"})
    CHECK_THAT(r.out, ContainsSubstring(key));
  CHECK(!fs::exists(f / "runs"));
}

}  // namespace
