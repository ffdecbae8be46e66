// Tests of modules: paths, children of every kind, buffers, state dicts, roles, modes, and streams
// of random numbers.

#include <algorithm>
#include <array>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "core/io/file.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/gpt.h"
#include "nn/state.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/gpt.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;

std::vector<std::string> paths_of(const ConstModuleRef& model) {
  std::vector<std::string> out;
  for (const auto& p : parameters(model)) out.push_back(p.path);
  return out;
}

struct Base {
  virtual ~Base() = default;
  virtual void visit(Visit& v) = 0;
};
struct Derived final : Base {
  Linear layer{2, 2, false};
  void visit(Visit& v) override { v("layer", layer); }
};

struct Children {
  std::optional<Linear> on = Linear(2, 2, false), off;
  std::unique_ptr<Linear> own = std::make_unique<Linear>(2, 2, false), none;
  std::shared_ptr<Linear> shared = std::make_shared<Linear>(2, 2, false);
  std::vector<std::unique_ptr<Base>> several;
  std::array<Linear, 2> two{Linear(2, 2, false), Linear(2, 2, true)};
  std::vector<std::vector<Linear>> nested{{Linear(2, 2, false)},
                                          {Linear(2, 2, false), Linear(2, 2, false)}};
  Children() {
    several.push_back(std::make_unique<Derived>());
    several.push_back(nullptr);
    several.push_back(std::make_unique<Derived>());
  }
  void visit(Visit& v) {
    v("on", on);
    v("off", off);
    v("own", own);
    v("none", none);
    v("shared", shared);
    v.blocks("several", several);
    v("two", two);
    v("nested", nested);
  }
};

TEST_CASE(
    "children may be optional, owned, shared, polymorphic and in ranges, and models may be const",
    "[module]") {
  const Children model;
  const std::vector<std::string> wanted{"on.weight",
                                        "own.weight",
                                        "shared.weight",
                                        "several.0.layer.weight",
                                        "several.2.layer.weight",
                                        "two.0.weight",
                                        "two.1.weight",
                                        "two.1.bias",
                                        "nested.0.0.weight",
                                        "nested.1.0.weight",
                                        "nested.1.1.weight"};
  CHECK(paths_of(model) == wanted);

  // Only v.blocks() gives children block numbers. A null pointer in the list also takes a number.
  for (const auto& p : parameters(model)) {
    INFO(p.path);
    CHECK(p.block == (p.path == "several.0.layer.weight"   ? 0
                      : p.path == "several.2.layer.weight" ? 2
                                                           : -1));
  }

  zero_grad(model);
  CHECK(trained_parameters(model).size() == wanted.size());

  std::vector<std::unique_ptr<Base>> models;  // a range can also be a model
  models.push_back(std::make_unique<Derived>());
  CHECK(paths_of(models) == std::vector<std::string>{"0.layer.weight"});
}

struct SameNames {
  Linear a{2, 2, false}, b{2, 2, false};
  void visit(Visit& v) {
    v("x", a);
    v("x", b);
  }
};

/// A block that contains other blocks, and then another parameter.
struct NestedBlock {
  std::vector<Linear> inner{Linear(2, 2, /*with_bias=*/false), Linear(2, 2, /*with_bias=*/false)};
  Variable last = Variable::parameter(torch::ones({2}));
  void visit(Visit& v) {
    v.blocks("inner", inner);
    v("last", last, Role::weight);
  }
};
struct NestedModel {
  std::vector<NestedBlock> blocks{2};
  void visit(Visit& v) { v.blocks("blocks", blocks); }
};

TEST_CASE("blocks within a block have the index of that block", "[module]") {
  NestedModel model;
  std::map<std::string, int64_t> indices;
  for (const NamedParameter& p : parameters(model)) indices[p.path] = p.block;
  CHECK(indices == std::map<std::string, int64_t>{{"blocks.0.inner.0.weight", 0},
                                                  {"blocks.0.inner.1.weight", 0},
                                                  {"blocks.0.last", 0},
                                                  {"blocks.1.inner.0.weight", 1},
                                                  {"blocks.1.inner.1.weight", 1},
                                                  {"blocks.1.last", 1}});
}

