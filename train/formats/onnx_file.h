// Declares a graph that is built node by node, and its encoding as an ONNX file. Includes no
// LibTorch header.
//
// This code writes protobuf's wire format without libonnx or libprotobuf, for two reasons. First, a
// graph needs only twelve messages with three kinds of fields, so this encoder is shorter than code
// that uses generated classes. Second, a process can hold only one version of libprotobuf, and
// programs that link Lathe may need another version. Sources: onnx.proto of ONNX 1.12 (IR version
// 8), and "Encoding" in protobuf's documentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// The types of elements. The values are the numbers of TensorProto.DataType.
enum class OnnxType : uint8_t { f32 = 1, i64 = 7, text = 8, f64 = 11 };

/// A dimension of an input or output: its size, or the name of a dynamic dimension.
using OnnxDim = std::variant<int64_t, std::string>;

/// An attribute of a node. Its value has one of the types that AttributeProto has.
struct OnnxAttribute {
  std::string name;
  std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<std::string>> value;
};

/// A graph of ONNX operators (opset 17 of ai.onnx, opset 3 of ai.onnx.ml) that can be written to a
/// file.
class OnnxGraph {
 public:
  /// Declares an input of the graph. The name must be unique.
  void add_input(const std::string& name, OnnxType type, const std::vector<OnnxDim>& dims);
  /// Declares the node output with this name an output of the graph.
  void add_output(const std::string& name, OnnxType type, const std::vector<OnnxDim>& dims);
  /// Adds a constant tensor of little-endian elements. Makes the name unique and returns it. Does
  /// not copy `bytes`, which must stay valid until write() has returned.
  std::string add_constant(const std::string& name, OnnxType type,
                           const std::vector<int64_t>& shape, std::span<const std::byte> bytes);
  /// Adds a constant int64 tensor and copies its values. Makes the name unique and returns it. The
  /// default shape is [values.size()]; an empty shape makes a scalar.
  std::string add_integers(const std::string& name, const std::vector<int64_t>& values,
                           const std::vector<int64_t>& shape);
  std::string add_integers(const std::string& name, const std::vector<int64_t>& values) {
    return add_integers(name, values, {static_cast<int64_t>(values.size())});
  }
  /// Adds a constant tensor of `type`, which is f32 or f64. Treats the name, values and shape as
  /// add_integers() does.
  std::string add_numbers(const std::string& name, OnnxType type, const std::vector<double>& values,
                          const std::vector<int64_t>& shape);
  /// Adds a node with one output. Names the output `output` or, if that is empty, `op`; makes this
  /// name unique and returns it. For an operator of ai.onnx.ml, `op` includes the domain, as in
  /// "ai.onnx.ml.OneHotEncoder". An empty name in `inputs` omits an optional input.
  std::string add_node(const std::string& op, const std::vector<std::string>& inputs,
                       const std::vector<OnnxAttribute>& attributes = {},
                       const std::string& output = "");
  /// Adds a node with several outputs and returns their names, which are made unique. An empty name
  /// stands for an output that is not used.
  std::vector<std::string> add_node_of(const std::vector<std::string>& outputs,
                                       const std::string& op,
                                       const std::vector<std::string>& inputs,
                                       const std::vector<OnnxAttribute>& attributes = {});
  /// Sets an entry of the model's metadata_props; the text must be UTF-8.
  void set_metadata(const std::string& key, const std::string& text) { metadata_[key] = text; }
  /// Writes the file and syncs it. Throws Exit::usage for a model of 2 GiB or more, which exceeds
  /// protobuf's limit.
  void write(const fs::path& path) const;

 private:
  struct Constant {
    std::string head;  // a TensorProto without its elements
    std::span<const std::byte> bytes;
    std::string own;  // a copy of the elements; if empty, `bytes` refers to the caller's elements
  };
  std::string unique(const std::string& name);
  /// Adds a constant with the elements of `own` or, if `own` is empty, the elements of `bytes`.
  std::string add(const std::string& name, OnnxType type, const std::vector<int64_t>& shape,
                  std::span<const std::byte> bytes, std::string own);

  std::string nodes_, values_;  // fields of GraphProto
  std::vector<Constant> constants_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, int64_t> names_;
  bool uses_ml_ = false;
};

}  // namespace lathe
