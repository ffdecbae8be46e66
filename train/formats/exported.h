// The parts that all export formats share: the weights of a run, and the family for which they are
// written.
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
/// writes to config.json. Throws Exit::usage if there is none.
std::pair<const Family*, Json> family_for(const RunConfig& config);

/// Throws Exit::usage if the run has adapters, or if `options` ask for a moving average of the
/// weights that the run does not keep.
void check_exportable(const ExportOptions& options, const RunConfig& config);

/// A tensor of an exported model in the form of its family. Valid as long as its ExportedModel.
struct ExportedTensor {
  const TensorRule* rule;
  int64_t block;                     ///< index of its block; -1: outside the blocks
  std::vector<int64_t> sizes;        ///< sizes of the parameter in Lathe
  at::ScalarType dtype;              ///< matrices: ExportedModel::dtype, others float32
  std::function<at::Tensor()> read;  ///< returns the tensor, valid until another one is read
};

/// A checkpoint's weights, and the family for which they are written.
struct ExportedModel {
  RunState state;
  RunConfig config;
  std::string dtype;     ///< of matrices, named as in a config
  const Family* family;  ///< the first family that can represent the model
  Json family_config;    ///< the family's keys of config.json
  std::unique_ptr<Model> shapes;
  std::vector<NamedParameter> parameters;  ///< shapes only

  /// Opens a run's checkpoint. Throws Exit::usage if the run can't be exported with these options.
  explicit ExportedModel(const ExportOptions& options);
  ExportedModel(const ExportedModel&) = delete;
  ExportedModel& operator=(const ExportedModel&) = delete;

  /// Returns the tensors of the family: the parameters, and zeros for biases that Lathe's model
  /// does not have. Reading a tensor throws Exit::usage if a value is beyond float16's range.
  std::vector<ExportedTensor> tensors() const;

 private:
  at::ScalarType dtype_of(const NamedParameter& parameter) const;
  at::Tensor read(const NamedParameter& parameter) const;

  bool average_;
  std::unique_ptr<CheckpointTensors> model_, optimizer_;
  mutable std::function<void()> release_;  // releases the memory of the tensor that was read last
};

}  // namespace lathe
