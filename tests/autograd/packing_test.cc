// Tests of memory.saved, which rounds tensors that are saved for backward, and no other tensors, to
// bfloat16 or fp8.
#include "autograd/packing.h"

#include <cmath>
#include <limits>

#include "amp/amp.h"
#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/fp8.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/ops/losses.h"
#include "autograd/ops/math.h"
#include "autograd/ops/reductions.h"
#include "autograd/recompute.h"
#include "core/kernels/e4m3.h"
#include "core/memory.h"
#include "nn/init.h"
#include "nn/models/gpt.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"

namespace {

using namespace lathe;

/// Packs rows to e4m3 and unpacks them; `factors` receives the scale of each row.
at::Tensor rounded_e4m3(const at::Tensor& t, at::Tensor* factors = nullptr) {
  const at::Tensor bytes = torch::empty(t.sizes(), at::kByte),
                   scales = torch::empty({t.size(0)}, at::kFloat), out = torch::empty_like(t);
  const Element type = t.scalar_type() == at::kFloat      ? Element::f32
                       : t.scalar_type() == at::kBFloat16 ? Element::bf16
                                                          : Element::f16;
  pack_e4m3(t.const_data_ptr(), type, bytes.mutable_data_ptr<uint8_t>(),
            scales.mutable_data_ptr<float>(), t.size(0), t.size(1));
  unpack_e4m3(bytes.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
              out.mutable_data_ptr(), type, t.size(0), t.size(1));
  if (factors != nullptr) *factors = scales;
  return out;
}

/// Scales rows to a maximum of 448 and rounds them by ATen's conversion. Does not scale the result
/// back.
at::Tensor atens_e4m3(const at::Tensor& t) {
  const at::Tensor largest = t.to(at::kFloat).abs().amax(1, true);
  return (t.to(at::kFloat) * (448 / largest))
      .clamp(-448, 448)
      .to(at::kFloat8_e4m3fn)
      .to(at::kFloat);
}

TEST_CASE("e4m3 rounds as ATen's conversion does", "[packing]") {
  // Test 256 fractions of each exponent from -20 to 19, with both signs. Then test multiples of the
  // spacing, and of half the spacing, which are ties.
  for (int exponent = -20; exponent < 20; ++exponent) {
    const at::Tensor fraction = torch::arange(256, at::kFloat) / 256 + 1;
    const at::Tensor row = at::cat({fraction, -fraction}) * std::ldexp(1.0, exponent);
    const at::Tensor rows = at::cat({row, torch::full({1}, std::ldexp(448.0, 4))}).view({1, -1});
    at::Tensor factors;
    const at::Tensor got = rounded_e4m3(rows, &factors);
    CHECK(got.equal(atens_e4m3(rows) * factors.view({-1, 1})));
  }
  const at::Tensor ties = torch::arange(-448 * 2, 448 * 2 + 1, at::kFloat).div(2).view({1, -1});
  CHECK(rounded_e4m3(ties).equal(atens_e4m3(ties)));
  const at::Tensor small =
      at::cat({torch::arange(-64, 65, at::kFloat) * 0x1p-11, torch::full({1}, 448.0)})
          .view({1, -1});
  CHECK(rounded_e4m3(small).equal(atens_e4m3(small)));

  torch::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor t = (torch::randn({33, 129}) * torch::randn({33, 1}).exp()).to(dtype);
    at::Tensor factors;
    const at::Tensor got = rounded_e4m3(t, &factors);
    CHECK(factors.allclose(t.to(at::kFloat).abs().amax(1) / 448));
    CHECK(got.equal((atens_e4m3(t) * factors.view({-1, 1})).to(dtype)));
    // The allowed error is half of the spacing of 3 bits of fraction, plus half of the spacing of
    // subnormals at the scale of the row.
    const at::Tensor error = (got.to(at::kFloat) - t.to(at::kFloat)).abs(),
                     allowed = t.to(at::kFloat).abs() * 0x1p-4 + factors.view({-1, 1}) * 0x1p-10;
    CHECK(error.le(allowed * 1.01).all().item<bool>());
  }
}

