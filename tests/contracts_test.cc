// What every op, in-place function and options struct must hold to. The cases walk tables, so that
// what is added to these is checked by being there.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/dtype.h"
#include "core/error.h"
#include "nn/layers/attention.h"
#include "nn/layers/conv.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "nn/layers/pool.h"
#include "nn/layers/recurrent.h"
#include "nn/layers/transformer.h"
#include "nn/models/model.h"
#include "optim/optimizer.h"
#include "tests/catch.h"
#include "tests/op_case.h"
#include "tests/process.h"

namespace {

using namespace lathe;
using lathe::test::OpCase;
using Tensors = std::vector<at::Tensor>;
using Variables = std::vector<Variable>;

/// The message of what f throws; empty if it throws nothing.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("not an Error of ours: ") + e.what();
  }
  return "";
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Whether a message is a sentence of ours, and not LibTorch's internal text.
bool is_sentence(const std::string& message) {
  static const std::regex raw(
      "not an Error of ours|INTERNAL ASSERT|report a bug|c10::|Exception raised|at::");
  return !message.empty() && !std::regex_search(message, raw);
}

Variables variables_of(const OpCase& row, at::ScalarType dtype) {
  const Tensors x = lathe::test::inputs_of(row);
  Variables in;
  for (size_t i = 0; i < x.size(); ++i) {
    const at::Tensor t = x[i].to(dtype);
    in.push_back(row.inputs[i].grad ? Variable::parameter(t) : Variable(t));
  }
  return in;
}

/// Gradients of sum(y^2) / 2 in the inputs that have one; zeros where none flows.
Tensors gradients_of(const Variable& y, const at::Tensor& dy, const Variables& in) {
  Tensors out;
  if (!y.requires_grad()) return out;
  for (const Variable& g : grad(y, in, Variable(dy))) out.push_back(g.data());
  return out;
}

bool same_tensors(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !a[i].equal(b[i])) return false;
  }
  return true;
}

/// Changes all values of a tensor.
void change_values(at::Tensor t) {
  if (t.numel() == 0) return;
  if (t.scalar_type() == at::kBool) {
    t.logical_not_();
  } else if (t.is_floating_point()) {
    t.add_(1);
  } else {
    t.copy_(t.eq(0).to(t.scalar_type()));
  }
}

/// What ops keep beside their inputs while this is alive: attributes they were made with, results
/// that are no floating-point numbers.
class KeptTensors {
 public:
  KeptTensors()
      : attribute_([this](const at::Tensor& t) { tensors.push_back(t); }),
        result_([this](const OpResult& result) {
          for (const at::Tensor& t : result.outputs) {
            if (!t.is_floating_point()) tensors.push_back(t);
          }
        }) {
    mode().observe_attribute = &attribute_;
    mode().observe_result = &result_;
  }

  Tensors tensors;

 private:
  const ModeGuard guard_;
  const std::function<void(const at::Tensor&)> attribute_;
  const std::function<void(const OpResult&)> result_;
};

/// A forward pass: the result, its inputs, and what the ops kept.
struct ForwardPass {
  Variables in;
  Variable y;
  Tensors kept;
};
ForwardPass forward_pass(const OpCase& row, at::ScalarType dtype) {
  const TrainingStep step(lathe::test::step_random);
  ForwardPass pass;
  pass.in = variables_of(row, dtype);
  KeptTensors kept;
  pass.y = row.ours(pass.in);
  pass.kept = kept.tensors;
  for (const Variable& v : pass.in) pass.kept.push_back(v.data());
  return pass;
}

/// Changes each tensor that the row's ops keep, one in each pass; returns how many passes were
/// refused.
int64_t check_changes(const OpCase& row, at::ScalarType dtype) {
  const ForwardPass first = forward_pass(row, dtype);
  const at::Tensor dy = first.y.data().clone();
  const Tensors expected = gradients_of(first.y, dy, first.in);
  int64_t refused = 0;
  for (size_t i = 0; i < first.kept.size(); ++i) {
    INFO("tensor " << i << " of what is kept: " << describe(first.kept[i]));
    const ForwardPass pass = forward_pass(row, dtype);
    if (pass.kept.size() != first.kept.size()) continue;
    change_values(pass.kept[i]);

    Tensors got;
    const std::string message = message_of([&] { got = gradients_of(pass.y, dy, pass.in); });
    if (message.empty()) {
      CHECK(same_tensors(got, expected));
    } else {
      CHECK(message.find("changed in place") != std::string::npos);
      ++refused;
    }
  }
  return refused;
}

TEST_CASE(
    "a tensor that an op keeps and that changes before backward is an error, never a wrong "
    "gradient",
    "[contracts]") {
  int64_t refused = 0;
  for (const OpCase& row : lathe::test::op_table()) {
    INFO(row.op << " (" << row.label << ")");
    for (const auto dtype : {at::kDouble, at::kFloat}) refused += check_changes(row, dtype);
  }
  CHECK(refused > 300);
}

