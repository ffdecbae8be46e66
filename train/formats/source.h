// train.init_from: the initial weights of a new run.
#pragma once

#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Finds the source that a config's train.init_from names and takes [model] from it. If the run has
/// checkpoints or branches from one, [model] comes from there, and the source may be missing. With
/// adapters the source becomes their base. Call this before resolve_adapter_base. Throws
/// Exit::usage where a key has another value or the source has adapters, and Exit::checkpoint where
/// it can't be used.
void resolve_init_from(LoadedConfig& loaded);
/// Has examples normalized as those that the weights of the source, or of adapters' base, were
/// trained on. Does nothing for tokens or without a source. Throws Exit::data where the data has
/// other classes or columns.
void normalize_as_source(const LoadedConfig& loaded, Data& data);
/// Throws Exit::data where a run with a source has data with another tokenizer, or with more tokens
/// than the source's model.
void check_source_tokenizer(const LoadedConfig& loaded, const DatasetInfo& facts);
/// Returns the tokenizer of a run's source or of the base of its adapters, if there is one.
std::optional<Tokenizer> source_tokenizer(const LoadedConfig& loaded);
/// Copies the source's weights into a model's tensors, if the run has a source.
void load_source(const LoadedConfig& loaded, const Model& model);

}  // namespace lathe
