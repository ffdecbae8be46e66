#include "train/formats/onnx_examples.h"

#include <cmath>

#include "core/io/json.h"

namespace lathe {
namespace {

using Ints = std::vector<int64_t>;

/// Returns the type in which raw inputs are normalized. `lathe predict` uses float64, which columns
/// such as years need. Float32 is enough for pixels, and more programs support it.
OnnxType raw_type(const ExampleEncoding& e) {
  bool is_enough = e.input_sizes.size() >= 3;
  for (size_t i = 0; i < e.inputs.mean.size(); ++i) {
    const double mean = e.inputs.mean[i], scale = e.inputs.scale[i];
    is_enough = is_enough && scale > 1e-30 && std::abs(mean) < 1e3 * scale;
  }
  return is_enough ? OnnxType::f32 : OnnxType::f64;
}

/// Returns the column's name. If the table has no header line, returns the column's number, counted
/// from 1.
std::string shown_name(const TableFormat& table, size_t column) {
  const std::string& name = table.columns[column].name;
  return name.empty() ? std::to_string(column + 1) : name;
}

/// Adds the graph inputs for a table, and encodes its columns: fills the empty cells of numeric
/// columns, and converts text columns to one-hot vectors. Returns the name of the encoded table
/// [batch, width].
std::string add_table(OnnxGraph& graph, const TableFormat& table, OnnxType type) {
  std::vector<double> fills;
  Json numbers = Json::array(), texts = Json::array();
  bool has_fills = false;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    const TableColumn& column = table.columns[c];
    if (column.role != ColumnRole::input) continue;
    (column.is_text ? texts : numbers).push_back(shown_name(table, c));
    if (column.is_text) continue;
    fills.push_back(column.fill.value_or(std::nan("")));
    has_fills = has_fills || column.fill;
  }

  std::string input = "input";
  if (!numbers.empty()) {
    graph.add_input("input", type, {"batch", static_cast<int64_t>(numbers.size())});
    graph.set_metadata("columns", json_text(numbers));
  }
  if (!texts.empty()) {
    graph.add_input("texts", OnnxType::text, {"batch", static_cast<int64_t>(texts.size())});
    graph.set_metadata("text_columns", json_text(texts));
  }
  if (has_fills) {
    const std::string fill =
        graph.add_numbers("fill", type, fills, {static_cast<int64_t>(fills.size())});
    input = graph.add_node("Where", {graph.add_node("IsNaN", {input}), fill, input});
  }
  if (texts.empty()) return input;

  // The model takes the columns in the order of the table, so put each group of adjacent numeric
  // columns between the text columns around it.
  std::vector<std::string> parts;
  Ints run;
  int64_t number = 0, text = 0;
  const auto take = [&](const std::string& from, const std::string& which) {
    return graph.add_node("Gather", {from, which}, {{"axis", int64_t{1}}});
  };
  const auto end_run = [&] {
    if (!run.empty()) parts.push_back(take(input, graph.add_integers("columns", run)));
    run.clear();
  };
  for (const TableColumn& column : table.columns) {
    if (column.role != ColumnRole::input) continue;
    if (!column.is_text) {
      run.push_back(number++);
      continue;
    }
    end_run();
    // With zeros = 0, a value that no training example has is an error, as in `lathe predict`.
    const std::string cells = take("texts", graph.add_integers("column", {text++}, {}));
    const std::string encoded =
        graph.add_node("ai.onnx.ml.OneHotEncoder", {cells},
                       {{"cats_strings", column.values}, {"zeros", int64_t{0}}});
    parts.push_back(graph.add_node("Cast", {encoded}, {{"to", static_cast<int64_t>(type)}}));
  }
  end_run();
  return graph.add_node("Concat", parts, {{"axis", int64_t{1}}});
}

}  // namespace

std::string add_example_inputs(OnnxGraph& graph, const ExampleEncoding& e) {
  const OnnxType type = raw_type(e);
  const Ints& sizes = e.input_sizes;
  std::string x = "input";
  if (e.table) {
    x = add_table(graph, *e.table, type);
    Ints shape{-1};
    if (e.channels_last)
      shape.insert(shape.end(), {sizes[1], sizes[2], sizes[0]});
    else
      shape.insert(shape.end(), sizes.begin(), sizes.end());
    if (sizes.size() > 1) x = graph.add_node("Reshape", {x, graph.add_integers("sizes", shape)});
  } else {
    std::vector<OnnxDim> dims{"batch"};
    if (e.channels_last)
      dims.insert(dims.end(), {sizes[1], sizes[2], sizes[0]});
    else
      dims.insert(dims.end(), sizes.begin(), sizes.end());
    graph.add_input("input", type, dims);
  }
  if (e.channels_last) x = graph.add_node("Transpose", {x}, {{"perm", Ints{0, 3, 1, 2}}});

  // Examples of three or more dimensions have a mean for each channel. Other examples have a mean
  // for each element.
  Ints shape = sizes;
  if (sizes.size() >= 3) {
    shape.assign(sizes.size(), 1);
    shape[0] = sizes[0];
  }
  const std::string mean = graph.add_numbers("mean", type, e.inputs.mean, shape);
  const std::string scale = graph.add_numbers("scale", type, e.inputs.scale, shape);
  x = graph.add_node("Div", {graph.add_node("Sub", {x, mean}), scale});
  if (type == OnnxType::f32) return x;
  return graph.add_node("Cast", {x}, {{"to", static_cast<int64_t>(OnnxType::f32)}});
}

void add_example_outputs(OnnxGraph& graph, const ExampleEncoding& e, bool classifies,
                         const std::string& y) {
  if (classifies) {
    graph.add_node("Softmax", {y}, {{"axis", int64_t{1}}}, "probabilities");
    graph.add_node("ArgMax", {"probabilities"}, {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}},
                   "class");
    graph.add_output("class", OnnxType::i64, {"batch"});
    graph.add_output("probabilities", OnnxType::f32, {"batch", e.outputs});
    if (!e.labels.empty()) graph.set_metadata("classes", json_text(e.labels));
    return;
  }

  // Use float64, since float32 loses digits if the mean is far above the standard deviation.
  const OnnxType type = OnnxType::f64;
  const std::string scale = graph.add_numbers("target_scale", type, e.targets.scale, {e.outputs}),
                    mean = graph.add_numbers("target_mean", type, e.targets.mean, {e.outputs}),
                    wide = graph.add_node("Cast", {y}, {{"to", static_cast<int64_t>(type)}});
  graph.add_node("Add", {graph.add_node("Mul", {wide, scale}), mean}, {}, "prediction");
  graph.add_output("prediction", type, {"batch", e.outputs});
}

}  // namespace lathe