TEST_CASE("calling a default-constructed recurrent module is an error", "[module]") {
  for (const std::string& error : {error_of([] { LSTM()(Variable(torch::ones({1, 2, 3}))); }),
                                   error_of([] { GRU()(Variable(torch::ones({1, 2, 3}))); })})
    CHECK_THAT(error, ContainsSubstring("recurrent") && ContainsSubstring("not constructed"));
}

TEST_CASE("two parameters with the same path are an error", "[module]") {
  CHECK_THAT(error_of([] { parameters(SameNames()); }),
             ContainsSubstring("two parameters") && ContainsSubstring("x.weight"));
  CHECK_THAT(error_of([] { state_dict(SameNames()); }),
             ContainsSubstring("two tensors") && ContainsSubstring("x.weight"));
}

/// A model with running statistics, a counter, and a tied head.
struct Counting {
  Embedding in{5, 3};
  Linear out{3, 5, /*with_bias=*/false};
  at::Tensor mean = new_buffer({3}, 0), seen = new_buffer({}, 0, at::kLong), off;
  Counting() { out.weight = in.weight; }
  void visit(Visit& v) {
    v("in", in);
    v.buffer("mean", mean);
    v.buffer("seen", seen);
    v.buffer("off", off);
    v("out", out);
  }
};

TEST_CASE("replacing parameters frees each one before the next is allocated, and keeps ties",
          "[module]") {
  std::vector<Linear> model;
  for (int i = 0; i < 3; ++i) model.emplace_back(8, 8, /*bias=*/false);
  model.push_back(model.front());  // shares the first layer's weight

  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> old;
  std::vector<size_t> alive;
  replace_parameters(model, [&](const NamedParameter& p) {
    alive.push_back(static_cast<size_t>(
        std::ranges::count_if(old, [](const auto& t) { return t.use_count() > 0; })));
    old.emplace_back(p.parameter.data().getIntrusivePtr());
    return Variable::parameter(p.parameter.data().to(at::kDouble), p.path);
  });
  CHECK(alive == std::vector<size_t>{0, 0, 0});
  CHECK(model.front().weight.data().is_same(model.back().weight.data()));
  for (const NamedParameter& p : parameters(model))
    CHECK(p.parameter.data().scalar_type() == at::kDouble);
}

TEST_CASE("buffers are listed by path, move with their model, and are not parameters", "[module]") {
  Counting model;
  const at::Tensor before = model.mean;
  const auto list = buffers(model);
  REQUIRE(list.size() == 2);
  CHECK(list[0].path == "mean");
  CHECK(list[1].path == "seen");
  list[0].tensor.fill_(2);  // the list and the model share memory
  CHECK(model.mean.eq(2).all().item<bool>());
  CHECK(paths_of(model) == std::vector<std::string>{"in.weight"});
  move_to(model, at::kCPU, at::kDouble);
  CHECK(model.mean.scalar_type() == at::kDouble);
  CHECK(model.seen.scalar_type() == at::kLong);
  before.fill_(9);
  CHECK(model.mean.eq(2).all().item<bool>());
  const MetaInit shapes;
  CHECK(Counting().mean.is_meta());
}

TEST_CASE("a state dict has parameters and buffers, tied ones once, and can be loaded",
          "[module]") {
  Counting from, to;
  initialize(from, Init::gpt2, 3);
  from.mean.fill_(0.5);
  from.seen.fill_(7);
  StateDict state = state_dict(from);
  CHECK(state.size() == 3);
  CHECK(state.at("in.weight").is_same(from.in.weight.data()));
  CHECK(!state.contains("out.weight"));
  const auto loaded = load_state_dict(to, state);
  CHECK((loaded.missing.empty() && loaded.unexpected.empty()));
  CHECK(to.out.weight.data().equal(from.in.weight.data()));
  CHECK(to.out.weight.node() == to.in.weight.node());
  CHECK(to.mean.equal(from.mean));
  CHECK(to.seen.item<int64_t>() == 7);
  from.mean.fill_(1);  // must not change the loaded values
  CHECK(to.mean.eq(0.5).all().item<bool>());
  // Load into another dtype, and under the other path of a tied parameter.
  move_to(to, at::kCPU, at::kDouble);
  state["out.weight"] = state.at("in.weight").mul(2);
  state.erase("in.weight");
  load_state_dict(to, state);
  CHECK(to.in.weight.data().equal(state.at("out.weight").to(at::kDouble)));
}

