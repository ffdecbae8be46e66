// Compares the cluster simulator with published training runs, and with the formulas of the papers
// on which the simulator is based.
#include "train/simulate/estimate.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "core/io/json.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/train/simulate/published_rows.h"
#include "train/analysis/forecast.h"
#include "train/simulate/search.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns the shape of GPT-3, without the parts that the papers' formulas leave out.
StepWorkload gpt3(int64_t layers = 96) {
  StepWorkload step;
  step.shape = {.layers = layers,
                .width = 12288,
                .heads = 96,
                .kv_heads = 96,
                .head_width = 128,
                .hidden = 4 * 12288,
                .vocab = 1,
                .sequence = 2048};
  step.global_batch = 1536;
  return step;
}

StepWorkload small_gpt() {
  StepWorkload step;
  step.shape = {.layers = 24,
                .width = 2048,
                .heads = 16,
                .kv_heads = 16,
                .head_width = 128,
                .hidden = 8192,
                .vocab = 50304,
                .sequence = 2048};
  step.global_batch = 512;
  return step;
}

ClusterModel cluster_named(const std::string& gpu, int64_t nodes, const std::string& software) {
  const HardwareTable& table = known_hardware();
  return {table.gpu(gpu), table.link("400G"), table.program(software), table.constants, nodes, 8};
}

TEST_CASE("for at least 80% of published runs, the simulated step time is within 20%",
          "[simulator]") {
  const char* folder = std::getenv("LATHE_TEST_DATA");
  const fs::path file = fs::path(folder == nullptr ? "" : folder) / "clusters.csv";
  if (folder == nullptr || !fs::exists(file)) {
    WARN("skipped: LATHE_TEST_DATA is not a folder with clusters.csv, the published runs");
    return;
  }

  const auto share_within = [&](double most, const HardwareTable& table, bool print) {
    const std::vector<PublishedRow> rows = read_published_rows(file.string(), table);
    size_t within = 0;
    for (const PublishedRow& row : rows) {
      const LayoutSearch found = search_layouts(row.cluster, row.step, row.request, 1);
      INFO(row.id);
      REQUIRE(found.fastest.size() + found.too_large.size() > 0);
      const RatedLayout& best = found.fastest.empty() ? found.too_large[0] : found.fastest[0];
      const double error = best.estimate.seconds / row.step_seconds - 1;
      within += std::abs(error) <= most;
      if (print)
        std::printf("| %s | %s | %lld x %s | %.3f | %.3f | %+.1f%% |\n", row.id.c_str(),
                    row.model.c_str(), static_cast<long long>(row.cluster.gpus()), row.gpu.c_str(),
                    row.step_seconds, best.estimate.seconds, 100 * error);
    }
    return static_cast<double>(within) / static_cast<double>(rows.size());
  };
  // With LATHE_TEST_ROWS=1, the test prints each row with its error.
  const bool print = std::getenv("LATHE_TEST_ROWS") != nullptr;
  CHECK(share_within(0.2, known_hardware(), print) >= 0.8);

  // Hardware that is 1.4 times too fast must fail the same check.
  HardwareTable fast = known_hardware();
  for (GpuModel& gpu : fast.gpus) {
    gpu.matmul_share = std::min(1.0, 1.4 * gpu.matmul_share);
    gpu.portable_share = std::min(1.0, 1.4 * gpu.portable_share);
    gpu.memory_gb_per_second *= 1.4;
  }
  CHECK(share_within(0.2, fast, false) < 0.8);
}

