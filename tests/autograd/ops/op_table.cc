// The op table: one or more rows for each op, with LibTorch's function as the oracle.

#include "amp/amp.h"
#include "autograd/fp8.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/mode.h"
#include "core/quantized.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/torch_oracle.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;

/// Returns dropout's mask, computed element by element from the definition of the generator.
at::Tensor reference_mask(at::IntArrayRef shape, const StepRandom& random, double p,
                          uint64_t stream) {
  at::Tensor mask = torch::empty(shape, at::kDouble);
  const int64_t row = mask.numel() / mask.size(0);
  for (int64_t i = 0; i < mask.numel(); ++i) {
    const auto place = static_cast<uint64_t>(random.first_sample * row + i);
    const uint32_t word =
        philox(counter(place / 4, random.step), make_key(random.seed, stream))[place % 4];
    mask.view(-1)[i] = unit(word) < p ? 0.0 : 1 / (1 - p);
  }
  return mask;
}
/// Returns t rounded to fp8 with `mantissa` bits by the definition of the format. Values are scaled
/// for rounding, so that the largest becomes `limit`, and scaled back.
at::Tensor reference_fp8(const at::Tensor& t, int mantissa, int least_exponent, float limit) {
  const float largest = t.abs().max().item<float>(), scale = limit / largest;
  const at::Tensor out = t.detach().contiguous().clone();
  auto* p = out.mutable_data_ptr<double>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    const float v = static_cast<float>(p[i]) * scale;
    const double step = std::ldexp(
        1.0, std::max(v == 0 ? least_exponent : std::ilogb(v), least_exponent) - mantissa);
    p[i] = std::nearbyint(v / step) * step * static_cast<double>(largest / limit);
  }
  return out;
}
/// Rounds to e4m3 in forward, and passes the gradient through unchanged.
at::Tensor through_e4m3(const at::Tensor& t) {
  return t + (reference_fp8(t, 3, -6, 448) - t).detach();
}
/// Rounds the gradient to e5m2 in backward.
struct ThroughE5m2 : torch::autograd::Function<ThroughE5m2> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& t) {
    return t.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list dy) {
    return {reference_fp8(dy[0], 2, -14, 57344)};
  }
};