TEST_CASE("an e4m3 row with a value that is not finite becomes NaN, and other rows do not change",
          "[packing]") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float wrong : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor t = torch::ones({3, 100});
    t[1][70] = wrong;
    const at::Tensor got = rounded_e4m3(t);
    CHECK(got[1].isnan().all().item<bool>());
    CHECK(got[0].equal(t[0]));
    CHECK(got[2].equal(t[2]));
  }
  const at::Tensor zeros = torch::zeros({2, 64});
  CHECK(rounded_e4m3(zeros).equal(zeros));
}

/// Returns the gradient of sum(f(x)^2) / 2 with respect to x under a packing; nullopt: without
/// packing.
template <class F>
at::Tensor packed_gradient(const F& f, const at::Tensor& x, std::optional<Packing> packing) {
  install_allocator();
  const MemoryScope scope(Memory::activations);
  std::optional<PackSaved> guard;
  if (packing) guard.emplace(*packing);
  // f gets a result of an op, since parameters are not packed.
  const Variable p = Variable::parameter(x.clone());
  const Variable y = f(p * 1.0);
  return grad(y, {p}, Variable(y.data()))[0].data();
}

TEST_CASE("gradients are computed from the rounded activations, but results are not", "[packing]") {
  torch::manual_seed(6);
  const at::Tensor x = torch::randn({16, 64});
  const auto wave = [](const Variable& v) { return sin(v); };
  const at::Tensor y = x.sin();
  CHECK(packed_gradient(wave, x, std::nullopt).equal(y * x.cos()));
  CHECK(
      packed_gradient(wave, x, Packing::bf16).equal(y * x.to(at::kBFloat16).to(at::kFloat).cos()));
  CHECK(packed_gradient(wave, x, Packing::fp8).equal(y * rounded_e4m3(x).cos()));

  // Test an op that keeps its result.
  const auto saturated = [](const Variable& v) { return tanh(v); };
  const at::Tensor t = x.tanh(), low = t.to(at::kBFloat16).to(at::kFloat);
  CHECK(packed_gradient(saturated, x, Packing::bf16).allclose(t * (1 - low * low), 1e-6, 1e-7));
}

