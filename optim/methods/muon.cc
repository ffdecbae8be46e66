#include "core/kernels/muon.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/kernels/rules.h"
#include "core/kernels/scratch.h"
#include "optim/methods/pieces.h"
#include "optim/methods/table.h"
#include "optim/methods/tensors.h"

namespace lathe {
namespace {

/// Computes out = a b, a^T b or a b^T. float32 products on CPUs use Lathe's kernels, whose results
/// do not depend on the number of threads.
void product(const at::Tensor& a, bool a_t, const at::Tensor& b, bool b_t, at::Tensor& out) {
  if (a.scalar_type() != at::kFloat || !a.is_cpu() || !gemm_ready(Element::f32)) {
    at::mm_out(out, a_t ? a.t() : a, b_t ? b.t() : b);
    return;
  }
  const auto matrix = [](const at::Tensor& t) {
    return Matrix{t.const_data_ptr(), t.size(1), Element::f32};
  };
  const int64_t m = out.size(0), n = out.size(1), k = a.size(a_t ? 0 : 1);
  const Epilogue e{.out = matrix(out)};
  a_t ? gemm_tn(matrix(a), matrix(b), m, n, k, e)
      : (b_t ? gemm_nt(matrix(a), matrix(b), m, n, k, e) : gemm(matrix(a), matrix(b), m, n, k, e));
}

// Coefficients of a Newton-Schulz step: a I + b g + c g^2.
constexpr double quintic_a = 3.4445, quintic_b = -4.7750, quintic_c = 2.0315;

/// Computes s = a I + b g + c s for a symmetric g, given s = g^2 [n, n].
template <class T>
void quintic(const at::Tensor& g_, at::Tensor& s_) {
  const T* g = g_.const_data_ptr<T>();
  T* s = s_.mutable_data_ptr<T>();
  const int64_t n = g_.size(0);
  parallel_for(0, n, divide_up(1 << 15, n), [&](int64_t first, int64_t last) {
    for (int64_t i = first * n; i < last * n; ++i)
      s[i] = static_cast<T>(quintic_b) * g[i] + static_cast<T>(quintic_c) * s[i];
    for (int64_t i = first; i < last; ++i) s[i * n + i] += static_cast<T>(quintic_a);
  });
}

/// A matrix [r, c] and the memory in which it is made orthogonal.
struct Workspace {
  explicit Workspace(at::Tensor matrix) : x(std::move(matrix)), other(at::empty_like(x)) {
    const int64_t n = std::min(x.size(0), x.size(1));
    gram = at::empty({n, n}, x.options());
    square = at::empty_like(gram);
  }
  at::Tensor x, other;      // [r, c]
  at::Tensor gram, square;  // [n, n], n = min(r, c): the smaller of x x^T and x^T x; its square
};

/// Brings the singular values of x, whose norm is at most 1, near 1: x = (a I + b x x^T + c (x
/// x^T)^2) x, `steps` times. If x^T x is smaller than x x^T, the polynomial of x^T x is multiplied
/// from the right instead.
void newton_schulz(Workspace& workspace, int64_t steps) {
  auto& [x, other, gram, square] = workspace;
  const bool wide = x.size(0) <= x.size(1);
  for (int64_t i = 0; i < steps; ++i) {
    product(x, !wide, x, wide, gram);
    product(gram, false, gram, false, square);
    if (!x.is_cpu())
      square.mul_(quintic_c).add_(gram, quintic_b).diagonal().add_(quintic_a);
    else if (x.scalar_type() == at::kDouble)
      quintic<double>(gram, square);
    else
      quintic<float>(gram, square);
    wide ? product(square, false, x, false, other) : product(x, false, square, false, other);
    std::swap(x, other);
  }
}

/// Returns the FLOPs of newton_schulz() on a matrix with these numbers of rows and columns.
double newton_schulz_flops(int64_t rows, int64_t columns, int64_t steps) {
  const auto n = static_cast<double>(std::min(rows, columns)),
             m = static_cast<double>(std::max(rows, columns));
  return static_cast<double>(steps) * (4 * n * n * m + 2 * n * n * n);
}

/// Muon: the direction of core/kernels/muon.h, made orthogonal by Newton-Schulz iterations. Muon
/// updates only hidden matrices (Role), and treats a filter as the matrix [out, product of the
/// other sizes]. AdamW updates the other parameters. muon_scale "rms" is from Liu et al. 2025,
/// "Muon is scalable for LLM training", and "spectral" from Jordan's original Muon.
class Muon final : public Method {
 public:
  explicit Muon(const OptimConfig& config)
      : rule_(rule_of(config)),
        adamw_rule_(rule_),
        steps_(config.muon_steps),
        rms_(config.muon_scale == "rms"),
        adamw_lr_factor_(config.muon_rest_lr) {
    adamw_rule_.kind = rule_kind<AdamW>;
    rule_.momentum = config.muon_momentum;
    rule_.nesterov = config.muon_nesterov;
    rule_.kind = rule_kind<Descend>;
  }
  UpdateRule rule() const override { return adamw_rule_; }

