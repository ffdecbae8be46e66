// Compares the CPU kernels with ATen, on any number of threads and any instruction set. The op
// table also checks the ops that use these kernels.

#include <ATen/Parallel.h>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/kernels/isa.h"
#include "core/memory.h"
#include "core/mode.h"
#include "nn/init.h"
#include "nn/models/llama.h"
#include "tests/support/catch.h"
#include "tests/support/gpt.h"
#include "tests/support/op_case.h"
#include "tests/support/process.h"
#include "tests/support/vector_sets.h"

namespace {

using namespace lathe;
using namespace lathe::test;

bool skip_without(at::ScalarType dtype) {
  if (gemm_ready(element_of(dtype))) return false;
  WARN("skipped: on this CPU, matrix products in " << dtype_name(dtype) << " use ATen");
  return true;
}

/// Returns the code paths that this machine can run. A path is the code for one set of CPU
/// instructions (Isa).
std::vector<Isa> paths() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
    if (isa <= machine_isa()) out.push_back(isa);
  }
  if (out.empty()) WARN("skipped: on this CPU, all matrix products use ATen");
  return out;
}
/// Until destroyed, makes kernels take the path of a machine with these instructions.
struct OnPath {
  explicit OnPath(Isa isa) { use_isa(isa); }
  ~OnPath() { use_isa(before); }
  const Isa before = active_isa();
};

Matrix matrix(const at::Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), element_of(t.scalar_type())};
}

double error(const at::Tensor& ours, const at::Tensor& wanted) {
  return (ours.to(at::kDouble) - wanted).abs().max().item<double>() /
         wanted.abs().max().item<double>();
}

TEST_CASE("matrix products of any shape, with each part of the epilogue, agree with float64",
          "[kernels]") {
  torch::manual_seed(1);
  for (const Isa isa : paths()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const OnPath path(isa);
      INFO(isa_name(isa));
      if (skip_without(dtype)) continue;
      // Float32 sums of up to 2100 terms and one rounding give this allowed error, relative to the
      // largest result.
      const double allowed = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
      for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                       {1, 70, 3},
                                                                       {33, 65, 17},
                                                                       {64, 64, 64},
                                                                       {100, 130, 1030},
                                                                       {5, 200, 2100},
                                                                       {1100, 70, 2100},
                                                                       {300, 16, 2}}) {
        INFO(dtype_name(dtype) << " " << m << " x " << n << " x " << k);
        const at::Tensor a = torch::randn({m, k}).to(dtype), b = torch::randn({k, n}).to(dtype);
        const at::Tensor bias = torch::randn({n}), residual = torch::randn({m, n}),
                         sums = torch::empty({m});
        const at::Tensor wanted = a.to(at::kDouble).matmul(b.to(at::kDouble));
        at::Tensor y = torch::empty({m, n}, dtype), before = torch::empty({m, n}, dtype),
                   z = torch::empty({m, n});

        gemm(matrix(a), matrix(b), m, n, k, {.out = matrix(y)});
        CHECK(error(y, wanted) < allowed);

        const at::Tensor bt = b.t().contiguous(), at = a.t().contiguous();
        gemm_nt(matrix(a), matrix(bt), m, n, k,
                {.out = matrix(y),
                 .bias = bias.const_data_ptr<float>(),
                 .activation = Activation::gelu,
                 .before = matrix(before)});
        CHECK(error(before, wanted + bias) < allowed);
        CHECK(error(y, torch::gelu(wanted + bias, "tanh")) < allowed);

        gemm_tn(matrix(at), matrix(b), m, n, k, {.out = matrix(z), .residual = matrix(residual)},
                sums.mutable_data_ptr<float>());
        CHECK(error(z, wanted + residual) < 1e-5);
        CHECK(error(sums, at.to(at::kDouble).sum(0)) < 1e-4);  // some sums nearly cancel

        // Compute the result as a sum of two matmuls that divide the inner size. Then divide the
        // rows between two matmuls with the same right factor.
        const int64_t deep = k / 3, high = m / 3;
        if (deep == 0 || high == 0) continue;
        const at::Tensor lower = torch::empty({m - high, n}), tail = torch::empty({m - high});
        gemm({{{matrix(a), matrix(b), deep},
               {matrix(a.slice(1, deep)), matrix(b.slice(0, deep)), k - deep}}},
             m, n, {.out = matrix(y)});
        CHECK(error(y, wanted) < allowed);
        gemm_tn({{{matrix(at), high, {.out = matrix(z)}},
                  {matrix(at.slice(1, high)),
                   m - high,
                   {.out = matrix(lower)},
                   tail.mutable_data_ptr<float>()}}},
                matrix(b), n, k);
        CHECK(error(torch::cat({z.slice(0, 0, high), lower}), wanted) < 1e-5);
        CHECK(error(tail, at.to(at::kDouble).sum(0).slice(0, high)) < 1e-4);
      }
    }
  }
}

