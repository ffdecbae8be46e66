// Reads and writes the manifest.json of a folder with example sets.
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
  std::string file;    ///< name of the .npy or .safetensors file within the folder
  std::string tensor;  ///< .safetensors: name of the tensor; if empty, ExampleArray chooses the
                       ///< tensor
  ArrayType type = ArrayType::f32;
  std::string xxh3;  ///< checksum of the complete file
};

/// The files of a split and its number of examples.
struct ExampleSplit {
  int64_t examples = 0;  ///< number of examples; 0: the split is missing
  ArrayInfo inputs, targets;
};

/// The contents of an example set's manifest.json.
struct ExampleManifest {
  std::string task;                  ///< "classification" or "regression"
  std::vector<int64_t> input_sizes;  ///< shape of one input, such as {64} or {1, 8, 8}
  int64_t outputs = 0;               ///< number of classes, or number of target values
  std::vector<std::string> labels;   ///< classification: the names of the classes; empty if they
                                     ///< have no names
  Normalization inputs;   ///< statistics of the training split, one mean and scale for each group
                          ///< (see groups_of())
  Normalization targets;  ///< regression: statistics of each output over the training split
  ExampleSplit train, val;
  bool channels_last = false;          ///< whether the files have images as [H, W, C]
  std::optional<TableFormat> table{};  ///< the columns, if the examples came from a table
  bool image_files = false;            ///< whether the examples were PNG and JPEG files; see
                                       ///< ExampleEncoding

  /// Returns the encoding of the examples, with which new examples can be encoded in the same way.
  ExampleEncoding encoding() const;
};

/// Returns whether the manifest `json` describes example sets.
bool is_example_manifest(const Json& json);
/// Writes the manifest with a checksum of its contents, and syncs the file.
void write_example_manifest(const fs::path& folder, const ExampleManifest& manifest,
                            const std::string& name = "manifest.json");
/// Reads the manifest. Throws Exit::data if the manifest is missing or malformed, if a number is
/// out of range, or if the checksum in the manifest does not match its contents.
ExampleManifest read_example_manifest(const fs::path& folder,
                                      const std::string& name = "manifest.json");

}  // namespace lathe
