// Plans the points of a sweep and the order in which they run. Includes no code that starts
// processes or reads files.
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

/// A key and the values that it takes: a list such as "1e-3,3e-3", or a range such as "1e-4..1e-2".
struct Axis {
  std::string key;
  std::vector<std::string> values;  ///< the values of a list; empty for a range
  double low = 0, high = 0;         ///< the ends of a range; unused for a list
  bool whole = false;               ///< whether the axis is a range of integers
};
/// Parses `text`, the value of the command-line flag `--key=`. Throws Exit::usage for an invalid
/// range, and for an empty or repeated value. The message then begins with `where`. Only keys that
/// are numbers have ranges.
Axis read_axis(const std::string& key, const std::string& text, const std::string& where);

/// Returns the config keys that a sweep sets itself.
const std::set<std::string>& sweep_keys();

/// The runs that a sweep trains. A point is a combination of values of the keys that vary.
struct SweepPlan {
  std::string config;  ///< path of the config file
  Overrides fixed;     ///< keys with the same value in every point
  std::vector<Overrides> points;
  std::vector<int64_t>
      rungs;          ///< steps at which points are compared; the last one is the end of the run
  int64_t eta = 3;    ///< one in `eta` points continues to the next rung
  int64_t steps = 0;  ///< sum of the steps of all points, if each trains to its end

  /// Returns all keys of a point, including those with the same value in every point.
  Overrides keys_of(size_t point) const;
};

/// Returns every combination of the values of the axes, with the last axis varying fastest. If
/// `samples` > 0, instead returns this many different points, or fewer if not as many exist, drawn
/// at random from `seed`. The values of a range of real numbers are drawn uniformly in the
/// logarithm if the range begins above 0 and its end is at least ten times its beginning. All other
/// values are drawn uniformly. Throws Exit::usage for a range if `samples` is 0, and for more than
/// 100000 points.
std::vector<Overrides> make_points(const std::vector<Axis>& axes, int64_t samples, uint64_t seed);
/// Returns the rungs of successive halving: `steps` divided by powers of eta, down to `least`. The
/// last rung is `steps` itself. All other rungs are rounded to multiples of `interval`, the number
/// of steps between evaluations. Throws Exit::usage if rungs coincide.
std::vector<int64_t> make_rungs(int64_t steps, int64_t least, int64_t eta, int64_t interval);

/// The progress of a point; it is stored as JSON.
struct PointState {
  /// Rung to which the point trains, or which it has reached; -1: not started.
  int target = -1;
  std::vector<double> losses;  ///< lowest validation loss at each rung that the point reached
  /// "diverged" or "out of memory" if the point can't continue; otherwise empty.
  std::string end;
};
/// Returns the progress as JSON.
Json to_json(const PointState& state);
/// Reads JSON that to_json() returned. Throws Exit::io if the JSON is malformed; the message then
/// begins with `where`.
PointState point_state(const Json& json, const std::string& where);

/// Returns the next job: a point that is not running, and its target rung. Returns nullopt if no
/// point can start now. `running[i]` is whether point i is running, and `rungs` is the number of
/// rungs. Points that were started come first, so that a sweep that was killed loses nothing. After
/// them comes the best point that can be promoted, beginning at the highest rung, and last the next
/// new point. This is asynchronous successive halving (Li et al. 2020, "A system for massively
/// parallel hyperparameter tuning"). With one rung, it is a grid or random search.
std::optional<std::pair<size_t, int>> next_job(const std::vector<PointState>& points,
                                               const std::vector<bool>& running, size_t rungs,
                                               int64_t eta);

/// Returns whether a key only repeats a point with another seed or split (train.seed, data.fold).
/// Results are averaged over the values of such a key.
bool repeats_point(const std::string& key);
/// Returns a name for each point, composed of its values, such as "lr=1e-3,seed=1". Names are valid
/// file names and differ from each other.
std::vector<std::string> point_names(const std::vector<Overrides>& points);

/// A group of points that differ only in keys that repeat a point (train.seed, data.fold).
struct PointGroup {
  Overrides keys;              ///< values of all other keys
  std::vector<size_t> points;  ///< indices of the points in the group
  size_t finished = 0;         ///< number of points that reached the last rung
  double mean = 0;             ///< mean loss of these finished points; NaN if there are none
  double deviation = 0;        ///< standard deviation of these losses; NaN for fewer than two
};
/// Returns the groups in ascending order of their mean loss. Groups in which a point did not finish
/// come last.
std::vector<PointGroup> group_points(const std::vector<Overrides>& points,
                                     const std::vector<PointState>& states, size_t rungs);

/// Returns the points from the best to the worst. A point that reached a higher rung is better; at
/// the same rung, one with a lower loss is better. Points that ended early come last.
std::vector<size_t> ranking(const std::vector<PointState>& points);

}  // namespace lathe
