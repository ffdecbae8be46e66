#include "nn/init.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"
#include "core/kernels/random.h"
#include "core/mapped_memory.h"
#include "core/rng.h"

namespace lathe {
namespace {

// The functions below fill a tensor on the CPU in float32, so that the values are the same on every
// device.

void normal(const at::Tensor& t, double stddev, RngKey key) {
  fill_normal(t.mutable_data_ptr<float>(), t.numel(), stddev, key);
  bump_version(t);
}
void uniform(const at::Tensor& t, double bound, RngKey key) {
  fill_uniform(t.mutable_data_ptr<float>(), t.numel(), bound, key);
  bump_version(t);
}

/// Fills `t` with the initial values of the parameter `p`.
void fill_weight(const NamedParameter& p, const at::Tensor& t, Init init, int64_t depth,
                 RngKey key) {
  LATHE_CHECK(
      t.dim() >= 2, p.path, " is a ", p.role.name, " of shape ", describe(t.sizes()),
      "; fan-in and fan-out need 2 dimensions or more: give the parameter another Role::Start");
  const auto out = static_cast<double>(t.size(0)), in = static_cast<double>(t.size(1));
  const double field = static_cast<double>(t.numel()) / (out * in);  // number of filter positions
  const double fan_out = out * field, fan_in = in * field;
  const double residual = p.role.residual ? 1 / std::sqrt(2.0 * static_cast<double>(depth)) : 1;
  switch (init) {
    case Init::gpt2: return normal(t, 0.02 * residual, key);
    case Init::xavier_uniform: return uniform(t, std::sqrt(6 / (fan_in + fan_out)), key);
    case Init::xavier_normal: return normal(t, std::sqrt(2 / (fan_in + fan_out)), key);
    case Init::kaiming: return normal(t, std::sqrt(2 / fan_in), key);
    case Init::fan_in: return normal(t, 1 / std::sqrt(fan_in), key);
  }
}

}  // namespace

namespace {
constexpr std::array<std::pair<const char*, Init>, 5> names{
    {{"gpt2", Init::gpt2},
     {"xavier_uniform", Init::xavier_uniform},
     {"xavier_normal", Init::xavier_normal},
     {"kaiming", Init::kaiming},
     {"fan_in", Init::fan_in}}};
}  // namespace

Init init_from_config(const std::string& name) {
  for (const auto& [text, init] : names) {
    if (name == text) return init;
  }
  fail(Exit::internal, "no init is called ", name);
}

std::vector<std::string> init_names() {
  std::vector<std::string> all;
  for (const auto& [text, init] : names) all.emplace_back(text);
  return all;
}

namespace {

void fill(const NamedParameter& p, const at::Tensor& t, Init init, int64_t depth, RngKey key) {
  if (p.role.fill != nullptr) return p.role.fill(t, key);
  switch (p.role.start) {
    case Role::Start::scheme: fill_weight(p, t, init, depth, key); break;
    case Role::Start::normal: normal(t, 0.02, key); break;
    case Role::Start::fan_in: fill_weight(p, t, Init::fan_in, depth, key); break;
    case Role::Start::one: t.fill_(1); break;
    case Role::Start::zero: t.zero_(); break;
  }
}

}  // namespace

void initialize(const std::vector<NamedParameter>& parameters, Init init, int64_t depth,
                uint64_t seed) {
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    const bool is_direct = t.is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous();
    const at::Tensor values = is_direct ? t : at::empty(t.sizes(), at::kFloat);
    fill(p, values, init, depth, make_key(seed, hash_name("init/" + p.path)));
    if (!is_direct) t.copy_(values);
    release_pages(t);
  }
}

void initialize(const ModuleRef& model, Init init, uint64_t seed, int64_t depth) {
  assign_random_streams(model);
  initialize(parameters(model), init, depth, seed);
}

}  // namespace lathe
