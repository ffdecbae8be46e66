#include "train/loop/layers.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/masked_select.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "nn/module_call.h"

namespace lathe {
namespace {

constexpr int64_t sampled = 16384;

/// Returns up to `sampled` evenly spaced elements. The stride is odd, so that it is rarely a
/// multiple of the length of a row. Such a multiple would sample a single column.
at::Tensor some_of(const at::Tensor& t) {
  const at::Tensor flat = t.reshape({-1});
  if (flat.numel() <= sampled) return flat.clone();
  return flat.slice(0, 0, flat.numel(), ((flat.numel() + sampled - 1) / sampled) | 1).clone();
}

double size_of(const at::Tensor& t) {
  return at::linalg_vector_norm(t.to(at::kFloat), 2).item<double>();
}

/// Returns "blocks.0.attn" for "blocks.0.attn.weight".
std::string layer_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(0, dot);
}

/// Returns whether results are observed: only in the first micro-batch, and not while a backward
/// pass recomputes activations.
bool is_observed() {
  return mode().training && !mode().is_recomputing && mode().random &&
         mode().random->first_sample == 0;
}

/// Returns true for an op that ends in an activation function whose result has the sign of its
/// input. A unit of such an op is inactive if its result is not positive.
bool is_activation(std::string_view op) {
  static const std::set<std::string_view> names{"relu",       "gelu", "silu",      "linear_gelu",
                                                "leaky_relu", "elu",  "hardswish", "mish"};
  return names.contains(op);
}

/// Returns the share of units whose results are nowhere above 0, as a scalar. For images, a unit is
/// a channel; otherwise, it is an element of the last dimension.
at::Tensor dead_share(const at::Tensor& y) {
  const int64_t units = y.dim() == 4 ? 1 : y.dim() - 1;
  std::vector<int64_t> others;
  for (int64_t d = 0; d < y.dim(); ++d) {
    if (d != units) others.push_back(d);
  }
  const at::Tensor most = others.empty() ? y : y.amax(others);
  return most.le(0).to(at::kFloat).mean();
}

std::optional<Histogram> histogram_of(const std::string& name, const at::Tensor& tensor,
                                      double scale) {
  at::Tensor t = tensor.detach().to(at::kCPU, at::kFloat).reshape({-1});
  if (t.numel() == 0) return std::nullopt;

  // Leave out values that are not finite, because their range can't be divided into bins.
  if (const at::Tensor finite = at::isfinite(t); !finite.all().item<bool>())
    t = at::masked_select(t, finite);
  if (t.numel() == 0) return std::nullopt;
  if (scale != 1) t = t / scale;

  const auto [least, largest] = at::aminmax(t);
  Histogram h{.name = name, .min = least.item<double>(), .max = largest.item<double>()};
  h.sum = t.sum(at::kDouble).item<double>();
  h.sum_squares = t.to(at::kDouble).square().sum().item<double>();

  // If all values are equal, their range can't be divided into bins, so return a single bin.
  constexpr int64_t bins = 64;
  if (h.min == h.max) {
    h.limits = {h.max}, h.counts = {static_cast<double>(t.numel())};
    return h;
  }

  const at::Tensor counts = at::histc(t, bins, h.min, h.max).contiguous();
  for (int64_t i = 0; i < bins; ++i) {
    h.limits.push_back(i + 1 == bins ? h.max
                                     : h.min + (h.max - h.min) * static_cast<double>(i + 1) / bins);
    h.counts.push_back(static_cast<double>(counts.const_data_ptr<float>()[i]));
  }
  return h;
}

}  // namespace