struct Outcome {
  double loss = 0;
  std::vector<std::pair<std::string, at::Tensor>> grads;
};

/// Returns the loss and the gradients of a model after two micro-batches.
template <class Model>
Outcome outcome_of(Model& model, at::ScalarType compute, bool hook = false) {
  Outcome o;
  for (int64_t micro = 0; micro < 2; ++micro) {
    at::Tensor ids = torch::empty({3, 80}, at::kLong);
    for (int64_t i = 0; i < ids.numel(); ++i) ids.view(-1)[i] = (i * 7 + i * i * micro + 3) % 131;
    Variable loss;
    {
      const Autocast autocast(Compute{compute, true});
      loss = head_loss(model, ids, ids.roll(1, 1), 480);
    }
    if (hook) loss.register_hook([](const at::Tensor&) { return at::Tensor(); });
    for (const auto& p : parameters(model)) {
      if (hook && micro == 0)
        p.parameter.register_hook([](const at::Tensor& g) { return g.clone(); });
    }
    backward(loss);
    o.loss += loss.item();
  }
  for (const auto& p : parameters(model)) o.grads.emplace_back(p.path, p.parameter.grad());
  return o;
}

/// Returns the loss and the gradients of a small GPT.
Outcome outcome(at::ScalarType compute, bool tie, bool hook = false) {
  GPTConfig c;
  c.n_layer = 2;
  c.n_head = 3;
  c.n_embd = 96;
  c.block_size = 80;
  c.vocab_size = 131;
  c.tie_weights = tie;
  GPT model = make_gpt(c, 5);
  return outcome_of(model, compute, hook);
}

/// Returns the loss and the gradients of a small Llama with grouped-query attention, biases, and
/// sizes that are not multiples of the kernels' blocks.
Outcome llama_outcome(at::ScalarType compute, bool hook = false) {
  LlamaConfig c;
  c.n_layer = 2;
  c.n_head = 6;
  c.n_kv_head = 2;
  c.n_embd = 96;
  c.n_inner = 200;
  c.qkv_bias = true;
  c.block_size = 80;
  c.vocab_size = 131;
  Llama model(c);
  initialize(model, init_from_config(c.init), 5, c.n_layer);
  return outcome_of(model, compute, hook);
}

TEST_CASE("gradients are bitwise equal on any number of threads", "[kernels]") {
  const auto gpt = [](at::ScalarType dtype) { return outcome(dtype, true); };
  const auto llama = [](at::ScalarType dtype) { return llama_outcome(dtype); };
  for (const auto& [model, of] :
       {std::pair<std::string, std::function<Outcome(at::ScalarType)>>("gpt", gpt),
        {"llama", llama}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      if (skip_without(dtype)) continue;

      const int threads = at::get_num_threads();
      at::set_num_threads(1);
      const Outcome one = of(dtype);

      for (const int n : {2, 3, 7}) {
        at::set_num_threads(n);
        const Outcome many = of(dtype);
        CHECK(many.loss == one.loss);
        for (size_t i = 0; i < one.grads.size(); ++i) {
          INFO(model << ": " << one.grads[i].first << ", " << n << " threads");
          CHECK(torch::equal(many.grads[i].second, one.grads[i].second));
        }
      }

      at::set_num_threads(threads);
      use_kernels(false);  // the comparison notices other kernels
      const Outcome aten = of(dtype);
      use_kernels(true);
      CHECK_FALSE(torch::equal(aten.grads[0].second, one.grads[0].second));
    }
  }
}

