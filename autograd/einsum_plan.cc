#include "autograd/einsum_plan.h"

#include <bit>
#include <limits>

namespace lathe {
namespace {

/// Finds the order in which pairs of operands are multiplied.
class Planner {
 public:
  Planner(const std::vector<Labels>& in, const Labels& out, const std::map<int, int64_t>& sizes)
      : in_(in), out_(out) {
    for (const auto& [l, size] : sizes) sizes_[l] = static_cast<double>(size);
  }
  EinsumPlan run() { return in_.size() <= 10 ? best() : greedy(); }

 private:
  /// Returns the labels of the product of the operands in `set`: the labels of these operands that
  /// are needed outside of the set.
  Labels labels_of(uint32_t set) const {
    Labels inside, outside = out_, kept;
    for (size_t i = 0; i < in_.size(); ++i) {
      Labels& to = set >> i & 1 ? inside : outside;
      to.insert(to.end(), in_[i].begin(), in_[i].end());
    }
    for (const int l : inside) {
      if (has(outside, l) && !has(kept, l)) kept.push_back(l);
    }
    return kept;
  }
  double cost(const Labels& a, const Labels& b) const {
    double n = 1;
    for (const int l : a) n *= sizes_.at(l);
    for (const int l : b) n *= has(a, l) ? 1.0 : sizes_.at(l);
    return n;
  }

  /// Finds the cheapest of all orders by dynamic programming: the cost of a set is the minimum over
  /// all ways to split it in two.
  EinsumPlan best() const {
    const auto n = in_.size();
    const uint32_t all = (1u << n) - 1;

    // Bit i of a set stands for operand i. The parts of a set are smaller numbers, so the costs of
    // the parts are computed before the cost of the set.
    std::vector<Labels> labels(all + 1);
    std::vector<double> least(all + 1, 0);
    std::vector<uint32_t> first(all + 1, 0);
    for (uint32_t set = 1; set <= all; ++set) labels[set] = labels_of(set);
    for (uint32_t set = 1; set <= all; ++set) {
      if (std::has_single_bit(set)) continue;
      least[set] = std::numeric_limits<double>::infinity();
      // The non-empty proper subsets, from the largest number down.
      for (uint32_t part = (set - 1) & set; part > 0; part = (part - 1) & set) {
        const uint32_t rest = set ^ part;
        if (part < rest) break;  // consider each split once
        const double c = least[part] + least[rest] + cost(labels[part], labels[rest]);
        if (c < least[set]) {
          least[set] = c;
          first[set] = part;
        }
      }
    }

    EinsumPlan plan{{}, n > 1 ? least[all] : 0};
    std::vector<uint32_t> list;  // the remaining operands, as in EinsumPlan::steps
    for (size_t i = 0; i < n; ++i) list.push_back(1u << i);
    steps(all, first, list, plan);
    return plan;
  }
  static void steps(uint32_t set, const std::vector<uint32_t>& first, std::vector<uint32_t>& list,
                    EinsumPlan& plan) {
    if (std::has_single_bit(set) || set == 0) return;
    steps(first[set], first, list, plan);
    steps(set ^ first[set], first, list, plan);
    auto a = static_cast<size_t>(std::find(list.begin(), list.end(), first[set]) - list.begin());
    auto b =
        static_cast<size_t>(std::find(list.begin(), list.end(), set ^ first[set]) - list.begin());
    if (a > b) std::swap(a, b);
    plan.steps.emplace_back(a, b);
    list.erase(list.begin() + static_cast<int64_t>(b));
    list.erase(list.begin() + static_cast<int64_t>(a));
    list.push_back(set);
  }

  EinsumPlan greedy() const {
    std::vector<Labels> list = in_;
    EinsumPlan plan;
    while (list.size() > 1) {
      std::pair<size_t, size_t> next;
      double least = std::numeric_limits<double>::infinity();

      // Take the cheapest remaining pair. The resulting order is not always the cheapest.
      for (size_t a = 0; a < list.size(); ++a) {
        for (size_t b = a + 1; b < list.size(); ++b) {
          const double c = cost(list[a], list[b]);
          if (c < least) {
            least = c;
            next = {a, b};
          }
        }
      }

      Labels made;
      std::vector<Labels> rest;
      for (size_t i = 0; i < list.size(); ++i) {
        if (i != next.first && i != next.second) rest.push_back(list[i]);
      }
      const Labels wanted = unsummed_labels(out_, rest);
      for (const size_t i : {next.first, next.second}) {
        for (const int l : list[i]) {
          if (has(wanted, l) && !has(made, l)) made.push_back(l);
        }
      }

      plan.steps.push_back(next);
      plan.multiplications += least;
      rest.push_back(std::move(made));
      list = std::move(rest);
    }
    return plan;
  }

  const std::vector<Labels>& in_;
  const Labels& out_;
  std::map<int, double> sizes_;
};

}  // namespace

EinsumPlan plan_products(const std::vector<Labels>& in, const Labels& out,
                         const std::map<int, int64_t>& sizes) {
  return Planner(in, out, sizes).run();
}

}  // namespace lathe
