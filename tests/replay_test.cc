// Steps that go wrong: spikes that are left out, and divergence that can be looked at again.
#include <cmath>

#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "optim/spikes.h"
#include "tests/catch.h"
#include "tests/process.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("a spike is judged by the losses before it", "[replay]") {
  SpikeGuard guard(4);
  const auto usual = [](int i) { return 3 + 0.1 * std::sin(i * 1.7); };
  CHECK(!guard.is_spike(100));  // there is nothing to judge it by yet
  guard.load({});
  for (int i = 0; i < 49; ++i) CHECK(!guard.is_spike(i == 20 ? 3.5 : usual(i)));
  CHECK(!guard.is_spike(usual(49)));
  const SpikeState before = guard.state();
  CHECK(guard.is_spike(before.mean + 4.01 * std::sqrt(before.variance)));
  CHECK(guard.state().mean == before.mean);
  CHECK(guard.state().skipped == 1);
  CHECK(!guard.is_spike(before.mean + 3.99 * std::sqrt(before.variance)));
  CHECK(!guard.is_spike(-50));  // a loss can't be too low
  // A level that stays is a new level.
  guard.load(before);
  int skipped = 0;
  for (int i = 0; i < 30; ++i) skipped += guard.is_spike(30 + usual(i)) ? 1 : 0;
  CHECK(skipped == 10);
  CHECK(guard.state().mean == Approx(33).margin(0.2));
}

TEST_CASE("the mean and variance are the exponentially weighted ones", "[replay]") {
  SpikeGuard guard(1e9);
  std::vector<double> losses;
  for (int i = 0; i < 120; ++i) losses.push_back(2 + std::cos(i * 0.37) + 0.01 * i);
  for (double x : losses) CHECK(!guard.is_spike(x));
  // By definition: weights from the last loss back, each share of what the later ones left.
  double left = 1, mean = 0, square = 0;
  for (size_t i = losses.size(); i-- > 0;) {
    const double weight = left * std::max(0.02, 1 / static_cast<double>(i + 1));
    mean += weight * losses[i], square += weight * losses[i] * losses[i];
    left -= weight;
  }
  CHECK(guard.state().mean == Approx(mean).epsilon(1e-12));
  CHECK(guard.state().variance == Approx(square - mean * mean).epsilon(1e-9));
}

TEST_CASE("a run with spikes left out resumes to the bit, and keeps their tokens", "[replay]") {
  const TempFolder f;
  make_tiny_run(f.path());
  // At a rate that hardly learns, a third of the losses are half a deviation above the mean.
  const std::vector<std::string> flags{"--train.steps=90", "--train.spike_sigma=0.5", "--optim.lr=1e-5"};
  const auto train = [&](const std::string& out, const std::string& more) {
    std::vector<std::string> args{"train", "tiny.toml", "--train.out_dir=" + out, more};
    args.insert(args.end(), flags.begin(), flags.end());
    return run({"lathe", args, f.path(), {}});
  };
  REQUIRE(train("whole", "--train.max_time=0").code == 0);
  Finished part = train("parts", "--train.max_time=0.01");
  REQUIRE(part.code == 75);
  part = run({"lathe_faults",
              {"train", "tiny.toml", "--train.out_dir=parts", flags[0], flags[1], flags[2]},
              f.path(),
              {{"LATHE_TEST_KILL", "step 75"}}});
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
  CHECK(windows.at("inputs").shape == std::vector<int64_t>{2, 3, 16});  // micro-batches, sequences, tokens
}

TEST_CASE("a step that diverged is run again, and the op named where it began", "[replay]") {
  const TempFolder f;
  make_tiny_run(f.path(), "[optim]\nkind = \"sgd\"\nlr = 1e30\ngrad_clip = 0\n");
  const Finished r = run({"lathe", {"train", "tiny.toml"}, f.path(), {}});
  INFO(r.out << r.err);
  REQUIRE(r.code == 5);
  CHECK_THAT(r.err, ContainsSubstring("`lathe replay runs/tiny`"));
  const Finished again = run({"lathe", {"replay", "runs/tiny"}, f.path(), {}});
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK_THAT(again.out, ContainsSubstring("what is first not finite, in the forward: the result of"));
  CHECK_THAT(again.out, ContainsSubstring("blocks.0."));
  CHECK(run({"lathe", {"replay", "data"}, f.path(), {}}).code == 2);
}

}  // namespace
