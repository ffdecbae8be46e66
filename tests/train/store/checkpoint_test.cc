// Tests of checkpoints without a training run: values are read as they were written, checkpoints
// are listed in the right order, and damage is detected.

#include "train/store/checkpoint.h"
#include "autograd/node.h"
#include "core/io/checksum.h"
#include "data/tokens/manifest.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/small.h"
#include "train/store/metrics.h"

namespace {

using namespace lathe;
using namespace lathe::test;

fs::path save(const TempFolder& f, const Small& s, int64_t step,
              std::optional<at::ScalarType> dtype = std::nullopt) {
  RunState state;
  state.step = step;
  return save_checkpoint(f.path(), state, s.params, s.optimizer, Retention{.newest = 2}, dtype);
}

TEST_CASE("a run's state is read back from its checkpoint, member by member", "[checkpoint]") {
  const TempFolder f;
  const Small s;
  RunState a;
  a.step = 7;
  a.updates = 5;
  a.tokens = 900;
  a.val_loss = 2.5;
  a.best_val_loss = 1.5;
  a.eval_due = true;
  a.threads = 3;
  a.isa = "i";
  a.device_model = "d";
  a.data_hash = "h-v";
  a.metrics_bytes = 77;
  a.config = "c";
  a.branched_from = "x";
  a.val_step = 6;
  a.best_step = 4;
  a.evaluations_since_best = 2;
  a.changes = {{.step = 3, .key = "k", .was = "w", .is = "i"}};
  a.config_path = "p";
  a.branched_id = "b";
  a.base_hash = "y";
  a.tokenizer = Tokenizer::byte();
  a.scaler = ScaleState{.scale = 512, .growth_tracker = 4, .skipped = 2, .skipped_in_row = 1};

  const RunState b = read_state(save_checkpoint(f.path(), a, s.params, s.optimizer, Retention{}));
  CHECK(b.step == 7);
  CHECK(b.updates == 5);
  CHECK(b.tokens == 900);
  CHECK(b.val_loss == 2.5);
  CHECK(b.best_val_loss == 1.5);
  CHECK(b.eval_due);
  CHECK(b.threads == 3);

  CHECK(b.val_step == 6);
  CHECK(b.evaluations_since_best == 2);
  CHECK(b.best_step == 4);
  REQUIRE(b.changes.size() == 1);
  CHECK(str(b.changes[0].step, b.changes[0].key, b.changes[0].was, b.changes[0].is) == "3kwi");
  CHECK(b.config_path + b.branched_id == "pb");
  CHECK(b.isa + b.device_model + b.data_hash + b.config + b.branched_from + b.base_hash ==
        "idh-vcxy");
  CHECK(b.metrics_bytes == 77);

  CHECK(b.tokenizer->kind() == a.tokenizer->kind());
  REQUIRE(b.scaler);
  CHECK(b.scaler->scale == 512);
  CHECK(b.scaler->growth_tracker == 4);
  CHECK(b.scaler->skipped == 2);
  CHECK(b.scaler->skipped_in_row == 1);

  // Fields that are not set stay unset.
  const RunState none = read_state(save(f, s, 8));
  CHECK(!none.eval_due);
  CHECK(!none.best_val_loss);
  CHECK(!none.scaler);
}

TEST_CASE("the newest checkpoint is the one with the highest step, and the oldest ones are deleted",
          "[checkpoint]") {
  const TempFolder f;
  const Small s;
  for (const int64_t step : {3, 99'999'999, 100'000'000}) save(f, s, step);
  const auto all = list_checkpoints(f.path());
  REQUIRE(all.size() == 2);
  CHECK(all[0].filename() == "step-100000000");
  CHECK(all[1].filename() == "step-99999999");
  CHECK(newest_checkpoint(f.path()) == all[0]);
}

TEST_CASE("a flipped bit, a missing byte and a missing file are noticed", "[checkpoint]") {
  const TempFolder f;
  const Small s;
  const fs::path checkpoint = save(f, s, 1);
  verify_checkpoint(checkpoint);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    INFO(name);
    const std::string whole = slurp(checkpoint / name);
    const auto problem = [&](std::string bytes) {
      write_file(checkpoint / name, bytes);
      return error_of([&] { verify_checkpoint(checkpoint); });
    };
    std::string bit = whole;
    bit[bit.size() / 2] = static_cast<char>(bit[bit.size() / 2] ^ 1);
    CHECK_THAT(problem(bit), ContainsSubstring(name) && ContainsSubstring("checksum"));
    CHECK_THAT(problem(whole.substr(1)), ContainsSubstring(name) &&
                                             ContainsSubstring(str(whole.size() - 1, " bytes")) &&
                                             ContainsSubstring(std::to_string(whole.size())));
    fs::remove(checkpoint / name);
    CHECK_THAT(error_of([&] { verify_checkpoint(checkpoint); }),
               ContainsSubstring((checkpoint / name).string()) && ContainsSubstring("missing"));
    CHECK(problem(whole).empty());
  }
}

