// Tests of ONNX files, which are read here without protobuf's code: the graph computes the results
// of `lathe predict`, and models without an ONNX form are refused.
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include "core/dtype.h"
#include "data/prepare/csv.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/train/formats/gguf_files.h"
#include "tests/train/formats/onnx_files.h"
#include "tests/train/formats/small_runs.h"
#include "train/formats/onnx.h"
#include "train/formats/onnx_file.h"

namespace {

using namespace lathe;
using namespace lathe::test;

using Tensors = std::vector<at::Tensor>;

/// Computes a node with LibTorch, according to the definition of its ONNX operator.
at::Tensor computed(const OnnxNode& n, const Tensors& in) {
  if (n.op == "Sub") return in[0] - in[1];
  if (n.op == "Add") return in[0] + in[1];
  if (n.op == "Mul") return in[0] * in[1];
  if (n.op == "Div") return in[0] / in[1];
  if (n.op == "Relu") return in[0].clamp_min(0);
  if (n.op == "Tanh") return at::tanh(in[0]);
  if (n.op == "Sigmoid") return at::sigmoid(in[0]);

  if (n.op == "IsNaN") return at::isnan(in[0]);
  if (n.op == "Where") return at::where(in[0], in[1], in[2]);
  if (n.op == "Identity") return in[0];

  if (n.op == "Flatten") return in[0].flatten(n.integer("axis", 1));
  if (n.op == "Softmax") return at::softmax(in[0], n.integer("axis", -1));
  if (n.op == "ArgMax") return in[0].argmax(n.integer("axis", 0));
  if (n.op == "Transpose") return in[0].permute(n.integers("perm"));
  if (n.op == "Unsqueeze") return in[0].unsqueeze(in[1].item<int64_t>());
  if (n.op == "GlobalAveragePool") return in[0].mean({2, 3}, true);
  if (n.op == "Cast") return in[0].to(n.integer("to", 0) == 1 ? at::kFloat : at::kDouble);

  if (n.op == "Gemm") {
    REQUIRE(n.integer("transB", 0) == 1);
    return at::linear(in[0], in[1], in[2]);
  }
  if (n.op == "Reshape") {
    const at::Tensor to = in[1];
    return in[0].reshape(at::IntArrayRef(to.data_ptr<int64_t>(), static_cast<size_t>(to.numel())));
  }

  if (n.op == "LayerNormalization")
    return at::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], 1e-5);
  if (n.op == "BatchNormalization")
    return at::batch_norm(in[0], in[1], in[2], in[3], in[4], false, 0, 1e-5, false);
  if (n.op == "Conv") {
    const auto pads = n.integers("pads");
    REQUIRE(pads == std::vector<int64_t>(4, pads.at(0)));
    return at::conv2d(in[0], in[1], {}, n.integers("strides"), {pads[0], pads[0]});
  }

  FAIL("an operator that the test does not know: " << n.op);
  return {};
}

/// Computes all nodes in the order of the file, and returns every value by name.
std::map<std::string, at::Tensor> run_graph(const OnnxFile& file, const at::Tensor& input) {
  std::map<std::string, at::Tensor> values = file.constants;
  values["input"] = input;
  for (const OnnxNode& n : file.nodes) {
    Tensors in;
    for (const std::string& name : n.inputs) {
      INFO(n.op << " reads " << name);
      REQUIRE(values.contains(name));
      in.push_back(values[name]);
    }
    REQUIRE(n.outputs.size() == 1);
    REQUIRE(values.emplace(n.outputs[0], computed(n, in)).second);
  }
  return values;
}

/// Returns the numbers of a CSV file without a header, except the last column: [rows, columns - 1].
at::Tensor table_inputs(const fs::path& path, at::ScalarType type) {
  const std::string text = slurp(path);
  CsvReader reader(text, path.string());
  std::vector<std::string_view> fields;
  std::vector<double> numbers;
  int64_t rows = 0;
  for (; reader.next(fields); ++rows) {
    for (size_t i = 0; i + 1 < fields.size(); ++i) numbers.push_back(*csv_number(fields[i]));
  }
  return torch::tensor(numbers, at::kDouble).reshape({rows, -1}).to(type);
}

