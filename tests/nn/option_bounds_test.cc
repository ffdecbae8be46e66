// Tests the values 0 and -1 for numbers in every options struct and in arguments of layers and
// functions.
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <functional>
#include <regex>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
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
#include "tests/support/catch.h"
#include "tests/support/messages.h"
#include "tests/support/op_case.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using lathe::test::is_sentence;
using lathe::test::message_of;

/// A call that uses an options struct or passes arguments to a function. One of its numbers is n.
struct OptionsRow {
  std::string name, number;
  std::function<void(int64_t n)> run;
};

/// A numeric field of an options struct, and a function that sets it.
template <class Options>
struct NumberOf {
  const char* name;
  void (*set)(Options& options, int64_t n);
};
#define NUMBER(field)                                                      \
  {#field, [](auto& o, int64_t n) {                                        \
     o.field = static_cast<std::remove_reference_t<decltype(o.field)>>(n); \
   }}

/// Adds a row for each pair of a numeric field and a call that uses the struct. The other fields
/// have their values in `start`.
template <class Options>
void add_rows(std::vector<OptionsRow>& rows, const char* name,
              const std::vector<NumberOf<Options>>& numbers,
              const std::vector<std::function<void(const Options&)>>& uses,
              const Options& start = {}) {
  for (const auto& number : numbers) {
    for (const auto& use : uses) {
      rows.push_back({name, number.name, [=](int64_t n) {
                        Options options = start;
                        number.set(options, n);
                        use(options);
                      }});
    }
  }
}

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
  const auto use_conv2d = [=](const Conv2dOptions& o) {
    run_back(conv2d(image, ones({4, 4, 2, 2}), {}, o));
  };
  const auto use_conv1d = [=](const Conv1dOptions& o) {
    run_back(conv1d(sequence, ones({4, 4, 2}), {}, o));
  };
  add_rows<Conv2dOptions>(
      rows, "Conv2dOptions", {NUMBER(stride), NUMBER(padding), NUMBER(dilation), NUMBER(groups)},
      {use_conv2d, [=](const auto& o) { run_back(Conv2d(4, 4, 2, o)(image)); }});
  add_rows<Conv1dOptions>(
      rows, "Conv1dOptions", {NUMBER(stride), NUMBER(padding), NUMBER(dilation), NUMBER(groups)},
      {use_conv1d, [=](const auto& o) { run_back(Conv1d(4, 4, 2, o)(sequence)); }});
  add_rows<ConvTranspose2dOptions>(
      rows, "ConvTranspose2dOptions",
      {NUMBER(stride), NUMBER(padding), NUMBER(output_padding), NUMBER(groups), NUMBER(dilation)},
      {[=](const auto& o) { run_back(conv_transpose2d(image, ones({4, 4, 2, 2}), {}, o)); }});
  add_rows<CrossEntropyOptions>(
      rows, "CrossEntropyOptions", {NUMBER(ignore_index), NUMBER(label_smoothing)},
      {[=](const auto& o) {
        run_back(cross_entropy(ones({6, 3}), torch::zeros({6}, at::kLong), o));
      }});
  add_rows<TripletOptions>(
      rows, "TripletOptions", {NUMBER(margin), NUMBER(p), NUMBER(eps)}, {[=](const auto& o) {
        run_back(triplet_margin_loss(ones({2, 3}), ones({2, 3}), ones({2, 3}), o));
      }});
  add_rows<AttentionOptions>(rows, "AttentionOptions",
                             {NUMBER(dropout), NUMBER(scale), NUMBER(softcap)},
                             {[=](const auto& o) {
                               run_back(scaled_dot_product_attention(
                                   ones({2, 3, 4}), ones({2, 3, 4}), ones({2, 3, 4}), o));
                             }});
  add_rows<ScoreOptions>(
      rows, "ScoreOptions", {NUMBER(window), NUMBER(scale), NUMBER(softcap)}, {[=](const auto& o) {
        run_back(attention(ones({1, 2, 4}), ones({1, 2, 4}), ones({1, 2, 4}), 1, 1, {}, {}, o));
      }});
  add_rows<RecurrentOptions>(
      rows, "RecurrentOptions", {NUMBER(n_layer), NUMBER(dropout)},
      {[](const auto& o) { (void)LSTM(4, 4, o); }, [](const auto& o) { (void)GRU(4, 4, o); },
       [](const auto& o) { (void)SimpleRNN(4, 4, o); }});
  for (const auto kind :
       {RotaryScaling::Kind::linear, RotaryScaling::Kind::llama3, RotaryScaling::Kind::yarn}) {
    add_rows<RotaryScaling>(
        rows, "RotaryScaling",
        {NUMBER(factor), NUMBER(low), NUMBER(high), NUMBER(original_context),
         NUMBER(attention_factor)},
        {[](const auto& o) { (void)Rotary(4, 10000, o).rope_table(torch::arange(3)); }},
        {.kind = kind});
  }
  add_rows<TransformerOptions>(
      rows, "TransformerOptions",
      {NUMBER(n_embd), NUMBER(n_head), NUMBER(n_inner), NUMBER(dropout)},
      {[=](const auto& o) { run_back(TransformerEncoder(1, o)(ones({1, 3, 4}))); },
       [=](const auto& o) {
         run_back(TransformerDecoder(1, o)(ones({1, 3, 4}), ones({1, 3, 4})));
       }},
      {.n_embd = 4, .n_head = 2});
  add_rows<GradcheckOptions>(rows, "GradcheckOptions", {NUMBER(step), NUMBER(tolerance)},
                             {[](const auto& o) {
                               gradcheck([](const Variable& v) { return v * v; },
                                         Variable(torch::ones({2}, at::kDouble)), o);
                             }});
  add_rows<GroupOptions>(rows, "GroupOptions", {NUMBER(lr_factor), NUMBER(weight_decay)},
                         {[](const auto& o) {
                           Linear layer(3, 2, true);
                           Optimizer optimizer(OptimConfig(), parameters(layer), std::nullopt, {o});
                           backward(sum(layer(Variable(torch::ones({1, 3})))));
                           optimizer.step(0.1);
                         }},
                         {.pattern = "*"});
  add_rows<StepOptions>(rows, "StepOptions", {NUMBER(step)}, {[](const auto& o) {
                          Linear layer(3, 2, true);
                          Optimizer optimizer(OptimConfig(), parameters(layer));
                          backward(sum(layer(Variable(torch::ones({1, 3})))));
                          optimizer.step(0.1, o);
                        }});

  // The following rows set numbers that layers and functions take as arguments.
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
  add("", "TransformerEncoder", [](int64_t n) { (void)TransformerEncoder(n, {.n_embd = 4}); });
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

TEST_CASE("each number in options and arguments works as 0 and as -1, or fails with one sentence",
          "[option_bounds]") {
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

  // Each struct of options in a header of autograd/, nn/ or optim/ must have a row.
  const std::regex declared("(?:^|\\n)struct (\\w+(?:Options|Scaling)) \\{");
  for (const char* folder : {"autograd", "nn", "optim"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(lathe::test::source_folder() / folder)) {
      if (entry.path().extension() != ".h") continue;
      const std::string text = lathe::test::slurp(entry.path());
      for (std::sregex_iterator at(text.begin(), text.end(), declared), end; at != end; ++at) {
        const std::string name = (*at)[1];
        INFO(name);
        if (name == "Fp8Scaling") continue;  // records largest values, has no options
        CHECK(named.contains(name));
      }
    }
  }
}

}  // namespace
