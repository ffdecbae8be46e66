// Writes prepared examples: the inputs and targets of the training and the validation split.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/examples/example_manifest.h"
#include "data/examples/normalize.h"
#include "data/prepare/array_out.h"
#include "data/prepare/example_source.h"
#include "data/prepare/out_folder.h"

namespace lathe {

/// Writes the examples of both splits, and computes the statistics of the training split.
class ExampleWriter {
 public:
  /// Creates the files in `folder`. `manifest` must have the task, the sizes and the number of
  /// examples of each split, and must outlive this object. `all_bytes` must be true if and only if
  /// all inputs are integers from 0 to 255. If the source has no input_type(), as for tables,
  /// inputs are stored as uint8 if `all_bytes` is true, and otherwise as float64.
  ExampleWriter(const fs::path& folder, const ExampleSource& source, bool all_bytes,
                ExampleManifest& manifest);

  /// Adds an example to a split. `label` is its class; it is ignored for regression. Throws
  /// Exit::data if the example does not fit the manifest, because the input has changed since the
  /// examples were counted.
  void add(const RawExample& example, int64_t label, bool is_val);

  /// Completes the files, adds their descriptions and the statistics to the manifest, and returns
  /// the files. Throws Exit::data if examples are missing.
  std::vector<FinishedFile> finish();

 private:
  struct SplitOut {
    ArrayOut inputs, targets;
    int64_t left;  // number of examples that have not been added yet
  };

  ExampleManifest& manifest_;
  bool classifies_;
  std::optional<SplitOut> train_, val_;
  Statistics input_statistics_, target_statistics_;
  std::vector<double> image_;  // the current image, channels first
};

}  // namespace lathe
