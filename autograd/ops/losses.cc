// Implements losses composed of other ops. smooth_l1_loss is a separate op, because its composed
// form would save more than its inputs.
#include "autograd/ops/losses.h"

#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/smooth_l1_loss_backward.h>

#include <algorithm>

#include "autograd/ops/composed.h"
#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/math.h"
#include "autograd/ops/reductions.h"
#include "autograd/saved_packer.h"
#include "core/error.h"

namespace lathe {

ExactTensors::ExactTensors() {
  if (mode().packer != nullptr && !mode().packer->is_exact()) mode().packer = nullptr;
}

namespace {

[[maybe_unused]] const bool losses_registered =
    register_composed({"l1_loss", "mse_loss", "binary_cross_entropy_with_logits", "nll_loss",
                       "kl_div", "cosine_similarity", "pairwise_distance", "triplet_margin_loss"});

/// Returns x in float32 or wider.
Variable wide(const Variable& x) {
  return x.dtype() == at::kHalf || x.dtype() == at::kBFloat16 ? cast(x, at::kFloat) : x;
}
Variable constant_like(const at::Tensor& t, const Variable& x) {
  return Variable(t.to(x.data().options()));
}

Variable reduced(const Variable& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::mean: return mean(losses);
    case Reduction::sum: return sum(losses);
    default: return losses;
  }
}

struct SmoothL1 {
  static constexpr OpInfo info{
      .name = "smooth_l1_loss", .amp = Amp::fp32, .each = {4, 4}, .exact = true};
  double beta;
  Saved a = Saved::input(0), b = Saved::input(1);
  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    return at::smooth_l1_loss(a = a_, b = b_, /*reduction=*/0, beta);
  }
  // da = dy * (a - b) / beta where |a - b| < beta, dy * sign(a - b) elsewhere, db = -da
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    const T da = [&]() -> T {
      if constexpr (std::same_as<T, at::Tensor>)
        return at::smooth_l1_loss_backward(dy, a.data(), b.data(), /*reduction=*/0, beta);
      const at::Tensor d = a.data() - b.data();
      return dy * where(d.abs().lt(beta), (a.as<T>() - b.as<T>()) * (1 / beta), T(d.sign()));
    }();
    return {da, needs[1] ? -da : T()};
  }
};

/// Returns the dim of the classes of log-probabilities or logits [N, C, ...] or [C].
int64_t class_dim(const Variable& x) { return x.dim() == 1 ? 0 : 1; }

/// The classes that targets int64 [N, ...] select from x [N, C, ...], which of them are ignored,
/// their weights, and the divisor for their mean.
struct Chosen {
  at::Tensor index, ignored;  // in the shape of the targets, with a dim of size 1 for the classes
  Variable weight;            // weight of each target, 0 where ignored; undefined: 1
  Variable divisor;           // []: sum of the weights that count; 1 if all targets are ignored

  Chosen(const char* what, const Variable& x, const at::Tensor& target,
         const at::Tensor& class_weight, int64_t ignore_index) {
    const int64_t dim = class_dim(x);
    bool fits = x.dim() >= 1 && target.scalar_type() == at::kLong && target.dim() == x.dim() - 1;
    for (int64_t d = 0; fits && d < x.dim(); ++d)
      fits = d == dim || target.size(d < dim ? d : d - 1) == x.size(d);
    LATHE_CHECK(fits, what, "(", describe(x.data()), ", ", describe(target),
                "): needs [N, C, ...] and int64 targets [N, ...]");
    LATHE_CHECK(
        !class_weight.defined() || (class_weight.dim() == 1 && class_weight.size(0) == x.size(dim)),
        what, ": weight must have shape [", x.size(dim), "]");
    const at::Tensor targets = target.unsqueeze(dim);
    ignored = targets.eq(ignore_index);
    index = targets.masked_fill(ignored, 0);
    if (class_weight.defined()) {
      const at::Tensor of_classes = class_weight.to(x.data().options());
      weight = Variable(of_classes.index_select(0, index.reshape({-1}))
                            .reshape(index.sizes())
                            .masked_fill_(ignored, 0));
    }
    const at::Tensor all =
        weight.defined() ? weight.data().sum() : ignored.logical_not().sum().to(x.dtype());
    divisor =
        Variable(weight.defined() ? all + all.eq(0).logical_and_(ignored.all()) : all.clamp_min(1));
  }
  /// Applies the weights and the reduction to the losses of the targets, which still have the dim
  /// of the classes, with size 1.
  Variable reduce(const Variable& losses, Reduction reduction, int64_t dim) const {
    const Variable counted = masked_fill(weight.defined() ? losses * weight : losses, ignored, 0);
    return finish(counted, reduction, dim);
  }
  Variable finish(const Variable& counted, Reduction reduction, int64_t dim) const {
    if (reduction == Reduction::mean) return sum(counted) / divisor;
    if (reduction == Reduction::sum) return sum(counted);
    Dims sizes = dims_of(counted.sizes());
    sizes.erase(sizes.begin() + dim);
    return reshape(counted, sizes);
  }
};

}  // namespace

