// Tests that chains of elementwise ops are bitwise equal to ATen's ops run one by one, for any
// layout, dtype, size and number of threads.
#include "core/kernels/chain.h"

#include <ATen/Parallel.h>

#include <cstring>
#include <functional>

#include "core/blocks.h"
#include "core/kernels/chain_plan.h"
#include "core/sum.h"
#include "tests/support/catch.h"
#include "tests/support/vector_sets.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns whether two tensors are bitwise equal. NaNs may differ in their payload.
bool has_chain_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.to(at::kFloat), y = b.to(at::kFloat);
  const at::Tensor nan = x.isnan().logical_and(y.isnan());
  return x.masked_fill(nan, 0).view(at::kInt).equal(y.masked_fill(nan, 0).view(at::kInt));
}

/// Returns random numbers with special values among them.
at::Tensor chain_numbers(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor t = torch::randn(sizes) * 3;
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor special =
      torch::tensor({0.0f, -0.0f, inf, -inf, NAN, 1e-40f, 3e38f, -1.0f, NAN, NAN});
  // These NaNs have no bits of their payload in the half that bfloat16 keeps.
  special.view(at::kInt)[8] = 0x7f800001;
  special.view(at::kInt)[9] = static_cast<int32_t>(0xff80ffffu);
  const at::Tensor flat = t.view(-1);
  for (int64_t i = 0; i < flat.numel(); i += 13) flat[i] = special[i / 13 % special.numel()];
  return t.to(dtype);
}

ChainType type_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? ChainType::bf16 : ChainType::f32;
}

struct ChainCase {
  const char* name;
  ChainOp op;
  int operands;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> aten;
  double number = 0;
};

std::vector<ChainCase> chain_cases() {
  using T = const at::Tensor&;
  const auto mask = [](auto f) { return [f](T a, T b) { return f(a, b).to(a.scalar_type()); }; };

  return {
      {"copy", ChainOp::copy, 1, [](T a, T) { return a.clone(); }},
      {"neg", ChainOp::neg, 1, [](T a, T) { return a.neg(); }},
      {"reciprocal", ChainOp::reciprocal, 1, [](T a, T) { return a.reciprocal(); }},
      {"relu", ChainOp::relu, 1, [](T a, T) { return a.relu(); }},
      {"clamp", ChainOp::clamp, 1, [](T a, T) { return a.clamp(-2, 2); }, 2},
      {"add", ChainOp::add, 2, [](T a, T b) { return a.add(b); }},
      {"sub", ChainOp::sub, 2, [](T a, T b) { return a.sub(b); }},
      {"mul", ChainOp::mul, 2, [](T a, T b) { return a.mul(b); }},
      {"div", ChainOp::div, 2, [](T a, T b) { return a.div(b); }},
      {"add number", ChainOp::add, 1, [](T a, T) { return a.add(0.75); }, 0.75},
      {"mul number", ChainOp::mul, 1, [](T a, T) { return a.mul(0.7); }, 0.7},
      {"relu_grad", ChainOp::relu_grad, 2,
       [](T a, T b) { return torch::threshold_backward(a, b, 0); }},
      {"less", ChainOp::less, 2, mask([](T a, T b) { return a.lt(b); })},
      {"less_equal", ChainOp::less_equal, 2, mask([](T a, T b) { return a.le(b); })},
      {"greater", ChainOp::greater, 1, mask([](T a, T) { return a.gt(0.5); }), 0.5},
      {"greater_equal", ChainOp::greater_equal, 2, mask([](T a, T b) { return a.ge(b); })},
      {"equal", ChainOp::equal, 2, mask([](T a, T b) { return a.eq(b); })},
      {"not_equal", ChainOp::not_equal, 2, mask([](T a, T b) { return a.ne(b); })},
      {"sqrt", ChainOp::sqrt, 1, [](T a, T) { return a.sqrt(); }},
      {"rsqrt", ChainOp::rsqrt, 1, [](T a, T) { return a.rsqrt(); }},
      {"exp", ChainOp::exp, 1, [](T a, T) { return a.exp(); }},
      {"log", ChainOp::log, 1, [](T a, T) { return a.log(); }},
      {"tanh", ChainOp::tanh, 1, [](T a, T) { return a.tanh(); }},
      {"erf", ChainOp::erf, 1, [](T a, T) { return a.erf(); }},
      {"sigmoid", ChainOp::sigmoid, 1, [](T a, T) { return a.sigmoid(); }},
      {"silu", ChainOp::silu, 1, [](T a, T) { return torch::silu(a); }},
      {"gelu", ChainOp::gelu, 1, [](T a, T) { return torch::gelu(a, "tanh"); }},
      {"gelu_exact", ChainOp::gelu_exact, 1, [](T a, T) { return torch::gelu(a); }},
      {"pow", ChainOp::pow, 1, [](T a, T) { return a.pow(3); }, 3},
      {"pow -1.5", ChainOp::pow, 1, [](T a, T) { return a.pow(-1.5); }, -1.5},
      {"tanh_grad", ChainOp::tanh_grad, 2, [](T a, T b) { return torch::tanh_backward(a, b); }},
      {"sigmoid_grad", ChainOp::sigmoid_grad, 2,
       [](T a, T b) { return torch::sigmoid_backward(a, b); }},
      {"silu_grad", ChainOp::silu_grad, 2, [](T a, T b) { return torch::silu_backward(a, b); }},
      {"gelu_grad", ChainOp::gelu_grad, 2,
       [](T a, T b) { return torch::gelu_backward(a, b, "tanh"); }},
      {"gelu_exact_grad", ChainOp::gelu_exact_grad, 2,
       [](T a, T b) { return torch::gelu_backward(a, b); }},
  };
}

