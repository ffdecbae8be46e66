// train.init_from: the weights that a new run starts with.
#pragma once

#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Finds what a config's train.init_from stands for and takes [model] from it; of a run that has
/// checkpoints, or branches from one, [model] comes from there and the source need not be there any
/// more. With adapters it becomes their base. Call it before resolve_adapter_base. Exit::usage
/// where a key was given otherwise or the source holds adapters itself, Exit::checkpoint where it
/// can't be used.
void resolve_init_from(LoadedConfig& loaded);
/// Exit::data where the data of a run that begins with a source has another tokenizer, or more
/// tokens than its model.
void check_source_tokenizer(const LoadedConfig& loaded, const DatasetInfo& facts);
/// Copies the source's weights into a model's tensors, where the run begins with one.
void load_source(const LoadedConfig& loaded, const Model& model);

}  // namespace lathe
