// Trains every model kind except the GPT, and tests that its runs resume exactly.
#include "tests/support/kinds.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("every model kind learns, and its runs stop and resume exactly, in each precision",
          "[model_kinds]") {
  const TempFolder f(fast_folder());
  make_data(f);
  for (const Kind& kind : kinds) {
    write_config(f, kind);
    for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
      INFO(kind.name << " on " << kind.data << " in " << dtype);
      fs::remove_all(f / "whole");
      fs::remove_all(f / "parts");
      fs::remove_all(f / "other");
      const auto train = [&](const std::string& out, std::vector<std::string> more = {},
                             double kill_after = -1) {
        std::vector<std::string> args{"train", "kind.toml", "--train.out_dir=" + out,
                                      "--amp.dtype=" + dtype};
        args.insert(args.end(), more.begin(), more.end());
        return lathe_in(f, args, kill_after);
      };
      const Finished whole = train("whole");
      INFO(whole.out << whole.err);
      REQUIRE(whole.code == 0);
      REQUIRE(train("parts", {"--train.max_time=0.01"}).code == 75);
      const double seconds = whole.seconds;
      if (dtype == "fp32") {
        // The run is killed, or it finishes before the kill.
        for (int i = 1; i < 3; ++i) train("parts", {}, seconds * i / 3);
      }
      REQUIRE(train("parts").code == 0);
      CHECK(difference(f / "whole", f / "parts") == "");
      if (dtype != "fp32") continue;
      REQUIRE(train("other", {"--train.seed=2"}).code == 0);
      CHECK(difference(f / "whole", f / "other") != "");  // the comparison notices another seed

      const Json first = parse_json(
          slurp(f / "whole/metrics.jsonl").substr(0, slurp(f / "whole/metrics.jsonl").find('\n')),
          "", Exit::internal);
      const Json end = last_line(lathe_in(f, {"eval", "whole"}));
      const char* figure = kind.data == "numbers" ? "mse" : "val_loss";
      CHECK(end[figure].get<double>() < 0.95 * first[figure].get<double>());
      CHECK(end.contains(kind.data == "text" ? "tokens" : "samples"));
      if (kind.data == "images") CHECK(end["accuracy"].get<double>() > 0.7);
      if (kind.data == "numbers") CHECK(end.contains("mae"));
      // The saved model, including its running statistics, is the model that the last evaluation
      // used.
      const RunState state = read_state(list_checkpoints(f / "whole").at(0));
      CHECK(end[figure].get<double>() == Approx(*state.val_loss).epsilon(1e-6));
      CHECK(lathe_in(f, {"verify", "whole"}).code == 0);
      CHECK_THAT(lathe_in(f, {"inspect", "whole"}).out, ContainsSubstring("step 60"));
      CHECK_THAT(lathe_in(f, {"plan", "kind.toml"}).out, ContainsSubstring("time of a step"));
      CHECK(last_line(lathe_in(f, {"bench", "step", "kind.toml", "--train.steps=4"}))
                .contains("ms_median"));
      const Finished written = lathe_in(f, {"generate", "whole", "--tokens=5"});
      CHECK(written.code == (kind.data == "text" ? 0 : 2));
      if (kind.data != "text")
        CHECK_THAT(written.err,
                   ContainsSubstring(kind.name) && ContainsSubstring("`lathe predict`"));
    }
  }
}

TEST_CASE(
    "every model kind supports memory.recompute, which may change on resume and is refused for a "
    "model without blocks",
    "[model_kinds]") {
  const TempFolder f(fast_folder());
  make_data(f);
  for (const Kind& kind : kinds) {
    INFO(kind.name << " on " << kind.data);
    fs::remove_all(f / "whole");
    fs::remove_all(f / "again");
    write_config(f, kind);
    const auto train = [&](const std::string& out, std::vector<std::string> more) {
      more.insert(more.begin(),
                  {"train", "kind.toml", "--train.out_dir=" + out, "--train.steps=20"});
      const Finished done = lathe_in(f, more);
      INFO(done.out << done.err);
      return done.code;
    };

    REQUIRE(train("whole", {}) == 0);
    REQUIRE(train("again", {"--memory.recompute=blocks", "--train.max_time=0.01"}) == 75);
    REQUIRE(train("again", {"--memory.recompute=selective", "--train.max_time=0.01"}) == 75);
    REQUIRE(train("again", {"--memory.recompute=sqrt"}) == 0);
    CHECK(difference(f / "whole", f / "again") == "");
    CHECK(lathe_in(f, {"plan", "kind.toml", "--memory.recompute=blocks"}).code == 0);
  }

  // For a model without blocks, memory.recompute would have no effect.
  write_config(f, kinds[1]);
  const Finished none =
      lathe_in(f, {"train", "kind.toml", "--model.n_layer=0", "--memory.recompute=blocks"});
  CHECK(none.code == 2);
  CHECK_THAT(none.err, ContainsSubstring("memory.recompute = \"blocks\"") &&
                           ContainsSubstring("model.kind = \"mlp\""));
  const Finished wrong = lathe_in(f, {"train", "kind.toml", "--memory.recompute=all"});
  CHECK(wrong.code == 2);

  const auto diverge = [&](const std::string& more) {
    return lathe_in(f, {"train", "kind.toml", "--train.out_dir=bad", "--optim.lr=1e30",
                        "--train.steps=8", more});
  };
  const Finished refusal = diverge("--train.detect_anomaly=true");
  CHECK(refusal.code == 5);
  CHECK_THAT(refusal.err, ContainsSubstring("anomaly: ") && ContainsSubstring("produced values"));
  fs::remove_all(f / "bad");
  const Finished unchecked = diverge("--train.detect_anomaly=false");
  CHECK(unchecked.code == 5);
  CHECK(unchecked.err.find("anomaly") == std::string::npos);
}

}  // namespace