TEST_CASE(
    "a state dict that does not fit is one error that names everything, and nothing is written",
    "[module]") {
  Counting model;
  initialize(model, Init::gpt2, 3);
  const at::Tensor before = model.in.weight.data().clone();
  const StateDict whole{
      {"in.weight", torch::ones({5, 3})}, {"mean", torch::ones({3})}, {"seen", torch::tensor(4L)}};

  StateDict state = whole;
  state.erase("seen");
  state["more"] = torch::ones({1});
  CHECK_THAT(error_of([&] { load_state_dict(model, state); }),
             ContainsSubstring("load_state_dict: ") && ContainsSubstring("missing: seen") &&
                 ContainsSubstring(": more"));
  CHECK(model.in.weight.data().equal(before));

  // If `strict` is false, missing and unexpected keys are accepted, but another shape is not.
  state["mean"] = torch::ones({4});
  const std::string unfit = error_of([&] { load_state_dict(model, state, /*strict=*/false); });
  CHECK_THAT(unfit, ContainsSubstring("load_state_dict: mean ") &&
                        ContainsSubstring("float32[4]") && ContainsSubstring("float32[3]"));
  CHECK_THAT(unfit, !ContainsSubstring("seen"));
  CHECK(model.in.weight.data().equal(before));

  state["mean"] = torch::ones({3});
  const auto loaded = load_state_dict(model, state, /*strict=*/false);
  CHECK(loaded.missing == std::vector<std::string>{"seen"});
  CHECK(loaded.unexpected == std::vector<std::string>{"more"});
  CHECK(model.in.weight.data().eq(1).all().item<bool>());

  state = whole;
  state["seen"] = torch::tensor(4.5);
  CHECK_THAT(error_of([&] { load_state_dict(model, state); }), ContainsSubstring("seen ") &&
                                                                   ContainsSubstring("float32[]") &&
                                                                   ContainsSubstring("int64[]"));

  state = whole;
  state["out.weight"] = torch::ones({5, 3});  // equal values under both paths are accepted
  load_state_dict(model, state);
  state["out.weight"] = torch::zeros({5, 3});
  CHECK_THAT(error_of([&] { load_state_dict(model, state); }), ContainsSubstring("out.weight ") &&
                                                                   ContainsSubstring("in.weight") &&
                                                                   ContainsSubstring("ties"));

  const MetaInit shapes;
  CHECK_THAT(error_of([] { state_dict(Counting()); }),
             ContainsSubstring("in.weight ") && ContainsSubstring("no values"));
}

TEST_CASE("modules that take a Variable also take a tensor", "[module]") {
  const at::Tensor x = torch::arange(12, at::kFloat).view({2, 3, 2}) / 12;
  const auto same = [&](auto&& module) {
    initialize(module, Init::xavier_normal, 5);
    const Variable y = module(x);
    CHECK(y.data().equal(module(Variable(x)).data()));
    CHECK(y.requires_grad());
  };
  same(Linear(2, 2, true));
  same(TransformerEncoder(1, {.n_embd = 2}));
  same(Sequential().add(LayerNorm(2, true)).add(Linear(2, 3, true)));
  same(mlp({2, 4, 1}));
}

TEST_CASE("a state dict is saved to a file and read back, bit for bit", "[module]") {
  const test::TempFolder folder;
  const fs::path path = folder / "model.safetensors";
  Counting from, to;
  initialize(from, Init::gpt2, 3);
  move_to(from, at::kCPU, at::kBFloat16);
  from.seen.fill_(7);
  save_state_dict(state_dict(from), path);
  const StateDict read = read_state_dict(path);
  CHECK(read.size() == 3);
  for (const auto& [name, tensor] : state_dict(from)) {
    INFO(name);
    CHECK(read.at(name).scalar_type() == tensor.scalar_type());
    CHECK(read.at(name).equal(tensor));
  }
  load_state_dict(to, read);
  CHECK(to.out.weight.data().equal(from.in.weight.data().to(at::kFloat)));
  CHECK(to.seen.item<int64_t>() == 7);

  // A transposed tensor is written in the order of its indices. A tensor may have no elements or a
  // single element.
  save_state_dict({{"t", torch::arange(6).view({2, 3}).t()},
                   {"none", torch::zeros({0, 4})},
                   {"one", torch::tensor(2.5)}},
                  path);
  const StateDict odd = read_state_dict(path);
  CHECK(odd.at("t").equal(torch::tensor({{0, 3}, {1, 4}, {2, 5}}, at::kLong)));
  CHECK(odd.at("none").sizes() == at::IntArrayRef({0, 4}));
  CHECK(odd.at("one").item<double>() == 2.5);

  // If a file cannot be written completely, nothing of it is left. A damaged file is refused.
  const auto code_of = [](auto&& action) {
    try {
      action();
    } catch (const Error& e) {
      return e.code();
    }
    return Exit::done;
  };
  CHECK(code_of([&] { save_state_dict(odd, folder / "none/model.safetensors"); }) == Exit::io);
  CHECK(code_of([&] { read_state_dict(folder / "none.safetensors"); }) == Exit::checkpoint);
  fs::resize_file(path, fs::file_size(path) - 1);
  CHECK(code_of([&] { read_state_dict(path); }) == Exit::checkpoint);
  CHECK(list_folder(folder.path()).size() == 1);
}