TEST_CASE("memory agrees with the table in the ZeRO paper", "[simulator]") {
  // Each parameter takes 2 + 2 + 12 bytes (Rajbhandari et al. 2020). The simulated program "fused"
  // must therefore keep its gradients in bfloat16 here.
  ClusterModel cluster = cluster_named("a100-80", 8, "fused");
  cluster.software.gradient_bytes = 2;
  StepWorkload step = gpt3(4);
  step.global_batch = 64;
  const double n = step.shape.parameters(), ranks = 64;
  const double expected[]{16 * n, 4 * n + 12 * n / ranks, 2 * n + 14 * n / ranks, 16 * n / ranks};
  const double printed[]{120, 31.4, 16.6, 1.88};  // GB for 7.5e9 parameters

  for (int64_t stage = 0; stage <= 3; ++stage) {
    const ParallelLayout layout{.data = 64, .shard = stage};
    const GpuMemory m = gpu_memory(step, layout, cluster.gpu, cluster.software, cluster.constants);
    const double state = m.weights + m.gradients + m.optimizer;
    CHECK(state == Approx(expected[stage]).epsilon(1e-3));
    CHECK(state * 7.5e9 / n / 1e9 == Approx(printed[stage]).epsilon(5e-3));
  }

  // FSDP keeps no bf16 copy of its shards.
  const SoftwareModel& fsdp = known_hardware().program("compiled");
  CHECK(gpu_memory(step, {.data = 64, .shard = 3}, cluster.gpu, fsdp, cluster.constants).weights ==
        0);
}

TEST_CASE("activations agree with the formulas of Korthikanti et al.", "[simulator]") {
  StepWorkload step = gpt3();
  SoftwareModel software = known_hardware().program("megatron-2021");
  const double s = 2048, h = 12288, a = 96, b = 2;
  const auto bytes = [&](int64_t tensor, Recompute mode) {
    return layer_activations(step, {.tensor = tensor, .micro_batch = 2}, software, mode);
  };

  // Check equations 1, 2, 4 and 6, and table 2 of the paper.
  CHECK(bytes(1, Recompute::none) == Approx(s * b * h * (34 + 5 * a * s / h)));
  CHECK(bytes(8, Recompute::none) == Approx(s * b * h * (10 + 24. / 8 + 5 * a * s / h / 8)));
  CHECK(bytes(1, Recompute::full) == Approx(2 * s * b * h));
  software.sequence_parallel = true;
  CHECK(bytes(8, Recompute::none) == Approx(s * b * h / 8 * (34 + 5 * a * s / h)));
  CHECK(bytes(8, Recompute::selective) == Approx(34 * s * b * h / 8));
  CHECK(bytes(8, Recompute::full) == Approx(2 * s * b * h / 8));

  // With fp8, the saved inputs of three matrix products take one byte per element: qkv (h), the
  // feed-forward layer's first (h) and its second (4 h). The input of the projection (h) takes
  // three bytes per element instead of two.
  const MatmulDtype dtype = std::exchange(step.dtype, MatmulDtype::fp8);
  CHECK(bytes(8, Recompute::none) == Approx(s * b * h / 8 * (29 + 5 * a * s / h)));
  step.dtype = dtype;

  // The first of p pipeline stages keeps the activations of p micro-batches for L / p layers. With
  // v virtual stages per GPU, it keeps 1 + (p - 1) / (p v) times as many activations.
  const GpuModel& gpu = known_hardware().gpu("a100-80");
  const auto kept = [&](int64_t pipeline, int64_t parts) {
    return gpu_memory(step,
                      {.tensor = 8,
                       .pipeline = pipeline,
                       .virtual_stages = parts,
                       .recompute = Recompute::selective},
                      gpu, software, known_hardware().constants)
        .activations;
  };
  CHECK(kept(8, 1) == Approx(kept(1, 1)));
  CHECK(kept(8, 3) == Approx((1 + 7. / 24) * kept(1, 1)));

  // The estimate is for the stage with the largest memory. If the logits are large, this is the
  // last stage.
  const auto logits = [&](int64_t vocab) {
    StepWorkload wide = gpt3(4);
    wide.shape.vocab = vocab;
    return gpu_memory(wide, {.data = 1, .pipeline = 2, .recompute = Recompute::full}, gpu, software,
                      known_hardware().constants)
        .logits;
  };
  CHECK(logits(100) == 0);
  CHECK(logits(1000000) > 0);
}