TEST_CASE("ops that divide by or compare their saved tensors have exact gradients", "[packing]") {
  torch::manual_seed(8);
  const at::Tensor x = torch::rand({16, 64}) + 0.01, other = x.flip({1});
  const Variable c(other);

  using Function = std::function<Variable(const Variable&)>;
  const std::vector<std::pair<std::string, Function>> functions{
      {"div", [&](const Variable& v) { return c / v; }},
      {"log", [](const Variable& v) { return log(v); }},
      {"log1p", [](const Variable& v) { return log1p(v); }},
      {"sqrt", [](const Variable& v) { return sqrt(v); }},
      {"pow", [](const Variable& v) { return pow(v, -1.5); }},
      {"xlogy", [](const Variable& v) { return xlogy(v, v); }},
      {"norm, p = 2", [](const Variable& v) { return norm(v, 2, 1); }},
      {"norm, p = 3", [](const Variable& v) { return norm(v, 3, 1); }},
      {"norm, p = inf",
       [](const Variable& v) { return norm(v, std::numeric_limits<double>::infinity(), 1); }},
      {"amax", [](const Variable& v) { return amax(v, 1); }},
      {"max", [](const Variable& v) { return max(v); }},
      {"min", [](const Variable& v) { return min(v); }},
      {"maximum", [&](const Variable& v) { return maximum(v, c); }},
      {"minimum", [&](const Variable& v) { return minimum(v, c); }},
      {"clamp", [](const Variable& v) { return clamp(v, 0.3, 0.6); }},
      {"prod", [](const Variable& v) { return prod(v, 1); }},
      {"cumprod", [](const Variable& v) { return cumprod(v, 1); }},
      {"std", [](const Variable& v) { return lathe::std(v, at::IntArrayRef({1})); }},
      // The following functions are losses, most of which are composed of other ops.
      {"l1_loss", [&](const Variable& v) { return l1_loss(v, c, Reduction::mean); }},
      {"smooth_l1_loss",
       [&](const Variable& v) { return smooth_l1_loss(v, c, Reduction::mean, 1); }},
      {"mse_loss", [&](const Variable& v) { return mse_loss(v, c, Reduction::mean); }},
      {"binary_cross_entropy_with_logits",
       [&](const Variable& v) { return binary_cross_entropy_with_logits(v, c); }},
      {"kl_div", [&](const Variable& v) { return kl_div(v, c); }},
      {"kl_div_batchmean", [&](const Variable& v) { return kl_div_batchmean(v, c); }},
      {"cross_entropy, probabilities", [&](const Variable& v) { return cross_entropy(v, c); }},
      {"cosine_similarity", [&](const Variable& v) { return cosine_similarity(v, c); }},
      {"triplet_margin_loss",
       [&](const Variable& v) { return triplet_margin_loss(v, c, Variable(x.flip({0}))); }},
  };

  for (const auto& [name, f] : functions) {
    INFO(name);
    const at::Tensor exact = packed_gradient(f, x, std::nullopt);
    for (const auto packing : {Packing::bf16, Packing::fp8})
      CHECK(packed_gradient(f, x, packing).equal(exact));
  }
}

TEST_CASE("gradients of attention are those of the rounded queries, keys and values", "[packing]") {
  // Scores of several hundred: the exponential of a score with a rounding error, divided by the sum
  // of the exact exponentials, can be far above 1.
  torch::manual_seed(10);
  const at::Tensor x = torch::randn({2, 24, 3 * 128}) * 8, dy = torch::randn({2, 24, 128});
  const auto part = [](const Variable& v, int64_t i) {
    return slice(v, 2, 128 * i, 128 * (i + 1));
  };
  using Function = std::function<Variable(const Variable&)>;
  const std::vector<std::pair<std::string, Function>> functions{
      {"one packed input", [](const Variable& v) { return attention(v, 2); }},
      {"three inputs",
       [&](const Variable& v) {
         // The results of ops are packed, but not their views.
         return attention(part(v, 0) * 1.0, part(v, 1) * 1.0, part(v, 2) * 1.0, 2, 2);
       }},
  };

  install_allocator();
  const MemoryScope scope(Memory::activations);
  const auto gradient = [&](const Function& f, const at::Tensor& value,
                            std::optional<Packing> packing) {
    std::optional<PackSaved> guard;
    if (packing) guard.emplace(*packing);
    const Variable p = Variable::parameter(value.clone());
    return grad(f(p * 1.0), {p}, Variable(dy))[0].data();
  };
  for (const auto& [name, f] : functions) {
    INFO(name);
    const at::Tensor low = x.to(at::kBFloat16).to(at::kFloat);
    CHECK(gradient(f, x, Packing::bf16).equal(gradient(f, low, std::nullopt)));
    const int64_t row = name == "three inputs" ? 128 : 3 * 128;
    const at::Tensor lowest = rounded_e4m3(x.reshape({-1, row})).view(x.sizes());
    CHECK(gradient(f, x, Packing::fp8).equal(gradient(f, lowest, std::nullopt)));
  }
}

