// Declares what all export formats share: the weights of a run, and the model family whose form
// they are written in.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/formats/hugging_face.h"
#include "train/store/checkpoint_tensors.h"

namespace lathe {

/// Returns the first family that can represent the model of a config, and the keys that the family
/// writes to config.json. Throws Exit::usage if no family can.
std::pair<const Family*, Json> family_for(const RunConfig& config);

/// Throws Exit::usage if the run has adapters, or if `options` request a moving average of the
/// weights but the run does not keep one.
void check_exportable(const ExportOptions& options, const RunConfig& config);

/// A tensor of an exported model in the form of its family. It must not outlive its ExportedModel.
struct ExportedTensor {
  const TensorRule* rule;
  /// Index of the block that has the tensor; -1 outside the blocks.
  int64_t block;
  std::vector<int64_t> sizes;  ///< sizes that the parameter has in Lathe
  /// ExportedModel::dtype for matrices, float32 for other tensors.
  at::ScalarType dtype;
  /// Returns the tensor, which is valid until another tensor is read.
  std::function<at::Tensor()> read;
};

/// The weights of a checkpoint, and the model family in whose form they are written.
struct ExportedModel {
  RunState state;
  RunConfig config;
  std::string dtype;     ///< dtype of matrices, named as in a config
  const Family* family;  ///< the first family that can represent the model
  Json family_config;    ///< keys that the family writes to config.json
  std::unique_ptr<Model> shapes;
  /// Parameters of the model, with shapes but without values.
  std::vector<NamedParameter> parameters;

  /// Opens a run's checkpoint. Throws Exit::usage if the run can't be exported with these options.
  explicit ExportedModel(const ExportOptions& options);
  ExportedModel(const ExportedModel&) = delete;
  ExportedModel& operator=(const ExportedModel&) = delete;

  /// Returns the tensors of the family: the parameters, and zeros for biases that the model in
  /// Lathe does not have. If the dtype is float16, reading a tensor throws Exit::usage for values
  /// beyond float16's range.
  std::vector<ExportedTensor> tensors() const;

 private:
  at::ScalarType dtype_of(const NamedParameter& parameter) const;
  at::Tensor read(const NamedParameter& parameter) const;

  bool average_;
  std::unique_ptr<CheckpointTensors> model_, optimizer_;
  mutable std::function<void()> release_;  // releases the memory of the tensor that was read last
};

}  // namespace lathe