TEST_CASE(
    "kernels and ATen agree on the accumulated gradients of models, with and without tied weights "
    "and hooks",
    "[kernels]") {
  const std::vector<std::pair<std::string, std::function<Outcome(at::ScalarType, bool)>>> models{
      {"gpt, tied", [](at::ScalarType dtype, bool hook) { return outcome(dtype, true, hook); }},
      {"gpt", [](at::ScalarType dtype, bool hook) { return outcome(dtype, false, hook); }},
      {"llama", llama_outcome}};

  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    if (skip_without(dtype)) continue;
    // In float32, sums have another order. In bfloat16, other intermediate results are rounded in
    // each of the two blocks. In float16 without a loss scale, some gradients are below the
    // smallest normal number.
    const double allowed = dtype == at::kFloat ? 1e-5 : 0.04;
    for (const auto& [model, of] : models) {
      use_kernels(false);
      const Outcome aten = of(dtype, false);
      use_kernels(true);

      for (const bool hook : {false, true}) {
        const Outcome ours = of(dtype, hook);
        CHECK(ours.loss == Approx(aten.loss).epsilon(allowed));
        for (size_t i = 0; i < ours.grads.size(); ++i) {
          INFO(model << ", " << ours.grads[i].first << (hook ? ", hooks" : ""));
          // Softmax ignores a constant that is added to all scores, so the gradients of the bias of
          // the keys nearly cancel.
          const double more = ours.grads[i].first.ends_with("k.bias") ? 4 : 1;
          CHECK(error(ours.grads[i].second, aten.grads[i].second.to(at::kDouble)) < more * allowed);
        }
      }
    }
  }
}

const std::set<std::string> with_kernels{
    "linear",    "linear_gelu", "layer_norm",    "rms_norm",
    "swiglu",    "attention",   "embedding",     "linear_cross_entropy",
    "dropout",   "rotate",      "linear_swiglu", "grouped_attention",
    "linear_qkv"};

