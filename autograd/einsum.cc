// Implements Einstein summation. Operands are multiplied two at a time, each pair by one matrix
// product.
#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <map>
#include <memory>
#include <unordered_map>

#include "autograd/einops.h"
#include "autograd/einsum_plan.h"
#include "autograd/ops.h"
#include "autograd/ops/composed.h"
#include "autograd/ops/dims.h"
#include "autograd/ops/shapes.h"
#include "core/error.h"
#include "core/io/text.h"

namespace lathe {
namespace {

[[maybe_unused]] const bool einsum_registered = register_composed({"einsum"});

// Stands for "..." in an equation that is not fitted to shapes yet.
constexpr int open_ellipsis = std::numeric_limits<int>::min();

struct Equation {
  std::string text;                // the beginning of error messages: einsum "ij,jk->ik"
  std::vector<std::string> names;  // names of the indices, by label
  std::vector<Labels> in;
  Labels out;
};

template <class... A>
void check(const std::string& text, bool right, const A&... what) {
  LATHE_CHECK(right, text, ": ", what...);
}

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool continues_name(char c) {
  return is_letter(c) || std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Returns the number of an index: its position in `names`. Adds a new name to `names`.
int number_of(const std::string& name, std::vector<std::string>& names) {
  const auto known = std::find(names.begin(), names.end(), name);
  const auto number = static_cast<int>(known - names.begin());
  if (known == names.end()) names.push_back(name);
  return number;
}

/// Parses the indices of one operand or of the result, and adds new names to the equation.
Labels parse_labels(const std::string& part, bool named, Equation& e) {
  Labels labels;
  for (size_t i = 0; i < part.size();) {
    if (part[i] == ' ') {
      ++i;
      continue;
    }

    if (part.compare(i, 3, "...") == 0) {
      check(e.text, !has(labels, open_ellipsis), "\"...\" appears twice in \"", part, "\"");
      labels.push_back(open_ellipsis);
      i += 3;
      continue;
    }

    check(e.text, is_letter(part[i]), "\"", part[i], "\" is not allowed in an equation");
    size_t end = i + 1;
    while (named && end < part.size() && continues_name(part[end])) ++end;
    labels.push_back(number_of(part.substr(i, end - i), e.names));
    i = end;
  }
  return labels;
}

/// Returns the result of an equation without "->": the broadcast dims and then, in alphabetical
/// order, every index that appears once.
Labels implied_result(const Equation& e) {
  std::map<std::string, int> count;
  bool has_ellipsis = false;
  for (const Labels& in : e.in) {
    for (const int label : in) {
      if (label == open_ellipsis)
        has_ellipsis = true;
      else
        ++count[e.names[static_cast<size_t>(label)]];
    }
  }

  Labels result;
  if (has_ellipsis) result.push_back(open_ellipsis);
  for (const auto& [name, n] : count) {
    const auto place = std::find(e.names.begin(), e.names.end(), name);
    if (n == 1) result.push_back(static_cast<int>(place - e.names.begin()));
  }
  return result;
}

/// Parses "ij,jk->ik". An index is a letter or, if `named`, a name between spaces.
Equation parse(const std::string& text, bool named) {
  Equation e{.text = str("einsum \"", text, "\""), .names = {}, .in = {}, .out = {}};
  const size_t arrow = text.find("->");
  check(e.text, arrow == std::string::npos || text.find("->", arrow + 2) == std::string::npos,
        "has more than one \"->\"");
  check(e.text, !named || arrow != std::string::npos, "needs one \"->\"");

  const std::string left = text.substr(0, arrow);
  for (size_t at = 0; at <= left.size();) {
    const size_t comma = std::min(left.find(',', at), left.size());
    e.in.push_back(parse_labels(left.substr(at, comma - at), named, e));
    at = comma + 1;
  }
  if (arrow == std::string::npos) {
    e.out = implied_result(e);
    return e;
  }

  // A name that is new in the result is an index that no operand has.
  const size_t known = e.names.size();
  e.out = parse_labels(text.substr(arrow + 2), named, e);
  for (const int label : e.out) {
    if (label == open_ellipsis) continue;
    const std::string& name = e.names[static_cast<size_t>(label)];
    check(e.text, static_cast<size_t>(label) < known, "index ", name,
          " of the result is in no operand");
    check(e.text, std::count(e.out.begin(), e.out.end(), label) == 1, "index ", name,
          " appears twice in the result");
  }
  return e;
}

/// Returns the parsed equation of a text. Each thread caches equations, and drops all of them when
/// it has more than 10,000.
const Equation& equation_of(const std::string& text, bool named) {
  thread_local std::unordered_map<std::string, std::unique_ptr<const Equation>> kept;
  if (kept.size() > 10000) kept.clear();
  auto& place = kept[(named ? "n" : "l") + text];
  if (!place) place = std::make_unique<const Equation>(parse(text, named));
  return *place;
}

/// An equation fitted to operands of given shapes.
struct FittedEquation {
  std::vector<Labels> in;
  Labels out;
  std::map<int, int64_t> sizes;
};

FittedEquation fitted(const Equation& e, const std::vector<at::IntArrayRef>& shapes) {
  std::string all;
  for (const at::IntArrayRef s : shapes) all += (all.empty() ? "" : ", ") + describe(s);
  const std::string text = e.text + " of " + all;
  check(text, shapes.size() == e.in.size(), "the equation has ",
        quantity(std::ssize(e.in), "operand"), ", and ", quantity(std::ssize(shapes), "tensor"),
        shapes.size() == 1 ? " was given" : " were given");

  FittedEquation b;
  int64_t spread = 0;  // number of dims of "..." in the result

  for (size_t i = 0; i < shapes.size(); ++i) {
    const bool with_ellipsis = has(e.in[i], open_ellipsis);
    const int64_t more = static_cast<int64_t>(shapes[i].size()) -
                         static_cast<int64_t>(e.in[i].size()) + (with_ellipsis ? 1 : 0);
    check(text, more >= 0 && (more == 0 || with_ellipsis), "operand ", i, " has ", shapes[i].size(),
          " dims but ", e.in[i].size() - (with_ellipsis ? 1 : 0), " indices");

    if (with_ellipsis) spread = std::max(spread, more);
    // Broadcast dims are aligned at the last dim, as in NumPy, so they are numbered from the right:
    // -more, ..., -1.
    Labels labels;
    for (const int l : e.in[i]) {
      if (l != open_ellipsis) labels.push_back(l);
      for (int64_t d = more; l == open_ellipsis && d > 0; --d)
        labels.push_back(static_cast<int>(-d));
    }

    for (size_t d = 0; d < labels.size(); ++d) {
      const int64_t size = shapes[i][d];
      const auto [it, added] = b.sizes.try_emplace(labels[d], size);
      const int l = labels[d];
      // A size of 1 broadcasts: between operands, and between two dims of one operand that have the
      // same index.
      check(text, size == it->second || size == 1 || it->second == 1, "index ",
            l < 0 ? std::string("\"...\"") : e.names[static_cast<size_t>(l)], " has size ",
            it->second, ", but size ", size, " in operand ", i);
      if (it->second == 1) it->second = size;
    }

    b.in.push_back(std::move(labels));
  }

  for (const int l : e.out) {
    if (l != open_ellipsis) b.out.push_back(l);
    for (int64_t d = spread; l == open_ellipsis && d > 0; --d)
      b.out.push_back(static_cast<int>(-d));
  }
  return b;
}

/// An operand and its indices, each of which appears once. An index whose dim has size 1 here and a
/// larger size in another operand is left out.
struct Labeled {
  Variable x;
  Labels labels;
};

/// Returns an operand without its dims that broadcast, and with repeated indices reduced to
/// diagonals.
Labeled operand(const Variable& x, const Labels& labels, const FittedEquation& b) {
  Labeled o{x, labels};

  // Drop dims of size 1 whose index has a larger size elsewhere in the equation. A matrix product
  // needs equal sizes, and the larger dim supplies the index.
  for (size_t d = 0; d < o.labels.size();) {
    const int64_t size = o.x.size(static_cast<int64_t>(d));
    if (size == 1 && b.sizes.at(o.labels[d]) != 1) {
      o.x = select(o.x, static_cast<int64_t>(d), 0);
      o.labels.erase(o.labels.begin() + static_cast<int64_t>(d));
    } else {
      ++d;
    }
  }

  for (size_t d = 0; d < o.labels.size(); ++d) {
    const auto again =
        std::find(o.labels.begin() + static_cast<int64_t>(d) + 1, o.labels.end(), o.labels[d]);
    if (again == o.labels.end()) continue;
    const int l = o.labels[d];
    // diagonal() puts the new dim last.
    const auto second = again - o.labels.begin();
    o.x = diagonal(o.x, 0, static_cast<int64_t>(d), second);
    o.labels.erase(again);
    o.labels.erase(o.labels.begin() + static_cast<int64_t>(d));
    o.labels.push_back(l);
    d = static_cast<size_t>(-1);  // restarts the scan at dim 0
  }
  return o;
}

/// Sums over the indices that are not in `wanted`.
void sum_out(Labeled& o, const Labels& wanted) {
  Dims dims;
  Labels left;
  for (size_t d = 0; d < o.labels.size(); ++d) {
    if (has(wanted, o.labels[d]))
      left.push_back(o.labels[d]);
    else
      dims.push_back(static_cast<int64_t>(d));
  }
  if (!dims.empty()) o.x = sum(o.x, at::IntArrayRef(dims));
  o.labels = std::move(left);
}

/// Multiplies a and b and sums over the indices that are in both but not in `wanted`, as a batched
/// matrix product [batch, a only, summed] x [batch, summed, b only]. The batch dims, `both`, are
/// the indices in a, b and `wanted`.
Labeled pair_product(const Labeled& a, const Labeled& b, const Labels& wanted) {
  Labels both, summed, of_a, of_b;
  for (const int l : a.labels) {
    if (!has(b.labels, l))
      of_a.push_back(l);
    else
      (has(wanted, l) ? both : summed).push_back(l);
  }

  for (const int l : b.labels) {
    if (!has(a.labels, l)) of_b.push_back(l);
  }

  std::map<int, int64_t> sizes;
  for (const Labeled* o : {&a, &b}) {
    for (size_t d = 0; d < o->labels.size(); ++d) sizes[o->labels[d]] = o->x.sizes()[d];
  }

  const auto matrices = [&](const Labeled& o, const std::array<const Labels*, 3>& parts) {
    Dims order, shape;
    for (const Labels* part : parts) {
      shape.push_back(1);
      for (const int l : *part) {
        order.push_back(std::find(o.labels.begin(), o.labels.end(), l) - o.labels.begin());
        shape.back() *= sizes[l];
      }
    }
    return reshape(std::is_sorted(order.begin(), order.end()) ? o.x : permute(o.x, order), shape);
  };

  const Variable y =
      matmul(matrices(a, {&both, &of_a, &summed}), matrices(b, {&both, &summed, &of_b}));

  // Split the three dims of the product into indices again.
  Labeled out;
  Dims shape;
  for (const Labels* part : {&both, &of_a, &of_b}) {
    for (const int l : *part) {
      out.labels.push_back(l);
      shape.push_back(sizes[l]);
    }
  }
  out.x = reshape(y, shape);
  return out;
}

Variable einsum(const Equation& e, const std::vector<Variable>& xs) {
  LATHE_CHECK(!xs.empty(), e.text, ": no operands");
  std::vector<at::IntArrayRef> shapes;
  for (const Variable& x : xs) {
    require_defined("einsum", {&x});
    shapes.push_back(x.sizes());
  }

  const FittedEquation b = fitted(e, shapes);

  std::vector<Labeled> list;
  for (size_t i = 0; i < xs.size(); ++i) list.push_back(operand(xs[i], b.in[i], b));

  const auto wanted_beside = [&](size_t first, size_t second) {
    std::vector<Labels> others;
    for (size_t i = 0; i < list.size(); ++i) {
      if (i != first && i != second) others.push_back(list[i].labels);
    }
    return unsummed_labels(b.out, others);
  };

  // First sum over indices that are in only one operand and not in the result, so that the matrix
  // products are smaller.
  for (size_t i = 0; i < list.size(); ++i) sum_out(list[i], wanted_beside(i, i));

  std::vector<Labels> labels;
  for (const Labeled& o : list) labels.push_back(o.labels);
  for (const auto& [first, second] : plan_products(labels, b.out, b.sizes).steps) {
    Labeled made = pair_product(list[first], list[second], wanted_beside(first, second));
    list.erase(list.begin() + static_cast<int64_t>(second));
    list.erase(list.begin() + static_cast<int64_t>(first));
    list.push_back(std::move(made));
  }

  // Bring the dims into the order of the result.
  Labeled& last = list[0];
  sum_out(last, b.out);

  Dims order;
  for (const int l : b.out)
    order.push_back(std::find(last.labels.begin(), last.labels.end(), l) - last.labels.begin());
  return std::is_sorted(order.begin(), order.end()) ? last.x : permute(last.x, order);
}

}  // namespace

Variable einsum(const std::string& equation, const std::vector<Variable>& operands) {
  return einsum(equation_of(equation, false), operands);
}
Variable einsum(const std::vector<Variable>& operands, const std::string& pattern) {
  return einsum(equation_of(pattern, true), operands);
}
EinsumPlan einsum_plan(const std::string& equation,
                       const std::vector<std::vector<int64_t>>& shapes) {
  const Equation& e = equation_of(equation, false);
  std::vector<at::IntArrayRef> refs(shapes.begin(), shapes.end());
  const FittedEquation b = fitted(e, refs);

  std::vector<Labels> labels;
  for (size_t i = 0; i < b.in.size(); ++i) {
    labels.emplace_back();
    for (size_t d = 0; d < b.in[i].size(); ++d) {
      const int l = b.in[i][d];
      if ((shapes[i][d] != 1 || b.sizes.at(l) == 1) && !has(labels.back(), l))
        labels.back().push_back(l);
    }
  }

  // Leave out the indices over which einsum() sums before the first product: those that are in only
  // one operand and not in the result.
  for (size_t i = 0; i < labels.size(); ++i) {
    std::vector<Labels> others;
    for (size_t j = 0; j < labels.size(); ++j) {
      if (j != i) others.push_back(labels[j]);
    }
    const Labels wanted = unsummed_labels(b.out, others);
    std::erase_if(labels[i], [&](int l) { return !has(wanted, l); });
  }
  return plan_products(labels, b.out, b.sizes);
}

}  // namespace lathe
