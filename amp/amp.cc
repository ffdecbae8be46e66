#include "amp/amp.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "autograd/fp8.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "core/dtype.h"
#include "core/mapped_memory.h"
#include "core/memory.h"
#include "core/storage.h"

namespace lathe {
at::ScalarType compute_dtype(const AmpConfig& config) { return dtype_from_config(config.dtype); }

at::ScalarType matmul_dtype(at::ScalarType compute) {
  return compute == at::kFloat8_e4m3fn ? at::kBFloat16 : compute;
}

Autocast::Autocast(Compute compute) {
  Mode& m = mode();
  m.compute = matmul_dtype(compute.dtype);
  m.fp8 = compute.dtype == at::kFloat8_e4m3fn;
  m.cache_casts = compute.cache;
  ++m.autocast_depth;
}

Autocast::~Autocast() {
  if (mode().autocast_depth == 1) clear_cast_cache();
}

void make_working_copies(const std::vector<NamedParameter>& parameters, at::ScalarType compute,
                         bool copies, bool low_grad) {
  if (compute == at::kFloat) return;
  const at::ScalarType dtype = matmul_dtype(compute);
  const MemoryScope scope(Memory::parameters);
  for (const auto& p : parameters) {
    const bool is_float32 = p.parameter.dtype() == at::kFloat;
    // A float32 parameter that no matmul reads needs no copy, and its gradients stay in float32.
    if (!is_multiplied(p.role) && is_float32) continue;

    Precision& precision = p.parameter.leaf().precision;
    if (copies && is_multiplied(p.role) && !precision.fp8 && is_float32) {
      const at::Tensor& t = p.parameter.data();
      if (has_memory(t))
        precision.copy_low(t, dtype);
      else
        precision.low = tensor_without_memory(t.sizes(), t.options().dtype(dtype));
    }
    precision.grad_dtype = low_grad ? dtype : at::kFloat;
    release_pages(p.parameter.data());
    release_pages(precision.low);
  }
}

void refresh_working_copies(std::span<const NamedParameter> parameters) {
  for (const auto& p : parameters) {
    Precision& precision = p.parameter.leaf().precision;
    precision.refresh_low(p.parameter.data());
    release_pages(p.parameter.data());
    release_pages(precision.low);
  }
}

void make_fp8_layers(const std::vector<NamedParameter>& parameters, const AmpConfig& config) {
  if (config.dtype != "fp8") return;
  int64_t blocks = 0;
  for (const auto& p : parameters) blocks = std::max(blocks, p.block + 1);
  const MemoryScope scope(Memory::parameters);

  for (const auto& p : parameters) {
    if (!is_linear_weight(p.role) || p.block < config.fp8_edge_blocks ||
        p.block >= blocks - config.fp8_edge_blocks)
      continue;
    auto scaling = std::make_shared<Fp8Scaling>();
    if (config.fp8_scaling == "delayed") {
      scaling->history =
          at::zeros({3, 1 + config.fp8_history}, p.parameter.data().options().dtype(at::kFloat));
    }
    p.parameter.leaf().precision.fp8 = std::move(scaling);
  }
}

void advance_fp8(const std::vector<NamedParameter>& parameters) {
  for (const auto& p : parameters) {
    if (const auto& fp8 = p.parameter.leaf().precision.fp8; fp8 && fp8->history.defined())
      fp8->advance();
  }
}

}  // namespace lathe
