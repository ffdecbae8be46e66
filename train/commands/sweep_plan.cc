#include "train/commands/sweep_plan.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string_view>
#include <tuple>

#include "core/io/log.h"
#include "core/io/text.h"

namespace lathe {
namespace {

constexpr int64_t most_points = 100000;

/// Returns a random number in [0, 1). Unlike the results of std's distributions, it is the same on
/// every platform.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

std::string drawn(const Axis& axis, std::mt19937_64& random) {
  const double u = uniform(random);
  if (!axis.values.empty())
    return axis.values[static_cast<size_t>(u * static_cast<double>(axis.values.size()))];
  if (axis.whole)
    return std::to_string(
        static_cast<int64_t>(axis.low + std::floor(u * (axis.high - axis.low + 1))));

  const bool log = axis.low > 0 && axis.high >= 10 * axis.low;
  const double x =
      log ? axis.low * std::pow(axis.high / axis.low, u) : axis.low + u * (axis.high - axis.low);
  // Use few digits, which are easier to read. A narrow range needs more digits, so that its draws
  // differ and lie within the range.
  for (int digits = 4; digits < 17; ++digits) {
    const std::string text = format("%.*g", digits, x);
    const double rounded = std::stod(text);
    const bool is_near = std::abs(rounded - x) <= 1e-3 * (axis.high - axis.low);
    if (is_near && rounded >= axis.low && rounded <= axis.high) return text;
  }
  return format("%.17g", x);
}

/// Returns combination `index` of the values of the axes. The last axis varies fastest.
Overrides combination(const std::vector<Axis>& axes, int64_t index) {
  Overrides point(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    const auto n = static_cast<int64_t>(axes[i].values.size());
    point[i] = {axes[i].key, axes[i].values[static_cast<size_t>(index % n)]};
    index /= n;
  }
  return point;
}

}  // namespace

const std::set<std::string>& sweep_keys() {
  static const std::set<std::string> keys{"train.out_dir", "train.pause_at", "train.max_time",
                                          "checkpoint.resume"};
  return keys;
}

Overrides SweepPlan::keys_of(size_t point) const {
  Overrides all = fixed;
  all.insert(all.end(), points.at(point).begin(), points.at(point).end());
  return all;
}

Axis read_axis(const std::string& key, const std::string& text, const std::string& where) {
  Axis axis{.key = key, .values = {}};

  const auto found = std::find_if(all_fields().begin(), all_fields().end(),
                                  [&](const Field& f) { return f.key == key; });
  const bool number =
      found != all_fields().end() && (std::holds_alternative<int64_t>(found->initial) ||
                                      std::holds_alternative<double>(found->initial));
  // Only numbers have ranges. In a text, such as a path, two dots have no special meaning.
  if (const size_t dots = text.find(".."); number && dots != std::string::npos) {
    const auto end = [&](const std::string& part) {
      const ConfigValue v = read_value(part, found->initial);
      if (const auto* i = std::get_if<int64_t>(&v)) return static_cast<double>(*i);
      if (const auto* d = std::get_if<double>(&v); d && std::isfinite(*d)) return *d;
      fail(Exit::usage, where, ": ", key, " = ", text, " is not a range; write it as 1e-4..1e-2");
    };

    axis.whole = std::holds_alternative<int64_t>(found->initial);
    axis.low = end(text.substr(0, dots));
    axis.high = end(text.substr(dots + 2));

    if (axis.whole && (axis.low != std::floor(axis.low) || axis.high != std::floor(axis.high)))
      fail(Exit::usage, where, ": ", key, " = ", text, " is not a range of whole numbers");
    if (!(axis.low < axis.high))
      fail(Exit::usage, where, ": ", key, " = ", text, ": the range must end above its beginning");
    return axis;
  }

  // Values that are lists themselves, such as data.mix, have semicolons between them.
  const char between = found != all_fields().end() && found->rule.is_list ? ';' : ',';
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(between, begin), text.size());
    std::string value = text.substr(begin, comma - begin);
    value.erase(0, value.find_first_not_of(' '));
    value.erase(value.find_last_not_of(' ') + 1);
    if (value.empty())
      fail(Exit::usage, where, ": ", key, " = ", text, " has an empty value between its ",
           between == ',' ? "commas" : "semicolons");
    axis.values.push_back(value);
    begin = comma + 1;
  }

  // 1e-3 and 0.001 are the same value.
  std::set<std::string> different;
  for (const std::string& value : axis.values)
    different.insert(number ? toml_text(read_value(value, found->initial)) : value);
  if (different.size() != axis.values.size())
    fail(Exit::usage, where, ": ", key, " = ", text, " names a value twice");
  return axis;
}

