// Transforms change a finished model before its optimizer is made, so that they work for any kind
// of model. A transform consists of a config struct, a function, and a line in the table of
// train/transforms/table.cc (or, in a program of your own, a call of add_transform). The keys of
// the struct form a section of the config with the transform's name.
//
// A config with a key that moved (`model.lora...` to `[adapters]`) is rejected, and the error gives
// the new name. In the config of a saved run, such keys are translated.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "nn/models/model.h"

namespace lathe {

struct ModelConfig;
struct RunConfig;

/// What a transform may depend on beside the model.
struct TransformContext {
  const RunConfig& config;
  at::Device device;        ///< of the parameters
  at::ScalarType matrices;  ///< dtype of trained parameters with two or more dimensions
};

/// A change of a finished model before its optimizer is made, for example the addition of adapters.
struct Transform {
  std::string name, doc;
  AnyConfig config;  ///< with its defaults; without keys if the transform has no section
  /// Changes the model if the config asks for it, and gives new parameters their initial values.
  std::function<void(Model&, const TransformContext&)> apply;
  /// Returns a conflict between keys of a config, with complete keys ("section.name"); may be
  /// empty.
  std::function<std::optional<ConfigFault>(const RunConfig&)> check{};
  /// Whether check() depends on keys of [model]. If so, it runs again after a source of weights has
  /// set them.
  bool checks_model = false;
  /// Whether apply() reads or writes parameters that it does not create itself. If so, processes
  /// that shard the model each start with the complete model. If not, these parameters may have no
  /// memory yet (core/storage.h).
  bool uses_values = true;
};

/// Returns a model of the config that has shapes only, for checks of the config. Sizes that the
/// data determines have placeholders: inputs are [3, 32, 32], there are 2 outputs, and a vocab_size
/// of 0 becomes 1. Returns null if the kind can't be made with these sizes.
std::unique_ptr<Model> shapes_of(const ModelConfig& config);

/// Returns all transforms in the order in which they are applied: Lathe's, then those that were
/// added.
const std::vector<Transform>& transforms();
/// Adds a transform. Call it before run_cli(). Throws Exit::internal if its name is taken.
void add_transform(Transform transform);
/// Applies all transforms to a model.
void apply_transforms(Model& model, const TransformContext& context);
/// Returns the parameters of a transformed model that a run trains. Throws Exit::usage if there are
/// none.
std::vector<NamedParameter> parameters_to_train(const Model& model, const RunConfig& config);

}  // namespace lathe