struct IndexRow {
  std::string name;
  std::function<Variable(const Variable&, const at::Tensor&)>
      run;  ///< of x [4, 3] and what changes
  at::Tensor tensor;
};

TEST_CASE(
    "targets, weights and document starts that change before backward are never a wrong gradient",
    "[contracts]") {
  const auto classes = [] { return lathe::test::longs({2, 0, 1, 2}); };
  const auto weights = [] { return torch::full({3}, 0.5, at::kDouble); };
  const std::vector<IndexRow> rows{
      {"nll_loss",
       [](const Variable& x, const at::Tensor& t) { return nll_loss(log_softmax(x, 1), t); },
       classes()},
      {"nll_loss's weight",
       [&](const Variable& x, const at::Tensor& t) {
         return nll_loss(log_softmax(x, 1), classes(), t);
       },
       weights()},
      {"cross_entropy", [](const Variable& x, const at::Tensor& t) { return cross_entropy(x, t); },
       classes()},
      {"cross_entropy with smoothing",
       [](const Variable& x, const at::Tensor& t) {
         return cross_entropy(x, t, {.label_smoothing = 0.1});
       },
       classes()},
      {"cross_entropy of probabilities",
       [](const Variable& x, const at::Tensor& t) { return cross_entropy(x, Variable(t)); },
       torch::full({4, 3}, 1.0 / 3, at::kDouble)},
      {"linear_cross_entropy",
       [](const Variable& x, const at::Tensor& t) {
         const Variable w(torch::arange(9, at::kFloat).reshape({3, 3}).div(9));
         return linear_cross_entropy(cast(x, at::kFloat), w, t);
       },
       classes()},
      {"binary_cross_entropy_with_logits's weight",
       [](const Variable& x, const at::Tensor& t) {
         return binary_cross_entropy_with_logits(x, Variable(torch::full({4, 3}, 0.5, at::kDouble)),
                                                 t);
       },
       weights()},
      {"embedding",
       [](const Variable& x, const at::Tensor& t) {
         const Variable rows = embedding(t, x);
         return sum(rows * rows);
       },
       classes()},
      {"topk's indices, as the caller gets them",
       [](const Variable& x, const at::Tensor& t) {
         auto [values, places] = topk(x, 2, 1);
         if (t.item<int64_t>() != 0) places.fill_(0);
         return sum(values * values);
       },
       torch::zeros({}, at::kLong)},
  };
  for (const IndexRow& row : rows) {
    INFO(row.name);
    const Variable x = Variable::parameter(torch::arange(12, at::kDouble).reshape({4, 3}).sin());
    const at::Tensor expected = grad(row.run(x, row.tensor.clone()), {x})[0].data();

    const at::Tensor changed = row.tensor.clone();
    const Variable y = row.run(x, changed);
    change_values(changed);
    at::Tensor got;
    const std::string message = message_of([&] { got = grad(y, {x})[0].data(); });
    const bool is_refused = message.find("changed in place") != std::string::npos;
    CHECK((is_refused || (message.empty() && got.equal(expected))));
  }
}

struct RawTensor {
  int64_t dim;
  at::Tensor index;
};
struct RawOptional {
  Saved x{};
  std::optional<at::Tensor> mask;
};
struct RawList {
  double value;
  Saved x{};
  std::vector<at::Tensor> all;
};
struct RawVariable {
  Saved x{};
  Variable v;
};
struct SavedTensors {
  int64_t dim;
  Saved index;
  std::vector<Saved> all;
  std::optional<double> value;
};

TEST_CASE("the op scheme tells an op that keeps a tensor without Saved", "[contracts]") {
  CHECK(lathe::detail::KeepsRawTensor<RawTensor>);
  CHECK(lathe::detail::KeepsRawTensor<RawOptional>);
  CHECK(lathe::detail::KeepsRawTensor<RawList>);
  CHECK(lathe::detail::KeepsRawTensor<RawVariable>);
  CHECK_FALSE(lathe::detail::KeepsRawTensor<SavedTensors>);
}

TEST_CASE("a mask that changes before recomputation is an error", "[contracts]") {
  const Variable x = Variable::parameter(torch::ones({3}));
  const at::Tensor mask = torch::zeros({3}, at::kBool);
  const auto part = [mask](const Variable& v) { return masked_fill(v * v, mask, 0); };
  backward(sum(recompute(part, x)));
  CHECK(x.grad().equal(torch::full({3}, 2.0)));

  const Variable y = sum(recompute(part, x));
  mask.fill_(1);
  CHECK(message_of([&] { backward(y); }).find("changed in place") != std::string::npos);
}