std::vector<Overrides> make_points(const std::vector<Axis>& axes, int64_t samples, uint64_t seed) {
  int64_t all = 1;
  bool ranges = false;

  for (const Axis& axis : axes) {
    ranges = ranges || axis.values.empty();
    if (axis.values.empty() && samples == 0) {
      fail(Exit::usage, "command line: ", axis.key,
           " is a range, from which points are drawn; give their number as --samples");
    }
    // This limit prevents an overflow of the product of many lists.
    if (!axis.values.empty())
      all = std::min(all * static_cast<int64_t>(axis.values.size()), int64_t{1} << 40);
  }

  const int64_t wanted = ranges ? samples : samples > 0 ? std::min(samples, all) : all;
  if (wanted > most_points)
    fail(Exit::usage, "the sweep would have ", wanted, " points, but at most ", most_points,
         " are possible; draw fewer with --samples");

  std::vector<Overrides> points;
  std::mt19937_64 random(seed);
  if (ranges) {
    // Draws of integers may repeat a point; then draw again. Limit the number of draws, because the
    // number of different points may be smaller than the requested number.
    std::set<Overrides> taken;
    for (int64_t i = 0; i < 100 * wanted && std::ssize(points) < wanted; ++i) {
      Overrides point;
      for (const Axis& axis : axes) point.emplace_back(axis.key, drawn(axis, random));
      if (taken.insert(point).second) points.push_back(std::move(point));
    }
    if (std::ssize(points) < wanted)
      log_warn("the ranges have ", points.size(), " different points, fewer than the ", wanted,
               " of --samples");
  } else if (samples == 0) {
    for (int64_t i = 0; i < wanted; ++i) points.push_back(combination(axes, i));
  } else {
    std::set<int64_t> taken;  // combinations that were drawn
    while (static_cast<int64_t>(taken.size()) < wanted) {
      int64_t index = static_cast<int64_t>(uniform(random) * static_cast<double>(all));
      // If a combination was drawn before, take the next one that was not, so that the loop ends
      // even if all combinations are requested.
      while (!taken.insert(index).second) index = (index + 1) % all;
      points.push_back(combination(axes, index));
    }
  }

  return points;
}

std::vector<int64_t> make_rungs(int64_t steps, int64_t least, int64_t eta, int64_t interval) {
  std::vector<int64_t> rungs{steps};
  for (double at = static_cast<double>(steps) / static_cast<double>(eta);
       at >= static_cast<double>(least); at /= static_cast<double>(eta)) {
    const int64_t rung =
        std::max<int64_t>(1, std::llround(at / static_cast<double>(interval))) * interval;
    if (rung >= rungs.front()) {
      fail(Exit::usage, "the sweep's runs are evaluated every ", interval,
           " steps, which is not often enough for successive halving from step ", least,
           "; lower train.eval_interval or raise --min-steps");
    }
    rungs.insert(rungs.begin(), rung);
  }
  return rungs;
}

Json to_json(const PointState& state) {
  Json losses = Json::array();
  for (const double loss : state.losses) losses.push_back(json_number(loss));
  return {{"target", state.target}, {"losses", losses}, {"end", state.end}};
}

PointState point_state(const Json& json, const std::string& where) {
  PointState state;
  state.target = static_cast<int>(json_integer(json, "target", -1, 1000, where, Exit::io));
  for (const Json& loss : json_get<Json>(json, "losses", where, Exit::io))
    state.losses.push_back(json_real(Json{{"loss", loss}}, "loss", where, Exit::io));
  state.end = json_get<std::string>(json, "end", where, Exit::io);
  return state;
}

namespace {

/// Returns the loss of a point at a rung, for sorting. A missing loss, or NaN, sorts after all
/// others.
double sort_key(const PointState& point, size_t rung) {
  const double loss = rung < point.losses.size() ? point.losses[rung] : HUGE_VAL;
  return std::isnan(loss) ? HUGE_VAL : loss;
}

}  // namespace

