// Tests of steps that fail: skipped loss spikes, and diverged steps that can be replayed.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "optim/spikes.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("a spike is judged by the losses before it", "[replay]") {
  SpikeGuard guard(4);
  const auto usual = [](int i) { return 3 + 0.1 * std::sin(i * 1.7); };
  CHECK(!guard.is_spike(100));  // there are no earlier losses yet
  guard.load({});
  for (int i = 0; i < 49; ++i) CHECK(!guard.is_spike(i == 20 ? 3.5 : usual(i)));
  CHECK(!guard.is_spike(usual(49)));
  const SpikeState before = guard.state();
  CHECK(guard.is_spike(before.mean + 4.01 * std::sqrt(before.variance)));
  CHECK(guard.state().mean == before.mean);
  CHECK(guard.state().skipped == 1);
  CHECK(!guard.is_spike(before.mean + 3.99 * std::sqrt(before.variance)));
  CHECK(!guard.is_spike(-50));  // a loss can't be too low
  // If losses stay at another level, the guard adopts that level after ten skips.
  guard.load(before);
  int skipped = 0;
  for (int i = 0; i < 30; ++i) skipped += guard.is_spike(30 + usual(i)) ? 1 : 0;
  CHECK(skipped == 10);
  CHECK(guard.state().mean == Approx(33).margin(0.2));
}

TEST_CASE("the spike guard's mean and variance are exponentially weighted", "[replay]") {
  SpikeGuard guard(1e9);
  std::vector<double> losses;
  for (int i = 0; i < 120; ++i) losses.push_back(2 + std::cos(i * 0.37) + 0.01 * i);
  for (double x : losses) CHECK(!guard.is_spike(x));
  // Compute the mean and the variance by definition: from the last loss to the first, each loss
  // takes a share of the weight that remains after the later losses.
  double left = 1, mean = 0, square = 0;
  for (size_t i = losses.size(); i-- > 0;) {
    const double weight = left * std::max(0.02, 1 / static_cast<double>(i + 1));
    mean += weight * losses[i];
    square += weight * losses[i] * losses[i];
    left -= weight;
  }
  CHECK(guard.state().mean == Approx(mean).epsilon(1e-12));
  CHECK(guard.state().variance == Approx(square - mean * mean).epsilon(1e-9));
}

TEST_CASE("a run that skips spikes resumes bit for bit, and saves the batches of the spikes",
          "[replay]") {
  const TempFolder f;
  make_tiny_run(f.path());
  // At this low learning rate, a third of the losses are more than half a standard deviation above
  // the mean.
  const std::vector<std::string> flags{"--train.steps=90", "--train.spike_sigma=0.5",
                                       "--optim.lr=1e-5"};

  const auto train = [&](const std::string& out, const std::string& more) {
    std::vector<std::string> args{"train", "tiny.toml", "--train.out_dir=" + out, more};
    args.insert(args.end(), flags.begin(), flags.end());
    return lathe_in(f, args);
  };

  REQUIRE(train("whole", "--train.max_time=0").code == 0);

  // One run is stopped by a time limit and then killed.
  Finished part = train("parts", "--train.max_time=0.01");
  REQUIRE(part.code == 75);
  part = run({.binary = "lathe_faults",
              .args = {"train", "tiny.toml", "--train.out_dir=parts", flags[0], flags[1], flags[2]},
              .folder = f.path(),
              .environment = {{"LATHE_TEST_KILL", "step 75"}}});
  REQUIRE(part.code == 137);
  REQUIRE(train("parts", "--train.max_time=0").code == 0);
  CHECK(difference(f / "whole", f / "parts") == "");

  const RunState state = read_state(list_checkpoints(f / "whole").at(0));
  REQUIRE(state.spikes.has_value());
  CHECK(state.spikes->skipped > 0);
  CHECK(state.updates == 90 - state.spikes->skipped);

  const auto kept = fs::directory_iterator(f / "whole/spikes");
  CHECK(std::distance(kept, fs::directory_iterator()) == state.spikes->skipped);
  const SafetensorsFile windows(fs::directory_iterator(f / "whole/spikes")->path());
  CHECK(windows.at("inputs").shape ==
        std::vector<int64_t>{2, 3, 16});  // micro-batches, sequences, tokens
}

