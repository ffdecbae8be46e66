// Tests of runs with memory.saved, which packs activations: ops keep them for the backward pass in
// a smaller dtype. Such runs resume exactly, the activations of recomputed blocks are not packed,
// and keys that contradict memory.saved are refused.
#include <string>
#include <vector>

#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"

namespace {

using namespace lathe;
using lathe::test::Finished;
using lathe::test::Kind;
using lathe::test::results_of;
using lathe::test::TempFolder;
using lathe::test::train_on;
using lathe::test::with_keys;
using Words = std::vector<std::string>;

const Kind packed_model{"gpt", "text",
                        "n_layer = 3\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};

/// Trains runs of a GPT with three blocks in one folder.
class PackedRuns {
 public:
  PackedRuns() {
    lathe::test::make_data(folder_);
    lathe::test::write_config(folder_, packed_model);
  }
  std::string train(const std::string& name, const Words& more, int code = 0) {
    const Words keys{"--train.steps=12",        "--train.batch_size=4",
                     "--train.grad_accum=2",    "--train.eval_interval=6",
                     "--checkpoint.interval=0", "--train.log_interval=1"};
    const Finished done = train_on(folder_, 1, "kind.toml", name, with_keys(keys, more));
    INFO(done.out << done.err);
    REQUIRE(done.code == code);
    return code == 0 ? results_of(folder_ / ("runs/" + name), "step-00000012") : done.err;
  }

 private:
  TempFolder folder_;
};

TEST_CASE("a run with packed activations resumes exactly", "[saved_activations]") {
  PackedRuns runs;
  const std::string exact = runs.train("exact", {});
  for (const char* dtype : {"bf16", "fp8"}) {
    INFO(dtype);
    const Words key{std::string("--memory.saved=") + dtype};
    const std::string whole = runs.train(str("whole-", dtype), key);
    CHECK((whole != exact));
    runs.train(str("parts-", dtype), with_keys(key, {"--train.pause_at=5"}), 75);
    CHECK((runs.train(str("parts-", dtype), key) == whole));
  }
}

TEST_CASE("with packed activations, recomputing some blocks changes the results, reproducibly",
          "[saved_activations]") {
  PackedRuns runs;
  const std::string packed = runs.train("packed", {"--memory.saved=fp8"}),
                    mixed = runs.train("mixed",
                                       {"--memory.saved=fp8", "--memory.recompute=blocks.0-1"});
  CHECK((mixed != packed));
  CHECK((mixed != runs.train("exact", {})));
  CHECK((runs.train("again", {"--memory.saved=fp8", "--memory.recompute=blocks.0-1"}) == mixed));
}

TEST_CASE("memory.saved is refused if no block keeps activations", "[saved_activations]") {
  PackedRuns runs;
  int n = 0;
  for (const char* other :
       {"recompute=blocks", "recompute=selective", "recompute=sqrt", "budget=1GB"}) {
    INFO(other);
    const std::string refusal =
        runs.train(str("refused-", n++), {"--memory.saved=fp8", str("--memory.", other)}, 2);
    CHECK_THAT(refusal, ContainsSubstring("memory.saved"));
    CHECK_THAT(refusal,
               ContainsSubstring(std::string("memory.") + (n == 4 ? "budget" : "recompute")));
  }
  CHECK_THAT(runs.train("unknown", {"--memory.saved=int8"}, 2), ContainsSubstring("memory.saved"));
}

}  // namespace
