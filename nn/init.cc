#include "nn/init.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.h"
#include "core/rng.h"

namespace lathe {
namespace {

/// Copies value(i) into each element of t, drawn in double on the CPU.
template <class F>
void fill(const at::Tensor& t, F&& value) {
  constexpr int64_t piece = 1 << 14;  // a large weight must not need as much again beside it
  const at::Tensor flat = t.view(-1), drawn = at::empty({piece}, at::kDouble);
  auto* p = drawn.mutable_data_ptr<double>();
  for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
    const int64_t n = std::min(piece, flat.numel() - begin);
    for (int64_t i = 0; i < n; ++i) p[i] = value(static_cast<uint64_t>(begin + i));
    flat.slice(0, begin, begin + n).copy_(drawn.slice(0, 0, n));
  }
}

void fill_normal(const at::Tensor& t, double stddev, RngKey key) {
  // Box and Muller 1958: two uniforms give one normal here; the second is not needed.
  fill(t, [&](uint64_t i) {
    const Philox4 r = philox(counter(i, 0), key);
    return stddev * std::sqrt(-2 * std::log(unit(r[0]))) * std::cos(2 * std::numbers::pi * unit(r[1]));
  });
}

void fill_uniform(const at::Tensor& t, double bound, RngKey key) {
  fill(t, [&](uint64_t i) { return bound * (2 * unit(philox(counter(i, 0), key)[0]) - 1); });
}

void fill_weight(const NamedParameter& p, Init init, int64_t depth, RngKey key) {
  const at::Tensor& t = p.parameter.data();
  const auto fan_out = static_cast<double>(t.size(0)), fan_in = static_cast<double>(t.size(1));
  const double residual = p.role == Role::residual_weight ? 1 / std::sqrt(2.0 * static_cast<double>(depth)) : 1;
  switch (init) {
    case Init::gpt2: return fill_normal(t, 0.02 * residual, key);
    case Init::xavier_uniform: return fill_uniform(t, std::sqrt(6 / (fan_in + fan_out)), key);
    case Init::xavier_normal: return fill_normal(t, std::sqrt(2 / (fan_in + fan_out)), key);
    case Init::kaiming: return fill_normal(t, std::sqrt(2 / fan_in), key);
    case Init::fan_in: return fill_normal(t, 1 / std::sqrt(fan_in), key);
  }
}

}  // namespace

Init init_from_config(const std::string& name) {
  constexpr std::array<std::pair<const char*, Init>, 5> names{{{"gpt2", Init::gpt2},
                                                               {"xavier_uniform", Init::xavier_uniform},
                                                               {"xavier_normal", Init::xavier_normal},
                                                               {"kaiming", Init::kaiming},
                                                               {"fan_in", Init::fan_in}}};
  for (const auto& [text, init] : names) {
    if (name == text) return init;
  }
  fail(Exit::internal, "no init is called ", name);
}

void initialize(const std::vector<NamedParameter>& parameters, Init init, int64_t depth, uint64_t seed) {
  for (const auto& p : parameters) {
    const RngKey key = make_key(seed, hash_name("init/" + p.path));
    switch (p.role) {
      case Role::weight:
      case Role::residual_weight: fill_weight(p, init, depth, key); break;
      case Role::embedding: fill_normal(p.parameter.data(), 0.02, key); break;
      case Role::scale: p.parameter.data().fill_(1); break;
      case Role::lora_a: fill_weight(p, Init::fan_in, depth, key); break;
      case Role::lora_b:
      case Role::bias: p.parameter.data().zero_(); break;
    }
  }
}

}  // namespace lathe
