// Declares the losses that ops.h does not have, with PyTorch's names, argument order and values.
// They compute in float32 or wider. Targets are Variables if a gradient may flow to them.
#pragma once

#include <cstdint>

#include "autograd/variable.h"
#include "core/mode.h"

namespace lathe {

/// Prevents memory.saved from rounding the tensors that ops save, until destroyed. Losses use it,
/// because a loss's gradient is a factor of all other gradients, and the tensors of losses are
/// small.
struct ExactTensors : ModeGuard {
  ExactTensors();
};

/// How a loss combines the values of all elements: not at all, by their mean, or by their sum.
enum class Reduction { none, mean, sum };

/// Returns |input - target|.
Variable l1_loss(const Variable& input, const Variable& target,
                 Reduction reduction = Reduction::mean);
/// Returns d^2 / (2 beta) where d = |input - target| is below beta, and d - beta / 2 elsewhere.
/// Girshick 2015.
Variable smooth_l1_loss(const Variable& input, const Variable& target,
                        Reduction reduction = Reduction::mean, double beta = 1);
/// Returns (input - target)^2.
Variable mse_loss(const Variable& input, const Variable& target, Reduction reduction);
/// Returns -(t log sigmoid(x) pos_weight + (1 - t) log(1 - sigmoid(x))) weight, for logits x
/// (`input`) and targets t in [0, 1]. `pos_weight` is the weight of the positive examples of each
/// class. Both weights broadcast and may be undefined.
Variable binary_cross_entropy_with_logits(const Variable& input, const Variable& target,
                                          const at::Tensor& weight = {},
                                          Reduction reduction = Reduction::mean,
                                          const at::Tensor& pos_weight = {});
/// Returns -weight[t] log_p[t], for log_p [N, C, ...] or [C] and targets int64 [N, ...] or [].
/// Targets equal to `ignore_index` do not count, and the mean is weighted by the weights of the
/// other targets. If all targets are ignored, the mean is 0, whereas PyTorch returns NaN.
Variable nll_loss(const Variable& input, const at::Tensor& target, const at::Tensor& weight = {},
                  int64_t ignore_index = -100, Reduction reduction = Reduction::mean);
struct CrossEntropyOptions {
  at::Tensor weight = {};  ///< weight of each class [C]; undefined: 1 for all
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;  ///< the part of a target's probability that all classes share
                               ///< equally (Szegedy et al. 2016)
};
/// Returns nll_loss of log softmax over the classes, for logits [N, C, ...] or [C] and targets
/// int64 [N, ...] or []. For large vocabularies see linear_cross_entropy.
Variable cross_entropy(const Variable& input, const at::Tensor& target,
                       const CrossEntropyOptions& options);
/// Computes the cross-entropy with targets that are class probabilities, in the shape of the
/// logits. `ignore_index` has no effect, and the mean is over N and the dims after C.
Variable cross_entropy(const Variable& input, const Variable& target,
                       const CrossEntropyOptions& options = {});
/// Returns t (log(t) - x) for log-probabilities x (`input`) and probabilities t (`target`); t
/// log(t) is 0 where t is 0. With log_target, t has log-probabilities, and the result is e^t (t -
/// x). The KL divergence is the sum of these terms over classes; `kl_div_batchmean` divides the sum
/// over all elements by the first size of x.
Variable kl_div(const Variable& input, const Variable& target,
                Reduction reduction = Reduction::mean, bool log_target = false);
Variable kl_div_batchmean(const Variable& input, const Variable& target, bool log_target = false);
/// Returns x1.x2 / (max(|x1|, eps) max(|x2|, eps)) along a dim.
Variable cosine_similarity(const Variable& x1, const Variable& x2, int64_t dim = 1,
                           double eps = 1e-8);
/// Returns the p-norm of x1 - x2 + eps along the last dim.
Variable pairwise_distance(const Variable& x1, const Variable& x2, double p = 2, double eps = 1e-6,
                           bool keepdim = false);
struct TripletOptions {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  ///< whether distance(anchor, negative) is replaced by the smaller of itself
                      ///< and distance(positive, negative)
};
/// Returns max(distance(anchor, positive) - distance(anchor, negative) + margin, 0). Schroff,
/// Kalenichenko and Philbin 2015; swap: Balntas et al. 2016.
Variable triplet_margin_loss(const Variable& anchor, const Variable& positive,
                             const Variable& negative, const TripletOptions& options = {},
                             Reduction reduction = Reduction::mean);

}  // namespace lathe