TEST_CASE("values are read back bitwise equal, even if the model is saved in bfloat16",
          "[checkpoint]") {
  for (const auto dtype : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    const TempFolder f;
    const Small saved;
    Small loaded;
    const fs::path checkpoint = save(f, saved, 1, dtype);

    for (auto& group : loaded.optimizer.groups()) {
      for (auto& slot : group.slots) {
        slot.param.data().zero_();
        for (auto& state : slot.state) state.zero_();
      }
    }

    const SavedParameters values(checkpoint, loaded.params.size(),
                                 SavedParameters::Values::for_training);
    for (const NamedParameter& p : loaded.params) values.read(p);
    load_optimizer(checkpoint, loaded.optimizer);
    for (size_t g = 0; g < 2; ++g) {
      const Slot &a = saved.optimizer.groups()[g].slots[0],
                 &b = loaded.optimizer.groups()[g].slots[0];
      CHECK(b.param.data().equal(a.param.data()));
      for (size_t i = 0; i < a.state.size(); ++i) CHECK(b.state[i].equal(a.state[i]));
    }

    const SafetensorsFile model(checkpoint / "model.safetensors");
    CHECK(model.at("w").dtype == (dtype ? "BF16" : "F32"));
    CHECK(model.at("b").dtype == "F32");
    const auto bytes = static_cast<int64_t>(3 * 15 * 4 + (dtype ? 12 * 2 : 0));
    CHECK(checkpoint_bytes(saved.params, saved.optimizer, dtype).all == bytes);
  }
}

TEST_CASE(
    "metrics.jsonl is cut to its length in the checkpoint, or if it is shorter, to its last "
    "complete line",
    "[checkpoint]") {
  const TempFolder f;
  write_file(f / "metrics.jsonl", "one\ntwo\nthree\n");
  {
    Metrics(f.path(), 8).add_validation(2, {{"val_loss", 1}});
  }
  CHECK_THAT(slurp(f / "metrics.jsonl"), Catch::StartsWith("one\ntwo\n{"));
  write_file(f / "metrics.jsonl", "one\ntwo\nthr");
  {
    Metrics(f.path(), 1000).add_validation(3, {{"val_loss", 1}});
  }
  CHECK_THAT(slurp(f / "metrics.jsonl"), Catch::StartsWith("one\ntwo\n{"));
}

TEST_CASE("data with a different validation split counts as different data", "[checkpoint]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto lathe = [&](std::vector<std::string> args) {
    return run({"lathe", std::move(args), f.path(), {}});
  };
  REQUIRE(lathe({"train", "tiny.toml", "--train.steps=2", "--train.eval_interval=0"}).code == 0);
  std::string text = slurp(f / "text.txt");
  // This range is in the last tenth of the text, which is the validation split.
  std::reverse(text.end() - 1000, text.end());
  write_file(f / "other.txt", text);
  REQUIRE(lathe({"prepare", "other.txt", "--out", "other", "--tokenizer", "char"}).code == 0);
  REQUIRE(slurp(f / "other/train.bin") == slurp(f / "data/train.bin"));
  const Finished r = lathe(
      {"train", "tiny.toml", "--train.steps=3", "--train.eval_interval=0", "--data.dir=other"});
  CHECK(r.code == 2);
  const RunState saved = read_state(list_checkpoints(f / "runs/tiny").at(0));
  CHECK_THAT(r.err, ContainsSubstring(saved.data_hash) && ContainsSubstring("data.dir"));
}