TEST_CASE("hooks that a recomputed function registers run once, and can be removed",
          "[contracts]") {
  const Variable x = Variable::parameter(torch::full({1}, 2.0));
  HookHandle handle;
  const auto part = [&handle](const Variable& v) {
    const Variable h = v * 2.0;
    handle = h.register_hook([](const at::Tensor& g) { return g * 3; });
    return h * h;
  };
  const auto gradient = [&](const Variable& y) { return grad(y, {x})[0].item(); };
  const double plain = gradient(part(x));
  CHECK(plain == 48);  // 2 h * 3 * 2 with h = 4
  CHECK(gradient(recompute(part, x)) == plain);
  CHECK(gradient(recompute([&](const Variable& v) { return recompute(part, v); }, x)) == plain);

  const Variable y = recompute(part, x);
  handle.remove();
  CHECK(gradient(y) == 16);

  int64_t calls = 0;
  const Variable w = Variable::parameter(torch::ones({1}));
  backward(recompute(
      [&](const Variable& v) {
        w.register_post_accumulate_grad_hook([&calls](Leaf&) { ++calls; });
        return v * w;
      },
      x));
  CHECK(calls == 1);
}

struct InPlaceRow {
  std::string name;
  std::function<Variable&(Variable&)> run;
};
const std::vector<InPlaceRow>& in_place_functions() {
  static const std::vector<InPlaceRow> rows{
      {"relu_", [](Variable& x) -> Variable& { return relu_(x); }},
      {"leaky_relu_", [](Variable& x) -> Variable& { return leaky_relu_(x, 0.1); }},
      {"tanh_", [](Variable& x) -> Variable& { return tanh_(x); }},
      {"sigmoid_", [](Variable& x) -> Variable& { return sigmoid_(x); }},
      {"masked_fill_",
       [](Variable& x) -> Variable& { return masked_fill_(x, torch::ones({3}, at::kBool), 3); }},
      {"add_", [](Variable& x) -> Variable& { return add_(x, Variable(torch::ones({3}))); }},
      {"mul_", [](Variable& x) -> Variable& { return mul_(x, 0.5); }}};
  return rows;
}

TEST_CASE(
    "every in-place function changes values alone under NoGrad, and refuses a parameter in a graph",
    "[contracts]") {
  std::set<std::string> named;
  for (const auto& [name, run] : in_place_functions()) {
    INFO(name);
    named.insert(name);
    const at::Tensor start = torch::arange(3, at::kFloat) - 1;

    Variable w = Variable::parameter(start.clone(), "w");
    const Variable handle = w;
    const Variable saved = sum(w * w);
    {
      const NoGrad no_grad;
      run(w);
    }
    CHECK(w.requires_grad());
    CHECK(w.as_leaf() == handle.as_leaf());
    CHECK(w.data().is_same(handle.data()));
    CHECK_FALSE(w.data().equal(start));
    CHECK(message_of([&] { backward(saved); }).find("changed in place") != std::string::npos);
    backward(sum(w));
    CHECK(w.grad().equal(torch::ones({3})));
    CHECK(message_of([&] { run(w); }).find("NoGrad") != std::string::npos);

    // A value within a graph keeps its place in it.
    const Variable leaf = Variable::parameter(start.clone());
    Variable inner = leaf + 1.0;
    {
      const NoGrad no_grad;
      run(inner);
    }
    backward(sum(inner));
    CHECK(leaf.grad().equal(torch::ones({3})));

    Variable none;
    CHECK(is_sentence(message_of([&] { run(none); })));
  }
  for (const std::string& op : op_registry()) {
    INFO(op);
    if (op.ends_with('_')) CHECK(named.contains(op));
  }
}

TEST_CASE("every op with an undefined input computes without it, or names it in one sentence",
          "[contracts]") {
  int64_t refused = 0, computed = 0;
  for (const OpCase& row : lathe::test::op_table()) {
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      INFO(row.op << " (" << row.label << ") without input " << i);
      const TrainingStep step(lathe::test::step_random);
      Variables in = variables_of(row, at::kFloat);
      in[i] = Variable();
      const std::string message = message_of([&] {
        const Variable y = row.ours(in);
        if (y.requires_grad()) backward(y, y.data());
      });
      if (message.empty()) {
        ++computed;
      } else {
        INFO(message);
        const bool is_named = message.find("undefined") != std::string::npos;
        const bool lacks_bounds =
            message.find("needs a lower or an upper bound") != std::string::npos;  // clamp's
        CHECK((is_sentence(message) && (is_named || lacks_bounds)));
        ++refused;
      }
    }
  }
  CHECK(computed > 20);
  CHECK(refused > 200);
}