TEST_CASE("the graph of an ONNX file computes the results of lathe predict", "[onnx]") {
  const TempFolder f;
  make_data(f);
  const std::vector<Kind> cases{
      {"mlp", "images", "n_hidden = 16\ndropout = 0.1\nnorm = \"batch\"\nactivation = \"silu\"\n"},
      {"mlp", "images", "n_hidden = 16\nnorm = \"layer\"\nactivation = \"gelu\"\n"},
      {"mlp", "images", "n_layer = 0\n"},
      {"mlp", "numbers", "n_hidden = 16\nactivation = \"tanh\"\n"},
      {"convnet", "images", "n_stage = 2\nn_block = 2\nn_channel = 4\ndropout = 0.1\n"}};
  for (const Kind& kind : cases) {
    INFO(kind.name << " of " << kind.data << ": " << kind.keys);
    fs::remove_all(f / "runs");
    fs::remove_all(f / "onnx");
    write_config(f, kind);
    REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.steps=20"}).code == 0);
    REQUIRE(lathe_in(f, {"export", "runs/kind", "--format", "onnx", "--out", "onnx"}).code == 0);
    CHECK(names(f / "onnx") == std::set<std::string>{"model.onnx"});

    const OnnxFile file(f / "onnx/model.onnx");
    const bool classifies = kind.data == "images";
    CHECK(file.ir_version == 8);
    CHECK(file.opsets == std::map<std::string, int64_t>{{"", 17}});
    CHECK(file.metadata.at("task") == (classifies ? "classification" : "regression"));
    CHECK(file.inputs.at("input") == (classifies ? "1 batch 16" : "11 batch 5"));
    if (classifies) {
      CHECK(file.metadata.at("classes") == "[\"0\",\"1\",\"2\",\"3\"]");
      CHECK((file.outputs == std::map<std::string, std::string>{{"class", "7 batch"},
                                                                {"probabilities", "1 batch 4"}}));
    } else {
      CHECK((file.outputs == std::map<std::string, std::string>{{"prediction", "11 batch 1"}}));
    }

    const at::Tensor inputs =
        table_inputs(f / (kind.data + ".csv"), classifies ? at::kFloat : at::kDouble);
    const auto values = run_graph(file, inputs);
    const Finished predicted = lathe_in(
        f, {"predict", "runs/kind", kind.data + ".csv", "--out", "out.jsonl", "--threads", "1"});
    REQUIRE(predicted.code == 0);
    std::istringstream lines(slurp(f / "out.jsonl"));
    int64_t row = 0;
    double most = 0;
    for (std::string text; std::getline(lines, text); ++row) {
      const Json line = parse_json(text, "", Exit::internal);
      if (!classifies) {
        const auto wanted = line["prediction"].get<double>();
        most = std::max(most, std::fabs(values.at("prediction")[row][0].item<double>() - wanted) /
                                  std::fabs(wanted));
        continue;
      }
      CHECK(std::to_string(values.at("class")[row].item<int64_t>()) ==
            line["class"].get<std::string>());
      for (int64_t c = 0; c < 4; ++c) {
        const auto wanted = line["probabilities"][std::to_string(c)].get<double>();
        most =
            std::max(most, std::fabs(values.at("probabilities")[row][c].item<double>() - wanted));
      }
    }
    CHECK(row == 240);
    CHECK(most < 1e-5);
    fs::remove(f / "out.jsonl");
  }
}

