// Implements rearrange, reduce and repeat. They reshape x to its elementary axes, permute, reduce
// and expand these axes, and reshape them to the result.
#include "autograd/einops.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <unordered_map>

#include "autograd/ops.h"
#include "autograd/ops/composed.h"
#include "autograd/ops/dims.h"
#include "autograd/ops/reductions.h"
#include "autograd/ops/shapes.h"
#include "core/error.h"

namespace lathe {
namespace {

[[maybe_unused]] const bool einops_registered =
    register_composed({"rearrange", "reduce", "repeat"});

enum class Kind : uint8_t { rearrange, reduce, repeat };
const char* name_of(Kind kind) {
  return kind == Kind::rearrange ? "rearrange" : kind == Kind::reduce ? "reduce" : "repeat";
}

constexpr size_t ellipsis = SIZE_MAX;  // the axis that stands for all dims of "..."
/// The axes that one dim of a pattern joins; a group without axes is a dim of size 1. With `spread`
/// ("..." outside of parentheses) each axis has its own dim.
struct Group {
  std::vector<size_t> axes{};
  bool spread = false;
};
using Side = std::vector<Group>;

struct Axis {
  std::string name;
  int64_t size = -1;  // set if the axis is a number
};

/// A parsed pattern.
struct Recipe {
  std::string text;  // the beginning of error messages: rearrange "b c -> c b"
  std::vector<Axis> axes;
  Side left, right;
  std::vector<size_t> reduced, added;  // axes on the left only, and on the right only
  bool with_ellipsis = false;
};

class Parser {
 public:
  Parser(Kind kind, const std::string& pattern) : kind_(kind), pattern_(pattern) {
    recipe_.text = str(name_of(kind), " \"", pattern, "\"");
  }
  Recipe run() {
    const size_t arrow = pattern_.find("->");
    check(arrow != std::string::npos && pattern_.find("->", arrow + 2) == std::string::npos,
          "needs one \"->\"");
    std::vector<size_t> in_left, in_right;
    recipe_.left = side(pattern_.substr(0, arrow), true, in_left);
    recipe_.right = side(pattern_.substr(arrow + 2), false, in_right);
    const auto has = [](const std::vector<size_t>& axes, size_t a) {
      return std::find(axes.begin(), axes.end(), a) != axes.end();
    };
    for (const size_t a : in_left) {
      if (has(in_right, a)) continue;
      check(kind_ == Kind::reduce, "axis ", name(a), " appears only on the left");
      recipe_.reduced.push_back(a);
    }
    for (const size_t a : in_right) {
      if (has(in_left, a)) continue;
      check(kind_ == Kind::repeat && a != ellipsis, "axis ", name(a), " appears only on the right");
      recipe_.added.push_back(a);
    }
    recipe_.with_ellipsis = has(in_left, ellipsis);
    return std::move(recipe_);
  }

 private:
  template <class... A>
  void check(bool right, const A&... what) const {
    LATHE_CHECK(right, recipe_.text, ": ", what...);
  }
  std::string name(size_t axis) const {
    return axis == ellipsis ? "\"...\"" : recipe_.axes[axis].name;
  }

  Side side(const std::string& text, bool is_left, std::vector<size_t>& seen) {
    Side groups;

    bool open = false;

    for (size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c == ' ') {
        ++i;
      } else if (c == '(') {
        check(!open, "has parentheses within parentheses");
        open = true;
        groups.emplace_back();
        ++i;
      } else if (c == ')') {
        check(open, "has a \")\" without its \"(\"");
        open = false;
        ++i;
      } else {
        const std::optional<size_t> axis = token(text, i, is_left, seen);
        // On the left, "..." stands for separate dims of x. On the right, parentheses around "..."
        // join these dims.
        check(!(axis == ellipsis && open && is_left), "has \"...\" in parentheses on the left");
        if (!open) groups.push_back({.spread = axis == ellipsis});
        if (axis) groups.back().axes.push_back(*axis);
      }
    }