TEST_CASE("the pipeline bubble agrees with the formula of Narayanan et al.", "[simulator]") {
  const ClusterModel cluster = cluster_named("a100-80", 64, "megatron-2021");
  for (const auto& [pipeline, parts] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {8, 1}, {8, 2}, {16, 3}, {4, 12}}) {
    const ParallelLayout layout{.data = 64 / pipeline,
                                .tensor = 8,
                                .pipeline = pipeline,
                                .virtual_stages = parts,
                                .recompute = Recompute::full};
    const StepWorkload step = gpt3();
    REQUIRE(layout_fault(layout, step).empty());
    const StepEstimate e = estimate_step(cluster, step, layout);
    // The formula is for the exchanges of the layers, without those of the embedding and the head.
    const double of_layers = 6 * as_double(step.shape.layers) / as_double(pipeline);
    const double exchange = e.tensor.exposed * of_layers / (of_layers + 2);
    const double ideal = e.matmul + e.attention + e.elementwise + e.recompute + exchange;
    const auto m = static_cast<double>(layout.micro_batches(step.global_batch));
    CHECK(e.bubble / ideal ==
          Approx((as_double(pipeline) - 1) / (as_double(parts) * m)).epsilon(5e-3));
  }
  CHECK(estimate_step(cluster, gpt3(), {.data = 64, .tensor = 8}).bubble == 0);

  // With 9 to 14 layers on 8 stages, the largest stages have two layers. Each additional layer adds
  // its time to the bubble, since every stage waits for all other stages.
  const auto bubble = [&](int64_t layers) {
    return estimate_step(cluster, gpt3(layers), {.data = 8, .tensor = 8, .pipeline = 8}).bubble;
  };
  const double layer = (bubble(14) - bubble(9)) / 5;
  CHECK(layer > 0);
  CHECK(bubble(13) - bubble(9) == Approx(4 * layer));
  CHECK(bubble(9) == Approx(7 * layer).epsilon(0.02));
}

TEST_CASE("each collective sends the number of bytes that a formula gives", "[simulator]") {
  const ClusterModel cluster = cluster_named("h100", 8, "compiled");
  const StepWorkload step = gpt3();
  const TransformerShape& s = step.shape;
  const double e = 2, x = cluster.software.exchange_bytes, layers = 96;
  // Parameters of the layers, plus the embedding of one token.
  const double n = layers * s.layer_parameters() + 12288.0;

  // Data parallelism with 64 replicas and 24 micro-batches: check the bytes of gradients and
  // parameters for each ZeRO stage.
  const double expected[]{2 * x * n, (e + x) * n, (e + 24 * x) * n, 24 * (2 * e + x) * n};
  for (int64_t stage = 0; stage <= 3; ++stage) {
    const StepEstimate data = estimate_step(cluster, step, {.data = 64, .shard = stage});
    CHECK(data.data.bytes == Approx(expected[stage] * 63 / 64).epsilon(1e-6));
    CHECK(data.tensor.bytes + data.context.bytes + data.pipeline.bytes == 0);
  }

  // Tensor parallelism: each layer has 4 all-reduces of s b h elements, and 6 with recomputation.
  const double micro = 1536. / 8, activation = 2048. * 12288 * e;
  for (const Recompute mode : {Recompute::none, Recompute::full}) {
    const StepEstimate t =
        estimate_step(cluster, step, {.data = 8, .tensor = 8, .recompute = mode});
    const double sums = mode == Recompute::full ? 6 : 4;
    // Two further sums are for the embedding and the head.
    CHECK(t.tensor.bytes == Approx(micro * (layers * sums + 2) * 2 * 7 / 8 * activation));
  }

  // Pipeline parallelism: each micro-batch sends s b h / t elements per virtual stage, forward and
  // backward.
  const StepEstimate p =
      estimate_step(cluster, step, {.data = 1, .tensor = 8, .pipeline = 8, .virtual_stages = 2});
  CHECK(p.pipeline.bytes == Approx(2. * 1536 * 2 * activation / 8));

  // Context parallelism: each key and value is sent c - 1 times in the forward pass. The backward
  // pass sends keys and values together with their gradients.
  const StepEstimate c = estimate_step(cluster, step, {.data = 16, .context = 4});
  CHECK(c.context.bytes == Approx(1536. / 16 * layers * 3 * (1 + 2) * 2 * activation / 4));
}

