// Reads and writes manifest.json of a folder with example sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "data/examples/arrays.h"
#include "data/examples/example_encoding.h"

namespace lathe {

struct ArrayInfo {
  std::string file;    ///< name within the folder, .npy or .safetensors
  std::string tensor;  ///< .safetensors: the tensor's name; if empty, ExampleArray chooses it
  ArrayType type = ArrayType::f32;
  std::string xxh3;  ///< checksum of the complete file
};

/// A split's files and number of examples.
struct ExampleSplit {
  int64_t examples = 0;  ///< 0: the split is missing
  ArrayInfo inputs, targets;
};

/// The contents of an example set's manifest.json.
struct ExampleManifest {
  std::string task;                  ///< "classification", "regression"
  std::vector<int64_t> input_sizes;  ///< shape of one input, as {64} or {1, 8, 8}
  int64_t outputs = 0;               ///< number of classes, or of target values
  std::vector<std::string> labels;   ///< classification: a name for each class, or empty
  Normalization inputs;   ///< statistics of the training split, one for each group (groups_of)
  Normalization targets;  ///< regression: statistics of each output over the training split
  ExampleSplit train, val;
  bool channels_last = false;          ///< the files had images as [H, W, C]
  std::optional<TableFormat> table{};  ///< the columns, if the examples came from a table
  bool image_files = false;            ///< as in ExampleEncoding

  /// Returns the encoding, with which new examples can be encoded in the same way.
  ExampleEncoding encoding() const;
};

/// Returns whether a manifest describes example sets.
bool is_example_manifest(const Json& json);
/// Writes the manifest durably, with a checksum of its contents.
void write_example_manifest(const fs::path& folder, const ExampleManifest& manifest,
                            const std::string& name = "manifest.json");
/// Reads the manifest. Throws Exit::data if it is missing or malformed, has a number that is out of
/// its range, or does not match its own checksum.
ExampleManifest read_example_manifest(const fs::path& folder,
                                      const std::string& name = "manifest.json");

}  // namespace lathe
