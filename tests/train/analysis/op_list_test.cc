// Tests `lathe profile --ops`, which lists each op of a step with its tensors and computed cost.
#include "train/analysis/op_list.h"

#include "autograd/engine.h"
#include "autograd/fused.h"
#include "autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/analysis/forecast.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::vector<StepOp> ops_of_tiny(const TempFolder& f, const std::string& recompute) {
  LoadedConfig loaded =
      load_config((f / "tiny.toml").string(), {{"data.dir", (f / "data").string()},
                                               {"train.grad_accum", "1"},
                                               {"train.device", "cpu"},
                                               {"memory.recompute", recompute}});
  loaded.config.train.eval_interval = 0;
  const RunData data = RunData::open(loaded);
  Session s = Session::make(data);
  return list_step_ops(s, *data.data, 1).ops;
}

TEST_CASE("an op's bytes, FLOPs and allocations are computed from its tensors", "[op_list]") {
  const Variable x = Variable::parameter(torch::randn({6, 10})),
                 w = Variable::parameter(torch::randn({4, 10})),
                 b = Variable::parameter(torch::randn({4}));
  std::vector<StepOp> ops;
  {
    const OpList list;
    Variable y = linear(x, w, b);
    y = reshape(y, {3, 8});
    y = tanh(y * y);
    backward(y, torch::ones({3, 8}));
    ops = list.ops();
  }
  REQUIRE(ops.size() == 8);
  const auto check = [&](size_t i, const char* op, int64_t read, int64_t written, bool allocates,
                         bool elementwise) {
    INFO(i << " " << ops[i].op);
    CHECK(ops[i].op == op);
    CHECK((ops[i].phase == Span::Phase::backward) == (i >= 4));
    CHECK(ops[i].read == read);
    CHECK(ops[i].written == written);
    CHECK(ops[i].allocates == allocates);
    CHECK(ops[i].elementwise == elementwise);
  };
  check(0, "linear", 4 * (60 + 40 + 4), 4 * 24, true, false);
  check(1, "reshape", 0, 0, false, false);
  check(2, "mul", 4 * 24, 4 * 24, true, true);  // this op reads one tensor twice
  check(3, "tanh", 4 * 24, 4 * 24, true, true);
  check(4, "tanh", 4 * (24 + 24), 4 * 24, true, true);
  check(5, "mul", 4 * (24 + 24), 4 * (24 + 24), true, true);
  check(6, "reshape", 0, 0, false, false);
  check(7, "linear", 4 * (24 + 60 + 40), 4 * (60 + 40 + 4), true, false);
  CHECK(ops[0].inputs == std::vector<std::string>{"float32[6,10]", "float32[4,10]", "float32[4]"});
  CHECK(ops[0].outputs == std::vector<std::string>{"float32[6,4]"});
  CHECK(ops[4].saved == std::vector<std::string>{"float32[3,8]"});
  CHECK(ops[0].flops.matmul == 2 * 6 * 10 * 4);
  CHECK(ops[7].flops.matmul == 2 * 2 * 6 * 10 * 4);
  CHECK(ops[3].flops.other > 0);

  const std::string text = op_list_text({.step = 7, .ops = ops, .fusion = {.ops = 5, .fused = 2}});
  CHECK_THAT(text, ContainsSubstring("step 7"));
  CHECK_THAT(text, ContainsSubstring("8 ops") && ContainsSubstring("6 with"));
  CHECK_THAT(text, ContainsSubstring("4 of them"));
  CHECK_THAT(text, ContainsSubstring("5 ops") && ContainsSubstring("2 fused"));
  int64_t all = 0, elementwise = 0;
  for (const StepOp& op : ops) {
    all += op.read + op.written;
    elementwise += op.elementwise ? op.read + op.written : 0;
  }
  CHECK(elementwise == 4 * 24 * 11);
  char share[16];
  std::snprintf(share, sizeof(share), "%.1f%%",
                100 * static_cast<double>(elementwise) / static_cast<double>(all));
  CHECK_THAT(text, ContainsSubstring(share));
}

TEST_CASE("a fused op reads its inputs, and no mask that it computes inside", "[op_list]") {
  const Variable x = Variable::parameter(torch::randn({6, 10}));
  const OpList list;
  fused([](const Variable& v) { return where(v > 0, v, masked_fill(v * 0.5, v < -1, 0)); }, x);
  const std::vector<StepOp>& ops = list.ops();
  REQUIRE(ops.size() == 1);
  CHECK(ops[0].op == "fused");
  CHECK(ops[0].read == 4 * 60);
  CHECK(ops[0].written == 4 * 60);
}

TEST_CASE("the list has a dash instead of the FLOPs of a recomputed op", "[op_list]") {
  const auto line = [](Span::Phase phase, double flops) {
    const StepOp op{.phase = phase, .op = "tanh", .flops = {.other = flops}};
    return op_list_text({.ops = {op}});
  };
  CHECK_THAT(line(Span::Phase::recompute, 0), !ContainsSubstring("    0.000  "));
  CHECK_THAT(line(Span::Phase::recompute, 0), ContainsSubstring("          -  "));
  CHECK_THAT(line(Span::Phase::forward, 0), ContainsSubstring("    0.000  "));
}

TEST_CASE(
    "the ops of a step are listed in order, with their modules and with the FLOPs of a dry run",
    "[op_list]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::vector<StepOp> ops = ops_of_tiny(f, "none");
  double forward = 0, backward = 0;
  size_t first_backward = ops.size(), last_forward = 0;
  bool attention = false;
  for (size_t i = 0; i < ops.size(); ++i) {
    const StepOp& op = ops[i];
    if (op.phase == Span::Phase::backward) {
      first_backward = std::min(first_backward, i);
      backward += op.flops.matmul;
      attention = attention || (op.op == "attention" && op.module == "blocks.1.attn");
    } else {
      CHECK(op.phase == Span::Phase::forward);
      last_forward = i;
      forward += op.flops.matmul;
    }
  }
  CHECK(last_forward < first_backward);
  CHECK(attention);
  LoadedConfig loaded = load_config(
      (f / "tiny.toml").string(),
      {{"data.dir", (f / "data").string()}, {"train.grad_accum", "1"}, {"train.device", "cpu"}});
  const FlopCount flops = dry_step(loaded).micro_batch;
  CHECK(forward == Approx(flops.forward.matmul));
  CHECK(backward == Approx(flops.backward.matmul));

  const std::vector<StepOp> again = ops_of_tiny(f, "blocks");
  CHECK(std::any_of(again.begin(), again.end(),
                    [](const StepOp& op) { return op.phase == Span::Phase::recompute; }));
}

TEST_CASE("profile --ops prints the list and measures nothing", "[op_list]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished r = lathe_in(f, {"profile", "tiny.toml", "--ops", "--steps=2"});
  INFO(r.err);
  CHECK(r.code == 0);
  for (const char* part :
       {"step 2", "blocks.1.mlp", "elementwise", "linear_cross_entropy", "train.fuse"})
    CHECK_THAT(r.out, ContainsSubstring(part));
  CHECK(r.out.find("limited most by") == std::string::npos);

  for (const char* other : {"--trace=t.json", "--kineto=t.json", "--nvtx"}) {
    const Finished refused = lathe_in(f, {"profile", "tiny.toml", "--ops", other});
    CHECK(refused.code == static_cast<int>(Exit::usage));
    CHECK_THAT(refused.err, ContainsSubstring("--ops"));
    CHECK_FALSE(fs::exists(f / "t.json"));
  }
}

}  // namespace
