// Compares adapters on cut layers with adapters on one process. Several processes compute a cut
// layer together.
#include <string>
#include <vector>

#include "autograd/tensor_cut.h"
#include "core/quantized.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

const Kind gpt{"gpt", "text", "n_layer = 2\nn_head = 4\nn_embd = 64\nblock_size = 12\n"};
const Kind llama{"llama", "text",
                 "n_layer = 2\nn_head = 4\nn_kv_head = 2\nn_embd = 64\nblock_size = 12\n"
                 "qkv_bias = true\n"};

const Words base_keys{"--train.steps=10", "--train.batch_size=2", "--train.grad_accum=2",
                      "--train.log_interval=1", "--train.eval_interval=0"};

/// Trains the run runs/base, and writes kind.toml, a config that trains adapters on it. The
/// adapters' optimizer is linear in the gradients. Adam would amplify the rounding of gradients
/// that are close to zero. Adapters have many such gradients at first, since their matrix B starts
/// at zero.
void make_base(const TempFolder& f, const Kind& kind) {
  make_data(f);
  write_config(f, kind);
  REQUIRE(train_on(f, 1, "kind.toml", "base", with_keys(base_keys, {"--optim.lr=0.01"})).code == 0);
  write_file(f / "kind.toml",
             "[adapters]\nbase = \"runs/base\"\nrank = 3\n[data]\ndir = \"text\"\n"
             "[optim]\nkind = \"momentum\"\nlr = 0.05\n[schedule]\nwarmup_steps = 0\n");
}

/// Trains adapters for 20 steps on 1 or more processes, and returns the run folder.
fs::path adapt(const TempFolder& f, int ranks, const std::string& name, const Words& keys) {
  const Finished done = train_on(f, ranks, "kind.toml", name,
                                 with_keys(with_keys(base_keys, {"--train.steps=20"}), keys));
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  return f / ("runs/" + name);
}

TEST_CASE("adapters of cut layers have the metrics of one process up to rounding",
          "[cut_adapters]") {
  struct Cell {
    Kind kind;
    Words keys;
    double tolerance;
  };
  // The tolerances are those of runs without adapters (tensor_ranks_test.cc).
  const std::vector<Cell> cells{
      {gpt, {"--optim.grad_clip=0.5"}, 1e-6},
      {llama, {"--adapters.dora=true", "--optim.weight_decay=0.1"}, 1e-6},
      {gpt,
       {"--adapters.dora=true", "--adapters.layers=*.attn.*,*.mlp.down",
        "--memory.recompute=blocks"},
       1e-6},
      {llama,
       {"--adapters.dtype=nf4", "--amp.dtype=bf16", "--adapters.layers=*.attn.q,*.mlp.up"},
       2e-2},
      {gpt, {"--adapters.dtype=int8", "--amp.dtype=bf16", "--adapters.dora=true"}, 2e-2},
  };

  for (const Cell& cell : cells) {
    INFO(cell.kind.name << " " << cell.keys[0]);
    const TempFolder f;
    make_base(f, cell.kind);
    const Words cut = with_keys(cell.keys, {"--dist.tensor=2"});
    const fs::path alone = adapt(f, 1, "1", cell.keys), two = adapt(f, 2, "2", cut);
    CHECK(numbers_of(alone, "loss").size() == 20);
    CHECK(difference_between(alone, two, "loss") < cell.tolerance);
    CHECK(difference_between(alone, two, "grad_norm") < 10 * cell.tolerance);

    const std::string last = "step-00000020";
    CHECK((results_of(two, last) != results_of(alone, last)));  // sums have another order
    const fs::path four = adapt(f, 4, "4", with_keys(cut, {"--dist.shard=gradients"}));
    CHECK((results_of(four, last) == results_of(two, last)));

    // In bfloat16 a wrong gradient could hide behind rounding.
    if (cell.tolerance > 1e-5) continue;
    const fs::path divided =
        adapt(f, 2, "divided", with_keys(cut, {"--dist.sequence_parallel=true"}));
    CHECK(difference_between(alone, divided, "loss") < cell.tolerance);
    CHECK(difference_between(alone, divided, "grad_norm") < 10 * cell.tolerance);
  }
}

