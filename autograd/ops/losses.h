// Losses beside those of ops.h, with PyTorch's names, argument order and values. In float32 or
// wider; targets are given as Variables where a gradient may flow to them.
#pragma once

#include <cstdint>

#include "autograd/variable.h"

namespace lathe {

/// What is made of the losses of all elements: they as they are, their mean, or their sum.
enum class Reduction { none, mean, sum };

/// |a - b|.
Variable l1_loss(const Variable& input, const Variable& target,
                 Reduction reduction = Reduction::mean);
/// d^2 / (2 beta) where d = |a - b| is below beta, d - beta / 2 elsewhere. Girshick 2015.
Variable smooth_l1_loss(const Variable& input, const Variable& target,
                        Reduction reduction = Reduction::mean, double beta = 1);
/// (a - b)^2.
Variable mse_loss(const Variable& input, const Variable& target, Reduction reduction);
/// -(t log sigmoid(x) p + (1 - t) log(1 - sigmoid(x))) weight: x logits, t targets in [0, 1], p the
/// weight of positive ones, by class; weight and p broadcast and may be undefined.
Variable binary_cross_entropy_with_logits(const Variable& input, const Variable& target,
                                          const at::Tensor& weight = {},
                                          Reduction reduction = Reduction::mean,
                                          const at::Tensor& pos_weight = {});
/// -weight[t] log_p[t]: log_p [N, C, ...] or [C], targets int64 [N, ...] or []; targets of
/// `ignore_index` do not count, and the mean is over the weights of the others. Where all are
/// ignored the mean is 0 (PyTorch's NaN).
Variable nll_loss(const Variable& input, const at::Tensor& target, const at::Tensor& weight = {},
                  int64_t ignore_index = -100, Reduction reduction = Reduction::mean);
struct CrossEntropyOptions {
  at::Tensor weight = {};  ///< of each class [C], or undefined
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing =
      0;  ///< of a target's probability, shared equally by all classes. Szegedy et al. 2016
};
/// nll_loss of log softmax over the classes: logits [N, C, ...] or [C], targets int64 [N, ...] or
/// []. For large vocabularies see linear_cross_entropy.
Variable cross_entropy(const Variable& input, const at::Tensor& target,
                       const CrossEntropyOptions& options);
/// The same with probabilities of the logits' shape as targets, which `ignore_index` does not
/// concern; the mean is over N and what is behind C.
Variable cross_entropy(const Variable& input, const Variable& target,
                       const CrossEntropyOptions& options = {});
/// t (log(t) - x), 0 where t is 0, of log-probabilities x and probabilities t, or log-probabilities
/// (log_target). Mathematically the divergence is its sum over classes; `kl_div_batchmean` divides
/// that by x's first size.
Variable kl_div(const Variable& input, const Variable& target,
                Reduction reduction = Reduction::mean, bool log_target = false);
Variable kl_div_batchmean(const Variable& input, const Variable& target, bool log_target = false);
/// x1.x2 / (max(|x1|, eps) max(|x2|, eps)) along a dim.
Variable cosine_similarity(const Variable& x1, const Variable& x2, int64_t dim = 1,
                           double eps = 1e-8);
/// The p-norm of x1 - x2 + eps along the last dim.
Variable pairwise_distance(const Variable& x1, const Variable& x2, double p = 2, double eps = 1e-6,
                           bool keepdim = false);
struct TripletOptions {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  ///< the negative's distance from the positive counts where it is smaller
};
/// max(distance(anchor, positive) - distance(anchor, negative) + margin, 0). Schroff, Kalenichenko
/// and Philbin 2015; swap: Balntas et al. 2016.
Variable triplet_margin_loss(const Variable& anchor, const Variable& positive,
                             const Variable& negative, const TripletOptions& options = {},
                             Reduction reduction = Reduction::mean);

}  // namespace lathe
