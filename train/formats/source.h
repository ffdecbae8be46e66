// train.init_from: the initial weights of a new run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Finds the source that a config's train.init_from names, and returns the config with [model] of
/// the source. If the run has checkpoints or branches from one, [model] comes from there, and the
/// source may be missing. With adapters the source becomes their base. Call this before
/// resolve_adapter_base. Throws
/// Exit::usage where a given key of [model] differs from the source's or the source has adapters,
/// and Exit::checkpoint where the source can't be used.
LoadedConfig resolve_init_from(LoadedConfig loaded);
/// Calls resolve_init_from() and resolve_adapter_base().
LoadedConfig resolve_sources(LoadedConfig loaded);
/// Makes `data` normalize its examples in the same way as the data on which the weights of the
/// source, or of the adapters' base, were trained. Does nothing for tokens or without a source.
/// Throws Exit::data if the data has other classes or columns.
void normalize_as_source(const LoadedConfig& loaded, Data& data);
/// Throws Exit::data where a run with a source has data with another tokenizer, or with more tokens
/// than the source's model.
void check_source_tokenizer(const LoadedConfig& loaded, const DatasetInfo& facts);
/// Returns the tokenizer of a run's source or of the base of its adapters, if there is one.
std::optional<Tokenizer> source_tokenizer(const LoadedConfig& loaded);
/// Returns the checksum of the weights of a run's source, "" without one.
std::string source_id(const LoadedConfig& loaded);

/// Writes the values of a parameter or buffer into its tensor.
using WriteValues = std::function<void(const NamedParameter&)>;
/// Returns a function that writes the weights of a run's source into a parameter, or into this
/// process's part of a parameter that tensor ranks divide, and into a buffer if the source has it.
/// `count`: the number of the model's parameters and buffers. Throws Exit::checkpoint if the source
/// doesn't fit.
WriteValues read_source(const LoadedConfig& loaded, size_t count);
/// Calls `write` for the complete parameter and copies this process's part of the values into `p`.
/// Without a division among tensor ranks, calls write(p).
void write_part(const NamedParameter& p, const WriteValues& write);

}  // namespace lathe