TEST_CASE("loading updates working copies, and makes backward of an older graph an error",
          "[module]") {
  Linear layer(4, 4, false);
  initialize(layer, Init::gpt2, 3);
  const Variable x = Variable::parameter(torch::ones({2, 4}));
  const Variable old = sum(layer(x));
  make_working_copies(parameters(layer), at::kBFloat16, true, false);
  load_state_dict(layer, {{"weight", torch::full({4, 4}, 2.0)}});
  CHECK_THAT(error_of([&] { backward(old); }),
             ContainsSubstring("float32[4,4]") && ContainsSubstring("in place"));
  const Autocast autocast(at::kBFloat16);
  CHECK(layer(x).data().eq(8).all().item<bool>());
}

struct Gated {
  Variable weight = new_parameter({3, 3}), gate = new_parameter({3, 3});
  static void fill(const at::Tensor& values, RngKey key) {
    values.fill_(static_cast<double>(key.k0 % 7) + 1);
  }
  void visit(Visit& v) {
    v("weight", weight, Role::filter);
    constexpr Role own{.name = "gate", .decayed = false, .fill = fill};
    v("gate", gate, own);
  }
};

TEST_CASE("a custom role sets initialization, weight decay and working copies of a parameter",
          "[module]") {
  Gated model;
  initialize(model, Init::xavier_normal, 3);
  CHECK(model.gate.data()[0][0].item<double>() >= 1);
  CHECK(model.gate.data().eq(model.gate.data()[0][0]).all().item<bool>());
  const auto params = parameters(model);
  CHECK(params[1].role.name == "gate");

  make_working_copies(params, at::kBFloat16, true, true);
  CHECK(model.weight.leaf().precision.low.defined());
  CHECK(!model.gate.leaf().precision.low.defined());

  // With gradients of zero, only weight decay changes a parameter.
  model.gate.leaf().grad = torch::zeros({3, 3});
  model.weight.leaf().grad = torch::zeros({3, 3});
  model.weight.data().fill_(1);
  const at::Tensor gate = model.gate.data().clone();
  OptimConfig c;
  c.kind = "sgd";
  c.weight_decay = 0.5;
  c.grad_clip = 0;
  Optimizer(c, params).step(1);
  CHECK(model.gate.data().equal(gate));
  CHECK(model.weight.data().eq(0.5).all().item<bool>());

  // A role that is initialized by its fan needs two dims.
  const std::vector<NamedParameter> flat{{"v", new_parameter({3}), Role::weight}};
  CHECK_THAT(error_of([&] { initialize(flat, Init::gpt2, 1, 3); }),
             ContainsSubstring("v is a weight ") && ContainsSubstring("[3]"));
}

TEST_CASE("a filter's fan includes the size of its kernel", "[module]") {
  const std::vector<NamedParameter> p{{"f", new_parameter({64, 32, 3, 3}), Role::filter}};
  initialize(p, Init::kaiming, 1, 3);
  // The standard error of the standard deviation of 18432 values is 0.5%.
  CHECK(p[0].parameter.data().std().item<double>() ==
        Approx(std::sqrt(2.0 / (32 * 9))).epsilon(0.02));
}

at::Tensor mask_of(const std::function<Variable(const Variable&)>& layer) {
  return layer(Variable(torch::ones({8, 50}))).data().ne(0);
}