TEST_CASE("what an undefined Variable is asked for is one sentence", "[contracts]") {
  const Variable none;
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.requires_grad());
  CHECK(none.numel() == 0);
  const std::vector<std::function<void()>> uses{
      [&] { (void)none.sizes(); }, [&] { (void)none.size(0); }, [&] { (void)none.dim(); },
      [&] { (void)none.dtype(); }, [&] { (void)none.item(); },  [&] { none.backward(); },
      [&] { (void)none[0]; },      [&] { (void)(none + 1.0); }, [&] { (void)(none < none); },
      [&] { (void)(-none); }};
  for (const auto& use : uses) {
    const std::string message = message_of(use);
    INFO(message);
    CHECK(is_sentence(message));
  }
}

/// An options struct, or another set of numbers, with one of them at n.
struct OptionsRow {
  std::string name, number;
  std::function<void(int64_t n)> run;
};

std::vector<OptionsRow> options_rows() {
  const auto ones = [](at::IntArrayRef sizes) { return Variable::parameter(torch::ones(sizes)); };
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const Variable image = ones({1, 4, 6, 6}), sequence = ones({1, 4, 6});
  const auto run_back = [](const Variable& y) {
    if (y.requires_grad()) backward(y, y.data());
  };
  std::vector<OptionsRow> rows;
  const auto add = [&](const char* name, const char* number, std::function<void(int64_t)> run) {
    rows.push_back({name, number, std::move(run)});
  };
  const auto conv2d_row = [&](const char* number, auto set) {
    add("Conv2dOptions", number, [=](int64_t n) {
      Conv2dOptions o;
      set(o, n);
      run_back(conv2d(image, ones({4, 4, 2, 2}), {}, o));
    });
    add("Conv2dOptions", number, [=](int64_t n) {
      Conv2dOptions o;
      set(o, n);
      run_back(Conv2d(4, 4, 2, o)(image));
    });
  };
  conv2d_row("stride", [](auto& o, int64_t n) { o.stride = n; });
  conv2d_row("padding", [](auto& o, int64_t n) { o.padding = n; });
  conv2d_row("dilation", [](auto& o, int64_t n) { o.dilation = n; });
  conv2d_row("groups", [](auto& o, int64_t n) { o.groups = n; });
  const auto conv1d_row = [&](const char* number, auto set) {
    add("Conv1dOptions", number, [=](int64_t n) {
      Conv1dOptions o;
      set(o, n);
      run_back(conv1d(sequence, ones({4, 4, 2}), {}, o));
    });
    add("Conv1dOptions", number, [=](int64_t n) {
      Conv1dOptions o;
      set(o, n);
      run_back(Conv1d(4, 4, 2, o)(sequence));
    });
  };
  conv1d_row("stride", [](auto& o, int64_t n) { o.stride = n; });
  conv1d_row("padding", [](auto& o, int64_t n) { o.padding = n; });
  conv1d_row("dilation", [](auto& o, int64_t n) { o.dilation = n; });
  conv1d_row("groups", [](auto& o, int64_t n) { o.groups = n; });
  const auto transpose_row = [&](const char* number, auto set) {
    add("ConvTranspose2dOptions", number, [=](int64_t n) {
      ConvTranspose2dOptions o;
      set(o, n);
      run_back(conv_transpose2d(image, ones({4, 4, 2, 2}), {}, o));
    });
  };
  transpose_row("stride", [](auto& o, int64_t n) { o.stride = n; });
  transpose_row("padding", [](auto& o, int64_t n) { o.padding = n; });
  transpose_row("output_padding", [](auto& o, int64_t n) { o.output_padding = n; });
  transpose_row("groups", [](auto& o, int64_t n) { o.groups = n; });
  transpose_row("dilation", [](auto& o, int64_t n) { o.dilation = n; });

  const at::Tensor classes = torch::zeros({6}, at::kLong);
  add("CrossEntropyOptions", "ignore_index",
      [=](int64_t n) { run_back(cross_entropy(ones({6, 3}), classes, {.ignore_index = n})); });
  add("CrossEntropyOptions", "label_smoothing", [=](int64_t n) {
    run_back(cross_entropy(ones({6, 3}), classes, {.label_smoothing = real(n)}));
  });
  const auto triplet_row = [&](const char* number, auto set) {
    add("TripletOptions", number, [=](int64_t n) {
      TripletOptions o;
      set(o, real(n));
      run_back(triplet_margin_loss(ones({2, 3}), ones({2, 3}), ones({2, 3}), o));
    });
  };
  triplet_row("margin", [](auto& o, double n) { o.margin = n; });
  triplet_row("p", [](auto& o, double n) { o.p = n; });
  triplet_row("eps", [](auto& o, double n) { o.eps = n; });
  const auto attention_row = [&](const char* number, auto set) {
    add("AttentionOptions", number, [=](int64_t n) {
      AttentionOptions o;
      set(o, real(n));
      run_back(scaled_dot_product_attention(ones({2, 3, 4}), ones({2, 3, 4}), ones({2, 3, 4}), o));
    });
  };
  attention_row("dropout", [](auto& o, double n) { o.dropout = n; });
  attention_row("scale", [](auto& o, double n) { o.scale = n; });

  const auto recurrent_row = [&](const char* number, auto set) {
    add("RecurrentOptions", number, [=](int64_t n) {
      RecurrentOptions o;
      set(o, n);
      (void)LSTM(4, 4, o);
      (void)GRU(4, 4, o);
      (void)SimpleRNN(4, 4, o);
    });
  };
  recurrent_row("n_layer", [](auto& o, int64_t n) { o.n_layer = n; });
  recurrent_row("dropout", [](auto& o, int64_t n) { o.dropout = static_cast<double>(n); });
  const auto rotary_row = [&](const char* number, auto set) {
    for (const auto kind :
         {RotaryScaling::Kind::linear, RotaryScaling::Kind::llama3, RotaryScaling::Kind::yarn}) {
      add("RotaryScaling", number, [=](int64_t n) {
        RotaryScaling o{.kind = kind};
        set(o, real(n));
        (void)Rotary(4, 10000, o).turns(torch::arange(3));
      });
    }
  };
  rotary_row("factor", [](auto& o, double n) { o.factor = n; });
  rotary_row("low", [](auto& o, double n) { o.low = n; });
  rotary_row("high", [](auto& o, double n) { o.high = n; });
  rotary_row("original_context", [](auto& o, double n) { o.original_context = n; });
  rotary_row("attention_factor", [](auto& o, double n) { o.attention_factor = n; });
  const auto transformer_row = [&](const char* number, auto set) {
    add("TransformerOptions", number, [=](int64_t n) {
      TransformerOptions o{.channels = 4, .heads = 2};
      set(o, n);
      run_back(TransformerEncoder(1, o)(ones({1, 3, 4})));
      run_back(TransformerDecoder(1, o)(ones({1, 3, 4}), ones({1, 3, 4})));
    });
  };
  transformer_row("channels", [](auto& o, int64_t n) { o.channels = n; });
  transformer_row("heads", [](auto& o, int64_t n) { o.heads = n; });
  transformer_row("hidden", [](auto& o, int64_t n) { o.hidden = n; });
  transformer_row("dropout", [](auto& o, int64_t n) { o.dropout = static_cast<double>(n); });
  const auto gradcheck_row = [&](const char* number, auto set) {
    add("GradcheckOptions", number, [=](int64_t n) {
      GradcheckOptions o;
      set(o, real(n));
      gradcheck([](const Variable& v) { return v * v; }, Variable(torch::ones({2}, at::kDouble)),
                o);
    });
  };
  gradcheck_row("step", [](auto& o, double n) { o.step = n; });
  gradcheck_row("tolerance", [](auto& o, double n) { o.tolerance = n; });
  const auto group_row = [&](const char* number, auto set) {
    add("GroupOptions", number, [=](int64_t n) {
      GroupOptions group{.pattern = "*"};
      set(group, real(n));
      Linear layer(3, 2, true);
      Optimizer optimizer(OptimConfig(), parameters(layer), std::nullopt, {group});
      backward(sum(layer(Variable(torch::ones({1, 3})))));
      optimizer.step(0.1);
    });
  };
  group_row("lr_factor", [](auto& o, double n) { o.lr_factor = n; });
  group_row("weight_decay", [](auto& o, double n) { o.weight_decay = n; });
  add("StepOptions", "step", [=](int64_t n) {
    Linear layer(3, 2, true);
    Optimizer optimizer(OptimConfig(), parameters(layer));
    backward(sum(layer(Variable(torch::ones({1, 3})))));
    optimizer.step(0.1, {.step = n});
  });

  // Numbers that layers and functions take by themselves.
  add("", "Linear", [](int64_t n) { (void)Linear(n, 3, true); });
  add("", "Linear", [](int64_t n) { (void)Linear(3, n, true); });
  add("", "Embedding", [](int64_t n) { (void)Embedding(n, 3); });
  add("", "EmbeddingBag", [](int64_t n) { (void)EmbeddingBag(n, 3); });
  add("", "LayerNorm", [](int64_t n) { (void)LayerNorm(n, true); });
  add("", "RMSNorm", [](int64_t n) { (void)RMSNorm(n, 1e-5); });
  add("", "GroupNorm", [](int64_t n) { (void)GroupNorm(n, 4); });
  add("", "GroupNorm", [](int64_t n) { (void)GroupNorm(2, n); });
  add("", "BatchNorm", [=](int64_t n) { (void)BatchNorm1d(n); });
  add("", "Conv2d", [](int64_t n) { (void)Conv2d(n, 2, 3); });
  add("", "Conv2d", [](int64_t n) { (void)Conv2d(2, n, 3); });
  add("", "Conv2d", [=](int64_t n) { run_back(Conv2d(4, 2, n)(image)); });
  add("", "Conv1d", [=](int64_t n) { run_back(Conv1d(4, 2, n)(sequence)); });
  add("", "LSTM", [](int64_t n) { (void)LSTM(n, 3); });
  add("", "LSTM", [](int64_t n) { (void)LSTM(3, n); });
  add("", "GRU", [](int64_t n) { (void)GRU(3, n); });
  add("", "CausalSelfAttention", [](int64_t n) { (void)CausalSelfAttention(8, n, true); });
  add("", "CausalSelfAttention", [](int64_t n) { (void)CausalSelfAttention(n, 2, true); });
  add("", "MultiHeadAttention", [](int64_t n) { (void)MultiHeadAttention(8, n); });
  add("", "GroupedQueryAttention",
      [](int64_t n) { (void)GroupedQueryAttention(8, n, 1, 4, false, {}); });
  add("", "GroupedQueryAttention",
      [](int64_t n) { (void)GroupedQueryAttention(8, 2, n, 4, false, {}); });
  add("", "GroupedQueryAttention",
      [](int64_t n) { (void)GroupedQueryAttention(8, 2, 1, n, false, {}); });
  add("", "Rotary", [](int64_t n) { (void)Rotary(n); });
  add("", "FeedForward", [](int64_t n) { (void)FeedForward(n, true); });
  add("", "SwiGLU", [](int64_t n) { (void)SwiGLU(4, n, true); });
  add("", "TransformerEncoder", [](int64_t n) { (void)TransformerEncoder(n, {.channels = 4}); });
  add("", "max_pool2d kernel", [=](int64_t n) { run_back(max_pool2d(image, n)); });
  add("", "max_pool2d stride", [=](int64_t n) { run_back(max_pool2d(image, 2, lathe::Pair(n))); });
  add("", "max_pool2d padding",
      [=](int64_t n) { run_back(max_pool2d(image, 2, lathe::Pair(2), n)); });
  add("", "max_pool2d dilation",
      [=](int64_t n) { run_back(max_pool2d(image, 2, lathe::Pair(2), 0, n)); });
  add("", "avg_pool2d kernel", [=](int64_t n) { run_back(avg_pool2d(image, n)); });
  add("", "avg_pool2d stride", [=](int64_t n) { run_back(avg_pool2d(image, 2, lathe::Pair(n))); });
  add("", "avg_pool2d padding",
      [=](int64_t n) { run_back(avg_pool2d(image, 2, lathe::Pair(2), n)); });
  add("", "max_pool1d", [=](int64_t n) { run_back(max_pool1d(sequence, n)); });
  add("", "avg_pool1d", [=](int64_t n) { run_back(avg_pool1d(sequence, n)); });
  add("", "adaptive_avg_pool2d", [=](int64_t n) { run_back(adaptive_avg_pool2d(image, n)); });
  add("", "im2col kernel", [=](int64_t n) { run_back(im2col(image, n)); });
  add("", "im2col dilation", [=](int64_t n) { run_back(im2col(image, 2, n)); });
  add("", "im2col stride", [=](int64_t n) { run_back(im2col(image, 2, 1, 0, n)); });
  add("", "col2im kernel", [=](int64_t n) { run_back(col2im(ones({1, 4, 9}), 4, n)); });
  add("", "col2im size", [=](int64_t n) { run_back(col2im(ones({1, 4, 9}), n, 2)); });
  add("", "col2im stride", [=](int64_t n) { run_back(col2im(ones({1, 4, 9}), 4, 2, 1, 0, n)); });
  add("", "interpolate", [=](int64_t n) { run_back(interpolate(image, n)); });
  add("", "interpolate_by", [=](int64_t n) { run_back(interpolate_by(image, real(n), 2)); });
  add("", "unfold size", [=](int64_t n) { run_back(unfold(sequence, 2, n, 1)); });
  add("", "unfold step", [=](int64_t n) { run_back(unfold(sequence, 2, 2, n)); });
  add("", "split", [=](int64_t n) { (void)split(sequence, n, 1); });
  add("", "chunk", [=](int64_t n) { (void)chunk(sequence, n, 1); });
  add("", "slice step", [=](int64_t n) { run_back(slice(sequence, 2, 0, 3, n)); });
  add("", "topk", [=](int64_t n) { (void)topk(sequence, n, 2); });
  add("", "group_norm", [=](int64_t n) { run_back(group_norm(image, n)); });
  add("", "attention", [=](int64_t n) { run_back(attention(ones({1, 2, 12}), n)); });
  add("", "attention", [=](int64_t n) {
    run_back(attention(ones({1, 2, 4}), ones({1, 2, 4}), ones({1, 2, 4}), n, 1));
  });
  add("", "attention", [=](int64_t n) {
    run_back(attention(ones({1, 2, 4}), ones({1, 2, 4}), ones({1, 2, 4}), 1, n));
  });
  add("", "dropout", [=](int64_t n) {
    const TrainingStep step(lathe::test::step_random);
    run_back(dropout(sequence, real(n)));
  });
  add("", "smooth_l1_loss",
      [=](int64_t n) { run_back(smooth_l1_loss(sequence, sequence, Reduction::mean, real(n))); });
  add("", "norm", [=](int64_t n) { run_back(norm(sequence, real(n))); });
  add("", "layer_norm eps", [=](int64_t n) { run_back(layer_norm(sequence, {}, {}, real(n))); });
  return rows;
}