TEST_CASE("an ONNX file of a table has its columns, categories and fill values", "[onnx]") {
  const TempFolder f;
  std::string table = "color,id,size,shape,weight,kind\n";
  for (int i = 0; i < 60; ++i) {
    table +=
        str(i % 3 == 0 ? "red" : "blue", ",n", i, ",", i % 4 == 1 ? "" : std::to_string(i % 7), ",",
            i % 2 == 0 ? "round" : "", ",", 1.5 * i, ",", i % 3 == 0 ? "rose" : "iris", "\n");
  }
  write_file(f / "table.csv", table);
  REQUIRE(lathe_in(f, {"prepare", "table.csv", "--out", "data", "--id", "id", "--missing", "mean"})
              .code == 0);
  write_file(f / "kind.toml",
             "[model]\nkind = \"mlp\"\nn_hidden = 8\n[data]\ndir = \"data\"\n[train]\nsteps = "
             "5\nbatch_size = 8\neval_interval = 5\nthreads = 1\n");
  REQUIRE(lathe_in(f, {"train", "kind.toml"}).code == 0);
  REQUIRE(lathe_in(f, {"export", "runs/kind", "--format", "onnx", "--out", "onnx"}).code == 0);

  const OnnxFile file(f / "onnx/model.onnx");
  CHECK((file.inputs ==
         std::map<std::string, std::string>{{"input", "11 batch 2"}, {"texts", "8 batch 2"}}));
  CHECK((file.opsets == std::map<std::string, int64_t>{{"", 17}, {"ai.onnx.ml", 3}}));
  CHECK(file.metadata.at("columns") == "[\"size\",\"weight\"]");
  CHECK(file.metadata.at("text_columns") == "[\"color\",\"shape\"]");
  CHECK(file.metadata.at("classes") == "[\"iris\",\"rose\"]");
  std::vector<std::vector<std::string>> values;
  for (const OnnxNode& n : file.nodes) {
    if (n.op != "OneHotEncoder") continue;
    CHECK(n.domain == "ai.onnx.ml");
    CHECK(n.integer("zeros", 1) == 0);
    values.push_back(n.attributes.at("cats_strings").all(9));
  }
  CHECK(values == std::vector<std::vector<std::string>>{{"blue", "red"}, {"", "round"}});
  // Empty cells are filled with the mean of the training split, in both columns of numbers.
  const Json manifest = parse_json(slurp(f / "data/manifest.json"), "", Exit::internal);
  const at::Tensor fill = file.constants.at("fill");
  CHECK(fill[0].item<double>() == manifest["table"]["columns"][2]["fill"].get<double>());
  CHECK(fill[1].item<double>() == manifest["table"]["columns"][4]["fill"].get<double>());
}

TEST_CASE(
    "exported language models have RNN gates in ONNX's order, and no biases or heads that the "
    "model lacks",
    "[onnx]") {
  const TempFolder f;
  const Values sizes{{"vocab_size", int64_t{259}}, {"block_size", int64_t{8}},
                     {"n_embd", int64_t{4}},       {"n_hidden", int64_t{4}},
                     {"n_layer", int64_t{1}},      {"tie_weights", true}};
  for (const std::string cell : {"lstm", "gru"}) {
    const fs::path run = make_run(f, cell, "rnn", with(sizes, "cell", cell));
    export_onnx({.run = run, .out = f / (cell + "-onnx")});
    const OnnxFile file(f / (cell + "-onnx") / "model.onnx");
    CHECK(names(f / (cell + "-onnx")) == std::set<std::string>{"model.onnx", "tokenizer.json"});
    CHECK(file.inputs.at("ids") == "7 batch time");
    CHECK(file.outputs.at("logits") == "1 batch time 259");
    CHECK(file.metadata.at("context") == "8");
    const SafetensorsFile saved(find_checkpoint(run) / "model.safetensors");
    const auto ours = [&](const std::string& path) {
      const TensorEntry& entry = saved.at(path);
      return entry_tensor(entry, entry.shape, "");
    };
    CHECK(at::equal(file.constants.at("tokens.weight"), ours("tokens.weight")));
    // Gates have 4 rows each. torch orders them as i, f, g, o or r, z, n. ONNX orders them as i, o,
    // f, c or z, r, h.
    const std::vector<int64_t> order =
        cell == "lstm" ? std::vector<int64_t>{0, 3, 1, 2} : std::vector<int64_t>{1, 0, 2};
    for (size_t gate = 0; gate < order.size(); ++gate) {
      const auto at = static_cast<int64_t>(gate) * 4;
      CHECK(at::equal(file.constants.at("layers.weight_hh_l0")[0].narrow(0, at, 4),
                      ours("layers.weight_hh_l0").narrow(0, 4 * order[gate], 4)));
      CHECK(at::equal(file.constants.at("layers.bias_l0")[0].narrow(0, at, 4),
                      ours("layers.bias_ih_l0").narrow(0, 4 * order[gate], 4)));
    }
    for (const OnnxNode& n : file.nodes) {
      if (n.op == "GRU") CHECK(n.integer("linear_before_reset", 0) == 1);
    }
  }

  // A GPT without biases has norms without biases. Its head is tied to the embedding.
  const fs::path run = make_run(f, "gpt", "gpt", with(gpt, "bias", false));
  export_onnx({.run = run, .out = f / "gpt-onnx"});
  const OnnxFile file(f / "gpt-onnx/model.onnx");
  CHECK(file.constants.contains("tokens.weight"));
  CHECK(!file.constants.contains("head.weight"));
  int norms = 0;
  for (const OnnxNode& n : file.nodes) {
    if (n.op != "LayerNormalization") continue;
    ++norms;
    CHECK(n.inputs.size() == 2);
  }
  CHECK(norms == 5);
}

