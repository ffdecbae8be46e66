// Kill trials between steps: lines of metrics.jsonl beyond the checkpoint are written again, each
// step once.
#include "tests/support/catch.h"
#include "tests/train/loop/trials.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("a run killed after its metrics passed the checkpoint resumes exactly", "[kill_steps]") {
  Trials trials;
  for (int step = 11; step <= 40; ++step) {
    if (step % 10 != 0) CHECK(trials.trial({{"step", static_cast<double>(step), step / 10 * 10}}));
  }
  for (double step : {1, 9})
    CHECK(trials.trial({{"step", step, 0}}));  // before the first checkpoint
}

}  // namespace
