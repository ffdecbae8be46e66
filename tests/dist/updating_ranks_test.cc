// Tests of memory.update_in_backward on several processes. Each process has one micro-batch of the
// step. The results must be bitwise equal to those of a single process that updates after the
// backward pass.
#include <string>
#include <vector>

#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

const Kind updating_gpt{"gpt", "text",
                        "n_layer = 3\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};
const Words in_backward{"--memory.update_in_backward=true"};

struct UpdatingCase {
  const Kind& kind;
  Words keys;
  Words more = {};  ///< additional keys of the run on several processes
};

/// Returns the cases. In test::kinds, index 0 is an MLP with batch norm, 2 is a convnet, 3 is a
/// Llama and 4 is an LSTM.
std::vector<UpdatingCase> updating_cases() {
  const auto& kinds = lathe::test::kinds;
  return {
      // The first case has a bucket for each parameter. The second case has one bucket for all
      // parameters.
      {updating_gpt, {"--optim.grad_clip=0", "--dist.bucket_mb=0.001"}},
      {updating_gpt, {"--optim.grad_clip=0", "--optim.ema_decay=0.9"}},
      {updating_gpt,
       {"--optim.grad_clip=0.1", "--dist.bucket_mb=0.01"},
       {"--memory.offload=optimizer"}},
      {updating_gpt,
       {"--amp.dtype=bf16", "--optim.grad_clip=0", "--memory.recompute=blocks"},
       {"--memory.offload=parameters"}},
      {updating_gpt,
       {"--amp.dtype=fp8", "--amp.fp8_scaling=delayed", "--amp.fp8_edge_blocks=0",
        "--amp.master=false", "--optim.grad_clip=0.5", "--dist.bucket_mb=0.01"}},
      {kinds[0], {"--optim.kind=lamb", "--optim.grad_clip=0.1"}},
      {kinds[2], {"--optim.kind=adafactor", "--optim.grad_clip=0", "--dist.bucket_mb=0.001"}},
      {kinds[3],
       {"--optim.kind=muon", "--optim.grad_clip=0.3", "--amp.dtype=bf16", "--dist.bucket_mb=0.01"}},
      {kinds[4], {"--optim.grad_clip=0.5", "--optim.grad_clip_by=parameter"}},
  };
}

TEST_CASE(
    "updates in backward on several processes are bitwise equal to updates after the backward pass "
    "on one process",
    "[updating_ranks]") {
  for (const int ranks : {2, 4}) {
    const Words steps{"--train.steps=6",          "--train.grad_accum=" + std::to_string(ranks),
                      "--train.batch_size=4",     "--train.eval_interval=3",
                      "--train.eval_batches=2",   "--checkpoint.interval=6",
                      "--schedule.kind=constant", "--dist.timeout=60"};
    RunsOnRanks runs(steps, "step-00000006");
    for (const UpdatingCase& c : updating_cases()) {
      if (ranks == 4 && &c.kind != &updating_gpt) continue;
      std::string shown;
      for (const std::string& key : c.keys) shown += key + " ";
      INFO(c.kind.name << " " << shown << "on " << ranks << " processes");
      const std::string alone = runs.results(1, c.kind, c.keys);
      CHECK((runs.results(ranks, c.kind, with_keys(with_keys(c.keys, in_backward), c.more)) ==
             alone));
    }

    // The comparison must notice a wrong clipping norm.
    CHECK((runs.results(ranks, updating_gpt, with_keys({"--optim.grad_clip=0.02"}, in_backward)) !=
           runs.results(1, updating_gpt, {"--optim.grad_clip=0.01"})));
  }
}

TEST_CASE("updates in backward work with positions that are divided among processes",
          "[updating_ranks]") {
  const Words steps{"--train.steps=4",         "--train.grad_accum=1",    "--train.batch_size=4",
                    "--dist.context=2",        "--train.eval_interval=2", "--train.eval_batches=2",
                    "--checkpoint.interval=4", "--dist.timeout=60"};
  RunsOnRanks runs(steps, "step-00000004");
  const Words clip{"--optim.grad_clip=0.1", "--dist.bucket_mb=0.01"};
  CHECK((runs.results(2, updating_gpt, with_keys(clip, in_backward)) ==
         runs.results(2, updating_gpt, clip)));
}

TEST_CASE("updates in backward save the gradients' memory on each process, as plan forecasts",
          "[updating_ranks]") {
  const TempFolder f;
  make_data(f);
  // Parameters take more memory than activations. Nearly all parameters are in 8 blocks of 12 x
  // 64^2 elements.
  write_config(f, {"gpt", "text", "n_layer = 8\nn_head = 2\nn_embd = 64\nblock_size = 4\n"});
  std::vector<double> memory;
  for (const Words& more : {Words{}, in_backward}) {
    const Words keys = with_keys({"--train.grad_accum=2", "--train.batch_size=1", "--train.steps=3",
                                  "--optim.grad_clip=0", "--train.eval_interval=0",
                                  "--data.workers=0", "--dist.bucket_mb=0.05", "--dist.timeout=60"},
                                 more);
    const std::string name = more.empty() ? "after" : "during";
    REQUIRE(train_on(f, 2, "kind.toml", name, keys).code == 0);
    memory.push_back(check_forecast(f, 2, keys, f / "runs" / name));
  }
  const double gradients = 4.0 * 8 * 12 * 64 * 64;
  CHECK(memory[0] - memory[1] > 0.6 * gradients);

  // If gradients are clipped by their norm, they are exchanged twice.
  for (const Words& more : {Words{"--dist.context=2", "--train.grad_accum=1"}, Words{}}) {
    const Words keys =
        with_keys(with_keys({"--train.grad_accum=2", "--train.batch_size=1", "--train.steps=3",
                             "--optim.grad_clip=1", "--train.eval_interval=0", "--data.workers=0",
                             "--dist.bucket_mb=0.05", "--dist.timeout=60"},
                            in_backward),
                  more);
    const std::string name = more.empty() ? "clipped" : "clipped-context";
    INFO(name);
    REQUIRE(train_on(f, 2, "kind.toml", name, keys).code == 0);
    check_forecast(f, 2, keys, f / "runs" / name);
  }
}

TEST_CASE("updates in backward are refused unless each process has one micro-batch",
          "[updating_ranks]") {
  const TempFolder f;
  make_data(f);
  write_config(f, updating_gpt);
  for (const auto& [ranks, micro_batches] : {std::pair(1, 2), {2, 1}, {2, 4}, {2, 3}}) {
    INFO(ranks << " processes, " << micro_batches << " micro-batches");
    const Finished done =
        train_on(f, ranks, "kind.toml", "refused",
                 with_keys(in_backward, {"--train.steps=1", "--dist.timeout=60",
                                         "--train.grad_accum=" + std::to_string(micro_batches)}));
    CHECK(done.code == 2);
    CHECK_THAT(done.err, ContainsSubstring("memory.update_in_backward") &&
                             ContainsSubstring("train.grad_accum = " + std::to_string(ranks)));
    CHECK(!fs::exists(f / "runs/refused"));
  }
}

}  // namespace
