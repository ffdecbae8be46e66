// What a sweep tries, and what it does next: no processes, no files but the description.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/json.h"
#include "train/config/run_config.h"

namespace lathe {

/// A key with the values that it takes: a list "1e-3,3e-3", or a range "1e-4..1e-2".
struct Axis {
  std::string key;
  std::vector<std::string> values;  ///< empty: a range
  double low = 0, high = 0;
  bool whole = false;  ///< a range of whole numbers
};
/// Reads what stands behind `--key=`. Exit::usage, beginning with `where`, for a range that is none
/// or of a key that is no number.
Axis read_axis(const std::string& key, const std::string& text, const std::string& where);

struct SweepPlan {
  std::string config;  ///< the config file
  Overrides fixed;     ///< of every point
  std::vector<Overrides> points;
  std::vector<int64_t> rungs;  ///< steps at which points are compared; the last is the whole run
  int64_t eta = 3;             ///< one of so many goes on to the next rung
};

/// Every combination, the last axis fastest; of `samples` > 0 so many: of lists alone that many
/// different combinations, with a range draws by `seed`. A range is drawn uniformly in the
/// logarithm where it is above 0 and its end is ten times its begin or more, uniformly otherwise.
/// Exit::usage for a range without `samples`, and more than 100000 points.
std::vector<Overrides> make_points(const std::vector<Axis>& axes, int64_t samples, uint64_t seed);
/// Rungs of successive halving: `steps` divided by powers of eta, down to `least`, each a multiple
/// of `interval`, at which runs are evaluated. Exit::usage where they fall together.
std::vector<int64_t> make_rungs(int64_t steps, int64_t least, int64_t eta, int64_t interval);

/// How far a point is. What is kept of it as JSON.
struct PointState {
  int target = -1;             ///< the rung that it is on its way to, or at; -1: not begun
  std::vector<double> losses;  ///< lowest validation loss at each rung that it came to
  std::string end;             ///< "diverged" or "out of memory": it goes no further
};
Json to_json(const PointState& state);
PointState point_state(const Json& json, const std::string& where);

/// What to run next, of the points that are not running: a point and its target rung. First what
/// was begun, so that a sweep that was killed loses nothing; then the best that can be promoted,
/// from the top; then the next new point. Asynchronous successive halving (Li et al. 2020, "A
/// system for massively parallel hyperparameter tuning"); with one rung a grid or random search.
/// nullopt: none can begin now.
std::optional<std::pair<size_t, int>> next_job(const std::vector<PointState>& points,
                                               const std::vector<bool>& running, size_t rungs,
                                               int64_t eta);

/// Points from the best to the worst: who came further first, then the lower loss; those that ended
/// last.
std::vector<size_t> ranking(const std::vector<PointState>& points);

}  // namespace lathe