Variable l1_loss(const Variable& input, const Variable& target, Reduction reduction) {
  require_defined("l1_loss", {&input, &target});
  const ExactTensors exact;
  return reduced(abs(wide(input) - wide(target)), reduction);
}
Variable smooth_l1_loss(const Variable& input, const Variable& target, Reduction reduction,
                        double beta) {
  require_defined("smooth_l1_loss", {&input, &target});
  const ExactTensors exact;
  LATHE_CHECK(beta >= 0, "smooth_l1_loss: a beta of ", beta, " is below 0");
  if (beta == 0) return l1_loss(input, target, reduction);
  return reduced(apply(SmoothL1{.beta = beta}, wide(input), wide(target)), reduction);
}
Variable mse_loss(const Variable& input, const Variable& target, Reduction reduction) {
  require_defined("mse_loss", {&input, &target});
  const ExactTensors exact;
  const Variable d = wide(input) - wide(target);
  return reduced(d * d, reduction);
}
Variable binary_cross_entropy_with_logits(const Variable& input, const Variable& target,
                                          const at::Tensor& weight, Reduction reduction,
                                          const at::Tensor& pos_weight) {
  require_defined("binary_cross_entropy_with_logits", {&input, &target});
  const ExactTensors exact;
  LATHE_CHECK(input.sizes() == target.sizes(), "binary_cross_entropy_with_logits: the targets are ",
              describe(target.data()), " for an input of ", describe(input.data()));
  const Variable x = wide(input), t = wide(target), rest = 1.0 - t;
  Variable log_p = logsigmoid(x);  // log(1 - p) is log_p - x
  if (pos_weight.defined()) log_p = log_p * (rest + t * constant_like(pos_weight, x));
  Variable losses = rest * x - log_p;
  if (weight.defined()) losses = losses * constant_like(weight, x);
  return reduced(losses, reduction);
}

Variable nll_loss(const Variable& input, const at::Tensor& target, const at::Tensor& weight,
                  int64_t ignore_index, Reduction reduction) {
  require_defined("nll_loss", {&input});
  const ExactTensors exact;
  const Variable log_p = wide(input);
  const int64_t dim = class_dim(log_p);
  const Chosen chosen("nll_loss", log_p, target, weight, ignore_index);
  return chosen.reduce(-gather(log_p, dim, chosen.index), reduction, dim);
}
Variable cross_entropy(const Variable& input, const at::Tensor& target,
                       const CrossEntropyOptions& o) {
  require_defined("cross_entropy", {&input});
  const ExactTensors exact;
  LATHE_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1, "cross_entropy: label_smoothing ",
              o.label_smoothing, " is outside [0, 1]");
  const int64_t dim = class_dim(input);
  const Variable log_p = log_softmax(wide(input), dim);
  if (o.label_smoothing == 0) return nll_loss(log_p, target, o.weight, o.ignore_index, o.reduction);
  const Chosen chosen("cross_entropy", log_p, target, o.weight, o.ignore_index);
  Variable all = log_p;  // the log-probabilities of all classes, for label smoothing
  if (o.weight.defined()) {
    Dims sizes(static_cast<size_t>(log_p.dim()), 1);
    sizes[static_cast<size_t>(dim)] = log_p.size(dim);
    all = log_p * constant_like(o.weight.reshape(sizes), log_p);
  }
  const double share = o.label_smoothing / static_cast<double>(log_p.size(dim));
  const Variable own = chosen.reduce(-gather(log_p, dim, chosen.index), o.reduction, dim);
  const Variable others = chosen.finish(
      masked_fill(-sum(all, dim, /*keepdim=*/true), chosen.ignored, 0), o.reduction, dim);
  return own * (1 - o.label_smoothing) + others * share;
}
Variable cross_entropy(const Variable& input, const Variable& target,
                       const CrossEntropyOptions& o) {
  require_defined("cross_entropy", {&input, &target});
  const ExactTensors exact;
  LATHE_CHECK(input.sizes() == target.sizes() && target.data().is_floating_point(),
              "cross_entropy: probabilities ", describe(target.data()), " for ",
              describe(input.data()));
  LATHE_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1, "cross_entropy: label_smoothing ",
              o.label_smoothing, " is outside [0, 1]");
  const int64_t dim = class_dim(input), classes = input.size(dim);
  const Variable log_p = log_softmax(wide(input), dim);
  Variable p = wide(target);
  if (o.label_smoothing > 0)
    p = p * (1 - o.label_smoothing) + o.label_smoothing / static_cast<double>(classes);
  if (o.weight.defined()) {
    Dims sizes(static_cast<size_t>(log_p.dim()), 1);
    sizes[static_cast<size_t>(dim)] = classes;
    p = p * constant_like(o.weight.reshape(sizes), log_p);
  }
  const Variable losses = -sum(log_p * p, dim);
  return reduced(losses, o.reduction);
}

