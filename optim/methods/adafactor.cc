// Implements Adafactor. Sums are accumulated in a fixed order within each piece, and then over the
// pieces. The size of a piece depends only on the shape of the parameter, so sums do not depend on
// the number of threads.
#include "core/kernels/adafactor.h"

#include <ATen/TensorOperators.h>

#include <cmath>

#include "core/kernels/rules.h"
#include "optim/methods/pieces.h"
#include "optim/methods/table.h"
#include "optim/methods/tensors.h"

namespace lathe {
namespace {

/// Implements Adafactor (core/kernels/adafactor.h). A parameter with two or more dimensions is
/// factored as a matrix [size of dim 0, product of the other sizes].
class Adafactor final : public Method {
 public:
  explicit Adafactor(const OptimConfig& config)
      : rule_(rule_of(config)),
        decay_(config.factor_decay),
        clip_(config.factor_clip),
        relative_step_(config.relative_step),
        scale_parameter_(config.scale_parameter) {
    rule_.kind = rule_kind<Descend>;
  }
  UpdateRule rule() const override { return rule_; }

  MethodState state(const NamedParameter& p) const override {
    const at::Tensor& t = p.parameter.data();
    const auto dtype = state_dtype(t);
    if (t.dim() < 2 || t.numel() == 0)
      return {.tensors = {{.name = "exp_avg_sq", .sizes = t.sizes().vec(), .dtype = dtype}},
              .whole = true};
    return {.tensors =
                {{.name = "row_var", .sizes = {t.size(0)}, .dtype = dtype, .place = 0},
                 {.name = "col_var", .sizes = {t.numel() / t.size(0)}, .dtype = dtype, .place = 1}},
            .whole = true};
  }

  bool runs_on_gpu() const override { return true; }

  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
              bool cuda) const override {
    const auto device = device_of_tensors(cuda);
    for (const SlotUpdate& slot : slots) {
      if (slot.args.n == 0) continue;
      if (device)
        update_by_tensors(slot, rule, control, *device);
      else
        update(slot, rule, control);
    }
  }

 private:
  void update(const SlotUpdate& slot, const UpdateRule& rule, StepControl* control) const {
    // A parameter with fewer than two dimensions is not factored: it has no rows, and a second
    // moment is kept for each of its elements.
    const auto t = static_cast<double>(control->updates);
    const int64_t n = slot.args.n, rows = slot.sizes.size() < 2 ? 0 : slot.sizes[0],
                  columns = rows > 0 ? n / rows : 0;
    const AdafactorArgs args{
        .update = slot.args, .rows = rows, .columns = columns, .decay = 1 - std::pow(t, -decay_)};

    // A piece is a block of rows, or of elements if the parameter is not factored. Use at most 64
    // blocks of rows, because each one needs a sum for every column.
    const int64_t all = rows > 0 ? rows : n;
    const int64_t piece = rows > 0
                              ? std::max({int64_t{1}, grad_sum_chunk / columns, (rows + 63) / 64})
                              : grad_sum_chunk;
    const int64_t pieces = (all + piece - 1) / piece;
    std::vector<double> sums(static_cast<size_t>(pieces * columns)),
        row_factors(static_cast<size_t>(rows)), column_factors(static_cast<size_t>(columns));

    // First pass: update the row moments, and add up each column within each piece. `squares` is
    // the sum of the parameter's squares.
    const double squares = piece_sum(all, piece, [&](int64_t begin, int64_t end) {
      return adafactor_moments_cpu(args, rule, *control, begin, end,
                                   sums.data() + begin / piece * columns);
    });

    for (int64_t i = 1; i < pieces; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        sums[static_cast<size_t>(j)] += sums[static_cast<size_t>(i * columns + j)];
    }

    const double *r = nullptr, *c = nullptr;
    if (rows > 0) {
      adafactor_factors_cpu(args, sums.data(), row_factors.data(), column_factors.data());
      r = row_factors.data();
      c = column_factors.data();
    }

    // Second pass: compute the sum of squares of the update, which is clipped by its root mean
    // square.
    const double update_squares = piece_sum(all, piece, [&](int64_t begin, int64_t end) {
      return adafactor_direction_cpu(args, rule, *control, begin, end, r, c);
    });
    double scale = 1 / std::max(1.0, std::sqrt(update_squares / static_cast<double>(n)) / clip_);
    const double lr = rule.lr * slot.args.lr_scale;

    // Scale by the factors of the paper's step size alpha. As in torch, weight decay is not scaled.
    if (relative_step_ && lr > 0) scale *= std::min(lr, 1 / std::sqrt(t)) / lr;
    if (scale_parameter_) scale *= std::max(1e-3, std::sqrt(squares / static_cast<double>(n)));

    each_piece(all, piece, [&](int64_t, int64_t begin, int64_t end) {
      adafactor_update_cpu(args, rule, control, begin, end, r, c, scale);
    });
  }

  /// Does the same as update(), by ATen's ops.
  void update_by_tensors(const SlotUpdate& slot, const UpdateRule& rule, StepControl* control,
                         at::Device device) const {
    const SlotTensors of(slot, rule, control, device);
    const bool is_factored = slot.sizes.size() >= 2;
    const int64_t rows = is_factored ? slot.sizes[0] : 1, columns = slot.args.n / rows;
    const at::Tensor g = of.gradient().view({rows, columns});
    const at::ScalarType dtype = g.scalar_type();
    const at::Tensor decay = (1 - of.updates().pow(-decay_)).to(dtype);
    const auto moved = [&](const at::Tensor& moment, const at::Tensor& now) {
      return decay * moment + (1 - decay) * now;
    };

    const at::Tensor x = g * g + 1e-30;
    at::Tensor u;
    if (is_factored) {
      const at::Tensor r = of.state(0, {rows}), c = of.state(1, {columns});
      const at::Tensor by_row = moved(r, x.mean(1)), by_column = moved(c, x.mean(0));
      of.set(r, by_row);
      of.set(c, by_column);
      u = g * (by_row / by_row.mean()).rsqrt().unsqueeze(1) * by_column.rsqrt();
    } else {
      const at::Tensor v = of.state(0, {rows, columns});
      const at::Tensor square = moved(v, x);
      of.set(v, square);
      u = g / square.sqrt();
    }

    const auto root_mean_square = [&](const at::Tensor& t) {
      return norm_of(t) / std::sqrt(static_cast<double>(slot.args.n));
    };
    at::Tensor scale = (root_mean_square(u) / clip_).clamp_min(1).reciprocal();
    const double lr = rule.lr * slot.args.lr_scale;
    if (relative_step_ && lr > 0) scale = scale * of.updates().rsqrt().clamp_max(lr) / lr;
    if (scale_parameter_) scale = scale * root_mean_square(of.parameter()).clamp_min(1e-3);
    of.descend(u * scale.to(dtype), slot.args.weight_decay);
  }

  UpdateRule rule_;
  double decay_, clip_;
  bool relative_step_, scale_parameter_;
};

}  // namespace

std::unique_ptr<Method> make_adafactor(const OptimConfig& config) {
  return std::make_unique<Adafactor>(config);
}

}  // namespace lathe
