// Plans the points of a sweep and the order in which they run. Starts no processes and reads no
// files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/io/json.h"
#include "train/config/run_config.h"

namespace lathe {

/// A key with the values that it takes: a list such as "1e-3,3e-3", or a range such as
/// "1e-4..1e-2".
struct Axis {
  std::string key;
  std::vector<std::string> values;  ///< empty: a range
  double low = 0, high = 0;         ///< the ends of a range
  bool whole = false;               ///< whether it is a range of integers
};
/// Parses the text after `--key=`. Throws Exit::usage for an invalid range, and for an empty or
/// repeated value; `where` begins the message. Only keys that are numbers have ranges.
Axis read_axis(const std::string& key, const std::string& text, const std::string& where);

/// Returns the config keys that a sweep sets itself.
const std::set<std::string>& sweep_keys();

/// The runs that a sweep trains. A point is a combination of values of the keys that vary.
struct SweepPlan {
  std::string config;  ///< the config file
  Overrides fixed;     ///< keys with the same value in every point
  std::vector<Overrides> points;
  std::vector<int64_t>
      rungs;          ///< steps at which points are compared; the last is the end of the run
  int64_t eta = 3;    ///< one in `eta` points continues to the next rung
  int64_t steps = 0;  ///< sum over all points, if each trains to its end

  /// Returns all keys of a point, with those that are the same in every point.
  Overrides keys_of(size_t point) const;
};

/// Returns every combination, with the last axis varying fastest. With `samples` > 0, draws that
/// many different points by `seed` instead, or fewer if there are not as many. Draws from a range
/// of real numbers are uniform in the logarithm if the range begins above 0 and ends at ten times
/// its beginning or more. Other draws are uniform. Throws Exit::usage for a range without
/// `samples`, and for more than 100000 points.
std::vector<Overrides> make_points(const std::vector<Axis>& axes, int64_t samples, uint64_t seed);
/// Returns the rungs of successive halving: `steps` divided by powers of eta, down to `least`, each
/// a multiple of `interval`, at which runs are evaluated. Throws Exit::usage if rungs coincide.
std::vector<int64_t> make_rungs(int64_t steps, int64_t least, int64_t eta, int64_t interval);

/// The progress of a point; it is stored as JSON.
struct PointState {
  int target = -1;             ///< the rung that it runs to, or has reached; -1: not started
  std::vector<double> losses;  ///< lowest validation loss at each rung that it reached
  std::string end;             ///< "diverged" or "out of memory" if it can't continue
};
/// Returns the progress as JSON.
Json to_json(const PointState& state);
/// Reads JSON that to_json returned. Throws Exit::io if it is malformed; `where` begins the
/// message.
PointState point_state(const Json& json, const std::string& where);

/// Returns the next job: a point that is not running, and its target rung. Returns nullopt if no
/// point can start now. `running[i]` is whether point i is running, and `rungs` is the number of
/// rungs. Points that were started come first, so that a sweep that was killed loses nothing; then
/// the best point that can be promoted, from the highest rung down; then the next new point. This
/// is asynchronous successive halving (Li et al. 2020, "A system for massively parallel
/// hyperparameter tuning"); with one rung it is a grid or random search.
std::optional<std::pair<size_t, int>> next_job(const std::vector<PointState>& points,
                                               const std::vector<bool>& running, size_t rungs,
                                               int64_t eta);

/// Returns whether a key repeats a point instead of changing it (train.seed, data.fold). Results
/// are averaged over the values of such a key.
bool repeats_point(const std::string& key);
/// Returns a name for each point from its values, such as "lr=1e-3,seed=1". Names are valid file
/// names, and no two are the same.
std::vector<std::string> point_names(const std::vector<Overrides>& points);

/// The points that differ only in keys that repeat a point.
struct PointGroup {
  Overrides keys;              ///< the other keys
  std::vector<size_t> points;  ///< indices of the points
  size_t finished = 0;         ///< number of points that reached the last rung
  double mean = 0;             ///< mean of their losses; NaN if there is none
  double deviation = 0;        ///< standard deviation of their losses; NaN for fewer than two
};
/// Returns the groups from the best to the worst: by the mean, and last those in which a point did
/// not finish.
std::vector<PointGroup> group_points(const std::vector<Overrides>& points,
                                     const std::vector<PointState>& states, size_t rungs);

/// Returns the points from the best to the worst: first those that reached a higher rung, and among
/// these the ones with a lower loss. Points that ended early come last.
std::vector<size_t> ranking(const std::vector<PointState>& points);

}  // namespace lathe
