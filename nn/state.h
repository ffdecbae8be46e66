// Declares functions that save a model's tensors to a file and read them back. state_dict() and
// load_state_dict() are in nn/module.h.
#pragma once

#include <filesystem>

#include "core/io/safetensors.h"
#include "nn/module.h"

namespace lathe {

/// Returns an entry of a safetensors file that shares the memory of `t`, which must be contiguous
/// and on the CPU.
TensorEntry make_entry(const std::string& name, const at::Tensor& t);
/// Returns an entry whose tensor exists only while the entry is written. Writing the entry calls
/// `make`, which returns the tensor with this dtype and these sizes, on any device.
TensorEntry make_entry(const std::string& name, at::ScalarType dtype, std::vector<int64_t> sizes,
                       std::function<at::Tensor()> make);

/// Writes the tensors to a safetensors file, which other programs read too. The file is written
/// under another name, synced and renamed, so readers see either the old file or the new one.
/// Tensors on a GPU are copied to the CPU first. Throws Exit::io if the file cannot be written.
void save_state_dict(const StateDict& state, const std::filesystem::path& path);
/// Returns the tensors of a safetensors file on the CPU, in their stored dtypes. Throws
/// Exit::checkpoint if the file is missing or damaged, or has a dtype that Lathe does not support.
StateDict read_state_dict(const std::filesystem::path& path);

}  // namespace lathe
