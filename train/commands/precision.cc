#include "train/commands/precision.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/observer.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/io/text.h"
#include "core/kernels/gemm.h"
#include "core/kernels/update.h"
#include "core/rng.h"
#include "data/loader.h"
#include "train/session/passes.h"

namespace lathe {
namespace {

/// Returns the dot product of a and b. Rounds to T after each product and each addition.
template <class T>
double running_dot(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(c10::CppTypeToScalarType<T>::value),
                   y = b.to(c10::CppTypeToScalarType<T>::value);
  const T *p = x.const_data_ptr<T>(), *q = y.const_data_ptr<T>();
  T sum(0);
  for (int64_t i = 0; i < a.numel(); ++i) sum = static_cast<T>(sum + static_cast<T>(p[i] * q[i]));
  return static_cast<double>(sum);
}

template <class T>
AccumulationError errors_of(const at::Tensor& a64, const at::Tensor& b64, int64_t n) {
  AccumulationError e{.n = n, .dtype = c10::CppTypeToScalarType<T>::value};
  const at::Tensor a = a64.slice(0, 0, n).to(e.dtype), b = b64.slice(0, 0, n).to(e.dtype);
  const double dot = running_dot<double>(a, b), square = running_dot<double>(a, a);
  const auto off = [](double x, double right) { return std::abs(x - right) / right; };
  e.dot_low = off(running_dot<T>(a, b), dot);
  e.dot_fp32 = off(running_dot<float>(a, b), dot);
  e.dot_op = off(linear(Variable(a.view({1, n})), Variable(b.view({1, n}))).item(), dot);
  e.norm_low = off(std::sqrt(running_dot<T>(a, a)), std::sqrt(square));
  e.norm_fp32 = off(std::sqrt(running_dot<float>(a, a)), std::sqrt(square));
  e.norm_op = off(std::sqrt(grad_sum_cpu(a.const_data_ptr(), element_of(e.dtype), 0, n)),
                  std::sqrt(square));
  return e;
}

/// Returns whether, with autocast in a GPT, the gradients of the op's outputs are float16 or are
/// rounded to float16.
bool is_low(const Node& node) {
  const std::string name = node.name();
  return name == "linear" || name == "attention" || name == "gelu";
}

/// Counts the exponents of t's elements in `bins`. Returns how many elements are zero.
int64_t count_exponents(const at::Tensor& t, std::vector<double>& bins) {
  const at::Tensor host = t.to(at::kCPU, at::kFloat).contiguous();
  const float* p = host.const_data_ptr<float>();
  int64_t zeros = 0;
  for (int64_t i = 0; i < host.numel(); ++i) {
    if (p[i] == 0) {
      ++zeros;
      continue;
    }
    const int exponent =
        std::clamp(std::ilogb(p[i]), GradientExponents::lowest, GradientExponents::highest);
    bins[static_cast<size_t>(exponent - GradientExponents::lowest)] += 1;
  }
  return zeros;
}

void to_shares(std::vector<double>& bins, double total) {
  for (double& b : bins) b /= total;
}

struct Seen {
  int64_t zeros = 0, elements = 0;
  bool overflow = false;
};

/// Runs one pass over the batches at a loss scale. Converts each gradient of the ops that is_low()
/// accepts to `compute`, and calls `on_gradient` with the converted gradient.
Seen run_pass(const Model& model, const Task& task, const std::vector<Batch>& batches,
              at::ScalarType compute, float scale,
              const std::function<void(const at::Tensor&)>& on_gradient) {
  Seen seen;
  const ObserveOps observe({.on_gradient = [&](const Node& node, const at::Tensor& g) {
    if (!g.defined()) return;
    seen.overflow = seen.overflow || !std::isfinite(g.abs().amax().item<double>());
    if (!is_low(node)) return;
    // A matmul that adds a residual receives a float32 gradient and first rounds that gradient.
    const at::Tensor low = g.to(compute);
    seen.overflow = seen.overflow || !std::isfinite(low.abs().amax().item<double>());
    seen.elements += low.numel();
    seen.zeros += low.numel() - low.count_nonzero().item<int64_t>();
    if (on_gradient) on_gradient(low);
  }});
  const at::Tensor seed = at::zeros({}, at::TensorOptions(batches[0].inputs.device())).fill_(scale);
  for (const auto& batch : batches) {
    const auto divisor = static_cast<double>(std::max<int64_t>(task.targets(batch), 1));
    run_micro_batch([&] { return task.loss(model, batch, divisor); }, compute, {}, seed);
  }
  return seen;
}

}  // namespace

std::vector<AccumulationError> accumulation_errors(int max_power) {
  const auto most = static_cast<int64_t>(std::llround(std::pow(10, max_power)));
  const at::Tensor a = at::empty({most}, at::kDouble), b = at::empty({most}, at::kDouble);
  const RngKey key = make_key(1, hash_name("accumulation"));
  for (int64_t i = 0; i < most; ++i) {
    const Philox4 r = philox(counter(static_cast<uint64_t>(i), 0), key);
    a.mutable_data_ptr<double>()[i] = unit(r[0]) / 32;
    b.mutable_data_ptr<double>()[i] = unit(r[1]) / 32;
  }
  std::vector<AccumulationError> out;
  for (int64_t n = 1000; n <= most; n *= 10) {
    out.push_back(errors_of<c10::Half>(a, b, n));
    out.push_back(errors_of<c10::BFloat16>(a, b, n));
  }
  return out;
}

std::string accumulation_table(const std::vector<AccumulationError>& errors) {
  std::string out =
      "| terms | dtype | dot, summed in dtype | in fp32 | linear op | norm, summed in dtype | in "
      "fp32 | optimizer |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const auto& e : errors) {
    out += format("| %lld | %s | %.2g | %.2g | %.2g | %.2g | %.2g | %.2g |\n",
                  static_cast<long long>(e.n), dtype_name(e.dtype).c_str(), e.dot_low, e.dot_fp32,
                  e.dot_op, e.norm_low, e.norm_fp32, e.norm_op);
  }
  return out;
}