TEST_CASE("every options struct with a number at 0 or -1 works or is one sentence", "[contracts]") {
  std::set<std::string> named;
  for (const OptionsRow& row : options_rows()) {
    named.insert(row.name);
    for (const int64_t n : {0, -1}) {
      INFO(row.name << " " << row.number << " = " << n);
      const std::string message = message_of([&] { row.run(n); });
      INFO(message);
      CHECK((message.empty() || is_sentence(message)));
    }
  }

  // Structs of options in the headers of autograd/, nn/ and optim/ have a row each.
  const std::regex declared("(?:^|\\n)struct (\\w+(?:Options|Scaling)) \\{");
  for (const char* folder : {"autograd", "nn", "optim"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(lathe::test::source_folder() / folder)) {
      if (entry.path().extension() != ".h") continue;
      const std::string text = text_of(entry.path());
      for (std::sregex_iterator at(text.begin(), text.end(), declared), end; at != end; ++at) {
        const std::string name = (*at)[1];
        INFO(name);
        if (name == "Fp8Scaling")
          continue;  // a record of largest values, without a number that anyone sets
        CHECK(named.contains(name));
      }
    }
  }
}

TEST_CASE("errors that PyTorch has are errors here", "[contracts]") {
  const auto ones = [](at::IntArrayRef sizes) { return Variable::parameter(torch::ones(sizes)); };
  const std::vector<std::pair<const char*, std::function<void()>>> refused{
      {"squeeze of one dim twice", [&] { squeeze(ones({1, 2}), {0, 0}); }},
      {"squeeze of one dim twice, once from the end", [&] { squeeze(ones({1, 2}), {0, -2}); }},
      {"sum over one dim twice", [&] { sum(ones({1, 2}), {1, 1}); }},
      {"flatten from a dim that is not there", [&] { flatten(ones({}), 1); }},
      {"instance_norm of one element", [&] { instance_norm(ones({2, 3, 1})); }},
      {"group_norm of one value a group", [&] { group_norm(ones({2, 3}), 3); }},
      {"max_pool2d of a window in the padding alone",
       [&] { max_pool2d(ones({1, 1, 2, 2}), 2, lathe::Pair(1), 1, 3); }},
      {"interpolate_by infinity",
       [&] { interpolate_by(ones({1, 1, 2, 2}), std::numeric_limits<double>::infinity(), 1); }},
      {"interpolate_by more than fits", [&] { interpolate_by(ones({1, 1, 2, 2}), 1e30, 1); }},
      {"a float64 loss in Optimizer::step",
       [] {
         Linear layer(3, 2, true);
         Optimizer optimizer(OptimConfig(), parameters(layer));
         const Variable loss = sum(layer(Variable(torch::ones({1, 3}))));
         backward(loss);
         optimizer.step(0.1, {.loss = loss.data().to(at::kDouble)});
       }},
  };
  for (const auto& [what, run] : refused) {
    INFO(what);
    const std::string message = message_of(run);
    INFO(message);
    CHECK(is_sentence(message));
  }
}