TEST_CASE("recomputation, the optimizer and the head add the expected time", "[simulator]") {
  const ClusterModel cluster = cluster_named("h100", 1, "megatron");
  const auto at = [&](const StepWorkload& step, const ParallelLayout& layout) {
    return estimate_step(cluster, step, layout);
  };
  const StepWorkload step = small_gpt();
  const StepEstimate none = at(step, {.data = 8});
  CHECK(none.recompute == 0);

  // Recomputation repeats a forward pass: a third of the FLOPs of all matrix products, and 1 / (1 +
  // 2.5 / 0.85) of the time of attention. The head is not recomputed.
  StepWorkload headless = step;
  headless.shape.vocab = 1;
  const StepEstimate full = at(headless, {.data = 8, .recompute = Recompute::full});
  const double attention = none.attention / (1 + 2.5 / cluster.constants.attention_backward_share);
  CHECK(full.recompute > attention + full.matmul / 3 * 0.95);
  CHECK(full.recompute < attention + full.matmul / 3 * 1.05 + full.elementwise / 2);
  CHECK(at(step, {.data = 8, .recompute = Recompute::full}).recompute ==
        Approx(full.recompute).epsilon(1e-9));
  CHECK(at(step, {.data = 8, .recompute = Recompute::selective}).recompute ==
        Approx(attention).epsilon(0.1));

  // The matmuls of the head take 6 FLOPs per parameter and token.
  const double rate = cluster.gpu.bf16_tflops * 1e12 * cluster.gpu.matmul_share;
  const double head = 6. * 50304 * 2048 * step.tokens() / 8 / rate;
  CHECK(none.matmul - full.matmul == Approx(head).epsilon(0.2));

  // Per parameter, Adam in bf16 moves 2 x 4 bytes of the gradient, 8 of the master weight, 16 of
  // optimizer state and 2 of the weight.
  const double memory = cluster.gpu.memory_gb_per_second * 1e9 * cluster.constants.memory_share;
  const double update = 34 * step.shape.parameters() / memory;
  CHECK(none.optimizer == Approx(update).epsilon(0.05));
  CHECK(at(step, {.data = 8, .shard = 1}).optimizer == Approx(update / 8).epsilon(0.3));

  // In a pipeline, only the last stage computes the head, and the other stages wait for it.
  const StepEstimate pipeline = at(step, {.data = 1, .pipeline = 8, .virtual_stages = 3});
  CHECK(pipeline.matmul == Approx(full.matmul + head * 8).epsilon(0.2));
}

TEST_CASE("faster hardware is never slower, and larger batches are never less efficient",
          "[simulator]") {
  struct Change {
    const char* name;
    std::function<void(ClusterModel&)> apply;
  };
  const std::vector<Change> better{
      {"network", [](ClusterModel& c) { c.link.gb_per_second *= 2; }},
      {"network latency", [](ClusterModel& c) { c.link.latency_us /= 2; }},
      {"node links", [](ClusterModel& c) { c.gpu.link_gb_per_second *= 2; }},
      {"memory bandwidth", [](ClusterModel& c) { c.gpu.memory_gb_per_second *= 2; }},
      {"arithmetic", [](ClusterModel& c) { c.gpu.bf16_tflops *= 2; }},
      {"kernel start", [](ClusterModel& c) { c.constants.kernel_us /= 2; }},
      {"contention", [](ClusterModel& c) { c.constants.contention /= 2; }}};

  std::vector<ParallelLayout> layouts;
  for (const int64_t tensor : {1, 2, 8, 16}) {
    for (const int64_t context : {1, 2}) {
      for (const int64_t pipeline : {1, 4}) {
        if (tensor * context * pipeline > 64) continue;
        for (const int64_t shard : {0, 1, 2, 3}) {
          layouts.push_back({.data = 64 / tensor / context / pipeline,
                             .shard = shard,
                             .tensor = tensor,
                             .context = context,
                             .pipeline = pipeline,
                             .recompute = tensor == 2 ? Recompute::full : Recompute::none});
        }
      }
    }
  }
  for (const char* software : {"compiled", "eager", "megatron", "megatron-2021", "fused"}) {
    const ClusterModel cluster = cluster_named("h100", 8, software);
    std::vector<int> faster(better.size());
    for (const ParallelLayout& layout : layouts) {
      INFO(software << " " << layout.text());
      REQUIRE(layout_fault(layout, small_gpt()).empty());
      const StepEstimate now = estimate_step(cluster, small_gpt(), layout);
      for (size_t i = 0; i < better.size(); ++i) {
        INFO(better[i].name);
        ClusterModel changed = cluster;
        better[i].apply(changed);
        const double seconds = estimate_step(changed, small_gpt(), layout).seconds;
        CHECK(seconds <= now.seconds * (1 + 1e-12));
        faster[i] += seconds < now.seconds * (1 - 1e-6);
      }

      StepWorkload larger = small_gpt();
      larger.global_batch *= 2;
      CHECK(estimate_step(cluster, larger, layout).tokens_per_second >=
            now.tokens_per_second * (1 - 1e-9));
      CHECK(now.mfu < 1);
    }
    // Each improvement makes some layout faster. Less contention does so only if exchanges overlap
    // with computation.
    for (size_t i = 0; i < better.size(); ++i) {
      INFO(software << " " << better[i].name);
      CHECK((faster[i] > 0) == (i + 1 < better.size() || cluster.software.gradient_overlap));
    }
  }
}

