// Plans what a sweep tries, and what it does next. It starts no processes and reads no files.
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
  double low = 0, high = 0;
  bool whole = false;  ///< a range of integers
};
/// Parses the text after `--key=`. Throws Exit::usage, beginning with `where`, for an invalid
/// range, and for an empty or repeated value. Only keys that are numbers have ranges.
Axis read_axis(const std::string& key, const std::string& text, const std::string& where);

/// Returns the config keys that a sweep sets itself.
const std::set<std::string>& sweep_keys();

struct SweepPlan {
  std::string config;  ///< the config file
  Overrides fixed;     ///< the same in every point
  std::vector<Overrides> points;
  std::vector<int64_t>
      rungs;          ///< steps at which points are compared; the last is the end of the run
  int64_t eta = 3;    ///< one in `eta` points continues to the next rung
  int64_t steps = 0;  ///< of all points together, if each trains to its end

  /// Returns all keys of a point, with those that are the same in every point.
  Overrides keys_of(size_t point) const;
};

/// Returns every combination, with the last axis varying fastest. With `samples` > 0, draws that
/// many different points by `seed`, or fewer if there are not as many. Draws from a range of real
/// numbers are uniform in the logarithm if it begins above 0 and ends at ten times its begin or
/// more. Other draws are uniform. Throws Exit::usage for a range without `samples`, and for more
/// than 100000 points.
std::vector<Overrides> make_points(const std::vector<Axis>& axes, int64_t samples, uint64_t seed);
/// Returns the rungs of successive halving: `steps` divided by powers of eta, down to `least`, each
/// a multiple of `interval`, at which runs are evaluated. Throws Exit::usage where rungs coincide.
std::vector<int64_t> make_rungs(int64_t steps, int64_t least, int64_t eta, int64_t interval);

/// The progress of a point; it is stored as JSON.
struct PointState {
  int target = -1;             ///< the rung that it runs to, or has reached; -1: not started
  std::vector<double> losses;  ///< lowest validation loss at each rung that it reached
  std::string end;             ///< "diverged" or "out of memory" if it can't continue
};
Json to_json(const PointState& state);
PointState point_state(const Json& json, const std::string& where);

/// Returns what to run next, of the points that are not running: a point and its target rung.
/// Points that were started come first, so that a sweep that was killed loses nothing; then the
/// best point that can be promoted, from the highest rung down; then the next new point. This is
/// asynchronous successive halving (Li et al. 2020, "A system for massively parallel hyperparameter
/// tuning"); with one rung it is a grid or random search. Returns nullopt if none can start now.
std::optional<std::pair<size_t, int>> next_job(const std::vector<PointState>& points,
                                               const std::vector<bool>& running, size_t rungs,
                                               int64_t eta);

/// Returns whether a key repeats a point instead of changing it: results are averaged over its
/// values.
bool repeats_point(const std::string& key);
/// Returns a name for each point from its values, such as "lr=1e-3,seed=1". Names are valid file
/// names, and no two are the same.
std::vector<std::string> point_names(const std::vector<Overrides>& points);

/// The points that differ only in keys that repeat a point.
struct PointGroup {
  Overrides keys;  ///< the other keys
  std::vector<size_t> points;
  size_t finished = 0;   ///< points that reached the last rung
  double mean = 0;       ///< of their losses; NaN if there is none
  double deviation = 0;  ///< of their losses; NaN for fewer than two
};
/// Returns the groups from the best to the worst: by the mean, and last those in which a point did
/// not finish.
std::vector<PointGroup> group_points(const std::vector<Overrides>& points,
                                     const std::vector<PointState>& states, size_t rungs);

/// Returns the points from the best to the worst: those that came further first, then those with a
/// lower loss. Points that ended early come last.
std::vector<size_t> ranking(const std::vector<PointState>& points);

}  // namespace lathe