/// The gradient of sum(f(x)), ours and LibTorch's.
std::pair<at::Tensor, at::Tensor> both_gradients(
    const std::function<Variable(const Variable&)>& ours,
    const std::function<at::Tensor(const at::Tensor&)>& theirs, const at::Tensor& x) {
  const Variable v = Variable::parameter(x.clone());
  backward(sum(ours(v)));
  const at::Tensor t = x.clone().requires_grad_();
  theirs(t).sum().backward();
  return {v.grad(), t.grad()};
}

TEST_CASE("gradients at infinities beside zeros, and without a degree of freedom, are LibTorch's",
          "[contracts]") {
  const double infinite = std::numeric_limits<double>::infinity();
  const auto agree = [](const std::pair<at::Tensor, at::Tensor>& g) {
    CHECK(g.first.allclose(g.second, 0, 0, /*equal_nan=*/true));
  };
  for (const auto& values : std::vector<std::vector<double>>{{infinite, 2, 3},
                                                             {0, infinite, 3},
                                                             {2, 0, infinite},
                                                             {0, 0, 3},
                                                             {0, infinite, 0},
                                                             {-infinite, 2, infinite}}) {
    const at::Tensor x = torch::tensor(values, at::kDouble);
    INFO(x);
    agree(both_gradients([](const Variable& v) { return prod(v); },
                         [](const at::Tensor& t) { return t.prod(); }, x));
    agree(both_gradients([](const Variable& v) { return prod(v, 0); },
                         [](const at::Tensor& t) { return t.prod(0); }, x));
    if (values[0] == 0 && values[2] == 0) continue;  // PyTorch divides infinity by infinity
    agree(both_gradients([](const Variable& v) { return cumprod(v, 0); },
                         [](const at::Tensor& t) { return t.cumprod(0); }, x));
  }
  for (const at::Tensor& x : {torch::full({}, 3.0, at::kDouble), torch::arange(3, at::kDouble)}) {
    for (const double correction : {0.0, 1.0, 2.0, 3.0, 4.0}) {
      INFO(x << ", correction " << correction);
      agree(both_gradients(
          [&](const Variable& v) { return var(v, {}, correction); },
          [&](const at::Tensor& t) { return t.var(std::nullopt, at::Scalar(correction)); }, x));
      agree(both_gradients(
          [&](const Variable& v) { return lathe::std(v, {}, correction); },
          [&](const at::Tensor& t) { return t.std(std::nullopt, at::Scalar(correction)); }, x));
    }
  }
}

