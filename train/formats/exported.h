// What every export of a run begins with: its weights, and the family that they go out as.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/formats/hugging_face.h"

namespace lathe {

/// A checkpoint's weights, and the family that they go out as.
struct ExportedModel {
  RunState state;
  RunConfig config;
  std::string dtype;     ///< of matrices, as a config names it
  const Family* family;  ///< the first that has such a model
  Json family_config;    ///< what its config.json says of it
  std::unique_ptr<Model> shapes;
  std::vector<NamedParameter> parameters;  ///< shapes alone

  explicit ExportedModel(const ExportOptions& options);
  /// A parameter's values on the CPU: matrices in `dtype`, the rest in float32. Exit::usage where
  /// float16 has no such value.
  at::Tensor tensor(const NamedParameter& parameter) const;
  /// Calls f(rule, block, tensor) for each tensor that the family has: the parameters, and zeros
  /// for biases that ours lacks.
  void each(const std::function<void(const TensorRule& rule, int64_t block, const at::Tensor& t)>&
                f) const;

 private:
  fs::path path_;
  bool average_;
  std::unique_ptr<SafetensorsFile> model_, optimizer_;
};

}  // namespace lathe
