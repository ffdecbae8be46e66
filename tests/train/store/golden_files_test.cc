// Tests with files as early builds wrote them, byte for byte, for each format. Every later build
// must be able to read them. A changed format needs a new name and an additional test.
#include <cstring>

#include "autograd/node.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "data/tokens/manifest.h"
#include "data/tokens/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"
#include "train/store/metrics.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
}

std::string safetensors(const std::string& header, const std::string& body) {
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size() & 255);
  length[1] = static_cast<char>(header.size() >> 8);
  return length + header + body;
}

void replace(std::string& text, const std::string& what, const std::string& with) {
  const auto at = text.find(what);
  if (at == std::string::npos) fail(Exit::internal, "no ", what);
  text.replace(at, what.size(), with);
}

// Files of the format lathe-checkpoint-1.

const char* const state_1 = R"({
 "step": 7,
 "updates": 5,
 "tokens": 900,
 "threads": 3,
 "isa": "AVX2",
 "device": "a CPU",
 "data_hash": "0123456789abcdef-fedcba9876543210",
 "metrics_bytes": 77,
 "config": "[model]\nn_layer = 2\n[train]\nsteps = 40\n",
 "eval_due": true,
 "branched_from": "runs/a/checkpoints/step-00000003",
 "val_loss": 2.5,
 "best_val_loss": 1.5,
 "base_hash": "00000000000000ff",
 "scaler": {
  "loss_scale": 512.0,
  "growth_tracker": 4,
  "skipped": 2,
  "skipped_in_row": 1
 },
 "tokenizer": {
  "kind": "char",
  "vocabulary": [
   "\n",
   "a",
   "ï"
  ]
 }
}
)";

const char* const manifest_1 = R"({
 "format": "lathe-checkpoint-1",
 "files": {
  "model.safetensors": {
   "bytes": 152,
   "xxh3": "092cb5aed404fc5a"
  },
  "optimizer.safetensors": {
   "bytes": 336,
   "xxh3": "4c6e6ad78c798f3d"
  },
  "state.json": {
   "bytes": 562,
   "xxh3": "9587b00b8f48e8c3"
  }
 }
}
)";

const std::vector<float> w{0, 0.25, 0.5, 0.75, 1, 1.25}, b{1, -2};

void write_checkpoint_1(const fs::path& folder) {
  fs::create_directories(folder);
  write_file(folder / "model.safetensors",
             safetensors(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}}  )",
                         floats(b) + floats(w)));
  const std::vector<float> half(6, 0.5), quarter(6, 0.25);
  write_file(
      folder / "optimizer.safetensors",
      safetensors(R"({"b.exp_avg":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b.exp_avg_sq":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                  R"("w.exp_avg":{"dtype":"F32","shape":[2,3],"data_offsets":[16,40]},)"
                  R"("w.exp_avg_sq":{"dtype":"F32","shape":[2,3],"data_offsets":[40,64]}}    )",
                  floats({0.5, 0.5, 0.25, 0.25}) + floats(half) + floats(quarter)));
  write_file(folder / "state.json", state_1);
  write_file(folder / "manifest.json", manifest_1);
}

TEST_CASE("a checkpoint of format 1 is read", "[golden_files]") {
  const TempFolder f;
  const fs::path checkpoint = f / "checkpoints/step-00000007";
  write_checkpoint_1(checkpoint);
  verify_checkpoint(checkpoint);
  CHECK(newest_checkpoint(f.path()) == checkpoint);
  const RunState s = read_state(checkpoint);
  CHECK(s.step == 7);
  CHECK(s.updates == 5);
  CHECK(s.tokens == 900);
  CHECK(s.threads == 3);
  CHECK(s.isa == "AVX2");
  CHECK(s.device_model == "a CPU");
  CHECK(s.data_hash == "0123456789abcdef-fedcba9876543210");
  CHECK(s.metrics_bytes == 77);
  CHECK(config_from_toml(s.config, "state.json").train.steps == 40);
  CHECK(s.eval_due);
  CHECK(s.branched_from == "runs/a/checkpoints/step-00000003");
  CHECK(s.val_loss == 2.5);
  CHECK(s.best_val_loss == 1.5);
  CHECK(s.base_hash == "00000000000000ff");
  REQUIRE(s.scaler);
  CHECK(s.scaler->scale == 512);
  CHECK(s.scaler->growth_tracker == 4);
  CHECK(s.scaler->skipped == 2);
  CHECK(s.scaler->skipped_in_row == 1);
  CHECK(s.tokenizer->decode({2, 1, 0}) ==
        "\xC3\xAF"
        "a\n");

  std::vector<NamedParameter> params{{"w", Variable::parameter(torch::zeros({2, 3})), Role::weight},
                                     {"b", Variable::parameter(torch::zeros({2})), Role::bias}};
  Optimizer optimizer{OptimConfig{}, params};
  load_parameters(checkpoint, params);
  load_optimizer(checkpoint, optimizer);
  CHECK(params[0].parameter.data().equal(torch::tensor(w).view({2, 3})));
  CHECK(params[1].parameter.data().equal(torch::tensor(b)));
  for (const auto& group : optimizer.groups()) {
    CHECK(group.slots[0].state[0].eq(0.5).all().item<bool>());
    CHECK(group.slots[0].state[1].eq(0.25).all().item<bool>());
  }
  // This build must write exactly the same files.
  RunState again = s;
  const fs::path written = save_checkpoint(f / "again", again, params, optimizer, Retention{});
  for (const char* name :
       {"manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"}) {
    INFO(name);
    CHECK(slurp(written / name) == slurp(checkpoint / name));
  }
}