TEST_CASE("SwiGLU's far tails are zero, and infinities NaN, whatever they are multiplied by",
          "[contracts]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto gradients = [dtype](double gate) {
      const Variable x = Variable::parameter(torch::full({2, 64}, 1e30, dtype));
      const Variable w = Variable::parameter(torch::full({64, 64}, gate / 64e30, dtype));
      const Variable up = Variable::parameter(torch::full({64, 64}, 1.0 / 64, dtype));
      const Variable y = linear_swiglu(x, w, up);
      std::vector<at::Tensor> all{y.data()};
      for (const Variable& g : grad(y, {x, w, up}, Variable(torch::ones({2, 64}, dtype))))
        all.push_back(g.data());
      return all;
    };
    for (const double gate : {-1e3, -2.3e30}) {
      INFO(gate);
      for (const at::Tensor& t : gradients(gate)) CHECK(t.eq(0).all().item<bool>());
    }
    const at::Tensor x = torch::tensor(
        {-std::numeric_limits<double>::infinity(), -1e30, -101.0, -99.0, -50.0, 1.0, 0.0, 0.0},
        at::kDouble);
    const at::Tensor packed = torch::stack({x, torch::ones({8}, at::kDouble)}, 0).reshape({1, 16});
    const Variable v = Variable::parameter(packed.to(dtype));
    const Variable y = swiglu(v);
    backward(y, torch::ones({1, 8}, dtype));
    CHECK(y.data()[0][0].isnan().item<bool>());
    CHECK(v.grad()[0][0].isnan().item<bool>());
    CHECK(y.data()[0].slice(0, 1).allclose((x * x.sigmoid()).slice(0, 1).to(dtype), 1e-2, 1e-30));
    CHECK(v.grad()[0].slice(0, 1, 3).eq(0).all().item<bool>());
  }
}