/// Replaces a field of a checkpoint's state.json, and updates the checksum in the manifest.
void set_state(const fs::path& checkpoint, const char* key, const Json& value) {
  Json state = parse_json(slurp(checkpoint / "state.json"), "", Exit::internal);
  state[key] = value;
  write_file(checkpoint / "state.json", state.dump());
  Json manifest = parse_json(slurp(checkpoint / "manifest.json"), "", Exit::internal);
  manifest["files"]["state.json"] = {{"bytes", fs::file_size(checkpoint / "state.json")},
                                     {"xxh3", file_checksum(checkpoint / "state.json")}};
  write_file(checkpoint / "manifest.json", manifest.dump());
}

TEST_CASE("a checkpoint with valid checksums but an invalid state can't be used", "[checkpoint]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(run({"lathe", {"train", "tiny.toml", "--train.steps=2"}, f.path(), {}}).code == 0);
  const fs::path checkpoint = list_checkpoints(f / "runs/tiny").at(0);
  const Json state = parse_json(slurp(checkpoint / "state.json"), "", Exit::internal);

  Json tokenizer = state["tokenizer"];
  for (int i = 0; i < 200; ++i) {  // adds U+4E00 and the characters after it
    const std::string character{'\xE4', static_cast<char>(0xB8 + i / 64),
                                static_cast<char>(0x80 + i % 64)};
    tokenizer["vocabulary"].push_back(character);
  }
  std::string config = state["config"].get<std::string>();
  const size_t heads = config.find("n_head = ");
  REQUIRE(heads != std::string::npos);
  config.replace(heads, config.find('\n', heads) - heads, "n_head = 1000");

  const std::vector<std::pair<const char*, Json>> edits{
      {"config", config}, {"threads", 0}, {"tokenizer", tokenizer}};
  for (const auto& [key, value] : edits) {
    set_state(checkpoint, key, value);
    for (const auto& command :
         std::vector<std::vector<std::string>>{{"train", "tiny.toml", "--train.steps=4"},
                                               {"eval", "runs/tiny"},
                                               {"generate", "runs/tiny", "--tokens", "2"},
                                               {"export", "runs/tiny", "--out", "hf"}}) {
      const Finished done = run({"lathe", command, f.path(), {}});
      INFO(key << ", " << command[0] << "\n" << done.err);
      CHECK(done.code == 4);
      CHECK_THAT(done.err, !ContainsSubstring("internal"));
    }
    set_state(checkpoint, key, state[key]);
  }
}

TEST_CASE("replaced data is noticed in both splits, and runs of earlier builds resume",
          "[checkpoint]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto train = [&](int steps) {
    return lathe_in(f, {"train", "tiny.toml", "--train.steps=" + std::to_string(steps)});
  };
  REQUIRE(train(2).code == 0);
  const fs::path checkpoint = list_checkpoints(f / "runs/tiny").at(0);
  const std::string now = read_state(checkpoint).data_hash;

  for (const char* name : {"train.bin", "val.bin"}) {
    INFO(name);
    const std::string bytes = slurp(f / "data" / name);
    std::string other = bytes;
    std::swap(other[100], other[other.find_first_not_of(std::string{bytes[100], '\0'}, 200)]);
    REQUIRE(other != bytes);
    write_file(f / "data" / name, other);
    const Finished r = train(3);
    CHECK(r.code == 2);
    CHECK_THAT(r.err, ContainsSubstring(now) && ContainsSubstring("data.dir"));
    write_file(f / "data" / name, bytes);
  }

  // Earlier builds computed the data hash from the checksums in the manifest.
  const auto manifest = read_manifest(f / "data");
  const auto old_print = [](const ShardInfo& shard) {
    const std::string text = str(shard.tokens, " ", shard.xxh3);
    Checksum sum;
    sum.update(text.data(), text.size());
    return sum.hex();
  };
  const std::string train_print = old_print(manifest->train[0]);
  set_state(checkpoint, "data_hash", train_print + "-" + old_print(manifest->val[0]));
  CHECK(train(3).code == 0);
  CHECK(read_state(list_checkpoints(f / "runs/tiny").at(0)).data_hash ==
        now);  // this build replaces the old hash by its own

  // Hashes of different data must be refused.
  for (const std::string& wrong :
       {train_print, train_print + "-" + train_print, std::string("x")}) {
    set_state(list_checkpoints(f / "runs/tiny").at(0), "data_hash", wrong);
    CHECK(train(4).code == 2);
  }
}

}  // namespace
