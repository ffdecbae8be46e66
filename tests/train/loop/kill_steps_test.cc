// Kill trials between steps: what metrics.jsonl has beyond the checkpoint is written again, each
// step once.
#include "tests/support/catch.h"
#include "tests/train/loop/trials.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("killed after metrics ran past the checkpoint", "[kill_steps]") {
  Trials trials;
  for (int step = 11; step <= 40; ++step) {
    if (step % 10 != 0) CHECK(trials.trial({{"step", static_cast<double>(step), step / 10 * 10}}));
  }
  for (double step : {1, 9})
    CHECK(trials.trial({{"step", step, 0}}));  // before there is a checkpoint
}

}  // namespace
