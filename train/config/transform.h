// Defines transforms. A transform changes a finished model before its optimizer is made, so it
// works for any kind of model. It consists of a config struct, a function, and a line in the table
// of train/transforms/table.cc. A program that links Lathe calls add_transform() instead of adding
// a line. The keys of the struct form a section of the config with the name of the transform.
//
// A config with a key that was moved (`model.lora...` to `[adapters]`) is refused, and the error
// gives the new name. In the config of a saved run, such keys are translated.
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

/// The information besides the model that a transform may use.
struct TransformContext {
  const RunConfig& config;
  at::Device device;        ///< device of the parameters
  at::ScalarType matrices;  ///< dtype of trained parameters with two or more dimensions
};

/// A change of a finished model before its optimizer is made, for example the addition of adapters.
struct Transform {
  std::string name, doc;
  AnyConfig config;  ///< keys with their default values; no keys if the transform has no section
  /// Changes the model if the config requests it, and initializes new parameters.
  std::function<void(Model&, const TransformContext&)> apply;
  /// Returns a contradiction between keys of a config, with complete keys ("section.name"). The
  /// std::function may be empty.
  std::function<std::optional<ConfigFault>(const RunConfig&)> check{};
  /// Whether check() depends on keys of [model]. If it does, check() runs again after a source of
  /// weights has set these keys.
  bool checks_model = false;
  /// Whether apply() reads or writes parameters that it does not create itself. If it does,
  /// processes that shard the model each start with the complete model. Otherwise these parameters
  /// may have no memory yet (core/storage.h).
  bool uses_values = true;
};

/// Returns the model of a config with shapes but without values, for checks of the config. Sizes
/// that the data determines have placeholders: inputs are [3, 32, 32], there are 2 outputs, and a
/// vocab_size of 0 becomes 1. Returns null if the model can't be made with these sizes.
std::unique_ptr<Model> shapes_of(const ModelConfig& config);

/// Returns all transforms in the order in which they are applied: first Lathe's transforms, then
/// those that were added.
const std::vector<Transform>& transforms();
/// Adds a transform. Must be called before run_cli(). Throws Exit::internal if the name of the
/// transform is taken.
void add_transform(Transform transform);
/// Applies all transforms to a model.
void apply_transforms(Model& model, const TransformContext& context);
/// Returns the parameters of a transformed model that a run trains. Throws Exit::usage if there are
/// no such parameters.
std::vector<NamedParameter> parameters_to_train(const Model& model, const RunConfig& config);

}  // namespace lathe