    check(!open, "has a \"(\" without its \")\"");
    return groups;
  }
  /// Parses one axis. Returns nullopt for the axis 1.
  std::optional<size_t> token(const std::string& text, size_t& i, bool is_left,
                              std::vector<size_t>& seen) {
    if (text.compare(i, 3, "...") == 0) {
      i += 3;
      check(std::find(seen.begin(), seen.end(), ellipsis) == seen.end(),
            "has \"...\" twice on one side");
      seen.push_back(ellipsis);
      return ellipsis;
    }

    size_t end = i;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
      ++end;
    check(end > i, "\"", text[i], "\" is not a part of a pattern");
    const std::string word = text.substr(i, end - i);
    i = end;

    // A number is an axis without a name. Each one becomes a new axis, so two equal numbers are not
    // the same axis.
    if (std::isdigit(static_cast<unsigned char>(word[0]))) {
      check(word.size() < 10 && word.find_first_not_of("0123456789") == std::string::npos &&
                std::stoll(word) > 0,
            "\"", word, "\" is neither a name nor a size");
      // A 1 adds no axis: its group stays empty, which is a dim of size 1.
      if (word == "1") return std::nullopt;
      check(kind_ == Kind::reduce ? is_left : kind_ == Kind::repeat && !is_left, "axis ", word,
            " has no name; only reduce accepts a number on the left, and only repeat on the right");
      recipe_.axes.push_back({word, std::stoll(word)});
      seen.push_back(recipe_.axes.size() - 1);
      return seen.back();
    }

    check(word.front() != '_' && word.back() != '_', "axis ", word, " begins or ends with \"_\"");

    // Both sides share the axes of the same name; `seen` has only the axes of this side.
    auto it = std::find_if(recipe_.axes.begin(), recipe_.axes.end(),
                           [&](const Axis& a) { return a.name == word; });
    const auto axis = static_cast<size_t>(it - recipe_.axes.begin());
    if (it == recipe_.axes.end()) recipe_.axes.push_back({word});
    check(std::find(seen.begin(), seen.end(), axis) == seen.end(), "axis ", word,
          " appears twice on one side");
    seen.push_back(axis);
    return axis;
  }

  Kind kind_;
  const std::string& pattern_;
  Recipe recipe_;
};

/// Returns the recipe of a pattern, which is parsed at its first use on this thread.
const Recipe& recipe_of(Kind kind, const std::string& pattern) {
  thread_local std::unordered_map<std::string, std::unique_ptr<const Recipe>> kept;
  if (kept.size() > 10000) kept.clear();  // bounds the memory of a program that generates patterns
  auto& place = kept[std::string(name_of(kind)) + pattern];
  if (!place) place = std::make_unique<const Recipe>(Parser(kind, pattern).run());
  return *place;
}

std::string text_of(const Recipe& r, const Group& group) {
  std::string out = "(";
  for (const size_t a : group.axes) out += (out.size() > 1 ? " " : "") + r.axes[a].name;
  return out + ")";
}

/// A recipe fitted to the shape of a tensor: "..." is replaced by axes, and every axis has a size.
struct FittedRecipe {
  std::vector<int64_t> sizes;
  Side left, right;
  std::vector<size_t> reduced, added;
};

/// Fits a recipe to the shape of x, in steps.
class RecipeFitter {
 public:
  RecipeFitter(const Recipe& recipe, const Variable& x) : recipe_(recipe), x_(x) {}

  FittedRecipe fit(const AxisSizes& given) {
    take_sizes(given);
    expand_ellipsis();
    for (size_t d = 0; d < fitted_.left.size(); ++d) match(d);
    for (const size_t a : fitted_.added) {
      if (fitted_.sizes[a] < 0)
        wrong("axis ", recipe_.axes[a].name, " is new, but its size is not given");
    }
    return std::move(fitted_);
  }

 private:
  template <class... What>
  [[noreturn]] void wrong(const What&... what) const {
    fail(Exit::internal, recipe_.text, " of ", describe(x_.data()), ": ", what...);
  }
  void take_sizes(const AxisSizes& given);
  void expand_ellipsis();
  void match(size_t d);

