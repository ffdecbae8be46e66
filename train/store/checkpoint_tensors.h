// Reads the tensors of a checkpoint. They are complete in one file, or divided among the files of
// the processes that wrote the checkpoint. In the second case, each process wrote the elements that
// it keeps (dist.shard, dist.tensor, dist.pipeline), and readers of this class see complete
// tensors.
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

/// The elements of a tensor that a file has. In the file they are 1-D, and the note of their
/// TensorEntry has this description.
struct TensorPart {
  std::vector<int64_t> sizes;    ///< of the complete tensor
  std::optional<TensorCut> cut;  ///< how it is cut among tensor ranks, and which part this is
  ElementRange range;            ///< within the part of `cut`, or without a cut, within the tensor

  /// Returns the number of elements of the part or tensor that contains `range`.
  int64_t numel() const;
  /// Returns whether `range` is the complete tensor.
  bool is_complete() const { return !cut && range.size() == numel(); }
  /// Returns the description as JSON, for TensorEntry::note.
  std::string note() const;
  /// Reads an entry's note. Throws Exit::checkpoint, beginning with `where`, if it is not valid or
  /// does not describe the entry.
  static TensorPart from(const TensorEntry& entry, const std::string& where);
};

/// The tensors of a checkpoint's model or of its optimizer, by name.
class CheckpointTensors {
 public:
  /// Opens the files and checks that they have every element of every tensor once. Throws
  /// Exit::checkpoint otherwise.
  CheckpointTensors(const fs::path& checkpoint, CheckpointPart which);

  /// Returns all tensors, sorted by name. Of tensors that are divided among files, only names,
  /// dtypes and shapes are set; find() and at() return them with their bytes.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Returns the complete tensor of that name, or null. If it is divided among files, it is put
  /// together in memory, where it stays until release().
  const TensorEntry* find(const std::string& name) const;
  /// Returns find(name). Throws Exit::checkpoint with the name if there is no such tensor.
  const TensorEntry& at(const std::string& name) const;
  /// Releases the memory of a tensor's bytes; find() and at() read them again.
  void release(const TensorEntry& entry) const;
  /// Returns whether the tensors are divided among files.
  bool is_divided() const { return files_.size() > 1; }
  /// Returns the path for errors: the file, or the checkpoint if there are several.
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
  std::vector<std::vector<Piece>> pieces_;  // of each tensor; empty if files_[0] has all of them
  mutable std::vector<at::Tensor> memory_;  // of each tensor, if it is put together
};

}  // namespace lathe