  MethodState state(const NamedParameter& p) const override {
    const at::Tensor& t = p.parameter.data();
    if (!p.role.hidden || t.dim() < 2 || t.numel() == 0) {
      MethodState state = state_of_rule(adamw_rule_, t);
      state.divisible = true;
      return state;
    }

    const int64_t rows = full_sizes(p.parameter)[0];
    return {
        .tensors = {{.name = "momentum_buffer", .sizes = t.sizes().vec(), .dtype = state_dtype(t)}},
        .whole = true,
        .flops = newton_schulz_flops(rows, full_numel(p.parameter) / rows, steps_),
        .joins_parts = true};
  }

  bool runs_on_gpu() const override { return true; }

  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rest, StepControl* control,
              bool cuda) const override {
    UpdateRule rule = rule_;
    rule.lr = rest.lr;

    std::vector<SlotUpdate> cut, matrices, others;
    for (SlotUpdate& slot : slots) {
      if (slot.whole) {
        (slot.cut != nullptr ? cut : matrices).push_back(slot);
      } else {
        slot.args.lr_scale *= adamw_lr_factor_;
        others.push_back(slot);
      }
    }

    update_elements(others, rest, control, cuda);
    if (const auto device = device_of_tensors(cuda)) {
      for (const auto* all : {&cut, &matrices}) {
        for (const SlotUpdate& slot : *all) update_by_tensors(slot, rule, control, *device);
      }
      return;
    }
    // Joining the parts of a cut matrix is a collective, so cut matrices are updated one after
    // another, each on all threads.
    for (const SlotUpdate& slot : cut) update(slot, rule, control);

    // The largest matrices come first, so that threads end at about the same time. If there are
    // many matrices, each is updated on one thread. This does not change the bits of a matrix
    // product.
    std::stable_sort(matrices.begin(), matrices.end(),
                     [](const SlotUpdate& a, const SlotUpdate& b) { return a.args.n > b.args.n; });

    const auto count = static_cast<int64_t>(matrices.size());
    const int64_t threads = at::get_num_threads();
    if (count >= 2 * threads && is_dry_run()) return allocate_workspaces(matrices, threads);
    if (count < 2 * threads) {
      for (const SlotUpdate& slot : matrices) update(slot, rule, control);
      return;
    }

    parallel_tasks(
        count, [&](int64_t i) { update(matrices[static_cast<size_t>(i)], rule, control); }, [] {});
  }