TEST_CASE("a part of complete blocks is quantized to the same values as in the complete tensor",
          "[cut_adapters]") {
  const at::Tensor whole = torch::randn({6, 256}, at::kFloat);
  for (const auto format : {QuantizedTensor::Format::int8, QuantizedTensor::Format::nf4}) {
    const auto values = [&](const at::Tensor& t) {
      return QuantizedTensor(t, format, /*double_quant=*/false, at::kCPU).dequantize(at::kFloat);
    };
    for (const int64_t dim : {0, 1}) {
      const TensorCut cut{.dim = dim, .sections = {whole.size(dim)}, .part = 1, .parts = 2};
      CHECK(values(cut.part_of(whole)).equal(cut.part_of(values(whole))));
    }
    // The comparison notices parts whose blocks differ. Parts of 256 / 3 columns end within a
    // quantization block.
    const TensorCut uneven{.dim = 1, .sections = {256}, .part = 1, .parts = 3};
    CHECK(!values(uneven.part_of(whole)).equal(uneven.part_of(values(whole))));
  }
}

TEST_CASE("adapters of cut layers resume on any grid and are read by one process",
          "[cut_adapters]") {
  const TempFolder f;
  make_base(f, llama);
  const Words cut{"--dist.tensor=2", "--adapters.dora=true"};
  const fs::path whole = adapt(f, 2, "whole", cut);
  const Words pause = with_keys(with_keys(base_keys, {"--train.steps=20", "--train.pause_at=7"}),
                                with_keys(cut, {"--dist.pipeline=2"}));
  REQUIRE(train_on(f, 4, "kind.toml", "moved", pause).code == 75);
  check_same_tensors(whole, adapt(f, 2, "moved", cut), "step-00000020");

  // The merged model has the same loss as the base with adapters.
  const auto loss_of = [&](const std::string& run_) {
    const Finished done = lathe_in(f, {"eval", run_});
    INFO(done.err);
    REQUIRE(done.code == 0);
    return Json::parse(done.out).at("val_loss").get<double>();
  };
  REQUIRE(lathe_in(f, {"merge", "runs/whole", "--out", "runs/merged"}).code == 0);
  CHECK(loss_of("runs/merged") == Approx(loss_of("runs/whole")).epsilon(1e-5));
  CHECK(loss_of("runs/whole") != loss_of("runs/base"));
}

TEST_CASE("plan forecasts the memory and sent bytes of a tensor rank with adapters",
          "[cut_adapters]") {
  const TempFolder f;
  make_base(f, {"gpt", "text", "n_layer = 4\nn_head = 2\nn_embd = 128\nblock_size = 12\n"});
  std::vector<double> memory;
  for (const char* tensor : {"1", "2"}) {
    INFO(tensor);
    const Words keys{std::string("--dist.tensor=") + tensor};
    const Json figures = first_rank_stats(adapt(f, 2, tensor, keys));
    const Json forecast = plan_of(f, 2, "kind.toml", with_keys(base_keys, keys));
    CHECK(forecast.at("sent_bytes_per_step") == figures.at("sent_bytes"));
    memory.push_back(figures.at("memory_bytes"));
    // The margin allows for gradients of 0.1 MB each that wait to be sent.
    CHECK(forecast.at("tensors_mb").get<double>() * (1 << 20) ==
          Approx(memory.back()).margin(0.3e6));
  }
  // Two tensor ranks each keep half of the frozen base: 4 x 12 x 128^2 elements of 4 bytes.
  CHECK(memory[0] - memory[1] > 0.9 * 2 * 4 * 12 * 128 * 128);
}

}  // namespace