struct TwoDrops {
  Dropout a{0.5}, b{0.5};
  void visit(Visit& v) {
    v("a", a);
    v("b", b);
  }
};

TEST_CASE("no two dropouts of a step have the same mask, and a repeated step has the same masks",
          "[module]") {
  TwoDrops model;
  const auto draws = [&](bool b_first) {
    const TrainingStep step({.seed = 1, .step = 2});
    std::vector<at::Tensor> masks;
    if (b_first) masks.push_back(mask_of(model.b));
    masks.push_back(mask_of(model.a));
    if (!b_first) masks.push_back(mask_of(model.b));
    masks.push_back(mask_of(model.a));
    masks.push_back(mask_of([](const Variable& x) { return dropout(x, 0.5); }));
    return masks;
  };

  for (const bool placed : {false, true}) {
    if (placed) assign_random_streams(model);
    const auto masks = draws(false), again = draws(false), other = draws(true);
    for (size_t i = 0; i < masks.size(); ++i) {
      CHECK(masks[i].equal(again[i]));
      for (size_t j = 0; j < i; ++j) CHECK(!masks[i].equal(masks[j]));
    }
    // If random streams are assigned to layers, a layer's mask does not depend on the order of
    // calls. Without assigned streams, it does.
    CHECK(masks[0].equal(other[1]) == placed);
    CHECK(masks[1].equal(other[0]) == placed);
  }

  // A guard inside a forward pass does not reset the random stream.
  const TrainingStep step({.seed = 1, .step = 2});
  const at::Tensor first = mask_of(model.a);
  at::Tensor second;
  {
    const NoGrad guard;
    second = mask_of(model.a);
  }
  CHECK(!first.equal(second));
  CHECK(!mask_of(model.a).equal(second));
}

TEST_CASE("a recomputed forward pass draws the same random numbers", "[module]") {
  TwoDrops model;
  assign_random_streams(model);
  const TrainingStep step({.seed = 1, .step = 2});
  mask_of(model.a);
  const DrawState before = DrawState::now();
  const at::Tensor first = mask_of(model.a), second = mask_of(model.a);
  {
    const RestoreRngState again(before);
    CHECK(mask_of(model.a).equal(first));
    CHECK(mask_of(model.a).equal(second));
  }
  const at::Tensor third = mask_of(model.a);
  CHECK(!third.equal(first));
  CHECK(!third.equal(second));
  // Restoring a state that was taken outside training does not start training.
  const Evaluation evaluation;
  const DrawState none = DrawState::now();
  const RestoreRngState again(none);
  CHECK(!is_training());
}

TEST_CASE(
    "Training and Evaluation are guards, and without step numbers each forward pass draws new "
    "numbers",
    "[module]") {
  TwoDrops model;
  CHECK(!is_training());
  CHECK(mask_of(model.a).all().item<bool>());
  const auto run = [&](uint64_t seed) {
    const Training training(seed);
    CHECK(is_training());
    std::vector<at::Tensor> masks{mask_of(model.a), mask_of(model.a)};
    {
      const Evaluation evaluation;
      CHECK(!is_training());
      CHECK(mask_of(model.a).all().item<bool>());
    }
    masks.push_back(mask_of(model.a));
    return masks;
  };
  const auto one = run(1), again = run(1), other = run(2);
  for (size_t i = 0; i < one.size(); ++i) {
    CHECK(one[i].equal(again[i]));
    CHECK(!one[i].equal(other[i]));
    CHECK(!one[i].equal(one[(i + 1) % one.size()]));
  }
  CHECK(!is_training());
}

TEST_CASE("the GPT's dropout streams are those of its first version", "[module]") {
  GPTConfig c;
  c.n_layer = 2;
  c.n_head = 2;
  c.n_embd = 8;
  c.block_size = 6;
  c.vocab_size = 11;
  c.dropout = 0.1;
  GPT model(c);
  const auto holds = [&] {
    CHECK(model.drop.stream == hash_name("dropout/embeddings"));
    CHECK(model.blocks[0].attn_drop.stream == hash_name("dropout/blocks.0.attn"));
    CHECK(model.blocks[1].mlp_drop.stream == hash_name("dropout/blocks.1.mlp"));
  };
  holds();
  initialize(model, Init::gpt2, 1, c.n_layer);
  holds();
}

}  // namespace