TEST_CASE("packed gradients are finite where the exact gradients are", "[packing]") {
  torch::manual_seed(9);
  // Most probabilities of a row are 0 in fp8.
  const auto likelihood = [](const Variable& v) { return log(softmax(v * 4.0, -1)); };
  const at::Tensor x = torch::randn({16, 64});
  CHECK(packed_gradient(likelihood, x, Packing::fp8).isfinite().all().item<bool>());

  size_t packed = 0;
  for (const test::OpCase& row : test::op_table()) {
    const auto gradients = [&](std::optional<Packing> packing) {
      const TrainingStep step(test::step_random);
      std::vector<Variable> parameters, in;
      for (const at::Tensor& value : test::inputs_of(row)) {
        const bool is_trained = row.inputs[parameters.size()].grad;
        const Variable p(value.to(at::kFloat));
        parameters.push_back(is_trained ? Variable::parameter(p.data()) : p);
      }
      std::optional<PackSaved> guard;
      if (packing) guard.emplace(*packing, /*least=*/1);
      const ObserveOps observe({.on_result = [&](const OpResult& result) {
        if (result.node != nullptr && result.node->packed) ++packed;
      }});
      // Fused layers need their weights to be parameters.
      const bool is_layer = row.op.starts_with("linear");
      for (const Variable& p : parameters) {
        const bool is_weight = is_layer && !in.empty();
        in.push_back(p.requires_grad() && !is_weight ? p * 1.0 : p);
      }
      const Variable y = row.ours(in);
      std::vector<at::Tensor> out;
      if (!y.requires_grad()) return out;
      for (const Variable& g : grad(y, parameters, Variable(torch::ones_like(y.data()))))
        out.push_back(g.data());
      return out;
    };

    INFO(row.op << " (" << row.label << ")");
    const auto exact = gradients(std::nullopt);
    for (const auto packing : {Packing::bf16, Packing::fp8}) {
      const auto rounded = gradients(packing);
      REQUIRE(rounded.size() == exact.size());
      for (size_t i = 0; i < exact.size(); ++i) {
        if (!exact[i].defined() || !exact[i].isfinite().all().item<bool>()) continue;
        CHECK(rounded[i].isfinite().all().item<bool>());
      }
    }
  }
  CHECK(packed > 100);
}

/// Lists the tensors that an op's node keeps packed, and the tensors that it keeps unchanged.
struct PackedByOp {
  std::vector<std::string> packed, exact;
  explicit PackedByOp(const Variable& y) {
    y.node()->visit_saved([this](Saved& saved) {
      if (saved.packed() != nullptr)
        packed.push_back(describe(dynamic_cast<const RoundedTensor&>(*saved.packed()).data));
      else if (saved.defined())
        exact.push_back(describe(saved.kept()));
    });
  }
};

TEST_CASE("small tensors, parameters, statistics, data and tensors of losses are not packed",
          "[packing]") {
  using Names = std::vector<std::string>;
  install_allocator();
  torch::manual_seed(7);
  const auto parameter = [](at::IntArrayRef sizes) {
    const MemoryScope scope(Memory::parameters);
    return Variable::parameter(torch::randn(sizes));
  };
  const Variable w = parameter({64, 64}), scale = parameter({256}), rows = parameter({8, 256});
  const at::Tensor data = [] {
    const MemoryScope scope(Memory::data);
    return torch::randn({16, 64});
  }();

  const MemoryScope scope(Memory::activations);
  const Variable x = Variable::parameter(torch::randn({16, 64}));
  const PackSaved packing(Packing::fp8);
  const Variable h = x * 1.0;

  const PackedByOp layer(linear(h, w));
  CHECK(layer.packed == Names{"uint8[16,64]"});
  CHECK(layer.exact == Names{"float32[64,64]"});
  const PackedByOp transposed(matmul(h, transpose(w, 0, 1)));
  CHECK(transposed.packed == Names{"uint8[16,64]"});

  const PackedByOp norm(layer_norm(rows * 1.0, scale, scale, 1e-5));
  CHECK(norm.packed == Names{"uint8[8,256]"});
  CHECK(norm.exact.size() == 4);  // weight, bias, mean and 1 / deviation

  CHECK(PackedByOp(linear(Variable(data), w)).packed.empty());
  CHECK(PackedByOp(exp(Variable::parameter(torch::randn({3, 85})) * 1.0)).packed.empty());
  CHECK(PackedByOp(exp(Variable::parameter(torch::randn({4, 64})) * 1.0)).packed.size() == 1);
  CHECK(PackedByOp(masked_fill(h, torch::zeros({16, 64}, at::kBool), 1)).packed.empty());
  CHECK(PackedByOp(log_softmax(h, 1)).packed.empty());
  CHECK(PackedByOp(cross_entropy(h, torch::zeros({16}, at::kLong))).packed.empty());
  CHECK(PackedByOp(h * expand(slice(h, 0, 0, 1), {16, 64})).packed.size() == 1);

  // Only packing to fp8 makes bfloat16 activations smaller.
  const Variable low = cast(h, at::kBFloat16);
  CHECK(PackedByOp(tanh(low)).packed == Names{"uint8[16,64]"});
  const PackSaved halves(Packing::bf16);
  CHECK(PackedByOp(tanh(low)).packed.empty());
  CHECK(PackedByOp(tanh(h)).packed == Names{"bfloat16[16,64]"});
}