TEST_CASE("the search returns the fastest layouts that fit", "[simulator]") {
  const ClusterModel cluster = cluster_named("a100-40", 1, "compiled");
  StepWorkload step = small_gpt();
  step.global_batch = 32;
  const LayoutSearch found = search_layouts(cluster, step, {}, 1000);

  // Search by brute force, over more layouts than search_layouts() tries.
  double fastest = 1e9;
  for (int64_t t = 1; t <= 8; t *= 2) {
    for (int64_t c = 1; c * t <= 8; c *= 2) {
      for (int64_t p = 1; p * c * t <= 8; p *= 2) {
        for (int64_t v = 1; v <= 8; ++v) {
          for (int64_t b = 1; b <= 32; ++b) {
            for (int64_t shard = 0; shard <= 3; ++shard) {
              for (const Recompute mode :
                   {Recompute::none, Recompute::selective, Recompute::full}) {
                const ParallelLayout l{8 / t / c / p, shard, t, c, p, v, b, mode};
                if (!layout_fault(l, step).empty() || step.shape.layers % (p * v) != 0) continue;
                const StepEstimate e = estimate_step(cluster, step, l);
                if (e.fits()) fastest = std::min(fastest, e.seconds);
              }
            }
          }
        }
      }
    }
  }
  REQUIRE(!found.fastest.empty());
  CHECK(found.fastest[0].estimate.seconds == Approx(fastest).epsilon(1e-12));
  for (size_t i = 0; i < found.fastest.size(); ++i) {
    CHECK(found.fastest[i].estimate.fits());
    CHECK(found.fastest[i].layout.gpus() == 8);
    CHECK((i == 0 || found.fastest[i - 1].estimate.seconds <= found.fastest[i].estimate.seconds));
  }
  for (const RatedLayout& r : found.too_large) CHECK(!r.estimate.fits());

  // For a trillion parameters on 3072 GPUs, the search tries few layouts, and it divides the layers
  // among stages.
  step = gpt3(128);
  step.shape.width = 25600;
  step.shape.heads = step.shape.kv_heads = 160;
  step.shape.head_width = 160;
  step.shape.hidden = 4 * 25600;
  step.global_batch = 3072;
  const LayoutSearch large = search_layouts(cluster_named("a100-80", 384, "megatron"), step, {}, 5);
  REQUIRE(large.fastest.size() == 5);
  CHECK(large.tried < 200000);
  CHECK(large.fastest[0].layout.tensor * large.fastest[0].layout.pipeline >= 64);
  CHECK(!large.too_large.empty());
  CHECK(!large.refused.empty());
}

}  // namespace