TEST_CASE("a checkpoint of format 1 without the fields that later builds added is read",
          "[golden_files]") {
  const TempFolder f;
  write_file(f / "state.json",
             R"({"step": 3, "updates": 3, "tokens": 5, "threads": 1, "isa": "", "device": "",
    "data_hash": "", "metrics_bytes": 0, "config": "", "val_loss": "nan", "best_val_loss": "inf"})");
  const RunState s = read_state(f.path());
  CHECK(!s.eval_due);
  CHECK(!s.scaler);
  CHECK(!s.tokenizer);
  CHECK(std::isnan(*s.val_loss));
  CHECK(*s.best_val_loss == HUGE_VAL);
}

TEST_CASE("a checkpoint of format 2, whose tensors are divided among files, is read",
          "[golden_files]") {
  const TempFolder f;
  // The file of the first process has elements 0 to 3 of "w", and the second file has the others.
  // "c" is cut for two tensor ranks along its second dimension, which has sections of 2 and 1. The
  // second rank has the complete section of 1.
  write_file(
      f / "model-00001-of-00002.safetensors",
      safetensors(R"({"__metadata__":{"c":"{\"sizes\":[2,3],\"begin\":0,\"end\":2,\"dim\":1,)"
                  R"(\"sections\":[2,1],\"part\":0,\"parts\":2}",)"
                  R"("w":"{\"sizes\":[2,3],\"begin\":0,\"end\":4}"},)"
                  R"("c":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("w":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
                  floats({0, 0.75}) + floats({w[0], w[1], w[2], w[3]})));
  write_file(
      f / "model-00002-of-00002.safetensors",
      safetensors(R"({"__metadata__":{"c":"{\"sizes\":[2,3],\"begin\":0,\"end\":4,\"dim\":1,)"
                  R"(\"sections\":[2,1],\"part\":1,\"parts\":2}",)"
                  R"("w":"{\"sizes\":[2,3],\"begin\":4,\"end\":6}"},)"
                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("c":{"dtype":"F32","shape":[4],"data_offsets":[8,24]},)"
                  R"("w":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}})",
                  floats(b) + floats({0.25, 0.5, 1, 1.25}) + floats({w[4], w[5]})));
  write_file(f / "manifest.json",
             R"({"format":"lathe-checkpoint-2","files":{"model-00001-of-00002.safetensors":{}}})");

  const std::vector<NamedParameter> params{
      {"b", Variable::parameter(torch::zeros({2})), Role::bias},
      {"c", Variable::parameter(torch::zeros({2, 3})), Role::weight},
      {"w", Variable::parameter(torch::zeros({2, 3})), Role::weight}};
  load_parameters(f.path(), params);
  CHECK(params[0].parameter.data().equal(torch::tensor(b)));
  CHECK(params[1].parameter.data().equal(torch::tensor(w).view({2, 3})));
  CHECK(params[2].parameter.data().equal(torch::tensor(w).view({2, 3})));
}

TEST_CASE("a checkpoint of a newer format is refused", "[golden_files]") {
  const TempFolder f;
  const fs::path checkpoint = f / "checkpoints/step-00000007";
  write_checkpoint_1(checkpoint);
  std::string manifest = manifest_1;
  replace(manifest, "lathe-checkpoint-1", "lathe-checkpoint-3");
  write_file(checkpoint / "manifest.json", manifest);
  const std::string path = (checkpoint / "manifest.json").string();
  CHECK_THAT(error_of([&] { verify_checkpoint(checkpoint); }),
             ContainsSubstring(path) && ContainsSubstring("this build"));
  CHECK_THAT(error_of([&] { newest_checkpoint(f.path()); }),
             ContainsSubstring(path) && ContainsSubstring("this build"));
}

// Files of the format lathe-data-1.

const char* const data_1 = R"({
 "format": "lathe-data-1",
 "tokenizer": "char",
 "vocab_size": 3,
 "largest_id": 2,
 "dtype": "uint16",
 "train": [
  {
   "file": "train.bin",
   "tokens": 40,
   "xxh3": "65defcd24714d604"
  }
 ],
 "val": [
  {
   "file": "val.bin",
   "tokens": 10,
   "xxh3": "0769e015d1fafe29"
  }
 ],
 "vocabulary": [
  "\n",
  "a",
  "ï"
 ]
}
)";

