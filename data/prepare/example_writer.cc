#include "data/prepare/example_writer.h"

#include <span>
#include <string>
#include <utility>

namespace lathe {

ExampleWriter::ExampleWriter(const fs::path& folder, const ExampleSource& source, bool all_bytes,
                             ExampleManifest& manifest)
    : manifest_(manifest),
      classifies_(manifest.task == "classification"),
      input_statistics_(groups_of(manifest.input_sizes)),
      target_statistics_({manifest.outputs, 1}) {
  const ArrayType input_type = source.input_type() ? storage_type(*source.input_type())
                               : all_bytes         ? ArrayType::u8
                                                   : ArrayType::f64;
  const ArrayType target_type = classifies_            ? ArrayType::i32
                                : source.target_type() ? storage_type(*source.target_type())
                                                       : ArrayType::f64;
  const std::vector<int64_t> target_sizes =
      classifies_ ? std::vector<int64_t>{} : std::vector<int64_t>{source.target_numel()};
  const auto split = [&](const std::string& name, int64_t examples) {
    return SplitOut{
        .inputs = {folder, name + "_inputs.npy", input_type, manifest.input_sizes, examples},
        .targets = {folder, name + "_targets.npy", target_type, target_sizes, examples},
        .left = examples};
  };

  train_.emplace(split("train", manifest.train.examples));
  if (manifest.val.examples > 0) val_.emplace(split("val", manifest.val.examples));
}

void ExampleWriter::add(const RawExample& e, int64_t label, bool is_val) {
  SplitOut& to = is_val ? *val_ : *train_;
  // The second pass over the source must find the examples that the first pass counted.
  if (to.left-- == 0) fail_changed_input();
  if (!classifies_ && std::ssize(e.targets) != manifest_.outputs) fail_changed_input();

  if (manifest_.channels_last) put_channels_first(e.inputs, manifest_.input_sizes, image_);
  const std::span<const double> example =
      manifest_.channels_last ? std::span<const double>(image_) : e.inputs;
  to.inputs.add(example);
  const auto number = static_cast<double>(label);
  to.targets.add(classifies_ ? std::span(&number, 1) : e.targets);

  if (is_val) return;
  input_statistics_.add(example.data());
  if (!classifies_) target_statistics_.add(e.targets.data());
}

std::vector<FinishedFile> ExampleWriter::finish() {
  if (train_->left != 0 || (val_ && val_->left != 0)) fail_changed_input();
  manifest_.inputs = input_statistics_.result();
  if (!classifies_) manifest_.targets = target_statistics_.result();

  std::vector<FinishedFile> files;
  const auto end = [&](SplitOut& from, ExampleSplit& to) {
    for (const auto& [array, info] :
         {std::pair(&from.inputs, &to.inputs), std::pair(&from.targets, &to.targets)}) {
      *info = array->finish();
      files.push_back({info->file, info->xxh3});
    }
  };
  end(*train_, manifest_.train);
  if (val_) end(*val_, manifest_.val);
  return files;
}

}  // namespace lathe
