// What stands beside example sets: manifest.json of their folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "data/arrays.h"
#include "data/normalise.h"

namespace lathe {

struct ArrayInfo {
  std::string file;    ///< name within the folder, .npy or .safetensors
  std::string tensor;  ///< of a .safetensors file: which; "": its only one
  ArrayType type = ArrayType::f32;
  std::string xxh3;  ///< of the whole file
};

/// A split's files and number of examples.
struct ExampleSplit {
  int64_t examples = 0;  ///< 0: the split is not there
  ArrayInfo inputs, targets;
};

/// What manifest.json says of an example set.
struct ExampleManifest {
  std::string task;                  ///< "classification", "regression"
  std::vector<int64_t> input_sizes;  ///< of one input, as {64} or {1, 8, 8}
  int64_t outputs = 0;               ///< classes, or numbers of one target
  std::vector<std::string> labels;   ///< classification: a name for each class, or none at all
  Normalisation inputs;              ///< of the training split, a number for each group (groups_of)
  Normalisation targets;             ///< regression: of each output, over the training split
  ExampleSplit train, val;
};

/// What a class, or a number of a target, may number at most.
inline constexpr int64_t max_classes = 65536;

/// Whether a manifest is one of example sets.
bool is_example_manifest(const Json& json);
/// Writes it durably, with a checksum of itself.
void write_example_manifest(const fs::path& folder, const ExampleManifest& manifest,
                            const std::string& name = "manifest.json");
/// Reads it. Exit::data where there is none, it is malformed, a number is out of its range, or it
/// was changed since it was written.
ExampleManifest read_example_manifest(const fs::path& folder,
                                      const std::string& name = "manifest.json");

}  // namespace lathe