TEST_CASE("data of format 1 is read, and newer data is refused", "[golden_files]") {
  const TempFolder f;
  std::string train, val;
  for (int i = 0; i < 40; ++i) train += {static_cast<char>(i % 3), '\0'};
  for (int i = 0; i < 10; ++i) val += {static_cast<char>(2 - i % 3), '\0'};
  write_file(f / "train.bin", train);
  write_file(f / "val.bin", val);
  write_file(f / "manifest.json", data_1);
  const auto m = read_manifest(f.path());
  REQUIRE(m);
  CHECK(m->vocab_size == 3);
  CHECK(m->largest_id == 2);
  CHECK(m->tokenizer.decode({0, 1, 2}) == "\na\xC3\xAF");
  const TokenFile tokens(f.path(), "train", m), validation(f.path(), "val", m);
  tokens.verify();
  validation.verify();
  CHECK(tokens.size() == 40);
  std::vector<int64_t> ids(10);
  validation.read(0, 10, 3, ids.data());
  CHECK(ids == std::vector<int64_t>{2, 1, 0, 2, 1, 0, 2, 1, 0, 2});

  // This build writes the same manifest, except that it adds a checksum at the end. Earlier builds
  // ignore the checksum.
  fs::create_directories(f / "again");
  write_manifest(f / "again", *m);
  std::string again = slurp(f / "again/manifest.json");
  const auto at = again.find(",\n \"checksum\": \"");
  REQUIRE(at != std::string::npos);
  CHECK(str(again.substr(0, at), "\n}\n") == data_1);

  std::string changed = again;
  replace(changed, "\"a\"", "\"b\"");
  write_file(f / "again/manifest.json", changed);
  CHECK_THAT(
      error_of([&] { read_manifest(f / "again"); }),
      ContainsSubstring((f / "again/manifest.json").string()) && ContainsSubstring("own checksum"));
  std::string newer = data_1;
  replace(newer, "lathe-data-1", "lathe-data-2");
  write_file(f / "manifest.json", newer);
  CHECK_THAT(error_of([&] { read_manifest(f.path()); }),
             ContainsSubstring((f / "manifest.json").string()) && ContainsSubstring("this build"));
}

TEST_CASE("llm.c's shards with an unknown version are refused", "[golden_files]") {
  const TempFolder f;
  for (const int32_t magic : {20240520, 20240801}) {
    std::vector<int32_t> words(256);
    words[0] = magic;
    words[1] = 2;
    words[2] = 1;
    write_file(f / "train.bin", std::string(reinterpret_cast<const char*>(words.data()), 1024) +
                                    std::string(4, '\1'));
    CHECK_THAT(error_of([&] { TokenFile(f.path(), "train", std::nullopt); }),
               ContainsSubstring("train.bin") && ContainsSubstring("llm.c") &&
                   ContainsSubstring("version 2"));
  }
}

// Lines of metrics.jsonl.

TEST_CASE("metrics keep the names and the order of their fields", "[golden_files]") {
  const TempFolder f;
  const std::string
      step =
          R"({"step":7,"updates":5,"loss":2.5,"lr":0.001,"grad_norm":"inf","tokens":900,"tokens_per_sec":10.5,)"
          R"("step_ms":3.0,)"
          R"("mfu":null,"data_wait_ms":0.5,"memory_bytes":77,"loss_scale":512.0,"time":)",
      val = R"({"step":7,"val_loss":"nan","time":)";

  {
    Metrics metrics(f.path(), 0);
    StepMetrics m;
    m.step = 7;
    m.updates = 5;
    m.loss = 2.5;
    m.lr = 0.001;
    m.grad_norm = HUGE_VAL;
    m.units = 900;
    m.units_per_sec = 10.5;
    m.step_ms = 3;
    m.data_wait_ms = 0.5;
    m.memory_bytes = 77;
    m.loss_scale = 512;
    metrics.add(m);

    // The second line also has the optional fields.
    m.skipped = 3;
    m.updates_lost = 0.25;
    m.mfu = 0.5;
    metrics.add(m);
    metrics.add_validation(7, {{"val_loss", std::nan("")}});
  }

  std::istringstream lines(slurp(f / "metrics.jsonl"));
  std::string first, second, third;
  std::getline(lines, first);
  std::getline(lines, second);
  std::getline(lines, third);
  CHECK_THAT(first, Catch::StartsWith(step));
  CHECK_THAT(second, ContainsSubstring("\"mfu\":0.5"));
  CHECK_THAT(second, Catch::EndsWith("\"skipped\":3,\"updates_lost\":0.25}"));
  CHECK_THAT(third, Catch::StartsWith(val));

  // Lathe can append to a file of an earlier build: it keeps the lines that the checkpoint covers,
  // and cuts later lines.
  const std::string old = step + "1.0}\n" + val + "1.0}\n";
  write_file(f / "metrics.jsonl", old + "half a li");
  {
    Metrics(f.path(), old.size()).add_validation(8, {{"val_loss", 1}});
  }
  CHECK_THAT(slurp(f / "metrics.jsonl"),
             Catch::StartsWith(old + R"({"step":8,"val_loss":1.0,"time":)"));
}

}  // namespace
