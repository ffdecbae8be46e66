// The part that all exports of a run share: its weights, and the family for which they are written.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/formats/hugging_face.h"

namespace lathe {

/// Returns the first family that can represent the model of a config, and its keys of config.json.
/// Throws Exit::usage where there is none.
std::pair<const Family*, Json> family_for(const RunConfig& config);

/// Throws Exit::usage for adapters, and where a moving average is asked for that the run does not
/// keep.
void check_exportable(const ExportOptions& options, const RunConfig& config);

/// A checkpoint's weights, and the family for which they are written.
struct ExportedModel {
  RunState state;
  RunConfig config;
  std::string dtype;     ///< of matrices, named as in a config
  const Family* family;  ///< the first that can represent the model
  Json family_config;    ///< the family's keys of config.json
  std::unique_ptr<Model> shapes;
  std::vector<NamedParameter> parameters;  ///< shapes only

  explicit ExportedModel(const ExportOptions& options);
  /// Returns a parameter's values on the CPU: matrices in `dtype`, others in float32. Throws
  /// Exit::usage for a value beyond float16's range.
  at::Tensor tensor(const NamedParameter& parameter) const;
  /// Calls f(rule, block, tensor) for each tensor of the family: the parameters, and zeros for
  /// biases that our model lacks.
  void each(const std::function<void(const TensorRule& rule, int64_t block, const at::Tensor& t)>&
                f) const;

 private:
  fs::path path_;
  bool average_;
  std::unique_ptr<SafetensorsFile> model_, optimizer_;
};

}  // namespace lathe
