#include "train/formats/onnx_file.h"

#include <bit>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/io/text.h"

static_assert(std::endian::native == std::endian::little,
              "elements are written in the byte order of memory");

namespace lathe {
namespace {

constexpr int64_t ir_version = 8, opset = 17, ml_opset = 3;
constexpr std::string_view ml_domain = "ai.onnx.ml";

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}

// The functions below encode a field of a message: a tag, which holds the field's number and the
// kind of its value, and the value.

std::string integer_field(uint64_t number, int64_t value) {
  return varint(number << 3) + varint(static_cast<uint64_t>(value));
}
/// Returns the tag and the length that precede the bytes of a text or of a nested message.
std::string bytes_tag(uint64_t number, uint64_t length) {
  return varint(number << 3 | 2) + varint(length);
}
std::string bytes_field(uint64_t number, std::string_view bytes) {
  return bytes_tag(number, bytes.size()) + std::string(bytes);
}
std::string float_field(uint64_t number, float value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  return varint(number << 3 | 5) + std::string(bytes, sizeof value);
}

/// Returns the fields of an AttributeProto.
std::string attribute(const OnnxAttribute& a) {
  // A value's field depends on its type. Field 20 holds the number of the type in
  // AttributeProto.AttributeType.
  struct Value {
    std::string operator()(int64_t x) const { return integer_field(3, x) + integer_field(20, 2); }
    std::string operator()(float x) const { return float_field(2, x) + integer_field(20, 1); }
    std::string operator()(const std::string& x) const {
      return bytes_field(4, x) + integer_field(20, 3);
    }
    std::string operator()(const std::vector<int64_t>& all) const {
      std::string fields;
      for (const int64_t x : all) fields += integer_field(8, x);
      return fields + integer_field(20, 7);
    }
    std::string operator()(const std::vector<std::string>& all) const {
      std::string fields;
      for (const std::string& x : all) fields += bytes_field(9, x);
      return fields + integer_field(20, 8);
    }
  };
  return bytes_field(1, a.name) + std::visit(Value{}, a.value);
}

/// Returns the fields of a ValueInfoProto.
std::string value_info(const std::string& name, OnnxType type, const std::vector<OnnxDim>& dims) {
  std::string shape;
  for (const OnnxDim& dim : dims) {
    const auto* size = std::get_if<int64_t>(&dim);
    shape += bytes_field(
        1, size != nullptr ? integer_field(1, *size) : bytes_field(2, std::get<std::string>(dim)));
  }
  const std::string tensor = integer_field(1, static_cast<int64_t>(type)) + bytes_field(2, shape);
  return bytes_field(1, name) + bytes_field(2, bytes_field(1, tensor));
}

/// Returns the bytes of numbers in the order in which memory holds them.
template <class T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

std::string OnnxGraph::unique(const std::string& name) {
  const int64_t count = names_[name]++;
  return count == 0 ? name : unique(str(name, "_", count));
}

void OnnxGraph::add_input(const std::string& name, OnnxType type,
                          const std::vector<OnnxDim>& dims) {
  LATHE_CHECK(unique(name) == name, "two values of an ONNX graph have the name ", name);
  values_ += bytes_field(11, value_info(name, type, dims));
}

void OnnxGraph::add_output(const std::string& name, OnnxType type,
                           const std::vector<OnnxDim>& dims) {
  values_ += bytes_field(12, value_info(name, type, dims));
}

std::string OnnxGraph::add(const std::string& name, OnnxType type,
                           const std::vector<int64_t>& shape, std::span<const std::byte> bytes,
                           std::string own) {
  const std::string given = unique(name);
  Constant constant{.head = "", .bytes = bytes, .own = std::move(own)};
  for (const int64_t size : shape) constant.head += integer_field(1, size);
  constant.head += integer_field(2, static_cast<int64_t>(type)) + bytes_field(8, given);
  constants_.push_back(std::move(constant));
  return given;
}

std::string OnnxGraph::add_constant(const std::string& name, OnnxType type,
                                    const std::vector<int64_t>& shape,
                                    std::span<const std::byte> bytes) {
  return add(name, type, shape, bytes, "");
}

std::string OnnxGraph::add_integers(const std::string& name, const std::vector<int64_t>& values,
                                    const std::vector<int64_t>& shape) {
  return add(name, OnnxType::i64, shape, {}, packed(values));
}

std::string OnnxGraph::add_numbers(const std::string& name, OnnxType type,
                                   const std::vector<double>& values,
                                   const std::vector<int64_t>& shape) {
  const std::vector<float> narrow(values.begin(), values.end());
  return add(name, type, shape, {}, type == OnnxType::f64 ? packed(values) : packed(narrow));
}

std::string OnnxGraph::add_node(const std::string& op, const std::vector<std::string>& inputs,
                                const std::vector<OnnxAttribute>& attributes,
                                const std::string& output) {
  return add_node_of({output.empty() ? op : output}, op, inputs, attributes).at(0);
}

std::vector<std::string> OnnxGraph::add_node_of(const std::vector<std::string>& outputs,
                                                const std::string& op,
                                                const std::vector<std::string>& inputs,
                                                const std::vector<OnnxAttribute>& attributes) {
  const bool is_ml = op.starts_with(ml_domain);
  uses_ml_ = uses_ml_ || is_ml;

  std::vector<std::string> made;
  std::string node;
  for (const std::string& input : inputs) node += bytes_field(1, input);
  for (const std::string& output : outputs) {
    made.push_back(output.empty() ? "" : unique(output));
    node += bytes_field(2, made.back());
  }
  node += bytes_field(3, made.at(0)) + bytes_field(4, is_ml ? op.substr(ml_domain.size() + 1) : op);
  for (const OnnxAttribute& a : attributes) node += bytes_field(5, attribute(a));
  if (is_ml) node += bytes_field(7, ml_domain);
  nodes_ += bytes_field(1, node);
  return made;
}

void OnnxGraph::write(const fs::path& path) const {
  const auto bytes_of = [](const Constant& c) {
    return c.own.empty() ? c.bytes : std::as_bytes(std::span(c.own));
  };
  // The length of the graph's message comes before its contents, so the lengths of all constants
  // must be known first.
  std::vector<std::string> heads;
  const std::string begin = nodes_ + bytes_field(2, "lathe") + values_;
  uint64_t length = begin.size();
  for (const Constant& c : constants_) {
    const uint64_t bytes = bytes_of(c).size();
    const std::string head = c.head + bytes_tag(9, bytes);
    heads.push_back(bytes_tag(5, head.size() + bytes) + head);
    length += heads.back().size() + bytes;
  }

  std::string model = integer_field(1, ir_version) + bytes_field(2, "lathe");
  const auto operators = [&](std::string_view domain, int64_t version) {
    model += bytes_field(8, bytes_field(1, domain) + integer_field(2, version));
  };
  operators("", opset);
  if (uses_ml_) operators(ml_domain, ml_opset);
  for (const auto& [key, text] : metadata_)
    model += bytes_field(14, bytes_field(1, key) + bytes_field(2, text));
  model += bytes_tag(7, length);

  if (model.size() + length > std::numeric_limits<int32_t>::max())
    fail(Exit::usage, "the model takes ", format("%.1f", static_cast<double>(length) / 1e9),
         " GB, but an ONNX file holds at most 2 GiB; export it to Hugging Face's format or GGUF");

  OutputFile out(path, OutputFile::Open::create);
  out.write(model);
  out.write(begin);
  for (size_t i = 0; i < constants_.size(); ++i) {
    out.write(heads[i]);
    const auto bytes = bytes_of(constants_[i]);
    out.write(bytes.data(), bytes.size());
  }
  out.sync();
  out.close();
}

}  // namespace lathe
