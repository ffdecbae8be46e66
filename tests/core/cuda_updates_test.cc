// Compares the CUDA kernels that decide whether a step is skipped, and that update parameters, with
// the CPU's kernels. The CUDA kernels run on the stand-in for CUDA (tests/support/cuda/), which
// runs them on the CPU.
#include <cstring>
#include <random>

#include "autograd/ops/kernel.h"
#include "core/dtype.h"
#include "core/kernels/launch.cuh"
#include "core/kernels/rules.h"
#include "core/kernels/update.cuh"
#include "tests/core/cuda_kernels.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("sums of squares of many gradients are bitwise equal on GPU and CPU", "[cuda_updates]") {
  torch::manual_seed(2);
  const int64_t sizes[] = {1, 0, 255, 256, 300, 7}, long_sizes[] = {32768, 32769, 100000, 0};
  std::vector<at::Tensor> grads;
  for (int64_t i = 0; i < 330;
       ++i) {  // 128 gradients per launch, not counting empty ones: three launches
    const int64_t n = i % 37 == 36 ? long_sizes[i / 37 % 4] : sizes[i % 6];
    // Multiples of 1/8 below 16 have exact squares and sums, so the result does not depend on the
    // order of the sum, which differs between devices.
    grads.push_back((torch::randint(-127, 128, {n}, at::kFloat) / 8).to(dtypes[i / 6 % 4]));
  }

  grads[0][0] = NAN;
  grads[5 + 36][6] = INFINITY;
  grads[36 + 37 * 2].view(-1)[99999] = -INFINITY;

  std::vector<GradArgs> args;
  std::vector<double> wanted;
  for (const auto& g : grads) {
    const Element type = element_of(g.scalar_type());
    args.push_back({.grad = g.const_data_ptr(), .type = type, .n = g.numel()});
    for (int64_t at = 0; at < g.numel(); at += grad_sum_chunk) {
      wanted.push_back(
          grad_sum_cpu(g.const_data_ptr(), type, at, std::min(at + grad_sum_chunk, g.numel())));
    }
  }
  CHECK(std::count_if(wanted.begin(), wanted.end(), [](double x) { return !std::isfinite(x); }) ==
        3);

  wanted.push_back(-1);  // one more element, which must not be written
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    std::vector<double> ours(wanted.size(), -1);
    CHECK(grad_sum_cuda(args.data(), static_cast<int64_t>(args.size()), ours.data(), nullptr) ==
          cudaSuccess);
    CHECK(equal_bits(torch::tensor(ours, at::kDouble), torch::tensor(wanted, at::kDouble)));
  }

  const GradArgs none[2];
  CHECK(grad_sum_cuda(none, 0, nullptr, nullptr) == cudaSuccess);
  CHECK(grad_sum_cuda(none, 2, nullptr, nullptr) == cudaSuccess);
}

bool same(const StepControl& a, const StepControl& b) {
  const auto numbers = [](const StepControl& c) {
    return torch::tensor({c.grad_norm, c.grad_scale, c.loss_scale, c.correction1, c.correction2,
                          c.mu, c.next_mu, c.mu_product},
                         at::kDouble);
  };
  return equal_bits(numbers(a), numbers(b)) && a.updates == b.updates &&
         a.failed_step == b.failed_step && a.skip == b.skip && a.moved == b.moved &&
         a.lost == b.lost;
}

TEST_CASE("the decision of a step is bitwise equal on GPU and CPU", "[cuda_updates]") {
  std::mt19937 random(3);
  StepRequest request{.rule = {.kind = rule_kind<NAdam>,
                               .lr = 0.1,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .momentum_decay = 0.004},
                      .policy = {.growth_interval = 3, .min_scale = 16, .max_skips = 4}};

  int64_t skips = 0, failures = 0, clipped = 0, grown = 0;
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (int run = 0; run < 16; ++run) {
      StepControl ours, wanted;
      ScaleState our_scale{.scale = 64}, wanted_scale = our_scale;
      const bool scaled = run % 2 == 1;
      request.clip = run % 4 < 2 ? 0 : 20;
      for (request.step = 0; request.step < 20; ++request.step) {
        const int64_t counts[] = {0, 1, 255, 256, 257, 3000};
        std::vector<double> partials(static_cast<size_t>(counts[random() % 6]));
        for (double& p : partials) p = random() % 1024 / 64.0;  // exact sums, in any order
        const double bad[] = {NAN, INFINITY};
        if (random() % 6 == 0 && !partials.empty())
          partials[random() % partials.size()] = bad[random() % 2];
        const float losses[] = {1, 1, 1, 1, 1, -2, INFINITY, NAN};
        const float loss = losses[random() % 8];
        const float* seen = random() % 3 == 0 ? nullptr : &loss;
        ours.moved = wanted.moved = 9;
        ours.lost = wanted.lost = 8;  // a value from the previous step

        const auto n = static_cast<int64_t>(partials.size());
        const float before = wanted_scale.scale;
        decide_cpu(request, partials.data(), n, seen, &wanted, scaled ? &wanted_scale : nullptr);
        CHECK(decide_cuda(request, partials.data(), n, seen, &ours, scaled ? &our_scale : nullptr,
                          nullptr) == cudaSuccess);
        REQUIRE(same(ours, wanted));
        REQUIRE(std::memcmp(&our_scale, &wanted_scale, sizeof(ScaleState)) == 0);

        skips += wanted.skip;
        clipped += wanted.grad_scale * wanted.loss_scale < 1;
        grown += wanted_scale.scale > before;
      }
      failures += wanted.failed_step != 0;
    }
  }

  for (const int64_t count : {skips, failures, clipped, grown})
    CHECK(count > 3);  // each case occurred
}

