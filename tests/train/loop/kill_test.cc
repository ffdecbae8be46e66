// Kill trials at random times: a run killed by SIGKILL at any moment and started again resumes from
// its newest checkpoint and ends bitwise equal to an uninterrupted run. LATHE_TEST_KILLS=500 runs
// that many trials (6 minutes); LATHE_TEST_KILL_SEED repeats the kill times of an earlier test.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/support/catch.h"
#include "tests/train/loop/trials.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("a run killed at random times, once or twice, resumes exactly", "[kill]") {
  Trials trials;
  const auto number = [](const char* name, int otherwise) {
    const char* given = std::getenv(name);
    return given != nullptr ? std::atoi(given) : otherwise;
  };
  // ./dev test draws a seed and prints it.
  const auto seed = static_cast<unsigned>(
      number("LATHE_TEST_KILL_SEED", static_cast<int>(std::random_device{}() >> 1)));
  const int wanted = number("LATHE_TEST_KILLS", 60);
  WARN(wanted << " kills, seed of their times: LATHE_TEST_KILL_SEED=" << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> when(0, trials.seconds());
  int struck = 0;
  for (int i = 0; struck < wanted && i < 3 * wanted; ++i) {
    std::vector<Kill> kills{{"", when(random)}};
    if (i % 5 == 0) kills.push_back({"", when(random)});
    struck += trials.trial(kills) ? 1 : 0;
  }
  CHECK(struck == wanted);
}

}  // namespace
