// Rows of the op table for losses.
#include "autograd/ops.h"
#include "autograd/ops/losses.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/torch_oracle.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;
using Sizes = std::vector<int64_t>;
namespace F = torch::nn::functional;

const char* name(Reduction r) {
  return r == Reduction::none ? "none" : r == Reduction::mean ? "mean" : "sum";
}
int64_t number(Reduction r) { return static_cast<int64_t>(r); }

void add_distances(std::vector<OpCase>& t, Reduction r) {
  for (const auto& [label, sizes] : {std::pair{"", Sizes{2, 3}},
                                     {"0-dim", Sizes{}},
                                     {"size 1", Sizes{1}},
                                     {"empty", Sizes{0, 3}}}) {
    if (sizes != Sizes{2, 3} && r != Reduction::none) continue;
    const std::string all = str(label, " ", name(r));
    const std::vector<Input> both{{sizes}, {sizes}};
    t.push_back({"l1_loss", all, both, [r](V v) { return l1_loss(v[0], v[1], r); },
                 [r](T x) { return torch::l1_loss(x[0], x[1], number(r)); }});
    t.push_back({"smooth_l1_loss", all, both,
                 [r](V v) { return smooth_l1_loss(v[0], v[1], r, 0.7); },
                 [r](T x) { return torch::smooth_l1_loss(x[0], x[1], number(r), 0.7); }});
    t.push_back({"mse_loss", all, both, [r](V v) { return mse_loss(v[0], v[1], r); },
                 [r](T x) { return torch::mse_loss(x[0], x[1], number(r)); }});
    t.push_back({"kl_div",
                 all,
                 {{sizes}, {sizes, 0.1, 1}},
                 [r](V v) { return kl_div(v[0], v[1], r); },
                 [r](T x) { return torch::kl_div(x[0], x[1], number(r)); }});
    t.push_back({"kl_div", all + ", log", both, [r](V v) { return kl_div(v[0], v[1], r, true); },
                 [r](T x) { return torch::kl_div(x[0], x[1], number(r), true); }});
    t.push_back({"binary_cross_entropy_with_logits",
                 all,
                 {{sizes}, {sizes, 0, 1}},
                 [r](V v) { return binary_cross_entropy_with_logits(v[0], v[1], {}, r); },
                 [r](T x) {
                   return torch::binary_cross_entropy_with_logits(x[0], x[1], {}, {}, number(r));
                 }});
  }
  const auto weights = [](double low) { return torch::linspace(low, low + 1, 3, at::kDouble); };
  t.push_back({"binary_cross_entropy_with_logits",
               str("weights ", name(r)),
               {{{2, 3}, -40, 40}, {{2, 3}, 0, 1}},
               [=](V v) {
                 return binary_cross_entropy_with_logits(v[0], v[1], weights(0.5), r, weights(2));
               },
               [=](T x) {
                 return torch::binary_cross_entropy_with_logits(x[0], x[1], weights(0.5),
                                                                weights(2), number(r));
               }});
}

