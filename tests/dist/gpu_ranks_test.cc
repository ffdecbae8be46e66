// Tests of runs on several processes that compute on GPUs. A test needs only one GPU. Its processes
// share this GPU, so they exchange tensors through Gloo. NCCL needs a GPU for each rank, so it is
// tested on one rank.

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/device.h"
#include "dist/group.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/kinds.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

TEST_CASE("each process of a machine chooses one of the visible GPUs", "[gpu_ranks]") {
  const char* const before = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string kept = before != nullptr ? before : "";
  const auto chosen = [](const char* visible, int local_rank) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    choose_gpu(local_rank);
    return std::string(std::getenv("CUDA_VISIBLE_DEVICES"));
  };
  CHECK(chosen("3,5,GPU-1a2b", 0) == "3");
  CHECK(chosen("3,5,GPU-1a2b", 2) == "GPU-1a2b");
  CHECK(chosen("3,5,GPU-1a2b", 4) == "5");
  CHECK(chosen("6", 3) == "6");
  CHECK(chosen("3,5,", 2) == "3");  // the list ends before an entry that names no GPU
  CHECK(chosen("3,5,-1,7", 3) == "5");
  CHECK(chosen("", 1).empty());  // no GPU is visible, and none becomes visible
  if (before != nullptr)
    setenv("CUDA_VISIBLE_DEVICES", kept.c_str(), 1);
  else
    unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_CASE("dist.backend = nccl needs a GPU for each rank", "[gpu_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, lathe::test::kinds[1]);
  const Words keys{"--train.steps=2", "--train.device=cpu", "--dist.timeout=60"};
  const Finished refused =
      train_on(f, 2, "kind.toml", "cpu", with_keys(keys, {"--dist.backend=nccl"}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("dist.backend"));
  CHECK(!fs::exists(f / "runs/cpu"));
  CHECK(train_on(f, 2, "kind.toml", "gloo", with_keys(keys, {"--dist.backend=gloo"})).code == 0);

  if (skip_without_gpu()) return;
  const Words shared{"--train.device=cuda", "--dist.backend=nccl"};
  const Finished one_gpu = train_on(f, 2, "kind.toml", "shared", with_keys(keys, shared));
  CHECK(one_gpu.code == 2);
  CHECK_THAT(one_gpu.err, ContainsSubstring("dist.backend") && ContainsSubstring("ranks 0 and 1 "));
}

const Kind four_block_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 4\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};

const Words gpu_keys{"--train.steps=6",         "--train.grad_accum=4",   "--train.batch_size=4",
                     "--train.eval_interval=3", "--train.eval_batches=3", "--checkpoint.interval=6",
                     "--train.device=cuda",     "--dist.timeout=60"};

TEST_CASE("runs on a GPU are bitwise equal on one and two processes", "[gpu_ranks]") {
  if (skip_without_gpu()) return;
  RunsOnRanks runs(gpu_keys, "step-00000006");
  struct Cell {
    const Kind& kind;
    Words keys;
  };
  const auto& kinds = lathe::test::kinds;
  const std::vector<Cell> cells{
      {four_block_gpt, {"--optim.grad_clip=0.5", "--dist.bucket_mb=0.002"}},
      {kinds[0], {"--amp.dtype=bf16", "--amp.grad=low"}},
      {kinds[2], {"--amp.dtype=fp16", "--amp.scaler=dynamic", "--amp.loss_scale=16777216"}},
      {kinds[3],
       {"--amp.dtype=fp8", "--amp.fp8_scaling=delayed", "--amp.fp8_edge_blocks=0",
        "--memory.recompute=blocks"}},
      {kinds[4], {"--amp.dtype=bf16", "--optim.ema_decay=0.9"}}};
  for (const Cell& cell : cells) {
    INFO(cell.kind.name);
    const std::string alone = runs.results(1, cell.kind, cell.keys);
    CHECK((runs.results(2, cell.kind, cell.keys) == alone));
    CHECK((runs.results(1, cell.kind, with_keys(cell.keys, {"--train.seed=2"})) !=
           alone));  // the comparison must notice a wrong seed
  }
}

TEST_CASE("sharding and pipelines change no bits of runs on GPUs", "[gpu_ranks]") {
  if (skip_without_gpu()) return;
  RunsOnRanks runs(gpu_keys, "step-00000006");
  const Words keys{"--amp.dtype=bf16", "--memory.recompute=blocks", "--dist.bucket_mb=0.02"};
  const std::string alone = runs.results(1, four_block_gpt, keys);
  for (const char* shard : {"optimizer", "gradients", "parameters"}) {
    INFO(shard);
    const std::string key = str("--dist.shard=", shard);
    CHECK((runs.results(2, four_block_gpt, with_keys(keys, {key})) == alone));
  }

  // Weights are not tied here, since a pipeline sums the gradient of a tied embedding in another
  // order.
  const Words untied = with_keys(keys, {"--model.tie_weights=false"});
  CHECK((runs.results(2, four_block_gpt, with_keys(untied, {"--dist.pipeline=2"})) ==
         runs.results(1, four_block_gpt, untied)));

  // If two processes compute a layer together, the layer's sums have another order.
  const Words whole{"--dist.bucket_mb=0.02"};
  const fs::path one = runs.train(1, four_block_gpt, whole),
                 two = runs.train(2, four_block_gpt, with_keys(whole, {"--dist.tensor=2"}));
  const auto a = numbers_of(one, "loss"), b = numbers_of(two, "loss");
  REQUIRE(a.size() == 6);
  REQUIRE(b.size() == 6);
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-5 * a[i]);
}

TEST_CASE("a group exchanges GPU tensors by NCCL and CPU tensors by Gloo", "[gpu_ranks]") {
  if (skip_without_gpu()) return;
  open_device("cuda");
  if (cuda_api().make_nccl == nullptr) {
    WARN("skipped: built without NCCL's header");
    return;
  }
  Placement p;
  p.host = "127.0.0.1";
  p.port = lathe::test::free_port();
  const auto store = Rendezvous::open(p, 30);
  const RankAxis one{.rank = 0, .size = 1};
  const auto group =
      Group::by_nccl(Group::make(*store, "gloo", p, one, 30), *store, "nccl", one, 30);

  const std::vector<int64_t> cuts{0, 1000};
  for (const auto device : {at::kCUDA, at::kCPU}) {
    at::Tensor in = torch::randn({1000}).to(device), out = torch::zeros({1000}).to(device);
    group->all_to_all(out, in, cuts);
    CHECK(out.equal(in));
    at::Tensor flat = in.clone();
    group->all_gather(flat, cuts);
    CHECK(flat.equal(in));
    CHECK(group->gather(in).equal(in.unsqueeze(0)));
  }
}

}  // namespace