TEST_CASE("without memory scopes, tensors created under a PackSaved are packed", "[packing]") {
  const Variable w = Variable::parameter(torch::randn({64, 64}));
  const at::Tensor data = torch::randn({16, 64});
  const PackSaved packing(Packing::fp8);
  const Variable h = linear(Variable(data), w);
  CHECK(PackedByOp(h).packed.empty());
  CHECK(PackedByOp(tanh(h)).packed.size() == 1);
  const PackedByOp layer(linear(h, w));
  CHECK(layer.packed == std::vector<std::string>{"uint8[16,64]"});
  CHECK(layer.exact == std::vector<std::string>{"float32[64,64]"});
  // A parameter that is created under the PackSaved is not packed.
  CHECK(PackedByOp(sin(Variable::parameter(torch::randn({16, 64})))).packed.empty());
}

TEST_CASE("a long-lived PackSaved forgets freed tensors", "[packing]") {
  const Variable x = Variable::parameter(torch::randn({16, 64}));
  PackSaved packing(Packing::bf16);
  for (int i = 0; i < 5000; ++i) sin(x * 1.0);
  CHECK(packing.remembered() <= 2048);
  // The PackSaved still remembers the tensors that exist.
  const Variable h = x * 1.0, first = sin(h);
  for (int i = 0; i < 5000; ++i) sin(x * 1.0);
  const Variable second = cos(h);
  const auto packed_of = [](const Variable& y) {
    const PackedTensor* packed = nullptr;
    y.node()->visit_saved([&](Saved& saved) { packed = saved.packed(); });
    return packed;
  };
  CHECK(packed_of(first) != nullptr);
  CHECK(packed_of(first) == packed_of(second));
}

TEST_CASE("packing frees the activations, and packs a tensor that two ops save once", "[packing]") {
  install_allocator();
  const MemoryScope scope(Memory::activations);
  const auto used = [] { return memory_stats().used[static_cast<size_t>(Memory::activations)]; };
  const Variable x = Variable::parameter(torch::randn({64, 1024}));
  const auto kept_by = [&](std::optional<Packing> packing) {
    std::optional<PackSaved> guard;
    if (packing) guard.emplace(*packing);
    const auto before = used();
    // tanh keeps its result, and sin its argument, which is the same tensor.
    const Variable y = sum(sin(tanh(x)));
    const auto kept = used() - before;
    backward(y);
    return kept;
  };
  constexpr int64_t elements = 64 * 1024, total = 4;  // bytes of the sum
  CHECK(kept_by(std::nullopt) == 4 * elements + total);
  CHECK(kept_by(Packing::bf16) == 2 * elements + total);
  CHECK(kept_by(Packing::fp8) == elements + 64 * 4 + total);
}

