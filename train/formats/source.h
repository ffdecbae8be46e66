// Declares the functions for train.init_from, the initial weights of a new run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Finds the source of weights that train.init_from names, and returns the config with the [model]
/// of the source. If the run has checkpoints or branches from a checkpoint, [model] comes from that
/// checkpoint, and the source may be missing. If the config asks for adapters, the source becomes
/// the adapters' base. Call this function before resolve_adapter_base(). Throws Exit::usage if a
/// given key of [model] differs from the source's key or if the source has adapters, and
/// Exit::checkpoint if the source can't be used.
LoadedConfig resolve_init_from(LoadedConfig loaded);
/// Makes the functions below start from the sources of weights, as a new run does, although
/// train.out_dir may hold checkpoints. Does not change the config that a run has saved in its
/// folder, since such a run may have lost its sources.
LoadedConfig as_new_run(LoadedConfig loaded);
/// Calls resolve_init_from() and resolve_adapter_base().
LoadedConfig resolve_sources(LoadedConfig loaded);
/// Makes `data` normalize its examples in the same way as the data on which the weights of the
/// source, or of the adapters' base, were trained. Does nothing if the data consists of tokens, if
/// there is no source, or if a checkpoint of the run records the normalization. Throws Exit::data
/// if the data has other classes or columns than the source.
void normalize_as_source(const LoadedConfig& loaded, Data& data);
/// Throws Exit::data if the data was made with another tokenizer than the source, or has a larger
/// vocabulary than the source's model. Does nothing if the run has no source.
void check_source_tokenizer(const LoadedConfig& loaded, const DatasetInfo& facts);
/// Returns the tokenizer of a run's source or of the base of its adapters; nullopt if there is
/// none.
std::optional<Tokenizer> source_tokenizer(const LoadedConfig& loaded);
/// Returns the checksum of the weights of a run's source; "" if there is no source.
std::string source_id(const LoadedConfig& loaded);

/// Writes the values of a parameter or buffer into its tensor.
using WriteValues = std::function<void(const NamedParameter&)>;
/// Returns a function that writes the source's weights into a parameter or buffer. If tensor ranks
/// divide a parameter, the function writes this process's part. It writes a buffer only if the
/// source has that buffer. `count` is the number of the model's parameters and buffers. Throws
/// Exit::checkpoint if the source's tensors don't fit the model.
WriteValues read_source(const LoadedConfig& loaded, size_t count);
/// Calls `write` for the complete parameter and copies this process's part of the values into `p`.
/// If tensor ranks do not divide the parameter, calls write(p).
void write_part(const NamedParameter& p, const WriteValues& write);

}  // namespace lathe