std::vector<OpCase> make_op_table() {
  std::vector<OpCase> t;
  const auto add_row = [&t](OpCase row) -> OpCase& { return t.emplace_back(std::move(row)); };
  const Input a{{2, 3}}, b{{2, 3}}, positive{{2, 3}, 0.5, 2}, row3{{3}}, image{{2, 3, 4}};

  add_row({"add",
           "same shape",
           {a, b},
           [](V v) { return add(v[0], v[1]); },
           [](T x) { return x[0] + x[1]; }});
  add_row({"add",
           "broadcast",
           {image, {{3, 1}}},
           [](V v) { return add(v[0], v[1]); },
           [](T x) { return x[0] + x[1]; }});
  add_row({"sub",
           "broadcast",
           {a, row3},
           [](V v) { return sub(v[0], v[1]); },
           [](T x) { return x[0] - x[1]; }});
  add_row({"mul",
           "same shape",
           {a, b},
           [](V v) { return mul(v[0], v[1]); },
           [](T x) { return x[0] * x[1]; }});
  add_row({"mul",
           "square: one input twice",
           {a},
           [](V v) { return mul(v[0], v[0]); },
           [](T x) { return x[0] * x[0]; }});
  add_row({"mul",
           "broadcast both ways",
           {{{2, 1, 4}}, {{3, 1}}},
           [](V v) { return mul(v[0], v[1]); },
           [](T x) { return x[0] * x[1]; }});
  add_row({"div",
           "broadcast",
           {a, {{3}, 0.5, 2}},
           [](V v) { return div(v[0], v[1]); },
           [](T x) { return x[0] / x[1]; }});
  add_row({"add_scalar", "", {a}, [](V v) { return v[0] + 1.5; }, [](T x) { return x[0] + 1.5; }});
  add_row(
      {"mul_scalar", "", {a}, [](V v) { return v[0] * -2.5; }, [](T x) { return x[0] * -2.5; }});
  add_row({"exp", "", {a}, [](V v) { return exp(v[0]); }, [](T x) { return x[0].exp(); }});
  add_row({"log", "", {positive}, [](V v) { return log(v[0]); }, [](T x) { return x[0].log(); }});
  add_row(
      {"sqrt", "", {positive}, [](V v) { return sqrt(v[0]); }, [](T x) { return x[0].sqrt(); }});
  add_row({"pow", "cube", {a}, [](V v) { return pow(v[0], 3); }, [](T x) { return x[0].pow(3); }});
  add_row({"pow",
           "-1/2",
           {positive},
           [](V v) { return pow(v[0], -0.5); },
           [](T x) { return x[0].pow(-0.5); }});
  add_row({"pow", "0", {a}, [](V v) { return pow(v[0], 0); }, [](T x) { return x[0].pow(0); }});
  add_row({"tanh", "", {a}, [](V v) { return tanh(v[0]); }, [](T x) { return x[0].tanh(); }});
  add_row({"erf", "", {a}, [](V v) { return erf(v[0]); }, [](T x) { return x[0].erf(); }});
  add_row(
      {"sigmoid", "", {a}, [](V v) { return sigmoid(v[0]); }, [](T x) { return x[0].sigmoid(); }});
  add_row({"silu", "", {a}, [](V v) { return silu(v[0]); }, [](T x) { return torch::silu(x[0]); }});
  add_row({"relu",
           "",
           {{{2, 3}, 0.1, 2}},
           [](V v) { return relu(v[0] - 1.0); },
           [](T x) { return torch::relu(x[0] - 1.0); }});
  add_row({"gelu",
           "tanh",
           {a},
           [](V v) { return gelu(v[0], Gelu::tanh); },
           [](T x) { return torch::gelu(x[0], "tanh"); }});
  add_row({"gelu",
           "exact",
           {a},
           [](V v) { return gelu(v[0], Gelu::exact); },
           [](T x) { return torch::gelu(x[0], "none"); }});
  add_row({"masked_fill",
           "broadcast mask",
           {a},
           [](V v) {
             return masked_fill(v[0], torch::tensor({true, false, true}).to(device_of(v)), 0.5);
           },
           [](T x) { return x[0].masked_fill(torch::tensor({true, false, true}), 0.5); }});
  add_row({"cast",
           "there and back",
           {a},
           [](V v) { return cast(cast(v[0], at::kFloat), at::kDouble); },
           [](T x) { return x[0].to(at::kFloat).to(at::kDouble); }})
      .differences = false;

  add_row({"sum", "all", {image}, [](V v) { return sum(v[0]); }, [](T x) { return x[0].sum(); }});
  add_row({"sum",
           "two dims",
           {image},
           [](V v) { return sum(v[0], at::IntArrayRef{0, -1}); },
           [](T x) { return x[0].sum(at::IntArrayRef{0, -1}); }});
  add_row({"sum",
           "keepdim",
           {image},
           [](V v) { return sum(v[0], 1, true); },
           [](T x) { return x[0].sum(1, true); }});
  add_row(
      {"mean", "all", {image}, [](V v) { return mean(v[0]); }, [](T x) { return x[0].mean(); }});
  add_row(
      {"mean", "0-dim", {{{}}}, [](V v) { return mean(v[0]); }, [](T x) { return x[0].mean(); }});
  add_row(
      {"mean", "", {image}, [](V v) { return mean(v[0], 1); }, [](T x) { return x[0].mean(1); }});
  add_row({"mean",
           "mse loss",
           {a, b},
           [](V v) { return mse_loss(v[0], v[1]); },
           [](T x) { return torch::mse_loss(x[0], x[1]); }});
  add_row({"sum_to",
           "",
           {image},
           [](V v) { return sum_to(v[0], {3, 1}); },
           [](T x) { return x[0].sum(at::IntArrayRef{0, 2}).unsqueeze(1); }});
  add_row(
      {"amax", "", {image}, [](V v) { return amax(v[0], -1); }, [](T x) { return x[0].amax(-1); }});
  add_row({"amax",
           "keepdim",
           {image},
           [](V v) { return amax(v[0], 1, true); },
           [](T x) { return x[0].amax(1, true); }});
  add_row({"softmax",
           "last dim",
           {image},
           [](V v) { return softmax(v[0], -1); },
           [](T x) { return x[0].softmax(-1); }});
  add_row({"softmax",
           "first dim",
           {image},
           [](V v) { return softmax(v[0], 0); },
           [](T x) { return x[0].softmax(0); }});
  add_row({"log_softmax",
           "",
           {image},
           [](V v) { return log_softmax(v[0], 1); },
           [](T x) { return x[0].log_softmax(1); }});

  // In the rows with "still" in their label, at least one input needs no gradient.
  const Input still{{2, 3}, 0.5, 2, false}, row_still{{3}, 0.5, 2, false};
  add_row({"add",
           "second still",
           {a, row_still},
           [](V v) { return add(v[0], v[1]); },
           [](T x) { return x[0] + x[1]; }});
  add_row({"sub",
           "first still",
           {still, row3},
           [](V v) { return sub(v[0], v[1]); },
           [](T x) { return x[0] - x[1]; }});
  add_row({"mul",
           "second still",
           {a, row_still},
           [](V v) { return mul(v[0], v[1]); },
           [](T x) { return x[0] * x[1]; }});
  add_row({"div",
           "second still",
           {a, row_still},
           [](V v) { return div(v[0], v[1]); },
           [](T x) { return x[0] / x[1]; }});
  // Both sides use the same quantized weight, so that only the op is compared.
  static const auto weights =
      std::make_shared<const QuantizedTensor>(torch::linspace(-1, 1, 12, at::kDouble).view({3, 4}),
                                              QuantizedTensor::Format::int8, false, at::kCPU);
  OpCase quantized{"linear_quantized",
                   "",
                   {{{2, 5, 4}}, {{3}}},
                   [](V v) {
                     const Variable weight = Variable::parameter(torch::empty({3, 4}));
                     // The dequantized weight has the same codes when it is quantized again.
                     weight.leaf().precision.quantized = std::make_shared<const QuantizedTensor>(
                         weights->dequantize(at::kDouble), QuantizedTensor::Format::int8, false,
                         device_of(v));
                     return linear(v[0], weight, v[1]);
                   },
                   [](T x) { return torch::linear(x[0], weights->dequantize(at::kDouble), x[1]); }};
  add_row(quantized);
  OpCase fp8{"linear_fp8",
             "",
             {{{3, 16, 32}}, {{48, 32}}, {{48}}},
             [](V v) {
               if (v[1].requires_grad()) v[1].leaf().precision.fp8 = std::make_shared<Fp8Scaling>();
               const Autocast autocast(at::kFloat8_e4m3fn);
               return linear(v[0], v[1], v[2]);
             },
             [](T x) {
               return ThroughE5m2::apply(torch::linear(through_e4m3(x[0]), through_e4m3(x[1]))) +
                      x[2];
             }};
  fp8.exact = false;
  fp8.low_scale = 1;  // both sides round to fp8 in the same way
  add_row(fp8);
  add_row({"linear",
           "input still",
           {still, {{4, 3}}, {{4}}},
           [](V v) { return linear(v[0], v[1], v[2]); },
           [](T x) { return torch::linear(x[0], x[1], x[2]); }});
  add_row({"matmul",
           "first still",
           {still, {{3, 4}}},
           [](V v) { return matmul(v[0], v[1]); },
           [](T x) { return x[0].matmul(x[1]); }});
  add_row({"layer_norm",
           "weights still",
           {a, row_still, row_still},
           [](V v) { return layer_norm(v[0], v[1], v[2]); },
           [](T x) { return torch::layer_norm(x[0], {3}, x[1], x[2], 1e-5); }});
  add_row({"mul",
           "a tensor and itself detached",
           {a},
           [](V v) { return mul(v[0].detach(), v[0]); },
           [](T x) { return x[0].detach() * x[0]; }})
      .differences = false;  // finite differences would change both factors

  add_row({"reshape",
           "",
           {image},
           [](V v) { return reshape(v[0], {4, -1}); },
           [](T x) { return x[0].reshape({4, -1}); }});
  add_row({"expand",
           "",
           {{{2, 1, 3}}},
           [](V v) { return expand(v[0], {4, 2, 5, 3}); },
           [](T x) { return x[0].expand({4, 2, 5, 3}); }});
  add_row({"transpose",
           "",
           {image},
           [](V v) { return transpose(v[0], 0, -1); },
           [](T x) { return x[0].transpose(0, -1); }});
  add_row({"permute",
           "",
           {image},
           [](V v) { return permute(v[0], {2, 0, -2}); },
           [](T x) { return x[0].permute({2, 0, -2}); }});
  add_row({"slice",
           "",
           {image},
           [](V v) { return slice(v[0], 1, 1, 3); },
           [](T x) { return x[0].slice(1, 1, 3); }});
  add_row({"slice",
           "negative, stepped",
           {{{7, 2}}},
           [](V v) { return slice(v[0], 0, -6, 7, 2); },
           [](T x) { return x[0].slice(0, -6, 7, 2); }});
  add_row({"slice_backward",
           "",
           {{{2, 3}}},
           [](V v) { return slice_backward(v[0], 1, 1, 7, 2, 8); },
           [](T x) {
             return torch::slice_scatter(torch::zeros({2, 8}, x[0].options()), x[0], 1, 1, 7, 2);
           }});
  add_row({"select",
           "negative",
           {image},
           [](V v) { return select(v[0], 1, -1); },
           [](T x) { return x[0].select(1, -1); }});
  add_row({"index",
           "positions, some twice",
           {{{4, 3}}},
           [](V v) { return v[0][longs({3, 0, 3, -2}, {2, 2})]; },
           [](T x) { return x[0].index({longs({3, 0, 3, -2}, {2, 2})}); }});
  add_row({"index",
           "positions in two dims, with a full slice between",
           {image},
           [](V v) { return v[0].index({longs({1, 0, 1}, {3}), Slice{}, longs({2, 3, 2}, {3})}); },
           [](T x) {
             return x[0].index(
                 {longs({1, 0, 1}, {3}), torch::indexing::Slice(), longs({2, 3, 2}, {3})});
           }});
  add_row({"index",
           "a mask",
           {a},
           [](V v) { return v[0][v[0] > 0] * 3; },
           [](T x) { return x[0].index({x[0] > 0}) * 3; }});
  add_row({"index_backward",
           "",
           {{{2, 2, 3}}},
           [](V v) { return index_backward(v[0], {longs({3, 0, 3, -2}, {2, 2})}, {4, 3}); },
           [](T x) {
             return torch::index_put(torch::zeros({4, 3}, x[0].options()),
                                     {longs({3, 0, 3, -2}, {2, 2})}, x[0], true);
           }});
  add_row({"cat",
           "three",
           {{{2, 1}}, {{2, 3}}, {{2, 2}}},
           [](V v) { return cat(v, 1); },
           [](T x) { return torch::cat({x[0], x[1], x[2]}, 1); }});
  add_row({"cat",
           "an empty vector among them",
           {{{2, 1}}, {{0}}, {{2, 2}}},
           [](V v) { return cat(v, -1); },
           [](T x) { return torch::cat({x[0], x[1], x[2]}, -1); }});
  add_row({"unsqueeze",
           "",
           {a},
           [](V v) { return unsqueeze(v[0], -2); },
           [](T x) { return x[0].unsqueeze(-2); }});
  add_row({"split",
           "one part unused, one used twice",
           {image},
           [](V v) {
             const auto parts = split(v[0], {1, 1, 2}, -1);
             return cat({parts[2], parts[0] * parts[2]}, -1);
           },
           [](T x) {
             const auto parts = x[0].split_with_sizes({1, 1, 2}, -1);
             return torch::cat({parts[2], parts[0] * parts[2]}, -1);
           }});
  add_row({"unbind",
           "",
           {image},
           [](V v) {
             const auto parts = unbind(v[0], 1);
             return parts[0] * parts[2];
           },
           [](T x) {
             const auto parts = x[0].unbind(1);
             return parts[0] * parts[2];
           }});
  add_row({"gather",
           "repeated",
           {{{3, 4}}},
           [](V v) { return gather(v[0], 1, longs({0, 3, 3, 1, 2, 2}, {3, 2}).to(device_of(v))); },
           [](T x) { return x[0].gather(1, longs({0, 3, 3, 1, 2, 2}, {3, 2})); }});
  add_row({"gather_backward",
           "repeated",
           {{{3, 2}}},
           [](V v) {
             return gather_backward(v[0], 1, longs({0, 3, 3, 1, 2, 2}, {3, 2}).to(device_of(v)), 4);
           },
           [](T x) {
             return torch::zeros({3, 4}, x[0].options())
                 .scatter_add(1, longs({0, 3, 3, 1, 2, 2}, {3, 2}), x[0]);
           }});
  add_row({"topk",
           "",
           {image},
           [](V v) { return topk(v[0], 2, 1).first; },
           [](T x) { return std::get<0>(x[0].topk(2, 1)); }});
  add_row({"topk",
           "smallest",
           {image},
           [](V v) { return topk(v[0], 3, -1, false).first; },
           [](T x) { return std::get<0>(x[0].topk(3, -1, false)); }});
  add_row({"triu",
           "",
           {{{2, 4, 3}}},
           [](V v) { return triu(v[0], -1); },
           [](T x) { return x[0].triu(-1); }});
  add_row({"contiguous",
           "",
           {image},
           [](V v) { return contiguous(transpose(v[0], 0, 1)); },
           [](T x) { return x[0].transpose(0, 1).contiguous(); }});

  add_row({"matmul",
           "2 dims",
           {{{2, 3}}, {{3, 4}}},
           [](V v) { return matmul(v[0], v[1]); },
           [](T x) { return x[0].matmul(x[1]); }});
  add_row({"matmul",
           "broadcast batch",
           {{{2, 1, 2, 3}}, {{3, 3, 2}}},
           [](V v) { return matmul(v[0], v[1]); },
           [](T x) { return x[0].matmul(x[1]); }});
  add_row({"linear",
           "bias",
           {{{2, 2, 3}}, {{4, 3}}, {{4}}},
           [](V v) { return linear(v[0], v[1], v[2]); },
           [](T x) { return torch::linear(x[0], x[1], x[2]); }});
  add_row({"linear",
           "no bias",
           {{{5, 3}}, {{4, 3}}},
           [](V v) { return linear(v[0], v[1]); },
           [](T x) { return torch::linear(x[0], x[1]); }});

  add_row({"linear",
           "residual, blocks that do not divide",
           {{{3, 15, 33}}, {{70, 33}}, {{70}}, {{3, 15, 70}}},
           [](V v) { return linear(v[0], v[1], v[2], v[3]); },
           [](T x) { return torch::linear(x[0], x[1], x[2]) + x[3]; }})
      .differences = false;  // too slow for 7000 inputs, which the oracle covers
  add_row({"linear_gelu",
           "bias",
           {{{2, 3, 6}}, {{5, 6}}, {{5}}},
           [](V v) { return linear_gelu(v[0], v[1], v[2]); },
           [](T x) { return torch::gelu(torch::linear(x[0], x[1], x[2]), "tanh"); }});
  add_row({"linear_gelu",
           "blocks that do not divide",
           {{{90, 34}}, {{67, 34}}},
           [](V v) { return linear_gelu(v[0], v[1]); },
           [](T x) { return torch::gelu(torch::linear(x[0], x[1]), "tanh"); }})
      .differences = false;

  add_row({"layer_norm",
           "scale and shift",
           {{{2, 3, 5}}, {{5}}, {{5}}},
           [](V v) { return layer_norm(v[0], v[1], v[2], 1e-5); },
           [](T x) { return torch::layer_norm(x[0], {5}, x[1], x[2], 1e-5); }});
  add_row({"layer_norm",
           "scale alone",
           {{{3, 5}}, {{5}}},
           [](V v) { return layer_norm(v[0], v[1], {}, 1e-3); },
           [](T x) { return torch::layer_norm(x[0], {5}, x[1], {}, 1e-3); }});
  add_row({"layer_norm",
           "plain",
           {{{3, 5}}},
           [](V v) { return layer_norm(v[0], {}, {}); },
           [](T x) { return torch::layer_norm(x[0], {5}, {}, {}, 1e-5); }});
  add_row({"layer_norm",
           "many rows",
           {{{150, 37}}, {{37}}, {{37}}},
           [](V v) { return layer_norm(v[0], v[1], v[2], 1e-5); },
           [](T x) { return torch::layer_norm(x[0], {37}, x[1], x[2], 1e-5); }})
      .differences = false;
  add_row({"rms_norm",
           "scale",
           {{{2, 3, 5}}, {{5}}},
           [](V v) { return rms_norm(v[0], v[1], 1e-5); },
           [](T x) { return torch::rms_norm(x[0], {5}, x[1], 1e-5); }});
  add_row({"rms_norm",
           "plain, many rows",
           {{{150, 37}}},
           [](V v) { return rms_norm(v[0], {}, 1e-3); },
           [](T x) { return torch::rms_norm(x[0], {37}, {}, 1e-3); }})
      .differences = false;
  add_row({"swiglu",
           "",
           {{{2, 3, 42}}},
           [](V v) { return swiglu(v[0]); },
           [](T x) { return torch::silu(x[0].slice(-1, 0, 21)) * x[0].slice(-1, 21); }});
  add_row({"embedding",
           "repeated ids",
           {{{5, 3}}},
           [](V v) { return embedding(longs({0, 4, 4, 2, 4, 0}, {2, 3}).to(device_of(v)), v[0]); },
           [](T x) { return torch::embedding(x[0], longs({0, 4, 4, 2, 4, 0}, {2, 3})); }});
  add_row({"dropout",
           "",
           {{{3, 7}}},
           [](V v) {
             const TrainingStep step(step_random);
             return dropout(v[0], 0.4, hash_name("here"));
           },
           [](T x) { return x[0] * reference_mask({3, 7}, step_random, 0.4, hash_name("here")); }});
  const auto heads = [](int64_t n) {
    return [n](T x) {
      const int64_t bs = x[0].size(0), ts = x[0].size(1), c = x[0].size(2) / 3;
      const auto part = [&](int64_t i) {
        return x[0].slice(2, i * c, (i + 1) * c).reshape({bs, ts, n, c / n}).transpose(1, 2);
      };
      const at::Tensor mask = torch::ones({ts, ts}, at::kBool).triu(1);
      const at::Tensor s =
          part(0).matmul(part(1).transpose(-2, -1)) / std::sqrt(static_cast<double>(c / n));
      const at::Tensor p = s.masked_fill(mask, -INFINITY).softmax(-1);
      return p.matmul(part(2)).transpose(1, 2).reshape({bs, ts, c});
    };
  };
  OpCase two{
      "attention", "two heads", {{{2, 4, 12}}}, [](V v) { return attention(v[0], 2); }, heads(2)};
  OpCase longer{"attention",
                "longer than a kernel's block",
                {{{1, 131, 24}}},
                [](V v) { return attention(v[0], 1); },
                heads(1)};
  longer.differences = false;  // too slow for 3144 inputs, which the oracle covers
  for (OpCase* row : {&two, &longer}) {
    row->low_scale = 8;  // two matmuls and a softmax, each rounded
    t.push_back(*row);
  }
  add_row({"cross_entropy",
           "mean",
           {{{4, 5}}},
           [](V v) { return cross_entropy(v[0], longs({1, 0, 4, 4}, {4}).to(device_of(v))); },
           [](T x) { return torch::cross_entropy_loss(x[0], longs({1, 0, 4, 4}, {4})); }});
  add_row(
      {"cross_entropy",
       "ignored rows, divisor",
       {{{4, 5}}},
       [](V v) { return cross_entropy(v[0], longs({-100, 0, -100, 4}, {4}).to(device_of(v)), 7); },
       [](T x) {
         return torch::cross_entropy_loss(x[0], longs({-100, 0, -100, 4}, {4}), {},
                                          at::Reduction::Sum) /
                7;
       }});
  const auto targets = [](V v) {
    return longs({3, 0, -100, 69, 3, 12, -100}, {7}).to(device_of(v));
  };
  add_row({"linear_cross_entropy",
           "ignored rows, divisor",
           {{{7, 10}}, {{70, 10}}},
           [targets](V v) { return linear_cross_entropy(v[0], v[1], targets(v), 5); },
           [](T x) {
             return torch::cross_entropy_loss(torch::linear(x[0], x[1]),
                                              longs({3, 0, -100, 69, 3, 12, -100}, {7}), {},
                                              at::Reduction::Sum) /
                    5;
           }});
  add_row({"linear_cross_entropy",
           "mean",
           {{{7, 10}}, {{70, 10}}},
           [targets](V v) { return linear_cross_entropy(v[0], v[1], targets(v)); },
           [](T x) {
             return torch::cross_entropy_loss(torch::linear(x[0], x[1]),
                                              longs({3, 0, -100, 69, 3, 12, -100}, {7}));
           }});
  for (const auto rows : {image_and_cell_rows, math_rows, shape_rows, layer_rows, loss_rows}) {
    for (OpCase& row : rows()) t.push_back(std::move(row));
  }
  return t;
}

}  // namespace

const std::vector<OpCase>& op_table() {
  static const auto table = make_op_table();
  return table;
}

}  // namespace lathe::test
