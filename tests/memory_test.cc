// A steady training step takes nothing from the system.
#include <unistd.h>
#include <fstream>

#include "core/memory.h"
#include "tests/catch.h"
#include "tests/process.h"
#include "train/stepper.h"

namespace {

using namespace lathe;
using namespace lathe::test;

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_CASE("steps 3 to 103: high-water mark and blocks constant, RSS grows by less than 1 MB", "[memory]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(200000));
  REQUIRE(run({"lathe", {"prepare", "text.txt", "--out", "data", "--tokenizer", "char"}, f.path(), {}}).code == 0);
  for (const char* dtype : {"fp32", "bf16"}) {
    LoadedConfig loaded =
        load_config((fs::path(LATHE_SOURCE_DIR) / "configs/shakespeare_char_cpu.toml").string(),
                    {{"data.dir", (f / "data").string()}, {"train.threads", "2"}, {"amp.dtype", dtype}});
    const RunData data = RunData::open(loaded);
    Session session = Session::make(loaded);
    Loader loader(data.train, session.batch_shape(), 1, 0, session.config.data, session.device);
    for (int64_t step = 0; step < 3; ++step) run_step(session, loader, step);
    const MemoryStats before = memory_stats();
    const int64_t rss = resident_bytes();
    for (int64_t step = 3; step < 103; ++step) run_step(session, loader, step);
    const MemoryStats after = memory_stats();
    CHECK(after.total_peak == before.total_peak);
    CHECK(after.blocks == before.blocks);
    CHECK(after.reserved == before.reserved);
    CHECK(resident_bytes() - rss < 1'000'000);
    // 16 bytes a parameter in fp32; in bf16 the matmul weights have a 2-byte copy and 2-byte gradients.
    const auto used = [&](Memory m) {
      return static_cast<double>(after.used[static_cast<size_t>(m)]) / static_cast<double>(count(session.params));
    };
    CHECK(used(Memory::parameters) == Approx(std::string(dtype) == "fp32" ? 4 : 6).epsilon(0.02));
    CHECK(used(Memory::optimizer) == Approx(8).epsilon(0.02));
    CHECK(used(Memory::gradients) == Approx(std::string(dtype) == "fp32" ? 4 : 2).epsilon(0.02));
  }
}

}  // namespace