TEST_CASE("a skipped step leaves running statistics as they are", "[replay]") {
  const TempFolder f;
  std::string table = "a,b,kind\n";
  for (int i = 0; i < 40; ++i) table += str(i, ",", i % 7, ",", i % 2, "\n");
  write_file(f / "a.csv", table);
  REQUIRE(lathe_in(f, {"prepare", "a.csv", "--out", "data"}).code == 0);
  write_file(f / "a.toml",
             "[model]\nkind = \"mlp\"\nn_hidden = 8\nnorm = \"batch\"\n[data]\ndir = \"data\"\n"
             "[train]\nsteps = 1\nbatch_size = 8\ngrad_accum = 2\n[amp]\ndtype = \"fp16\"\n");

  // Gradients of the larger scale overflow, so the scaler skips the step.
  for (const auto& [scale, updates] : {std::pair("1", 1), {"16777216", 0}}) {
    INFO(scale);
    const std::string out = str("scale-", scale);
    const Finished r =
        lathe_in(f, {"train", "a.toml", "--train.out_dir=" + out, str("--amp.loss_scale=", scale)});
    INFO(r.err << r.out);
    REQUIRE(r.code == 0);
    const fs::path checkpoint = list_checkpoints(f / out).at(0);
    REQUIRE(read_state(checkpoint).updates == updates);

    const SafetensorsFile model(checkpoint / "model.safetensors");
    int found = 0;
    for (const TensorEntry& entry : model.tensors()) {
      if (!entry.name.ends_with("running_mean") && !entry.name.ends_with("num_batches_tracked"))
        continue;
      ++found;
      const bool is_zero =
          std::ranges::all_of(entry.bytes, [](auto x) { return x == decltype(x){}; });
      INFO(entry.name);
      CHECK(is_zero == (updates == 0));
    }
    CHECK(found > 0);
  }
}

TEST_CASE("a spike after a resume has the loss scale of its step", "[replay]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto train = [&](const std::string& out, const std::string& more) {
    return lathe_in(
        f, {"train", "tiny.toml", "--train.out_dir=" + out, "--train.spike_sigma=0.5",
            "--train.steps=70", "--optim.lr=1e-5", "--amp.dtype=fp16", "--log.layers=1", more});
  };
  REQUIRE(train("whole", "--train.pause_at=0").code == 0);

  // Pause at the last step before a spike, so that the resumed process begins with the spike.
  int64_t before = 0;
  std::istringstream lines(slurp(f / "whole/metrics.jsonl"));
  for (std::string line; before == 0 && std::getline(lines, line);) {
    const Json json = parse_json(line, "", Exit::internal);
    if (json.contains("spikes")) before = json["step"].get<int64_t>() - 1;
  }
  REQUIRE(before > 0);
  REQUIRE(train("parts", str("--train.pause_at=", before)).code == 75);
  REQUIRE(train("parts", "--train.pause_at=0").code == 0);
  CHECK(difference(f / "whole", f / "parts") == "");
}