TEST_CASE("the decisions of a step in stages are bitwise equal on GPU and CPU", "[cuda_updates]") {
  std::mt19937 random(4);
  int64_t skips = 0, failures = 0;
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (int run = 0; run < 40; ++run) {
      const int64_t counts[] = {0, 1, 255, 256, 257, 3000};
      std::vector<double> partials(static_cast<size_t>(counts[random() % 6]));
      for (double& p : partials) p = random() % 1024 / 64.0;  // exact sums, in any order
      if (random() % 4 == 0 && !partials.empty()) partials[random() % partials.size()] = NAN;
      const auto n = static_cast<int64_t>(partials.size());

      StepControl ours, wanted;
      ours.failed_step = wanted.failed_step = random() % 4 == 0 ? 3 : 0;
      decide_gradient_cpu(partials.data(), n, &wanted);
      CHECK(decide_gradient_cuda(partials.data(), n, &ours, nullptr) == cudaSuccess);
      REQUIRE(same(ours, wanted));
      skips += wanted.skip;

      const float losses[] = {1, 1, INFINITY, NAN};
      const float loss = losses[random() % 4];
      const float* seen = random() % 3 == 0 ? nullptr : &loss;
      end_stages_cpu(run, partials.data(), n, seen, &wanted);
      CHECK(end_stages_cuda(run, partials.data(), n, seen, &ours, nullptr) == cudaSuccess);
      REQUIRE(same(ours, wanted));
      failures += wanted.failed_step == run + 1;
    }
  }
  CHECK(skips > 3);
  CHECK(failures > 3);
}

/// Parameters of every type with their gradients and state. All values are drawn from one seed, so
/// that two objects of this struct have the same values.
struct Parameters {
  std::vector<at::Tensor> tensors;  // tensors that `args` point to, with margins on either side
  std::vector<at::Tensor> sums;     // sums of squares of the gradients
  std::vector<UpdateArgs> args;

  explicit Parameters(const UpdateRule& rule) {
    torch::manual_seed(4);
    std::mt19937 random(5);
    const auto pick = [&](const auto& of) { return of[random() % std::size(of)]; };
    const int64_t small_sizes[] = {1, 5, 60}, sizes[] = {0, 255, 256, 257, 700, 4097, 16384, 16387};

    // The updates of the first 165 parameters are computed in float32. Most of these parameters are
    // small, and there are more of them than the 160 of one launch. Then 25 updates are computed in
    // float64, and the remaining ones in a random mix of both.
    for (int i = 0; i < 210; ++i) {
      const bool wide = i < 165 ? false : i < 190 ? true : random() % 2 == 0;
      UpdateArgs a;
      a.n = i < 165 && i % 20 != 0 ? pick(small_sizes) : pick(sizes);
      // Kind 0: all pointers are aligned, so the kernel updates packs of elements. Kind 1: none is
      // aligned. Kind 2: all are aligned except `low`, if there is one.
      const int64_t kind = i % 3;
      int64_t margin = kind == 1 ? 1 : 4;
      const auto add = [&](at::ScalarType dtype, const at::Tensor& values) {
        tensors.push_back(values.to(dtype));
        return static_cast<char*>(tensors.back().mutable_data_ptr()) +
               margin * tensors.back().element_size();
      };

      const at::ScalarType narrow[] = {at::kFloat, at::kBFloat16, at::kBFloat16, at::kHalf};
      const auto dtype = wide ? at::kDouble : pick(narrow), grad_dtype = pick(dtypes);
      const auto state_dtype = wide ? at::kDouble : at::kFloat;
      a.param_type = element_of(dtype);
      a.grad_type = element_of(grad_dtype);
      a.param = add(dtype, torch::randn({a.n + 8}, at::kDouble));
      at::Tensor grad = torch::randn({a.n + 8}, at::kDouble);
      if (a.n > 300) {
        grad[300] = INFINITY;
        grad[301] = NAN;
        grad[302] = 0;
      }
      a.grad = add(grad_dtype, grad);

      with_rule(rule.kind, [&](auto r) {
        for (const RuleState& s : decltype(r)::state(rule))
          a.state[s.place] = add(state_dtype, torch::rand({a.n + 8}, at::kDouble));
      });
      if (random() % 2 == 0) a.average = add(state_dtype, torch::rand({a.n + 8}, at::kDouble));
      a.lr_scale = random() % 2 == 0 ? 1 : 0.7;
      sums.push_back(torch::rand({3}, at::kDouble));
      a.sums = sums.back().const_data_ptr<double>();
      a.chunks = 1;

      if (random() % 2 == 0) {
        const auto low = random() % 2 == 0 ? at::kBFloat16 : at::kHalf;
        if (kind == 2) margin = 3;
        a.low = add(low, torch::zeros({a.n + 8}));
        a.low_type = element_of(low);
      }
      a.weight_decay = random() % 2 == 0 ? 0 : 0.1;
      a.stochastic = dtype == at::kBFloat16 && random() % 2 == 0;
      a.key = make_key(random(), 6);
      args.push_back(a);
    }
  }
  int64_t count() const { return static_cast<int64_t>(args.size()); }
  bool same(const Parameters& other) const {
    return std::equal(tensors.begin(), tensors.end(), other.tensors.begin(), other.tensors.end(),
                      equal_bits);
  }
};