/// Creates a run with one checkpoint of a linear model on examples of a task, without an encoding.
fs::path make_example_run(const TempFolder& f, const std::string& task) {
  RunConfig config;
  config.model.kind = "mlp";
  config.model.own = find_model_kind("mlp")->config;
  config.schema().set(&config, "model.n_layer", int64_t{0}, "here");
  config.data.dir = (f / "nowhere").string();
  RunState state;
  state.config = config.schema().to_toml(&config, false);
  state.task = task;
  state.sizes = {{4}, 2};
  Snapshot snapshot;
  for (const auto& [name, t] :
       {std::pair("head.weight", at::ones({2, 4})), std::pair("head.bias", at::ones({2}))}) {
    snapshot.held.push_back(t);
    snapshot.model.push_back(make_entry(name, snapshot.held.back()));
  }
  write_checkpoint(f / task / "checkpoints" / checkpoint_name(1), state, snapshot);
  return f / task;
}

TEST_CASE("models and options without an ONNX form are refused, and no files are left", "[onnx]") {
  const TempFolder f;
  const fs::path good = make_run(f, "gpt", "gpt", gpt);
  const auto refused = [&](int code, const std::string& what, ExportOptions options) {
    INFO(what);
    options.out = f / "out";
    const auto [given, refusal] = outcome_of([&] { export_onnx(options); });
    CHECK(given == code);
    CHECK_THAT(refusal, ContainsSubstring(what));
    CHECK(!fs::exists(f / "out"));
  };
  refused(2, "mlp, convnet, rnn, gpt, not for llama",
          {.run = make_run(f, "llama", "llama", small_llama), .out = {}});
  refused(2, "--dtype", {.run = good, .out = {}, .dtype = "bf16"});
  refused(2, "--chat-template", {.run = good, .out = {}, .chat_template = "chatml"});
  refused(2, "optim.ema_decay", {.run = good, .out = {}, .average = true});
  refused(2, "task ranking", {.run = make_example_run(f, "ranking"), .out = {}});
  refused(3, "nowhere", {.run = make_example_run(f, "regression"), .out = {}});
  refused(75, "stopped", {.run = good, .out = {}, .stop = [] { return true; }});
  export_onnx({.run = good, .out = f / "out"});  // accepted

  // Protobuf's limit of 2 GiB is checked before elements are read.
  OnnxGraph graph;
  graph.add_constant("w", OnnxType::f32, {int64_t{1} << 29},
                     {reinterpret_cast<const std::byte*>(&graph), size_t{1} << 31});
  CHECK_THAT(error_of([&] { graph.write(f / "large.onnx"); }), ContainsSubstring("2 GiB"));
  CHECK(!fs::exists(f / "large.onnx"));
}

TEST_CASE("a graph's constants, dimensions and numbers are written in protobuf's format",
          "[onnx]") {
  const TempFolder f;
  OnnxGraph graph;
  graph.add_input("x", OnnxType::f32, {"batch", int64_t{300}});
  const std::vector<float> numbers(300, 0.5F);
  const std::string a =
      graph.add_constant("w", OnnxType::f32, {300}, std::as_bytes(std::span(numbers)));
  const std::string b = graph.add_integers("w", {-1, int64_t{1} << 40});
  CHECK(a == "w");
  CHECK(b == "w_1");
  graph.add_node("Add", {"x", a}, {{"axis", int64_t{-1}}, {"epsilon", 1e-5F}}, "y");
  graph.add_output("y", OnnxType::f32, {"batch", int64_t{300}});
  graph.set_metadata("k", "v");
  graph.write(f / "model.onnx");

  const OnnxFile file(f / "model.onnx");
  CHECK(file.inputs.at("x") == "1 batch 300");
  CHECK(at::equal(file.constants.at("w"), at::full({300}, 0.5)));
  CHECK(at::equal(file.constants.at("w_1"), torch::tensor({int64_t{-1}, int64_t{1} << 40})));
  CHECK(file.nodes.at(0).integer("axis", 0) == -1);
  CHECK(file.nodes.at(0).attributes.at("epsilon").text(2) == packed(std::vector<float>{1e-5F}));
  CHECK(file.metadata.at("k") == "v");
}

}  // namespace
