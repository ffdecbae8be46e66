#include "train/tasks/generate.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace lathe {

int64_t pick(const at::Tensor& logits_V, const Sampling& s, double draw) {
  const at::Tensor logits = logits_V.to(at::kCPU, at::kDouble).contiguous();
  const double* x = logits.const_data_ptr<double>();
  LATHE_CHECK(logits.numel() > 0, "pick: there are no logits");
  for (int64_t i = 0; i < logits.numel(); ++i) {
    if (!std::isfinite(x[i])) {
      fail(Exit::diverged, "the model's logits are not finite (", x[i], " for token ", i,
           "): its weights have diverged; take an earlier checkpoint");
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(logits.numel()));
  std::iota(order.begin(), order.end(), 0);
  // Likeliest first; equal ones by id, so that the choice is the same everywhere.
  std::stable_sort(order.begin(), order.end(), [x](int64_t a, int64_t b) { return x[a] > x[b]; });
  if (s.temperature == 0) return order[0];
  if (s.top_k > 0 && s.top_k < logits.numel()) order.resize(static_cast<size_t>(s.top_k));
  std::vector<double> p;
  for (int64_t id : order) p.push_back(std::exp((x[id] - x[order[0]]) / s.temperature));
  double total = std::accumulate(p.begin(), p.end(), 0.0);
  if (s.top_p < 1) {
    double reached = 0;
    size_t kept = 0;
    do {
      reached += p[kept++];
    } while (kept < p.size() && reached < s.top_p * total);
    p.resize(kept);
    total = reached;
  }
  double left = draw * total;
  for (size_t i = 0; i < p.size(); ++i) {
    left -= p[i];
    if (left <= 0) return order[i];
  }
  return order[p.size() - 1];
}

std::vector<int64_t> generate(const Model& model, int64_t most, std::vector<int64_t> ids, int64_t n,
                              const Sampling& sampling, Compute compute, at::Device device,
                              const std::function<bool(int64_t)>& on_token) {
  LATHE_CHECK(!ids.empty(), "generate: nothing to continue");
  const NoGrad no_grad;
  const Autocast autocast(compute);
  const RngKey key = make_key(sampling.seed, hash_name("generate"));
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) {
    const auto context = std::min<size_t>(ids.size(), static_cast<size_t>(most));
    const at::Tensor window_1T =
        at::tensor(at::ArrayRef<int64_t>(ids).slice(ids.size() - context), at::kLong).unsqueeze(0).to(device);
    const at::Tensor logits_V = model(window_1T).data().select(1, -1).squeeze(0);
    const int64_t id = pick(logits_V, sampling, unit(philox(counter(static_cast<uint64_t>(i), 0), key)[0]));
    ids.push_back(id);
    out.push_back(id);
    if (on_token && !on_token(id)) break;
  }
  return out;
}

}  // namespace lathe