TEST_CASE("replay runs a diverged step again and names the op where it began", "[replay]") {
  const TempFolder f;
  make_tiny_run(f.path(), "[optim]\nkind = \"sgd\"\nlr = 1e30\ngrad_clip = 0\n");
  const Finished r = lathe_in(f, {"train", "tiny.toml"});
  INFO(r.out << r.err);
  REQUIRE(r.code == 5);
  CHECK_THAT(r.err, ContainsSubstring("`lathe replay runs/tiny`"));
  const Finished again = lathe_in(f, {"replay", "runs/tiny"});
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK_THAT(again.out, ContainsSubstring("not finite") && ContainsSubstring("forward pass") &&
                            ContainsSubstring("blocks.0."));
  CHECK(lathe_in(f, {"replay", "data"}).code == 2);

  const fs::path bundle = *fs::directory_iterator(f / "runs/tiny/diverged");
  const fs::path file = bundle / "batches.safetensors";
  const std::string sealed = slurp(file), manifest = slurp(bundle / "manifest.json");
  const auto refused = [&](const std::string& text, const std::string& also = "") {
    const Finished done = lathe_in(f, {"replay", bundle.string()});
    INFO(text << "\n" << done.err);
    CHECK(done.code == 4);
    CHECK_THAT(done.err, ContainsSubstring("batches.safetensors") && ContainsSubstring(text) &&
                             ContainsSubstring(also));
    CHECK(std::count(done.err.begin(), done.err.end(), '\n') == 1);
  };

  // Damage is detected by the size or the checksum. `verify` also detects it.
  write_file(file, sealed.substr(0, sealed.size() - 8));
  refused(str(sealed.size() - 8, " bytes"), std::to_string(sealed.size()));
  std::string flipped = sealed;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write_file(file, flipped);
  refused("checksum");
  CHECK(lathe_in(f, {"verify", bundle.string()}).code == 4);

  // Batches with a valid checksum must also have shapes, dtypes and values that are possible for
  // the run.
  write_file(file, sealed);
  const auto reseal = [&](const std::map<std::string, at::Tensor>& tensors) {
    std::vector<TensorEntry> entries;
    for (const auto& [name, t] : tensors) entries.push_back(make_entry(name, t));
    const std::string sum = write_safetensors(file, entries);
    Json json = parse_json(manifest, "", Exit::internal);
    json["files"]["batches.safetensors"] = {{"bytes", fs::file_size(file)}, {"xxh3", sum}};
    write_file(bundle / "manifest.json", json.dump());
  };
  std::map<std::string, at::Tensor> good;
  {
    const SafetensorsFile batches(file);
    for (const TensorEntry& t : batches.tensors())
      good[t.name] = entry_tensor(t, t.shape, file).clone();
  }
  REQUIRE(good.at("inputs").dim() == 3);
  reseal(good);
  CHECK(lathe_in(f, {"replay", bundle.string()}).code == 0);

  const auto with = [&](const char* name, const std::function<at::Tensor(at::Tensor)>& edit) {
    auto tensors = good;
    tensors[name] = edit(good.at(name).clone()).contiguous();
    reseal(tensors);
  };
  for (const char* name : {"inputs", "targets"}) {
    const std::string tensor = str("tensor \"", name, "\"");
    with(name, [](const at::Tensor& t) { return t.slice(0, 0, 1); });
    refused(tensor);
    with(name, [](const at::Tensor& t) { return t.slice(2, 0, 3); });
    refused(tensor);
    with(name, [](const at::Tensor& t) { return t.to(at::kFloat); });
    refused(tensor + " is F32", "I64");
    for (const int64_t id : {int64_t{-1}, int64_t{1} << 40}) {
      with(name, [&](at::Tensor t) { return t.fill_(id); });
      refused(tensor, "value");
    }
    auto without = good;
    without.erase(name);
    reseal(without);
    refused("no " + tensor);
  }
  auto started = good;
  started["starts"] =
      torch::full_like(good.at("inputs"), 1);  // only 0 is possible at the first position
  reseal(started);
  refused("tensor \"starts\"", "value");
}

TEST_CASE("replay also repeats a step that train.detect_anomaly ended", "[replay]") {
  const TempFolder f;
  make_tiny_run(f.path(), "[optim]\nkind = \"sgd\"\nlr = 1e30\ngrad_clip = 0\n");
  const Finished r = lathe_in(f, {"train", "tiny.toml", "--train.detect_anomaly=true"});
  INFO(r.out << r.err);
  REQUIRE(r.code == 5);
  CHECK_THAT(r.err,
             ContainsSubstring("anomaly: ") && ContainsSubstring("`lathe replay runs/tiny`"));
  CHECK_THAT(lathe_in(f, {"runs"}).out, ContainsSubstring("diverged"));
  const Finished again = lathe_in(f, {"replay", "runs/tiny"});
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK_THAT(again.out, ContainsSubstring("not finite") && ContainsSubstring("forward pass"));
}

TEST_CASE("a run whose first steps all overflow leaves a step that can be replayed", "[replay]") {
  const TempFolder f;
  make_tiny_run(f.path(),
                "[amp]\ndtype = \"fp16\"\nscaler = \"fixed\"\nloss_scale = 16777216\nmax_skips = "
                "3\n");
  REQUIRE(lathe_in(f, {"train", "tiny.toml"}).code == 5);
  const Finished again = lathe_in(f, {"replay", "runs/tiny"});
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK_THAT(again.out, ContainsSubstring("not finite"));
}

TEST_CASE("a diverged step on a table of examples can be replayed", "[replay]") {
  const TempFolder f;
  std::string csv = "a,b,y\n";
  for (int i = 0; i < 40; ++i) csv += str(i % 7, ",", i % 5, ",", i % 3, "\n");
  write_file(f / "t.csv", csv);
  REQUIRE(lathe_in(f, {"prepare", "t.csv", "--out", "data", "--task", "classification"}).code == 0);
  write_file(f / "t.toml",
             "[model]\nkind = \"mlp\"\n[data]\ndir = \"data\"\n[optim]\nkind = \"sgd\"\nlr = "
             "1e38\ngrad_clip = 0\n"
             "[schedule]\nwarmup_steps = 0\n[train]\nsteps = 50\nbatch_size = 4\nthreads = "
             "1\neval_interval = 0\n");
  REQUIRE(lathe_in(f, {"train", "t.toml"}).code == 5);
  CHECK(lathe_in(f, {"replay", "runs/t"}).code == 0);
}

}  // namespace