TEST_CASE("second derivatives of logsigmoid are exact in both tails, and elu's is PyTorch's at 0",
          "[contracts]") {
  const at::Tensor x = torch::tensor({-20.0, -8.5, -1.0, 0.0, 1.0, 8.5, 20.0}, at::kFloat);
  const auto second = [](auto f, const at::Tensor& at) {
    const Variable v = Variable::parameter(at.clone());
    const Variable first = grad(sum(f(v)), {v}, {}, /*create_graph=*/true)[0];
    return grad(sum(first), {v})[0].data();
  };
  const at::Tensor exact = x.to(at::kDouble), s = exact.sigmoid();
  // A few roundings of float32, relative to each derivative.
  CHECK(second([](const Variable& v) { return logsigmoid(v); }, x)
            .to(at::kDouble)
            .allclose(-s * (-exact).sigmoid(), 1e-6, 0));
  CHECK(second([](const Variable& v) { return elu(v, 1.5); }, torch::zeros({1})).item<double>() ==
        0);
}

TEST_CASE("group_norm and instance_norm take a bias without a weight", "[contracts]") {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Variable x = Variable::parameter(torch::arange(24).to(dtype).reshape({2, 4, 3}).sin());
    const Variable bias = Variable::parameter(torch::zeros({4}, dtype));
    const at::Tensor dy = torch::arange(24).to(dtype).reshape({2, 4, 3}).cos();
    for (const Variable& y : {group_norm(x, 2, {}, bias), instance_norm(x, {}, bias)}) {
      const auto grads = grad(y, {x, bias}, Variable(dy));
      const Variable one(torch::ones({4}, dtype));
      CHECK(grads[1].data().allclose(dy.sum(at::IntArrayRef{0, 2}), 1e-2, 1e-2));
      CHECK(grads[0].defined());
    }
  }
}

}  // namespace