  const Recipe& recipe_;
  const Variable& x_;
  FittedRecipe fitted_{};
};

/// Takes sizes from numbers in the pattern and from the caller. -1 marks a size that follows from
/// x.
void RecipeFitter::take_sizes(const AxisSizes& given) {
  for (const Axis& axis : recipe_.axes) fitted_.sizes.push_back(axis.size);
  for (const auto& [name, size] : given) {
    const auto it = std::find_if(recipe_.axes.begin(), recipe_.axes.end(),
                                 [&, &n = name](const Axis& a) { return a.name == n; });
    if (it == recipe_.axes.end() || it->size >= 0)
      wrong("axis ", name, " of the sizes given is not in the pattern");
    if (size < 0) wrong("axis ", name, " has a size of ", size);
    fitted_.sizes[static_cast<size_t>(it - recipe_.axes.begin())] = size;
  }
}

/// Replaces "..." by new axes, one for each dim of x that no other group takes.
void RecipeFitter::expand_ellipsis() {
  const int64_t dims = static_cast<int64_t>(recipe_.left.size()) - (recipe_.with_ellipsis ? 1 : 0),
                more = x_.dim() - dims;
  if (more < 0 || (more > 0 && !recipe_.with_ellipsis))
    wrong("the pattern has ", recipe_.with_ellipsis ? "at least " : "", dims, " dims");

  // Each dim of "..." becomes a new axis, numbered after the named ones.
  std::vector<size_t> others;
  for (int64_t i = 0; i < more; ++i) {
    others.push_back(fitted_.sizes.size());
    fitted_.sizes.push_back(-1);
  }

  const auto put = [&](std::vector<size_t>& axes) {
    const auto it = std::find(axes.begin(), axes.end(), ellipsis);
    if (it != axes.end()) axes.insert(axes.erase(it), others.begin(), others.end());
  };

  const auto bound = [&](const Side& side) {
    Side out;
    for (Group group : side) {
      // Outside of parentheses, each dim of "..." is a group. Inside parentheses, all dims of "..."
      // are axes of one group.
      if (group.spread) {
        for (const size_t axis : others) out.push_back({{axis}});
      } else {
        put(group.axes);
        out.push_back(std::move(group));
      }
    }
    return out;
  };

  fitted_.left = bound(recipe_.left);
  fitted_.right = bound(recipe_.right);
  fitted_.reduced = recipe_.reduced;
  fitted_.added = recipe_.added;
  put(fitted_.reduced);
}

/// Matches group d with its dim of x. At most one axis of the group may have an unknown size, which
/// follows from the dim and the other sizes.
void RecipeFitter::match(size_t d) {
  const Group& group = fitted_.left[d];
  const int64_t size = x_.size(static_cast<int64_t>(d));
  int64_t known = 1;
  std::optional<size_t> unknown;
  for (const size_t a : group.axes) {
    if (fitted_.sizes[a] >= 0) {
      known *= fitted_.sizes[a];
    } else if (unknown) {
      wrong("the sizes of axes ", recipe_.axes[*unknown].name, " and ", recipe_.axes[a].name,
            " in ", text_of(recipe_, group), ", a dim of ", size, ", are both unknown; give one");
    } else {
      unknown = a;
    }
  }

  if (unknown) {
    if (known == 0 || size % known != 0)
      wrong("axis ", recipe_.axes[*unknown].name, " of ", text_of(recipe_, group),
            " has no size: ", size, " is not divisible by ", known);
    fitted_.sizes[*unknown] = size / known;
  } else if (known != size) {
    if (group.axes.empty()) wrong("dim ", d, " is 1 in the pattern and ", size, " in x");
    const bool is_one = group.axes.size() == 1;
    wrong(is_one ? "axis " : "the product of ",
          is_one ? recipe_.axes[group.axes[0]].name : text_of(recipe_, group), " is ", known,
          " according to the given sizes, but ", size, " in x");
  }
}

Variable reduced(const Variable& x, size_t kept, const std::string& reduction) {
  // The reduced axes come last. Join them into one dim.
  Dims sizes;
  for (size_t d = 0; d < kept; ++d) sizes.push_back(x.sizes()[d]);
  sizes.push_back(c10::multiply_integers(x.sizes().slice(kept)));
  const Variable flat = reshape(x, sizes);
  if (reduction == "sum") return sum(flat, -1);
  if (reduction == "mean") return mean(flat, -1);
  if (reduction == "prod") return prod(flat, -1);
  return reduction == "max" ? amax(flat, -1) : -amax(-flat, -1);
}

Variable apply_recipe(Kind kind, const Variable& x, const std::string& pattern,
                      const std::string& reduction, const AxisSizes& given) {
  const Recipe& r = recipe_of(kind, pattern);
  const FittedRecipe b = RecipeFitter(r, x).fit(given);

  // Elementary axes, in x's order.
  std::vector<size_t> axes;
  for (const Group& group : b.left) axes.insert(axes.end(), group.axes.begin(), group.axes.end());

  const auto shape = [&](const std::vector<size_t>& of) {
    Dims sizes;
    for (const size_t a : of) sizes.push_back(b.sizes[a]);
    return sizes;
  };
  const auto is = [](const std::vector<size_t>& in, size_t a) {
    return std::find(in.begin(), in.end(), a) != in.end();
  };

  // `order` has the axes of x in the order of the result, followed by the reduced axes. `result`
  // has all axes of the result, including new ones.
  std::vector<size_t> order, result;
  for (const Group& group : b.right) {
    for (const size_t a : group.axes) {
      result.push_back(a);
      if (!is(b.added, a)) order.push_back(a);
    }
  }

  const size_t kept = order.size();
  order.insert(order.end(), b.reduced.begin(), b.reduced.end());

  Dims places;
  for (const size_t a : order)
    places.push_back(std::find(axes.begin(), axes.end(), a) - axes.begin());

  // Skip steps that would change nothing, so that a plain permutation, for example, is one op with
  // one node.
  Variable y = x;
  if (const Dims sizes = shape(axes); x.sizes() != at::IntArrayRef(sizes)) y = reshape(y, sizes);
  if (!std::is_sorted(places.begin(), places.end())) y = permute(y, places);
  if (kept < order.size()) y = reduced(y, kept, reduction);

  // Insert new axes with size 1; expand() then repeats them without a copy.
  if (!b.added.empty()) {
    Dims with_ones;
    for (const size_t a : result) with_ones.push_back(is(b.added, a) ? 1 : b.sizes[a]);
    y = expand(reshape(y, with_ones), shape(result));
  }

  // Join the axes of each group into one dim.
  Dims sizes;
  for (const Group& group : b.right) {
    sizes.push_back(1);
    for (const size_t a : group.axes) sizes.back() *= b.sizes[a];
  }
  return y.sizes() == at::IntArrayRef(sizes) ? y : reshape(y, sizes);
}

}  // namespace

Variable rearrange(const Variable& x, const std::string& pattern, const AxisSizes& sizes) {
  require_defined("rearrange", {&x});
  return apply_recipe(Kind::rearrange, x, pattern, "", sizes);
}
Variable rearrange(const std::vector<Variable>& xs, const std::string& pattern,
                   const AxisSizes& sizes) {
  return rearrange(stack(xs), pattern, sizes);
}
Variable reduce(const Variable& x, const std::string& pattern, const std::string& reduction,
                const AxisSizes& sizes) {
  require_defined("reduce", {&x});
  const bool known = reduction == "sum" || reduction == "mean" || reduction == "max" ||
                     reduction == "min" || reduction == "prod";
  LATHE_CHECK(known, "reduce \"", pattern, "\": \"", reduction,
              "\" is none of sum, mean, max, min, prod");
  return apply_recipe(Kind::reduce, x, pattern, reduction, sizes);
}
Variable repeat(const Variable& x, const std::string& pattern, const AxisSizes& sizes) {
  require_defined("repeat", {&x});
  return apply_recipe(Kind::repeat, x, pattern, "", sizes);
}

}  // namespace lathe