Variable kl_div(const Variable& input, const Variable& target, Reduction reduction,
                bool log_target) {
  require_defined("kl_div", {&input, &target});
  const ExactTensors exact;
  const Variable x = wide(input), t = wide(target);
  return reduced(log_target ? exp(t) * (t - x) : xlogy(t, t) - t * x, reduction);
}
Variable kl_div_batchmean(const Variable& input, const Variable& target, bool log_target) {
  require_defined("kl_div_batchmean", {&input, &target});
  const ExactTensors exact;
  LATHE_CHECK(input.dim() > 0, "kl_div_batchmean: input must have at least one dim");
  return kl_div(input, target, Reduction::sum, log_target) / static_cast<double>(input.size(0));
}
Variable cosine_similarity(const Variable& x1, const Variable& x2, int64_t dim, double eps) {
  require_defined("cosine_similarity", {&x1, &x2});
  const ExactTensors exact;
  const Variable a = wide(x1), b = wide(x2);
  const auto direction = [&](const Variable& v, int64_t d) {
    return v / clamp(norm(v, 2, d, /*keepdim=*/true), eps);
  };
  // `dim` is a dim of the broadcast shape, so count it from the end.
  const int64_t dims = std::max(a.dim(), b.dim()), back = wrap_dim(dim, dims) - dims;
  const auto full = [&](const Variable& v) {
    Dims sizes(static_cast<size_t>(dims - v.dim()), 1);
    sizes.append(v.sizes().begin(), v.sizes().end());
    return reshape(v, sizes);
  };
  if (dims == 0) return direction(a, 0) * direction(b, 0);
  const int64_t size = std::max(full(a).size(back), full(b).size(back));
  const auto wide_enough = [&](const Variable& v) {
    Variable f = full(v);
    Dims sizes = dims_of(f.sizes());
    sizes[static_cast<size_t>(dims + back)] = size;
    return f.size(back) == size ? f : expand(f, sizes);
  };
  return sum(direction(wide_enough(a), back) * direction(wide_enough(b), back), back);
}
Variable pairwise_distance(const Variable& x1, const Variable& x2, double p, double eps,
                           bool keepdim) {
  require_defined("pairwise_distance", {&x1, &x2});
  const ExactTensors exact;
  return norm(wide(x1) - wide(x2) + eps, p, -1, keepdim);
}
Variable triplet_margin_loss(const Variable& anchor, const Variable& positive,
                             const Variable& negative, const TripletOptions& o,
                             Reduction reduction) {
  require_defined("triplet_margin_loss", {&anchor, &positive, &negative});
  const ExactTensors exact;
  LATHE_CHECK(o.margin > 0, "triplet_margin_loss: a margin of ", o.margin, " must be above 0");
  const Variable near = pairwise_distance(anchor, positive, o.p, o.eps);
  Variable far = pairwise_distance(anchor, negative, o.p, o.eps);
  if (o.swap) far = minimum(far, pairwise_distance(positive, negative, o.p, o.eps));
  return reduced(clamp(near - far + o.margin, 0.0), reduction);
}

}  // namespace lathe