/// Returns the op table's rows of ops with kernels, without the checks that need float64. The
/// kernels do not support float64. The tests in tests/autograd/ops make these checks.
std::vector<OpCase> kernel_rows() {
  std::vector<OpCase> rows;
  for (OpCase row : op_table()) {
    if (!with_kernels.contains(row.op)) continue;
    row.second = row.differences = false;
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST_CASE("every path passes the op table's rows of ops with kernels", "[kernels]") {
  for (const Isa isa : paths()) {
    const OnPath path(isa);
    for (const auto& row : kernel_rows()) {
      for (const auto& problem : check_op(row)) FAIL_CHECK(isa_name(isa) << ": " << problem);
    }
  }
  CHECK(active_isa() == machine_isa());
}

TEST_CASE("every set of vector instructions passes the op table's rows of ops with kernels",
          "[kernels]") {
  int sets = 0;
  on_every_set([&](const std::string& set) {
    ++sets;
    for (const auto& row : kernel_rows()) {
      for (const auto& problem : check_op(row)) FAIL_CHECK(set << ": " << problem);
    }
  });
  CHECK(sets >= 1);
}

TEST_CASE("attention of few heads is bitwise unchanged if threads share a head", "[kernels]") {
  const int threads = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    if (skip_without(dtype)) continue;
    const at::Tensor data = torch::randn({1, 400, 3 * 64}).to(dtype),
                     dy = torch::randn({1, 400, 64}).to(dtype);
    const auto pass = [&](int n) {
      at::set_num_threads(n);
      const Variable qkv = Variable::parameter(data.clone());
      const Variable y = attention(qkv, 2);
      backward(y, dy);
      return std::pair(y.data(), qkv.grad());
    };
    const auto [y, dqkv] = pass(1);  // one thread computes both heads
    for (const int n : {2, 3, 5}) {
      const auto [y_parts, dqkv_parts] = pass(n);
      CHECK(y_parts.equal(y));
      CHECK(dqkv_parts.equal(dqkv));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("a matrix product of few rows is bitwise equal to these rows of a larger product",
          "[kernels]") {
  torch::manual_seed(2);
  for (const Isa isa : paths()) {
    const OnPath path(isa);
    for (const auto& [a_type, b_type] : {std::pair(at::kFloat, at::kFloat),
                                         {at::kBFloat16, at::kBFloat16},
                                         {at::kFloat, at::kBFloat16}}) {
      if (skip_without(b_type)) continue;
      // If bfloat16 is multiplied without conversion, a matmul of many rows sums in another order.
      const bool exact = a_type != b_type || multiplied_as(element_of(b_type)) == Element::f32;
      for (const auto& [n, k] : std::vector<std::array<int64_t, 2>>{
               {1, 1}, {3, 5}, {16, 64}, {17, 8}, {64, 768}, {65, 769}, {100, 2100}, {130, 34}}) {
        INFO(isa_name(isa) << ", " << n << " x " << k << " of " << b_type);

        const at::Tensor a = torch::randn({40, k}).to(a_type),
                         wide = torch::randn({n, k + 3}).to(b_type);
        const at::Tensor b = wide.slice(1, 0, k), bias = torch::randn({n}),
                         residual = torch::randn({40, n});

        const auto product = [&](int64_t rows) {
          const at::Tensor y = residual.slice(0, 0, rows).clone();
          Epilogue e{.out = matrix(y),
                     .bias = bias.const_data_ptr<float>(),
                     .activation = Activation::gelu};
          e.residual = e.out;  // adds to y
          gemm_nt(matrix(a), matrix(b), rows, n, k, e);
          return y;
        };

        const at::Tensor whole = product(40);
        for (const int64_t rows : {1, 2, 3, 5, 8}) {
          const at::Tensor wanted = whole.slice(0, 0, rows), few = product(rows);
          if (exact)
            CHECK(few.equal(wanted));
          else
            CHECK(error(few, wanted.to(at::kDouble)) < 1e-2);
        }
      }
    }
  }
}

TEST_CASE("attention of only the last positions is bitwise unchanged, and agrees with float64",
          "[kernels]") {
  torch::manual_seed(3);
  for (const Isa isa : paths()) {
    const OnPath path(isa);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      if (skip_without(dtype)) continue;
      const bool exact = multiplied_as(element_of(dtype)) == Element::f32;
      for (const auto& [heads, kv_heads, width, time] : std::vector<std::array<int64_t, 4>>{
               {4, 2, 16, 7}, {2, 2, 10, 64}, {12, 1, 8, 131}, {3, 1, 70, 65}}) {
        INFO(isa_name(isa) << ", " << heads << " heads of " << width << ", " << kv_heads
                           << " of keys");

        const Variable q(torch::randn({2, time, heads * width}).to(dtype));
        const Variable k(torch::randn({2, time, kv_heads * width}).to(dtype));
        const Variable v(torch::randn({2, time, kv_heads * width}).to(dtype));
        const at::Tensor whole = attention(q, k, v, heads, kv_heads).data();

        for (const int64_t few : {int64_t{1}, int64_t{3}, std::min<int64_t>(time, 70)}) {
          const Variable last = slice(q, 1, time - few, time);
          const at::Tensor wanted = whole.slice(1, time - few);
          const at::Tensor own = attention(last, k, v, heads, kv_heads).data();
          if (exact)
            CHECK(own.equal(wanted));
          else
            CHECK(error(own, wanted.to(at::kDouble)) < 2e-2);

          // The reference is the same attention in float64.
          const auto wide = [](const Variable& x) { return Variable(x.data().to(at::kDouble)); };
          CHECK(error(own, attention(wide(last), wide(k), wide(v), heads, kv_heads).data()) <
                (dtype == at::kFloat ? 1e-5 : 2e-2));
        }
      }
    }
  }
}

TEST_CASE("LATHE_ISA selects the path that it names, and refuses unknown and missing instructions",
          "[kernels]") {
  const TempFolder f;
  const auto kernels = [&](const std::string& isa) {
    return run({.binary = "lathe",
                .args = {"config", "kernels"},
                .folder = f.path(),
                .environment = {{"LATHE_ISA", isa}}});
  };

  // paths() leaves out the baseline, on which ATen's kernels run.
  for (const Isa isa : paths()) {
    CHECK_THAT(kernels(isa_name(isa)).out,
               ContainsSubstring(std::string("instructions  ") + isa_name(isa) + " of"));
    const std::string bf16 = "bf16          Lathe's kernels", as_it_is = bf16 + "\n",
                      widened = bf16 + ", multiplied in fp32\n";
    CHECK_THAT(kernels(isa_name(isa)).out,
               ContainsSubstring(isa >= Isa::avx512_bf16 ? as_it_is : widened));
  }

  const Finished unknown = kernels("sse9");
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err,
             ContainsSubstring("LATHE_ISA=sse9") && ContainsSubstring("baseline, avx2"));

  if (machine_isa() < Isa::amx) {
    const Finished missing = kernels("amx");
    CHECK(missing.code == 2);
    CHECK_THAT(missing.err, ContainsSubstring("LATHE_ISA=amx") &&
                                ContainsSubstring(std::string("up to ") + isa_name(machine_isa())));
  }

  CHECK_THAT(kernels("baseline").out, ContainsSubstring("fp32          ATen's"));
}

TEST_CASE("kernels pass on a NaN at the end of an input", "[kernels]") {
  if (skip_without(at::kFloat)) return;
  const auto with_nan = [](at::IntArrayRef shape) {
    at::Tensor t = torch::randn(shape);
    t.view(-1)[t.numel() - 1] = NAN;
    return Variable(t);
  };
  const auto spoiled = [](const Variable& y) { return y.data().isnan().any().item<bool>(); };
  const Variable w(torch::randn({33, 20}));
  CHECK(spoiled(linear(with_nan({3, 20}), w)));
  CHECK(spoiled(linear_gelu(with_nan({3, 20}), w)));
  CHECK(spoiled(layer_norm(with_nan({3, 20}), {}, {})));
  CHECK(spoiled(rms_norm(with_nan({3, 20}), {})));
  CHECK(spoiled(swiglu(with_nan({3, 20}))));
  CHECK(spoiled(attention(with_nan({1, 9, 48}), 2)));
  CHECK(spoiled(linear_cross_entropy(with_nan({3, 20}), w, torch::zeros({3}, at::kLong), 0)));
  CHECK_FALSE(
      spoiled(linear_gelu(Variable(torch::randn({3, 20}) * 1000), w)));  // e^x would overflow
}

TEST_CASE("inputs that a kernel can't take are errors", "[kernels]") {
  const Variable x(torch::randn({3, 20})), w(torch::randn({33, 20}));
  const auto targets = [](int64_t t) { return torch::full({3}, t, at::kLong); };
  for (const int64_t t : {int64_t{-1}, int64_t{33}}) {
    CHECK_THAT(error_of([&] { linear_cross_entropy(x, w, targets(t)); }),
               ContainsSubstring("linear_cross_entropy(") &&
                   ContainsSubstring("target " + std::to_string(t)) &&
                   ContainsSubstring("[0, 33)"));
  }
  CHECK(error_of([&] { linear_cross_entropy(x, w, targets(32)); }).empty());
  CHECK_THAT(error_of([&] { linear(x, w, Variable(torch::randn({1}))); }),
             ContainsSubstring("bias") && ContainsSubstring("[33]"));
  CHECK_THAT(
      error_of([&] { linear(x, Variable(w.data().to(at::kBFloat16))); }),
      ContainsSubstring("linear(float32[3,20], bfloat16[33,20])") && ContainsSubstring("dtype"));
  // A gradient whose dtype differs from the result's dtype is cast before a kernel reads it.
  const Variable p = Variable::parameter(torch::randn({2, 6, 48}).to(at::kBFloat16));
  backward(attention(p, 2), torch::ones({2, 6, 16}));
  CHECK(p.grad().to(at::kFloat).isfinite().all().item<bool>());
}

TEST_CASE("the head's loss in several pieces of rows is the sum of the pieces' losses",
          "[kernels]") {
  constexpr int64_t v = int64_t{1} << 18,
                    c = 4;  // a piece has at most 128 MiB of logits: 128 rows in float32
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    if (skip_without(dtype)) continue;
    const int64_t piece = dtype == at::kFloat ? 128 : 256, n = piece + 12;
    torch::manual_seed(1);
    const at::Tensor x = torch::randn({n, c}).to(dtype), w = torch::randn({v, c}).to(dtype);
    const at::Tensor targets = torch::randint(v, {n}, at::kLong);

    const auto run = [&](int64_t begin, int64_t end) {
      const Variable rows = Variable::parameter(x.slice(0, begin, end).contiguous()),
                     head = Variable::parameter(w);
      const Variable loss = linear_cross_entropy(rows, head, targets.slice(0, begin, end), 10);
      backward(loss);
      return std::tuple(loss.item(), rows.grad(), head.grad());
    };

    const auto [loss, dx, dw] = run(0, n);
    const auto [loss1, dx1, dw1] = run(0, piece);
    const auto [loss2, dx2, dw2] = run(piece, n);

    CHECK(loss == Approx(loss1 + loss2).epsilon(1e-6));
    CHECK(torch::equal(dx, torch::cat({dx1, dx2})));
    // Gradients of bfloat16 weights are rounded to 8 bits, once for all rows or once for each
    // piece.
    CHECK(error(dw, dw1.to(at::kDouble) + dw2.to(at::kDouble)) <
          (dtype == at::kFloat ? 1e-6 : 0x1p-7));
    CHECK(error(dw, dw1.to(at::kDouble)) > 0.01);  // the second piece contributes
  }
}

TEST_CASE("attention's memory grows with the context, not its square", "[kernels]") {
  if (skip_without(at::kFloat)) return;
  const auto peak = [](int64_t context) {
    const Variable qkv = Variable::parameter(torch::randn({2048 / context, context, 3 * 64}));
    reset_memory_peaks();
    const int64_t before = memory_stats().total;
    backward(attention(qkv, 2), torch::ones({2048 / context, context, 64}));
    return memory_stats().total_peak - before;
  };
  install_allocator();
  peak(128);
  const auto small = static_cast<double>(peak(128)), large = static_cast<double>(peak(2048));
  CHECK(large < 3 * small);  // a 2048 x 2048 matrix needs 16 MB per head, 10 times the size of qkv
}

TEST_CASE("a run uses ATen's kernels if instructions are missing or train.kernels asks for them",
          "[kernels]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto trained = [&](const std::string& name, std::vector<std::string> flags,
                           std::map<std::string, std::string> environment) {
    std::vector<std::string> args{"train", "tiny.toml", "--train.device=cpu",
                                  "--train.out_dir=" + name};
    args.insert(args.end(), flags.begin(), flags.end());
    const Finished done =
        run({.binary = "lathe", .args = args, .folder = f.path(), .environment = environment});
    INFO(done.err);
    REQUIRE(done.code == 0);
  };

  if (skip_without(at::kFloat)) return;
  trained("own", {}, {});
  trained("asked", {"--train.kernels=aten"}, {});
  trained("lacking", {"--amp.dtype=bf16"}, {{"LATHE_ISA", "baseline"}});
  trained("bf16", {"--amp.dtype=bf16", "--train.kernels=aten"}, {{"LATHE_ISA", "baseline"}});

  // Missing instructions and train.kernels choose the same kernels.
  CHECK(difference(f / "lacking", f / "bf16").empty());
  CHECK_FALSE(difference(f / "own", f / "asked").empty());

  const auto last_loss = [&](const std::string& name) {
    const std::string text = slurp(f / name / "metrics.jsonl");
    return std::stod(text.substr(text.rfind("\"loss\":") + 7));
  };
  CHECK(last_loss("asked") == Approx(last_loss("own")).epsilon(1e-3));
  CHECK(last_loss("lacking") == Approx(last_loss("own")).epsilon(0.03));
}

}  // namespace