 private:
  /// Allocates the workspaces of the first `count` matrices at the same time, as the threads of a
  /// real run do. A dry run needs this function because it does not run the threads' work.
  static void allocate_workspaces(const std::vector<SlotUpdate>& matrices, int64_t count) {
    std::vector<Workspace> all;
    for (int64_t i = 0; i < count; ++i)
      all.push_back(workspace_of(matrices[static_cast<size_t>(i)]));
  }
  /// Returns memory for the direction of a parameter, or of this process's part of it.
  static at::Tensor direction_of(const SlotUpdate& slot) {
    return at::empty(slot.sizes, dtype_of(state_type(slot.args.param_type)));
  }
  static Workspace workspace_of(const SlotUpdate& slot) {
    return Workspace(as_matrix(direction_of(slot)));
  }
  static at::Tensor as_matrix(const at::Tensor& t) {
    return t.view({t.size(0), t.numel() / t.size(0)});
  }
  /// Returns this process's part of a parameter's direction.
  static at::Tensor own_part(const SlotUpdate& slot, const at::Tensor& whole) {
    return slot.cut != nullptr ? slot.cut->part_of(whole) : whole;
  }

  void update(const SlotUpdate& slot, const UpdateRule& rule, StepControl* control) const {
    UpdateArgs args = slot.args;
    const bool wide = args.param_type == Element::f64;

    // Divide by the Frobenius norm, which bounds the singular values by 1, as Newton-Schulz needs.
    // The lower bound guards against an update of zeros.
    at::Tensor x = direction_of(slot);
    void* const part = x.mutable_data_ptr();
    double squares = piece_sum(args.n, grad_sum_chunk, [&](int64_t begin, int64_t end) {
      return muon_direction_cpu(args, rule, *control, begin, end, part);
    });
    if (slot.cut != nullptr) {
      x = (*slot.join)(x, *slot.cut);
      squares = piece_sum(x.numel(), grad_sum_chunk, [&](int64_t begin, int64_t end) {
        return grad_sum_cpu(x.const_data_ptr(), wide ? Element::f64 : Element::f32, begin, end);
      });
    }
    const double scale = 1 / std::max(std::sqrt(squares), 1e-7);
    void* const all = x.mutable_data_ptr();
    each_piece(x.numel(), grad_sum_chunk, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        wide ? static_cast<double*>(all)[i] *= scale
             : static_cast<float*>(all)[i] *= static_cast<float>(scale);
    });

    Workspace workspace(as_matrix(x));
    newton_schulz(workspace, steps_);
    const double length = update_length(workspace.x.size(0), workspace.x.size(1));
    const at::Tensor own = own_part(slot, workspace.x.view(x.sizes()));
    args.grad = own.const_data_ptr();
    args.grad_type = wide ? Element::f64 : Element::f32;

    // Weight decay is multiplied by lr_scale as well. Divide it by the update's length, so that the
    // decay rate does not depend on this length.
    args.weight_decay /= length;
    args.lr_scale *= length;
    update_elements({{.args = args, .sizes = slot.sizes, .whole = true}}, rule, control, false);
  }

  /// Does the same as update(), by ATen's ops.
  void update_by_tensors(const SlotUpdate& slot, const UpdateRule& rule, StepControl* control,
                         at::Device device) const {
    const SlotTensors of(slot, rule, control, device);
    const double momentum = rule.momentum, rest = 1 - momentum;

    const at::Tensor g = of.gradient(), m = of.state(0, slot.sizes);
    const at::Tensor moved = momentum * m + rest * g;
    at::Tensor x = rule.nesterov ? rest * g + momentum * moved : moved;
    of.set(m, moved);
    if (slot.cut != nullptr) x = (*slot.join)(x.view(slot.sizes), *slot.cut);

    Workspace workspace(as_matrix(x / norm_of(x).clamp_min(1e-7).to(x.scalar_type())));
    newton_schulz(workspace, steps_);
    const at::Tensor own = own_part(slot, workspace.x.view(x.sizes()));
    of.descend(own, slot.args.weight_decay,
               update_length(workspace.x.size(0), workspace.x.size(1)));
  }

  /// Returns the factor of an orthogonal update, which depends on the matrix's shape.
  double update_length(int64_t rows, int64_t columns) const {
    const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
    return rms_ ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c));
  }

  UpdateRule rule_, adamw_rule_;
  int64_t steps_;
  bool rms_;
  double adamw_lr_factor_;
};

}  // namespace

std::unique_ptr<Method> make_muon(const OptimConfig& config) {
  return std::make_unique<Muon>(config);
}

}  // namespace lathe