namespace {

/// Makes matmuls use ATen's kernels until destroyed, so that passes in float32 and in float16 have
/// the same nodes.
struct AtenKernelsOnly {
  AtenKernelsOnly() { use_kernels(false); }
  ~AtenKernelsOnly() { use_kernels(on); }
  const bool on = gemm_ready(Element::f32);
};

}  // namespace

GradientExponents gradient_exponents(const LoadedModel& loaded, int64_t batches) {
  const AtenKernelsOnly the_same_nodes_in_both_dtypes;
  const RunConfig& c = loaded.config;
  const auto data = open_data(c.data);
  if (loaded.state.encoding) data->normalize_as(*loaded.state.encoding);
  const Task& of_table = task_of({.config = c, .origins = {}}, data->facts());
  const RunTask run_task = make_run_task(loaded, of_table, data->facts());
  const Task& task = run_task.own ? *run_task.own : of_table;
  const auto drawn = draw_batches(*data, batch_sizes(c), static_cast<uint64_t>(c.train.seed), 0,
                                  batches, loaded.device);

  const auto clone = loaded.model->clone();
  Model& model = *clone;
  // The clone then has float32 parameters and no working copies.
  move_to(model, loaded.device, at::kFloat);

  GradientExponents e;
  constexpr size_t bins = GradientExponents::highest - GradientExponents::lowest + 1;
  e.activations.assign(bins, 0);
  e.weights.assign(bins, 0);

  const Seen wide = run_pass(model, task, drawn, at::kFloat, 1,
                             [&](const at::Tensor& g) { count_exponents(g, e.activations); });

  // The gradients of weights are summed over the batches, so divide them to get the mean.
  double weights = 0;
  for (const auto& p : trained_parameters(model)) {
    if (p.parameter.dim() < 2) continue;
    const at::Tensor& gradient = p.parameter.grad();
    if (gradient.defined()) count_exponents(gradient / static_cast<double>(batches), e.weights);
    weights += static_cast<double>(p.parameter.numel());
  }

  to_shares(e.activations, static_cast<double>(wide.elements));
  to_shares(e.weights, weights);
  e.zeros = static_cast<double>(wide.zeros) / static_cast<double>(wide.elements);

  // Do not count elements that are also zero in float32.
  const auto at_scale = [&](const std::string& name, float scale) {
    zero_grad(model);
    const Seen low = run_pass(model, task, drawn, at::kHalf, scale, nullptr);
    const double zeros = static_cast<double>(low.zeros) / static_cast<double>(low.elements);
    return GradientExponents::Pass{
        .name = name, .scale = scale, .zeros = zeros - e.zeros, .overflow = low.overflow};
  };

  for (const float scale : {1.0f, 8.0f, 1024.0f})
    e.passes.push_back(at_scale(format("%g", scale), scale));

  // Dynamic scaling doubles the scale until a step overflows, and then halves it. Find the scale
  // where it settles.
  GradientExponents::Pass settled = at_scale("dynamic", 65536);
  while (settled.overflow && settled.scale > 1)
    settled = at_scale("dynamic", static_cast<float>(settled.scale / 2));
  for (auto next = settled; !next.overflow && next.scale < 0x1p120;) {
    settled = next;
    next = at_scale("dynamic", static_cast<float>(next.scale * 2));
  }

  e.passes.push_back(settled);
  return e;
}