/// Returns f(inputs), computed in blocks as in_blocks() does.
template <class F>
at::Tensor by_aten(const F& f, at::TensorList inputs) {
  return in_blocks(
      [&](at::TensorList t, at::Tensor* out) { return out != nullptr ? out->copy_(f(t)) : f(t); },
      inputs);
}

/// Runs a chain on tensors; the result has the shape of the first tensor.
at::Tensor run_chain(const Chain& chain, const std::vector<at::Tensor>& in, at::ScalarType dtype) {
  const at::Tensor y = torch::full(in[0].sizes(), 123, dtype);
  std::vector<const void*> inputs;
  for (const at::Tensor& t : in) inputs.push_back(t.const_data_ptr());
  void* const outputs[]{y.mutable_data_ptr()};
  chain.run(inputs, outputs, y.numel());
  return y;
}

TEST_CASE("each op of a chain is bitwise equal to ATen's, for any size and number of threads",
          "[chain]") {
  torch::manual_seed(1);
  const int threads = at::get_num_threads();
  for (const ChainCase& c : chain_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t n : {1, 7, 65, 1000, 8193, 8200, 8257, 16385, 70003}) {
        const at::Tensor a = chain_numbers({n}, dtype), b = chain_numbers({n}, dtype);

        Chain chain;
        const int x = chain.add_input({.type = type_of(dtype)}),
                  y = chain.add_input({.type = type_of(dtype)});
        const int z = chain.add_step({.op = c.op,
                                      .from = {x, c.operands > 1 ? y : -1, -1},
                                      .number = c.number,
                                      .low = dtype == at::kBFloat16});
        chain.add_output(z, type_of(dtype));

        for (const int count : {1, 2}) {
          INFO(c.name << ", " << n << ", " << count << " threads");
          at::set_num_threads(count);
          const at::Tensor wanted =
              by_aten([&](at::TensorList t) { return c.aten(t[0], t[1]); }, {a, b});
          CHECK(has_chain_bits(run_chain(chain, {a, b}, dtype), wanted));
        }
      }
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("a chain passes values on, keeps values needed later, and selects by masks", "[chain]") {
  torch::manual_seed(2);
  const int64_t rows = 37, columns = 29, n = rows * columns;
  const at::Tensor x = chain_numbers({rows, columns}, at::kFloat),
                   row = chain_numbers({columns}, at::kFloat),
                   column = chain_numbers({rows, 1}, at::kBFloat16),
                   mask = torch::randint(2, {rows, columns}).to(at::kBool),
                   number = torch::tensor({1.25f});
  Chain chain;
  const int vx = chain.add_input({}), vr = chain.add_input({.inner = 1, .size = columns}),
            vc = chain.add_input({.type = ChainType::bf16, .inner = columns, .size = rows}),
            vm = chain.add_input({.type = ChainType::mask}),
            vn = chain.add_input({.inner = 1, .size = 1});
  const int a = chain.add_step({.op = ChainOp::mul, .from = {vx, vr, -1}}),
            b = chain.add_step({.op = ChainOp::sub, .from = {vc, a, -1}}),
            c = chain.add_step({.op = ChainOp::mul, .from = {b, b, -1}}),
            d = chain.add_step({.op = ChainOp::sigmoid, .from = {c, -1, -1}}),
            e = chain.add_step({.op = ChainOp::div, .from = {vn, d, -1}}),
            f = chain.add_step({.op = ChainOp::less, .from = {a, e, -1}}),
            g = chain.add_step({.op = ChainOp::select, .from = {f, e, b}}),
            h = chain.add_step({.op = ChainOp::fill, .from = {vm, g, -1}, .number = -7}),
            k = chain.add_step({.op = ChainOp::keep, .from = {f, h, -1}, .number = 9}),
            low = chain.add_step({.op = ChainOp::copy, .from = {k, -1, -1}, .low = true});
  for (const int value : {b, d, k}) chain.add_output(value, ChainType::f32);
  chain.add_output(low, ChainType::bf16);

  const at::Tensor A = x * row, B = column - A, C = B * B, D = C.sigmoid(), E = number / D,
                   F = A < E, G = torch::where(F, E, B), H = G.masked_fill(mask, -7),
                   K = H.masked_fill(F.logical_not(), 9);
  on_every_set([&](const std::string& set) {
    INFO(set);
    std::vector<at::Tensor> out{torch::empty_like(x), torch::empty_like(x), torch::empty_like(x),
                                torch::empty_like(x, at::kBFloat16)};
    std::vector<const void*> inputs;
    for (const at::Tensor& t : {x, row, column, mask, number}) inputs.push_back(t.const_data_ptr());
    std::vector<void*> outputs;
    for (const at::Tensor& t : out) outputs.push_back(t.mutable_data_ptr());
    chain.run(inputs, outputs, n);
    CHECK(has_chain_bits(out[0], B));
    CHECK(has_chain_bits(out[1], D));
    CHECK(has_chain_bits(out[2], K));
    CHECK(has_chain_bits(out[3], K.to(at::kBFloat16)));
  });
}

TEST_CASE("a chain rounds float32 to bfloat16 as ATen does, including NaNs", "[chain]") {
  torch::manual_seed(4);
  const at::Tensor special = chain_numbers({4001}, at::kFloat);
  // Replace zeros and subnormal numbers, since the conversion instruction of some processors does
  // not round them.
  const at::Tensor normal = torch::where(special.abs() < 1e-30, torch::ones({}), special);
  Chain chain;
  const int value = chain.add_input({});
  chain.add_output(chain.add_step({.op = ChainOp::copy, .from = {value, -1, -1}, .low = true}),
                   ChainType::bf16);
  on_every_set([&](const std::string& set) {
    INFO(set);
    for (const at::Tensor& x : {special, normal})
      CHECK(has_chain_bits(run_chain(chain, {x}, at::kBFloat16), x.to(at::kBFloat16)));
  });
}

/// The values of a norm over rows. rows_by_aten() computes them with ATen's ops and fixed_sum(),
/// and rows_by_chain() with a chain.
struct RowValues {
  at::Tensor rstd, y, low, smooth;
};

RowValues rows_by_aten(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto columns = static_cast<double>(x.size(1));
  const auto mean = [&](const at::Tensor& t) { return fixed_sum(t, {1}, true).div(columns); };
  const at::Tensor centered = x - mean(x);
  RowValues v;
  v.rstd = (mean(centered * centered) + 1e-5).rsqrt();
  v.y = centered * v.rstd * weight + bias.to(at::kFloat);
  v.low = v.y.to(at::kBFloat16);
  v.smooth = by_aten([](at::TensorList t) { return t[0].sigmoid(); }, {v.y}) + v.rstd.exp();
  return v;
}

/// Computes the same values with a chain. Computes `smooth`, which calls ATen's functions, only if
/// `calls` is true.
RowValues rows_by_chain(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        bool calls) {
  const int64_t rows = x.size(0), columns = x.size(1);
  Chain chain(columns);
  const int vx = chain.add_input({}), vw = chain.add_input({.inner = 1, .size = columns}),
            vb = chain.add_input({.type = ChainType::bf16, .per_row = true});
  const auto step = [&](ChainOp op, int a, int b = -1, double number = 0, bool low = false) {
    return chain.add_step({.op = op, .from = {a, b, -1}, .number = number, .low = low});
  };
  const auto mean = [&](int value) {
    return step(ChainOp::div, step(ChainOp::row_sum, value), -1, static_cast<double>(columns));
  };
  const int centered = step(ChainOp::sub, vx, mean(vx));
  const int variance = mean(step(ChainOp::mul, centered, centered));
  const int rstd = step(ChainOp::inverse_root, step(ChainOp::add, variance, -1, 1e-5));
  const int scaled = step(ChainOp::mul, step(ChainOp::mul, centered, rstd), vw);
  const int y = step(ChainOp::add, scaled, vb);
  chain.add_output(rstd, ChainType::f32);
  chain.add_output(y, ChainType::f32);
  chain.add_output(step(ChainOp::copy, y, -1, 0, true), ChainType::bf16);
  if (calls)
    chain.add_output(step(ChainOp::add, step(ChainOp::sigmoid, y), step(ChainOp::exp, rstd)),
                     ChainType::f32);

  RowValues v{torch::empty({rows, 1}), torch::empty_like(x), torch::empty_like(x, at::kBFloat16),
              torch::empty_like(x)};
  const void* const inputs[]{x.const_data_ptr(), weight.const_data_ptr(), bias.const_data_ptr()};
  std::vector<void*> outputs{v.rstd.mutable_data_ptr(), v.y.mutable_data_ptr(),
                             v.low.mutable_data_ptr()};
  if (calls) outputs.push_back(v.smooth.mutable_data_ptr());
  chain.run(inputs, outputs, x.numel());
  return v;
}

TEST_CASE("a chain sums rows and uses the sums in further ops", "[chain]") {
  torch::manual_seed(5);
  const int threads = at::get_num_threads();
  int with_calls = 0;
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{2, 16},
                                                                              {3, 50},
                                                                              {37, 29},
                                                                              {64, 128},
                                                                              {65, 77},
                                                                              {700, 384},
                                                                              {300, 250},
                                                                              {5, 3000},
                                                                              {1000, 100},
                                                                              {129, 1024},
                                                                              {2, 32768}}) {
    const at::Tensor x = torch::randn({rows, columns}), weight = torch::randn({columns}),
                     bias = torch::randn({rows, 1}).to(at::kBFloat16);
    for (const int count : {1, 2, 3}) {
      INFO(rows << " x " << columns << ", " << count << " threads");
      at::set_num_threads(count);
      const bool calls = rows_split_alike(rows, columns, true, true);
      with_calls += calls;
      const RowValues wanted = rows_by_aten(x, weight, bias);
      on_every_set([&](const std::string& set) {
        INFO(set);
        const RowValues got = rows_by_chain(x, weight, bias, calls);
        const RowValues now = rows_by_aten(x, weight, bias);  // sums depend on the instruction set
        CHECK(got.rstd.equal(now.rstd));
        CHECK(got.y.equal(now.y));
        CHECK(got.low.equal(now.low));
        if (calls) CHECK(got.smooth.equal(now.smooth));
      });
    }
  }
  CHECK(with_calls > 15);
  at::set_num_threads(threads);
}

TEST_CASE("a chain takes any alignment and length, and writes nothing beyond its end", "[chain]") {
  torch::manual_seed(3);
  Chain chain;
  const int x = chain.add_input({}), y = chain.add_input({});
  const int s = chain.add_step({.op = ChainOp::add, .from = {x, y, -1}});
  chain.add_output(chain.add_step({.op = ChainOp::mul, .from = {s, s, -1}}), ChainType::f32);
  const at::Tensor a = torch::randn({3000}), b = torch::randn({3000});
  for (const int64_t n : {0, 1, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 2900}) {
    const at::Tensor z = torch::full({3000}, 5.0f);
    const void* const inputs[]{a.data_ptr<float>() + 1, b.data_ptr<float>() + 3};
    void* const outputs[]{z.data_ptr<float>() + 5};
    chain.run(inputs, outputs, n);
    const at::Tensor sum = a.slice(0, 1, 1 + n) + b.slice(0, 3, 3 + n);
    CHECK(z.slice(0, 5, 5 + n).equal(sum * sum));
    CHECK(z.slice(0, 0, 5).eq(5).all().item<bool>());
    CHECK(z.slice(0, 5 + n).eq(5).all().item<bool>());
  }
}

}  // namespace
