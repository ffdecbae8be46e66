// Reads the tensors of a checkpoint. The tensors are complete in one file, or divided among the
// files of the processes that wrote the checkpoint. In the second case, each process wrote the
// elements that it keeps (dist.shard, dist.tensor, dist.pipeline). CheckpointTensors returns
// complete tensors in both cases.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor_cut.h"
#include "core/element_range.h"
#include "core/io/safetensors.h"
#include "train/store/checkpoint_folder.h"

namespace lathe {

/// Describes which elements of a tensor a file has. The file stores the elements as a 1-D tensor,
/// and the note of its TensorEntry holds this description.
struct TensorPart {
  std::vector<int64_t> sizes;    ///< sizes of the complete tensor
  std::optional<TensorCut> cut;  ///< the cut among tensor ranks and the index of this part; nullopt
                                 ///< if the tensor is not cut
  ElementRange range;  ///< range of elements within the part of `cut` or, if the tensor is not cut,
                       ///< within the tensor

  /// Returns the number of elements of the part or tensor that contains `range`.
  int64_t numel() const;
  /// Returns whether `range` is the complete tensor.
  bool is_complete() const { return !cut && range.size() == numel(); }
  /// Returns the description as JSON, for TensorEntry::note.
  std::string note() const;
  /// Reads an entry's note. If the note is not valid or does not describe the entry, throws
  /// Exit::checkpoint with a message that begins with `where`.
  static TensorPart from(const TensorEntry& entry, const std::string& where);
};

/// Reads the tensors of a checkpoint's model or of its optimizer, by name.
class CheckpointTensors {
 public:
  /// Opens the files. Throws Exit::checkpoint if they do not have every element of every tensor
  /// exactly once.
  CheckpointTensors(const fs::path& checkpoint, CheckpointPart which);

  /// Returns all tensors, sorted by name. If a tensor is divided among files, its entry holds only
  /// the name, dtype and shape; find() and at() return the entry with the bytes.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Returns the complete tensor with this name, or null if there is none. If the tensor is divided
  /// among files, it is put together in memory, where it stays until release().
  const TensorEntry* find(const std::string& name) const;
  /// Returns find(name). If there is no such tensor, throws Exit::checkpoint with the name.
  const TensorEntry& at(const std::string& name) const;
  /// Releases the memory of a tensor's bytes; find() and at() read them again.
  void release(const TensorEntry& entry) const;
  /// Returns whether the tensors are divided among files.
  bool is_divided() const { return files_.size() > 1; }
  /// Returns the path for error messages: the file or, if there are several files, the checkpoint.
  const fs::path& path() const { return path_; }

 private:
  struct Piece {
    const SafetensorsFile* file;
    const TensorEntry* entry;
    TensorPart part;
  };
  void add(const std::vector<Piece>& pieces);
  void put_together(size_t i) const;

  fs::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  mutable std::vector<TensorEntry> tensors_;
  std::vector<std::vector<Piece>> pieces_;  // pieces of each tensor; empty if files_[0] has all
                                            // tensors
  mutable std::vector<at::Tensor> memory_;  // memory of each tensor that was put together;
                                            // undefined for other tensors
};

}  // namespace lathe