std::string exponents_text(const GradientExponents& e) {
  std::ostringstream out;
  // Print only the range of exponents that have a share of at least 0.01% after rounding.
  const auto used = [&](size_t i) { return e.activations[i] >= 5e-5 || e.weights[i] >= 5e-5; };

  size_t first = 0, last = e.activations.size() - 1;
  while (first < last && !used(first)) ++first;
  while (last > first && !used(last)) --last;

  const double most = std::max(*std::max_element(e.activations.begin(), e.activations.end()),
                               *std::max_element(e.weights.begin(), e.weights.end()));

  out << "exponent   activation gradients            weight gradients\n";
  for (size_t i = first; i <= last; ++i) {
    const int exponent = GradientExponents::lowest + static_cast<int>(i);
    const auto bar = [&](double share) {
      const auto stars = static_cast<size_t>(std::lround(20 * share / most));
      return format("%6.2f%% ", 100 * share) + std::string(stars, '#') +
             std::string(23 - stars, ' ');
    };

    // The smallest normal number of float16 is 2^-14, and its smallest subnormal number is 2^-24.
    const char* note = exponent == -15 ? "  < here float16 is subnormal"
                       : exponent == -25
                           ? "  < here and for smaller exponents, float16 rounds to 0 or 2^-24"
                           : "";

    std::string line =
        format("2^%-4d  ", exponent) + bar(e.activations[i]) + bar(e.weights[i]) + note;
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }

  out << format("zero in float32 already: %.3f%% of activation gradients\n", 100 * e.zeros);
  for (const auto& p : e.passes) {
    out << format(
        "float16 at loss scale %-8s %s: %.3f%% more are zero%s\n", p.name.c_str(),
        p.name == "dynamic" ? format("(settles at 2^%d)", std::ilogb(p.scale)).c_str() : "",
        100 * p.zeros, p.overflow ? ", some overflow" : "");
  }
  return out.str();
}

std::string exponents_svg(const GradientExponents& e) {
  constexpr double width = 760, height = 320, left = 50, bottom = 270, top = 40;
  const auto x_of = [&](double exponent) {
    return left + (width - left - 20) * (exponent - GradientExponents::lowest) /
                      (GradientExponents::highest - GradientExponents::lowest + 1);
  };

  const double most = std::max(*std::max_element(e.activations.begin(), e.activations.end()),
                               *std::max_element(e.weights.begin(), e.weights.end()));

  std::ostringstream out;
  out << format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      width, height);

  const auto zone = [&](double from, double to, const char* color, const char* text) {
    out << format("<rect x=\"%.1f\" y=\"%g\" width=\"%.1f\" height=\"%g\" fill=\"%s\"/>",
                  x_of(from), top, x_of(to) - x_of(from), bottom - top, color)
        << format("<text x=\"%.1f\" y=\"%g\">%s</text>\n", x_of(from) + 4, top + 14, text);
  };

  // Float16 has subnormal numbers from 2^-24 to 2^-14 and normal numbers up to 65504, just below
  // 2^16.
  zone(GradientExponents::lowest, -24, "#fde4e4", "zero in float16");
  zone(-24, -14, "#fdf3dc", "subnormal");
  zone(-14, 16, "#e9f5e9", "normal in float16");
  zone(16, GradientExponents::highest + 1, "#fde4e4", "");

  const double step = x_of(1) - x_of(0);
  // The two bars of an exponent are next to each other, each a little narrower than half of the
  // step between exponents.
  const auto bars = [&](const std::vector<double>& shares, double shift, const char* color) {
    for (size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] == 0) continue;
      // The 30 units at the top are left for the labels of the zones.
      const double h = (bottom - top - 30) * shares[i] / most;
      out << format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                    x_of(GradientExponents::lowest + static_cast<double>(i)) + shift * step,
                    bottom - h, 0.45 * step, h, color);
    }
  };

  bars(e.activations, 0.05, "#2b6cb0");
  bars(e.weights, 0.5, "#c05621");

  for (int exponent = GradientExponents::lowest; exponent <= GradientExponents::highest;
       exponent += 10) {
    out << format("<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">2^%d</text>\n", x_of(exponent),
                  bottom + 18, exponent);
  }

  out << format(
             "<text x=\"%g\" y=\"24\" font-size=\"14\">Exponents of gradients: <tspan "
             "fill=\"#2b6cb0\">activations"
             "</tspan> and <tspan fill=\"#c05621\">weights</tspan>, share of elements</text>\n",
             left)
      << format("<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%.0f%%</text>\n</svg>\n", left - 6,
                top + 34, 100 * most);
  return out.str();
}

}  // namespace lathe
