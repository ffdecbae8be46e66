// Kills runs that save in the background, and compares their results with those of an uninterrupted
// run that saves synchronously. The runs are killed at each point of a save, at points of the steps
// that run during a save, and at random times. Each start must report what it resumes from.
#include <random>

#include "tests/support/catch.h"
#include "tests/train/loop/trials.h"

namespace {

using namespace lathe;
using namespace lathe::test;

const std::vector<std::string> in_background{"--checkpoint.async_save=true"};

TEST_CASE("a run killed at any stage of a background save, during later steps, resumes exactly",
          "[kill_async]") {
  // The saving thread sleeps at these points for 8 ms while training continues. A step of this run
  // takes a millisecond or two.
  for (const char* slow : {"save: begun 8", "save: manifest written 8"}) {
    Trials trials(in_background, {{"LATHE_TEST_SLOW", slow}});
    const std::vector<std::string> stages{"save: copied",
                                          "save: begun",
                                          "save: folder made",
                                          "save: model written",
                                          "save: optimizer written",
                                          "save: state written",
                                          "save: manifest written",
                                          "save: folder synced",
                                          "save: renamed",
                                          "save: parent synced"};

    for (const auto& stage : stages) {
      const bool there = stage == "save: renamed" || stage == "save: parent synced";
      for (int nth : {1, 2, 3}) {  // the fourth save, the last, is synchronous
        // The previous save is complete when the next one is copied.
        CHECK(trials.trial({{stage, static_cast<double>(nth), 10 * (there ? nth : nth - 1)}}));
      }
    }

    CHECK(trials.trial({{"save: deleting an old one", 1, 30}}));
    CHECK(trials.trial({{"save: folder made", 4, 30}}));  // the last save
    CHECK(trials.trial({{"save: model written", 2, 10}, {"save: state written", 1, 10}}));
  }
}

TEST_CASE("a run killed while it waits for a background save, or between steps, resumes exactly",
          "[kill_async]") {
  {
    Trials trials({"--checkpoint.async_save=true", "--checkpoint.interval=1"},
                  {{"LATHE_TEST_SLOW", "save: begun 200"}});
    // In the n-th wait, the save of step n + 1 waits for the save of step n.
    for (const int nth : {1, 2, 5})
      CHECK(trials.trial({{"save: waiting", static_cast<double>(nth), nth - 1}}));
  }
  Trials trials(in_background, {{"LATHE_TEST_SLOW", "save: model written 4"}});
  for (int step = 10; step < 40; step += 3)
    CHECK(trials.trial({{"step", static_cast<double>(step), -1}}));
}

TEST_CASE("a run with background saves killed at random times resumes exactly", "[kill_async]") {
  Trials trials(in_background, {{"LATHE_TEST_SLOW", "save: optimizer written 5"}});
  const unsigned seed = std::random_device{}();
  WARN("seed of the kill times: " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> when(0, trials.seconds());
  int struck = 0;
  for (int i = 0; struck < 20 && i < 60; ++i) struck += trials.trial({{"", when(random)}}) ? 1 : 0;
  CHECK(struck == 20);
}

}  // namespace
