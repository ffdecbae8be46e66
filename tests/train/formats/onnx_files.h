// Reads ONNX files as onnx.proto describes them, without Lathe's or protobuf's code.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace lathe::test {

/// Parses a message in protobuf's wire format. `numbers` has the varints of each field in order,
/// and `texts` the bytes of length-delimited and 32-bit fields.
class Wire {
 public:
  Wire() = default;
  explicit Wire(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const uint64_t tag = number(bytes, at);
      REQUIRE(tag >> 3 > 0);
      if ((tag & 7) == 0) {
        numbers[tag >> 3].push_back(static_cast<int64_t>(number(bytes, at)));
        continue;
      }
      REQUIRE(((tag & 7) == 2 || (tag & 7) == 5));
      const uint64_t length = (tag & 7) == 5 ? 4 : number(bytes, at);
      REQUIRE(length <= bytes.size() - at);
      texts[tag >> 3].push_back(bytes.substr(at, length));
      at += length;
    }
  }
  int64_t integer(uint64_t field) const { return numbers.at(field).at(0); }
  const std::string& text(uint64_t field) const { return texts.at(field).at(0); }
  std::vector<std::string> all(uint64_t field) const {
    return texts.contains(field) ? texts.at(field) : std::vector<std::string>{};
  }
  std::vector<int64_t> integers(uint64_t field) const {
    return numbers.contains(field) ? numbers.at(field) : std::vector<int64_t>{};
  }

  std::map<uint64_t, std::vector<int64_t>> numbers;
  std::map<uint64_t, std::vector<std::string>> texts;

 private:
  static uint64_t number(const std::string& bytes, size_t& at) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      REQUIRE(at < bytes.size());
      const auto byte = static_cast<uint8_t>(bytes[at++]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    REQUIRE(false);
    return 0;
  }
};

struct OnnxNode {
  std::string op, domain;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, Wire> attributes;

  int64_t integer(const std::string& name, int64_t otherwise) const {
    return attributes.contains(name) ? attributes.at(name).integer(3) : otherwise;
  }
  std::vector<int64_t> integers(const std::string& name) const {
    return attributes.contains(name) ? attributes.at(name).integers(8) : std::vector<int64_t>{};
  }
};

/// The contents of an ONNX file, read by the field numbers of onnx.proto.
struct OnnxFile {
  explicit OnnxFile(const fs::path& path) {
    const Wire model(slurp(path));
    ir_version = model.integer(1);
    for (const std::string& bytes : model.all(8)) {
      const Wire set(bytes);
      opsets[set.text(1)] = set.integer(2);
    }
    for (const std::string& bytes : model.all(14)) {
      const Wire entry(bytes);
      metadata[entry.text(1)] = entry.text(2);
    }

    const Wire graph(model.text(7));
    for (const std::string& bytes : graph.all(1)) {
      const Wire node(bytes);
      OnnxNode made{
          node.text(4), node.texts.contains(7) ? node.text(7) : "", node.all(1), node.all(2), {}};
      for (const std::string& attribute : node.all(5)) {
        const Wire a(attribute);
        made.attributes[a.text(1)] = a;
      }
      nodes.push_back(std::move(made));
    }
    for (const std::string& bytes : graph.all(5)) {
      const Wire t(bytes);
      const std::vector<int64_t> sizes = t.integers(1);
      const at::ScalarType type = t.integer(2) == 1   ? at::kFloat
                                  : t.integer(2) == 7 ? at::kLong
                                                      : at::kDouble;
      at::Tensor value = at::empty(sizes, type);
      const std::string elements = t.text(9);
      REQUIRE(elements.size() == value.nbytes());
      std::memcpy(value.mutable_data_ptr(), elements.data(), elements.size());
      REQUIRE(constants.emplace(t.text(8), value).second);
    }
    for (const auto& [field, into] : {std::pair(11, &inputs), std::pair(12, &outputs)}) {
      for (const std::string& bytes : graph.all(static_cast<uint64_t>(field))) {
        const Wire info(bytes), tensor(Wire(info.text(2)).text(1));
        std::string shown = std::to_string(tensor.integer(1));
        for (const std::string& dim : Wire(tensor.text(2)).all(1)) {
          const Wire d(dim);
          shown += " " + (d.texts.contains(2) ? d.text(2) : std::to_string(d.integer(1)));
        }
        (*into)[info.text(1)] = shown;
      }
    }
  }

  int64_t ir_version = 0;
  std::map<std::string, int64_t> opsets;
  // Each input and output maps to its element type (a number of onnx.proto) and its dimensions.
  std::map<std::string, std::string> metadata, inputs, outputs;
  std::vector<OnnxNode> nodes;
  std::map<std::string, at::Tensor> constants;
};

}  // namespace lathe::test