LayerStatsCollector::LayerStatsCollector(Session& session, bool histograms) : session_(session) {
  const auto& params = session.params;
  // Visit the modules first, so that layers are in the order of the model.
  Visit visit({.module = [&](const std::string& path, int64_t, std::type_index, void*) {
    if (layers_.try_emplace(path).second) order_.push_back(path);
  }});
  session.model->visit(visit);
  const bool has_modules = !order_.empty();

  // For a model that does not visit its modules, the paths of the parameters name the layers.
  for (size_t i = 0; i < params.size(); ++i) {
    const auto [layer, is_new] = layers_.try_emplace(layer_of(params[i].path));
    if (is_new) order_.push_back(layer->first);
    layer->second.params.push_back(i);
    before_.push_back(some_of(params[i].parameter.data()));
  }

  // An op does not know its layer, so take the layer of the innermost module call around the op.
  observe_.emplace(OpObserver{.on_result = [this](const OpResult& r) {
    const ModuleCall* call = ModuleCall::innermost();
    if (!is_observed() || !is_activation(r.name) || call == nullptr || r.outputs[0].dim() < 2)
      return;
    const auto layer = layers_.find(call->path());
    if (layer != layers_.end()) layer->second.dead = dead_share(r.outputs[0]);
  }});

  if (!has_modules) return;
  hook_ = std::make_unique<ForwardHook>(
      *session.model, "*", [this, histograms](const std::string& path, const Variable& y) {
        if (!is_observed() || !y.data().is_floating_point() || y.data().numel() == 0)
          return Variable();
        Seen& seen = layers_.at(path);
        std::tie(seen.least, seen.largest) = at::aminmax(y.data());  // faster than computing a norm
        // Collect only one histogram of each layer, since a pipeline stage with several parts runs
        // the layers before the blocks once for each part.
        if (!histograms || std::exchange(seen.has_histogram, true)) return Variable();
        if (auto h = histogram_of("activations/" + path, y.data(), 1))
          activations_.push_back(std::move(*h));
        return Variable();
      });
}

std::vector<LayerStats> LayerStatsCollector::stats() const {
  // The loss was scaled before the backward pass, so divide the norms of gradients by the loss
  // scale.
  const double scale = session_.optimizer.control().loss_scale;

  std::vector<LayerStats> all;
  for (const std::string& name : order_) {
    const Seen& seen = layers_.at(name);
    LayerStats f{.layer = name};
    double weights = 0, grads = 0, change = 0, was = 0;
    bool has_grad = false;

    for (const size_t i : seen.params) {
      const Variable& p = session_.params[i].parameter;
      weights += std::pow(size_of(p.data()), 2);
      if (p.grad().defined()) {
        has_grad = true;
        grads += std::pow(size_of(p.grad()) / scale, 2);
      }

      // The sampled elements represent the complete tensor, so their sums of squares are scaled up.
      const double share =
          static_cast<double>(p.data().numel()) / static_cast<double>(before_[i].numel());
      const at::Tensor before = before_[i].to(at::kFloat);
      change += share * std::pow(size_of(some_of(p.data()).to(at::kFloat) - before), 2);
      was += share * std::pow(size_of(before), 2);
    }

    if (!seen.params.empty()) f.weight_norm = std::sqrt(weights);
    if (has_grad) f.grad_norm = std::sqrt(grads);
    if (was > 0) f.update_ratio = std::sqrt(change / was);

    if (seen.least.defined())
      f.act_max =
          std::max(std::fabs(seen.least.item<double>()), std::fabs(seen.largest.item<double>()));
    if (seen.dead.defined()) f.dead = seen.dead.item<double>();

    if (!named_stats(f).empty()) all.push_back(std::move(f));
  }
  return all;
}

std::vector<Histogram> LayerStatsCollector::histograms() const {
  const double scale = session_.optimizer.control().loss_scale;
  std::vector<Histogram> all = activations_;
  const auto add = [&](std::optional<Histogram> h) {
    if (h) all.push_back(std::move(*h));
  };
  for (const NamedParameter& p : session_.params) {
    add(histogram_of("weights/" + p.path, p.parameter.data(), 1));
    if (p.parameter.grad().defined())
      add(histogram_of("gradients/" + p.path, p.parameter.grad(), scale));
  }
  return all;
}

}  // namespace lathe
