// What every export of a run begins with: its weights, and a folder that is there whole or not at all.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/formats/hugging_face.h"

namespace lathe {

/// A folder in the making, under another name until publish(). Without it the folder goes again.
class NewFolder {
 public:
  /// Exit::usage where `path` holds anything.
  explicit NewFolder(const fs::path& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  /// Where to write.
  const fs::path& path() const { return temporary_; }
  void publish();

 private:
  fs::path path_, temporary_;
  std::vector<fs::path> made_;  // folders above that were not there, the deepest first
  bool done_ = false;
};

/// A checkpoint's weights, and the family that they go out as.
struct ExportedModel {
  RunState state;
  RunConfig config;
  std::string dtype;     ///< of matrices, as a config names it
  const Family* family;  ///< the first that has such a model
  Json family_config;    ///< what its config.json says of it
  std::unique_ptr<Model> shapes;
  std::vector<NamedParameter> parameters;  ///< shapes alone

  explicit ExportedModel(const ExportOptions& options);
  /// A parameter's values on the CPU: matrices in `dtype`, the rest in float32. Exit::usage where float16 has no such
  /// value.
  at::Tensor tensor(const NamedParameter& parameter) const;
  /// Calls f(rule, block, tensor) for each tensor that the family has: the parameters, and zeros for biases that ours
  /// lacks.
  void each(const std::function<void(const TensorRule& rule, int64_t block, const at::Tensor& t)>& f) const;

 private:
  fs::path path_;
  bool average_;
  std::unique_ptr<SafetensorsFile> model_, optimizer_;
};

}  // namespace lathe