TEST_CASE("updates are bitwise equal on GPU and CPU", "[cuda_updates]") {
  const std::vector<UpdateRule> rules{
      {.kind = rule_kind<Sgd>, .lr = 1e-3},
      {.kind = rule_kind<Momentum>, .lr = 1e-3, .momentum = 0.9, .dampening = 0.2},
      {.kind = rule_kind<Momentum>, .nesterov = true, .lr = 1e-3, .momentum = 0.9},
      {.kind = rule_kind<Adagrad>, .lr = 2e-3, .eps = 1e-8, .lr_decay = 0.1},
      {.kind = rule_kind<RMSprop>, .lr = 1e-3, .eps = 1e-8, .alpha = 0.95},
      {.kind = rule_kind<RMSprop>, .lr = 1e-3, .eps = 1e-8, .momentum = 0.9, .alpha = 0.95},
      {.kind = rule_kind<RMSprop>, .centered = true, .lr = 1e-3, .eps = 1e-8, .alpha = 0.95},
      {.kind = rule_kind<RMSprop>,
       .centered = true,
       .lr = 1e-3,
       .eps = 1e-8,
       .momentum = 0.9,
       .alpha = 0.95},
      {.kind = rule_kind<Adam>, .lr = 2e-3, .beta1 = 0.85, .beta2 = 0.97, .eps = 1e-8},
      {.kind = rule_kind<AdamW>,
       .lr = 2e-3,
       .beta1 = 0.85,
       .beta2 = 0.97,
       .eps = 1e-8,
       .clip_value = 0.5},
      {.kind = rule_kind<AdamAmsgrad>,
       .lr = 2e-3,
       .beta1 = 0.85,
       .beta2 = 0.97,
       .eps = 1e-8,
       .clip_parameter = 0.5},
      {.kind = rule_kind<AdamWAmsgrad>,
       .lr = 2e-3,
       .beta1 = 0.85,
       .beta2 = 0.97,
       .eps = 1e-8,
       .average_decay = 0.9},
      {.kind = rule_kind<NAdam>, .lr = 2e-3, .beta1 = 0.85, .beta2 = 0.97, .eps = 1e-8},
      {.kind = rule_kind<Lion>, .lr = 2e-3, .beta1 = 0.85, .beta2 = 0.97},
      {.kind = rule_kind<Descend>, .lr = 2e-3},
  };

  int turn = 0;
  for (const UpdateRule& rule : rules) {
    for (const int64_t updates : {1, 5}) {
      INFO("rule " << turn / 2 << ", update " << updates);
      const ThreadOrder setting(orders[turn++ % 3]);
      Parameters ours(rule), wanted(rule);
      StepControl control{
          .updates = updates, .grad_scale = 0.37, .correction1 = 0.4, .correction2 = 0.3};
      control.mu = 0.5;
      control.next_mu = 0.6;
      control.mu_product = 0.3;
      control.moved = 10;
      control.lost = 4;
      StepControl our_control = control;

      for (const UpdateArgs& a : wanted.args) update_cpu(a, rule, &control, 0, a.n);
      CHECK(update_cuda(ours.args.data(), ours.count(), rule, &our_control, nullptr) ==
            cudaSuccess);
      CHECK(ours.same(wanted));
      CHECK(same(our_control, control));
      CHECK(control.lost > 100);
      CHECK(control.moved > control.lost + 100);
    }
  }

  // A skipped step must write nothing. A step that is not skipped must write.
  for (const bool skip : {true, false}) {
    Parameters ours(rules.back());
    const StepControl asked{.updates = 1, .skip = skip, .moved = 10, .lost = 4};
    StepControl control = asked;
    CHECK(update_cuda(ours.args.data(), ours.count(), rules.back(), &control, nullptr) ==
          cudaSuccess);
    CHECK(ours.same(Parameters(rules.back())) == skip);
    CHECK(same(control, asked) == skip);
  }

  const UpdateArgs none[2];
  CHECK(update_cuda(none, 0, rules[0], nullptr, nullptr) == cudaSuccess);
  CHECK(update_cuda(none, 2, rules[0], nullptr, nullptr) == cudaSuccess);
}

}  // namespace