void add_classes(std::vector<OpCase>& t, Reduction r) {
  const auto weight = [] { return torch::linspace(0.5, 1.5, 4, at::kDouble); };
  struct Case {
    const char* label;
    Sizes x;
    std::vector<int64_t> target;
    Sizes shape;
  };
  for (const Case& c : {Case{"rows", {3, 4}, {1, -100, 3}, {3}},
                        {"places", {2, 4, 3}, {1, 0, 3, 2, -100, 0}, {2, 3}},
                        {"one", {4}, {2}, {}},
                        {"no rows", {0, 4}, {}, {0}}}) {
    if (c.shape.size() != 1 && r == Reduction::sum) continue;
    if (c.shape == Sizes{0} && r != Reduction::none) continue;
    for (const bool weighted : {false, true}) {
      const std::string label = str(c.label, weighted ? ", weights " : " ", name(r));
      const auto w = [=] { return weighted ? weight() : at::Tensor(); };
      t.push_back({"nll_loss",
                   label,
                   {{c.x}},
                   [=](V v) {
                     return nll_loss(v[0], longs(c.target, c.shape, device_of(v)), w(), -100, r);
                   },
                   [=](T x) {
                     return torch::nll_loss_nd(x[0], longs(c.target, c.shape), w(), number(r));
                   }});
      for (const double smoothing : {0.0, 0.2}) {
        t.push_back({"cross_entropy",
                     str(label, ", smoothing ", smoothing),
                     {{c.x}},
                     [=](V v) {
                       CrossEntropyOptions o;
                       o.weight = w();
                       o.reduction = r;
                       o.label_smoothing = smoothing;
                       return cross_entropy(v[0], longs(c.target, c.shape, device_of(v)), o);
                     },
                     [=](T x) {
                       return torch::cross_entropy_loss(x[0], longs(c.target, c.shape), w(),
                                                        number(r), -100, smoothing);
                     }});
      }
      if (c.shape == Sizes{0}) continue;
      t.push_back(
          {"cross_entropy",
           label + ", probabilities",
           {{c.x}, {c.x, 0, 1}},
           [=](V v) {
             CrossEntropyOptions o;
             o.weight = w();
             o.reduction = r;
             o.label_smoothing = 0.1;
             return cross_entropy(v[0], v[1], o);
           },
           [=](T x) { return torch::cross_entropy_loss(x[0], x[1], w(), number(r), -100, 0.1); }});
    }
  }
}

void add_similarities(std::vector<OpCase>& t, Reduction r) {
  const std::vector<Input> three{{{3, 4}}, {{3, 4}}, {{3, 4}}};
  for (const bool swap : {false, true}) {
    TripletOptions o;
    o.margin = 1.5;
    o.p = swap ? 3 : 2;
    o.swap = swap;
    t.push_back({"triplet_margin_loss", str(swap ? "swap " : "", name(r)), three,
                 [=](V v) { return triplet_margin_loss(v[0], v[1], v[2], o, r); },
                 [=](T x) {
                   return torch::triplet_margin_loss(x[0], x[1], x[2], o.margin, o.p, o.eps, o.swap,
                                                     number(r));
                 }});
    t.back().low_scale = 8;  // the loss is a difference of two rounded distances
  }
}

}  // namespace

std::vector<OpCase> loss_rows() {
  std::vector<OpCase> t;
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    add_distances(t, r);
    add_classes(t, r);
    add_similarities(t, r);
  }
  t.push_back({"kl_div",
               "batchmean",
               {{{2, 3}}, {{2, 3}, 0.1, 1}},
               [](V v) { return kl_div_batchmean(v[0], v[1]); },
               [](T x) {
                 return F::kl_div(x[0], x[1], F::KLDivFuncOptions().reduction(torch::kBatchMean));
               }});
  for (const auto& [label, a, b, dim] : {std::tuple{"", Sizes{2, 3}, Sizes{2, 3}, int64_t{1}},
                                         {"broadcast", Sizes{2, 3, 2}, Sizes{3, 1}, int64_t{-2}},
                                         {"empty", Sizes{0, 3}, Sizes{0, 3}, int64_t{1}}}) {
    t.push_back({"cosine_similarity",
                 label,
                 {{a}, {b}},
                 [dim = dim](V v) { return cosine_similarity(v[0], v[1], dim); },
                 [dim = dim](T x) { return torch::cosine_similarity(x[0], x[1], dim, 1e-8); }});
    t.back().low_scale = 8;
  }
  for (const double p : {1.0, 2.0, 3.0}) {
    t.push_back({"pairwise_distance",
                 str(p),
                 {{{2, 3}}, {{2, 3}}},
                 [p](V v) { return pairwise_distance(v[0], v[1], p); },
                 [p](T x) { return torch::pairwise_distance(x[0], x[1], p); }});
  }
  return t;
}

}  // namespace lathe::test