std::optional<std::pair<size_t, int>> next_job(const std::vector<PointState>& points,
                                               const std::vector<bool>& running, size_t rungs,
                                               int64_t eta) {
  const auto waits = [&](size_t i) { return !running[i] && points[i].end.empty(); };

  // First, continue points that were started but have not reached their target.
  for (size_t i = 0; i < points.size(); ++i) {
    if (waits(i) && points[i].target >= static_cast<int>(points[i].losses.size()))
      return {{i, points[i].target}};
  }

  // Next, promote points, beginning at the highest rung. Points at the last rung are complete.
  for (size_t rung = rungs - 1; rung-- > 0;) {
    std::vector<size_t> there;  // points that reached the rung, beginning with the best
    for (size_t i = 0; i < points.size(); ++i) {
      // A point that ended on its way to this rung counts as the worst point, so that failures do
      // not stop promotions.
      if (points[i].losses.size() > rung ||
          (!points[i].end.empty() && points[i].target >= static_cast<int>(rung)))
        there.push_back(i);
    }

    std::stable_sort(there.begin(), there.end(), [&](size_t a, size_t b) {
      return sort_key(points[a], rung) < sort_key(points[b], rung);
    });
    there.resize(there.size() / static_cast<size_t>(eta));

    // Only one in `eta` of these points may continue.
    for (const size_t i : there) {
      if (waits(i) && points[i].losses.size() == rung + 1) return {{i, static_cast<int>(rung) + 1}};
    }
  }

  for (size_t i = 0; i < points.size(); ++i) {
    // Start new points in the order of the plan.
    if (waits(i) && points[i].target < 0) return {{i, 0}};
  }
  return std::nullopt;
}

std::vector<size_t> ranking(const std::vector<PointState>& points) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const PointState& p = points[i];
    const double last = p.losses.empty() ? HUGE_VAL : sort_key(p, p.losses.size() - 1);
    return std::tuple(!p.end.empty(), -static_cast<int64_t>(p.losses.size()), last);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

bool repeats_point(const std::string& key) { return key == "train.seed" || key == "data.fold"; }

std::vector<std::string> point_names(const std::vector<Overrides>& points) {
  // The last part of a key is enough as a name if no other key of the sweep ends with it.
  const auto last_part = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  const auto short_name = [&](const std::string& key) {
    const auto same = std::count_if(points[0].begin(), points[0].end(), [&](const auto& other) {
      return last_part(other.first) == last_part(key);
    });
    return same == 1 ? last_part(key) : key;
  };

  std::vector<std::string> names;
  std::set<std::string> taken;
  for (size_t i = 0; i < points.size(); ++i) {
    std::string name;
    for (const auto& [key, value] : points[i])
      name += (name.empty() ? "" : ",") + short_name(key) + "=" + value;
    for (char& c : name) {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
      if (!plain && std::string_view("._+-=,").find(c) == std::string_view::npos) c = '_';
    }

    // File names have at most 255 bytes, including the suffixes .json and .log of the files next to
    // the run folders.
    if (name.size() > 100) name.resize(100);
    if (name.ends_with(".json") || name.ends_with(".log")) name += "_";
    while (!taken.insert(name).second) name += str("-", i + 1);
    names.push_back(name);
  }
  return names;
}

std::vector<PointGroup> group_points(const std::vector<Overrides>& points,
                                     const std::vector<PointState>& states, size_t rungs) {
  std::vector<PointGroup> groups;
  std::map<Overrides, size_t> found;
  for (size_t i = 0; i < points.size(); ++i) {
    Overrides keys = points[i];
    std::erase_if(keys, [](const auto& k) { return repeats_point(k.first); });
    const auto [at, is_new] = found.try_emplace(keys, groups.size());
    if (is_new) groups.push_back({.keys = keys, .points = {}});
    groups[at->second].points.push_back(i);
  }

  for (PointGroup& group : groups) {
    std::vector<double> losses;
    for (const size_t i : group.points) {
      if (states[i].end.empty() && states[i].losses.size() == rungs)
        losses.push_back(states[i].losses.back());
    }
    const auto n = static_cast<double>(losses.size());
    group.finished = losses.size();
    group.mean = std::accumulate(losses.begin(), losses.end(), 0.0) / n;  // NaN if none finished
    double squares = 0;
    for (const double loss : losses) squares += (loss - group.mean) * (loss - group.mean);
    group.deviation = n > 1 ? std::sqrt(squares / (n - 1)) : std::nan("");
  }

  const auto key = [](const PointGroup& g) {
    return std::tuple(g.finished < g.points.size(), std::isnan(g.mean) ? HUGE_VAL : g.mean);
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return groups;
}

}  // namespace lathe
