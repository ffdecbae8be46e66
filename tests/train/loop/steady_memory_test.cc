// Tests that training steps after the first few allocate no memory from the system.
#include <sys/resource.h>

#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/step/stepper.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns the number of minor page faults. The first access to a page causes one.
int64_t page_faults() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return use.ru_minflt;
}

struct Setting {
  const char* name;
  std::vector<std::pair<std::string, std::string>> keys;
  double parameters, gradients;  // bytes per parameter
  double activations;            // upper bound, as a share of the bytes in fp32
  int64_t steps = 13;
};

TEST_CASE(
    "after step 2, peak memory and blocks are constant and RSS grows by less than 1 MB, with "
    "the expected bytes in each category",
    "[steady_memory]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(200000));
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "data", "--tokenizer", "char"}).code == 0);

  // Working copies and 16-bit gradients exist for matmul weights, which are nearly all parameters
  // here. With fp8, only the tied head has a working copy, which is negligible: the head has 18 x
  // n_embd elements, and the model has 6200 x n_embd. Activations in bf16 take more than half of
  // the bytes of activations in fp32, since the residual stream is fp32.
  const std::vector<Setting> settings{
      {"fp32", {}, 4, 4, 1, 103},
      {"bf16", {{"amp.dtype", "bf16"}}, 6, 2, 0.62, 103},
      {"fp16", {{"amp.dtype", "fp16"}}, 6, 2, 0.9},
      {"fp8", {{"amp.dtype", "fp8"}, {"amp.fp8_edge_blocks", "0"}}, 4, 2, 0.65},
      {"bf16, fp32 gradients", {{"amp.dtype", "bf16"}, {"amp.grad", "fp32"}}, 6, 4, 0.62},
      {"bf16, cast and cached",
       {{"amp.dtype", "bf16"}, {"amp.working_copies", "false"}},
       4,
       2,
       0.62},
      {"bf16, cast at each use",
       {{"amp.dtype", "bf16"}, {"amp.working_copies", "false"}, {"amp.cache", "false"}},
       4,
       2,
       0.62},
      {"bf16, no masters", {{"amp.dtype", "bf16"}, {"amp.master", "false"}}, 2, 2, 0.62}};

  double wide_activations = 0;
  for (const auto& setting : settings) {
    INFO(setting.name);
    auto keys = setting.keys;
    // Use no loader thread. Such a thread could need a small block while this thread uses one, and
    // the allocator would then request another block from the system.
    keys.insert(
        keys.end(),
        {{"data.workers", "0"}, {"data.dir", (f / "data").string()}, {"train.threads", "2"}});

    LoadedConfig loaded =
        load_config((test::source_folder() / "configs/shakespeare_char_cpu.toml").string(), keys);
    const RunData data = RunData::open(loaded);
    Session session = Session::make(data);
    Loader loader(*data.data, batch_sizes(session.config), 1, 0, session.config.data,
                  session.device);

    reset_memory_peaks();
    for (int64_t step = 0; step < 3; ++step) run_step(session, loader, step);
    const MemoryStats before = memory_stats();
    const int64_t rss = rss_bytes(), faults = page_faults();
    for (int64_t step = 3; step < setting.steps; ++step) run_step(session, loader, step);
    const MemoryStats after = memory_stats();

    CHECK(after.total_peak == before.total_peak);
    CHECK(after.blocks == before.blocks);
    CHECK(after.reserved == before.reserved);
    CHECK(rss_bytes() - rss < 1'000'000);
    CHECK(page_faults() - faults < 50 * (setting.steps - 3));

    const auto used = [&](Memory m) {
      return static_cast<double>(after.used[static_cast<size_t>(m)]) /
             static_cast<double>(count(session.params));
    };

    CHECK(used(Memory::parameters) == Approx(setting.parameters).epsilon(0.03));
    CHECK(used(Memory::optimizer) == Approx(8).epsilon(0.02));
    CHECK(used(Memory::gradients) == Approx(setting.gradients).epsilon(0.03));
    const auto activations =
        static_cast<double>(after.peak[static_cast<size_t>(Memory::activations)]);
    if (wide_activations == 0) wide_activations = activations;
    CHECK(activations / wide_activations <= setting.activations);
  }
}

}  // namespace