TEST_CASE("a tensor that changes after it was packed is packed again", "[packing]") {
  install_allocator();
  const MemoryScope scope(Memory::activations);
  const PackSaved packing(Packing::bf16);
  const Variable x = Variable::parameter(torch::ones({16, 64})), h = x * 1.0;
  const Variable first = sin(h);
  h.data().fill_(2);
  const Variable second = sin(h);
  // The packed tensor is a copy, so the change does not affect it.
  const at::Tensor dx = grad(sum(first), {x})[0].data();
  CHECK(dx.allclose(torch::ones({16, 64}).cos()));
  CHECK(grad(sum(second), {x})[0].data().allclose(torch::full({16, 64}, 2.0).cos()));
}

TEST_CASE("recomputed parts keep and restore exact tensors", "[packing]") {
  const at::Tensor x = torch::randn({16, 64});
  const auto part = [](const Variable& v) { return sin(tanh(v)); };
  const auto again = [&](const Variable& v) { return recompute(part, v); };
  const auto selective = [&](const Variable& v) {
    Selection selection{.share = 1e9, .products_only = false};
    return recompute_selectively(selection, part, v);
  };
  const at::Tensor exact = packed_gradient(part, x, std::nullopt);
  CHECK(!packed_gradient(part, x, Packing::fp8).equal(exact));
  CHECK(packed_gradient(again, x, Packing::fp8).equal(exact));
  CHECK(packed_gradient(selective, x, Packing::fp8).equal(exact));
}

TEST_CASE("a GPT's gradients with packed activations are reproducible and nearly exact",
          "[packing]") {
  install_allocator();
  GPTConfig g;
  g.n_layer = 3;
  g.n_head = 2;
  g.n_embd = 64;
  g.block_size = 32;
  g.vocab_size = 61;
  g.dropout = 0.1;
  GPT model = [&] {
    const MemoryScope scope(Memory::parameters);
    return GPT(g);
  }();
  initialize(model, Init::fan_in, 5);
  const at::Tensor ids = torch::randint(61, {4, 32}), targets = torch::randint(61, {4, 32});

  struct Pass {
    at::Tensor loss, gradients;
    int64_t kept = 0;
  };
  const auto run = [&](at::ScalarType dtype, std::optional<Packing> packing) {
    zero_grad(model);
    Pass pass;
    const MemoryScope scope(Memory::activations);
    const auto used = [] { return memory_stats().used[static_cast<size_t>(Memory::activations)]; };
    const auto before = used();
    std::optional<PackSaved> guard;
    if (packing) guard.emplace(*packing);
    const TrainingStep step({.seed = 3});
    Variable loss;
    {
      const Autocast autocast(dtype);
      loss = head_loss(model, ids, targets, 128);
    }
    pass.kept = used() - before;
    backward(loss);
    pass.loss = loss.data();
    std::vector<at::Tensor> all;
    for (const auto& p : parameters(model))
      all.push_back(p.parameter.grad().to(at::kFloat).view(-1));
    pass.gradients = at::cat(all);
    return pass;
  };

  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    INFO(c10::toString(dtype));
    const Pass plain = run(dtype, std::nullopt);
    const auto check = [&](Packing packing, double memory, double error) {
      const Pass packed = run(dtype, packing), again = run(dtype, packing);
      CHECK(packed.loss.equal(plain.loss));
      CHECK(packed.gradients.equal(again.gradients));
      CHECK(!packed.gradients.equal(plain.gradients));
      const double away = (packed.gradients - plain.gradients).norm().item<double>() /
                          plain.gradients.norm().item<double>();
      const double part = static_cast<double>(packed.kept) / static_cast<double>(plain.kept);
      CAPTURE(away, part);
      CHECK(away < error);
      CHECK(part < memory);
    };
    const bool low = dtype == at::kBFloat16;
    check(Packing::fp8, low ? 0.6 : 0.4, 0.15);
    if (!low) check(Packing::bf16, 0.65, 0.01);
  }
}

}  // namespace
