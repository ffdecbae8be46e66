#include "data/examples/examples.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/dtype.h"
#include "core/error.h"
#include "core/io/checksum.h"
#include "core/io/text.h"
#include "core/rng.h"
#include "data/examples/example_manifest.h"
#include "data/folder.h"
#include "data/tokens/sampler.h"

namespace lathe {
namespace {

/// The augmentation of one training image.
struct Change {
  bool mirrored = false;
  int64_t down = 0, right = 0;  ///< offset of the source row and column, in pixels
};

/// The inputs and targets of a split, checked against the manifest.
struct OpenSplit {
  OpenSplit(const fs::path& folder, const ExampleSplit& split, const ExampleManifest& manifest)
      : inputs(open(folder, split.inputs, split.examples)),
        targets(open(folder, split.targets, split.examples)) {
    // An array of shape [N] has one number per example. In this case, sizes() is empty.
    const auto& sizes = manifest.input_sizes;
    const bool is_number =
        inputs.sizes().empty() &&
        std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size == 1; });
    if (inputs.sizes() != sizes && !is_number) {
      fail(Exit::data, inputs.path().string(), ": the examples have shape ",
           describe(inputs.sizes()), ", but manifest.json claims ",
           describe(at::IntArrayRef(sizes)), "; make the data again");
    }
    const int64_t wanted = manifest.task == "classification" ? 1 : manifest.outputs;
    if (targets.numel() != wanted) {
      fail(Exit::data, targets.path().string(), " has targets of ",
           quantity(targets.numel(), "number"), ", but manifest.json requires ", wanted,
           "; make the data again");
    }
  }

  ExampleArray inputs, targets;

 private:
  static ExampleArray open(const fs::path& folder, const ArrayInfo& info, int64_t examples) {
    ExampleArray array(folder / info.file, info.tensor);
    if (array.examples() != examples || array.type() != info.type) {
      fail(Exit::data, array.path().string(), ": manifest.json claims ", examples, " examples of ",
           array_type_name(info.type), ", but the file has ", array.examples(), " of ",
           array_type_name(array.type()), "; the file was replaced, so make the data again");
    }
    return array;
  }
};

class ExampleData final : public Data {
 public:
  explicit ExampleData(const DataConfig& config)
      : folder_(config.dir),
        flip_(config.flip),
        crop_(config.crop),
        manifest_(read_example_manifest(folder_)) {
    check_keys(config);
    inputs_ = manifest_.inputs;
    targets_ = manifest_.targets;
    for (const auto* split : {&manifest_.train, &manifest_.val}) {
      if (split->examples > 0) parts_.emplace_back(folder_, *split, manifest_);
    }

    train_size_ = manifest_.train.examples;
    val_size_ = manifest_.val.examples;
    if (config.folds > 0) make_folds(config.folds, config.fold);
    if (train_size_ == 0)
      fail(Exit::data, config.dir, " has no training examples; make them with `lathe prepare`");

    facts_ = {.task = manifest_.task,
              .tokenizer = {},
              .vocab_size = 0,
              .input_sizes = manifest_.input_sizes,
              .outputs = manifest_.outputs,
              .labels = manifest_.labels,
              .encoding = manifest_.encoding()};
    // Copy the statistics again, since with folds they differ from the statistics in the manifest.
    copy_statistics();
  }

  const DatasetInfo& facts() const override { return facts_; }
  void normalize_as(const ExampleEncoding& encoding) override {
    inputs_ = encoding.inputs;
    targets_ = encoding.targets;
    copy_statistics();
  }
  int64_t train_size() const override { return train_size_; }
  int64_t val_size() const override { return val_size_; }
  std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes, uint64_t seed) const override;
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override;
  std::string hash() const override;
  bool matches(const std::string& saved) const override { return saved == hash(); }
  void verify(const std::function<bool()>& stop) const override {
    for (const auto& [file, info] : files()) verify_file(file, info->xxh3, stop);
  }
  std::string table() const override;

  bool classifies() const { return manifest_.task == "classification"; }
  bool changes() const { return flip_ || crop_ > 0; }
  Change augmentation_of(uint64_t seed, int64_t sample) const {
    const auto r = philox(counter(static_cast<uint64_t>(sample), 0),
                          make_key(seed, hash_name("data/augment")));
    // Shifts are nearly uniform in [-crop, crop]. The probabilities of two shifts differ by at most
    // 2^-32.
    const auto shift = [&](uint32_t x) {
      return static_cast<int64_t>(uint64_t{x} * static_cast<uint64_t>(2 * crop_ + 1) >> 32) - crop_;
    };
    return {.mirrored = flip_ && r[0] >> 31 != 0, .down = shift(r[1]), .right = shift(r[2])};
  }
  /// Returns uninitialized host tensors for n examples.
  std::vector<at::Tensor> buffers(int64_t n) const {
    std::vector<int64_t> sizes{n};
    sizes.insert(sizes.end(), manifest_.input_sizes.begin(), manifest_.input_sizes.end());
    return {at::empty(sizes, at::kFloat), classifies()
                                              ? at::empty({n}, at::kLong)
                                              : at::empty({n, manifest_.outputs}, at::kFloat)};
  }
  int64_t train_example(int64_t i) const {
    return train_.empty() ? i : train_[static_cast<size_t>(i)];
  }
  int64_t val_example(int64_t i) const {
    return val_.empty() ? manifest_.train.examples + i : val_[static_cast<size_t>(i)];
  }
  /// Writes an example to row `row` of the buffers. Augments the example if `change` is not null.
  void put(int64_t example, const std::vector<at::Tensor>& buffers, int64_t row,
           const Change* change) const;

 private:
  void check_keys(const DataConfig& config) const;
  void make_folds(int64_t folds, int64_t fold);
  /// Copies the normalization statistics to facts_.
  void copy_statistics() {
    facts_.target_mean = targets_.mean;
    facts_.target_scale = targets_.scale;
    facts_.encoding->inputs = inputs_;
    facts_.encoding->targets = targets_;
  }
  /// Returns the split that contains an example, and the example's index in this split.
  std::pair<const OpenSplit*, int64_t> find(int64_t example) const {
    const int64_t first = manifest_.train.examples;
    return example < first ? std::pair(&parts_.front(), example)
                           : std::pair(&parts_.back(), example - first);
  }
  int64_t class_of(const OpenSplit& part, int64_t i) const;
  void put_image(const std::byte* bytes, ArrayType type, const Change& change, float* out) const;
  /// Maps each file once, separately from the mappings in parts_, and returns the files with their
  /// entries in the manifest.
  std::vector<std::pair<MappedFile, const ArrayInfo*>> files() const;

  fs::path folder_;
  bool flip_;
  int64_t crop_;
  ExampleManifest manifest_;
  std::vector<OpenSplit> parts_;  // the training and the validation split; a missing split has no
                                  // entry
  int64_t train_size_ = 0, val_size_ = 0;
  std::vector<int64_t> train_, val_;  // with folds: the examples of each split in ascending order;
                                      // otherwise empty
  Normalization inputs_, targets_;
  DatasetInfo facts_;
};

void ExampleData::check_keys(const DataConfig& config) const {
  const DataConfig initial;
  if (config.mix != initial.mix || config.documents != initial.documents ||
      config.document_end != initial.document_end || config.packing != initial.packing) {
    fail(Exit::usage,
         "data.mix, data.documents, data.document_end and data.packing are for tokens, and ",
         config.dir, " holds examples; leave them out");
  }

  const auto& sizes = manifest_.input_sizes;
  if (changes() && sizes.size() != 3) {
    fail(Exit::usage, flip_ ? "data.flip" : "data.crop",
         " is for images of sizes CxHxW; the inputs of ", config.dir, " are ", sizes_text(sizes),
         " (`lathe prepare --shape C,H,W` makes them images)");
  }
  if (crop_ > 0 && crop_ >= std::min(sizes[1], sizes[2])) {
    fail(Exit::usage, "data.crop = ", crop_, " can shift all of an image of ", sizes[1], "x",
         sizes[2], " pixels out of the frame; it must be less than the height and the width");
  }

  if (config.folds == 1)
    fail(Exit::usage, "data.folds = 1 leaves nothing to train on; set 2 or more, or 0 for none");
  if (config.folds == 0 ? config.fold != 0 : config.fold >= config.folds) {
    fail(Exit::usage, "data.fold = ", config.fold, " is not below data.folds = ", config.folds,
         config.folds == 0 ? "; set data.folds" : "; folds are counted from 0");
  }
}

int64_t ExampleData::class_of(const OpenSplit& part, int64_t i) const {
  double value = 0;
  part.targets.read(i, &value);
  const auto label = static_cast<int64_t>(value);
  if (!(value >= 0) || value >= static_cast<double>(manifest_.outputs) ||
      static_cast<double>(label) != value) {
    fail(Exit::data, part.targets.path().string(), ": the class of example ", i, " is ", value,
         "; it must be a whole number below ", manifest_.outputs);
  }
  return label;
}

// Assigns the examples of each class to the folds in turn, in a pseudorandom order. The next class
// continues with the fold after the last fold that was used, so that the folds also have similar
// total sizes.
void ExampleData::make_folds(int64_t folds, int64_t fold) {
  const int64_t all = manifest_.train.examples + manifest_.val.examples;
  if (all < folds)
    fail(Exit::usage, "data.folds = ", folds, " is more than the ", all, " examples of ",
         folder_.string(), "; set fewer folds");

  std::vector<std::vector<int64_t>> groups(
      static_cast<size_t>(classifies() ? manifest_.outputs : 1));
  for (int64_t e = 0; e < all; ++e) {
    const auto [part, i] = find(e);
    groups[static_cast<size_t>(classifies() ? class_of(*part, i) : 0)].push_back(e);
  }

  int64_t dealt = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].empty()) continue;
    // The key depends on the class and not on the run's seed, so every run has the same folds.
    const Permutation order(groups[g].size(), make_key(g, hash_name("data/folds")));
    for (uint64_t i = 0; i < groups[g].size(); ++i, ++dealt)
      (dealt % folds == fold ? val_ : train_).push_back(groups[g][order(i)]);
  }

  // Sort, so that the loop below reads the mapped files from front to back.
  std::sort(train_.begin(), train_.end());
  std::sort(val_.begin(), val_.end());
  train_size_ = std::ssize(train_);
  val_size_ = std::ssize(val_);

  // Compute the statistics again, since the statistics in the manifest belong to the training split
  // of `lathe prepare` and not to the training examples of this fold.
  Statistics inputs(groups_of(manifest_.input_sizes)), targets({manifest_.outputs, 1});
  std::vector<double> x(static_cast<size_t>(parts_.front().inputs.numel())),
      y(static_cast<size_t>(manifest_.outputs));
  for (const int64_t e : train_) {
    const auto [part, i] = find(e);
    part->inputs.read(i, x.data());
    inputs.add(x.data());
    if (classifies()) continue;
    part->targets.read(i, y.data());
    targets.add(y.data());
  }

  inputs_ = inputs.result();
  if (!classifies()) targets_ = targets.result();
}

void ExampleData::put_image(const std::byte* bytes, ArrayType type, const Change& change,
                            float* out) const {
  const int64_t channels = manifest_.input_sizes[0], height = manifest_.input_sizes[1],
                width = manifest_.input_sizes[2];
  with_reader(type, [&](auto element) {
    for (int64_t c = 0; c < channels; ++c) {
      const double mean = inputs_.mean[static_cast<size_t>(c)],
                   scale = inputs_.scale[static_cast<size_t>(c)];
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) {
          const int64_t from_y = y + change.down,
                        from_x = (change.mirrored ? width - 1 - x : x) + change.right;
          const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
          const double value = inside ? element(bytes, (c * height + from_y) * width + from_x) : 0;
          *out++ = static_cast<float>((value - mean) / scale);
        }
      }
    }
  });
}

void ExampleData::put(int64_t example, const std::vector<at::Tensor>& buffers, int64_t row,
                      const Change* change) const {
  const auto [part, i] = find(example);
  const int64_t numel = part->inputs.numel();
  const std::byte* bytes = part->inputs.example(i);
  float* out = buffers[0].mutable_data_ptr<float>() + row * numel;

  if (change != nullptr) {
    put_image(bytes, part->inputs.type(), *change, out);
  } else {
    // The elements of a group are contiguous, and share a mean and a scale.
    with_reader(part->inputs.type(), [&](auto element) {
      const Groups groups = groups_of(manifest_.input_sizes);
      for (int64_t g = 0, j = 0; g < groups.count; ++g) {
        const double mean = inputs_.mean[static_cast<size_t>(g)],
                     scale = inputs_.scale[static_cast<size_t>(g)];
        for (const int64_t end = j + groups.elements; j < end; ++j)
          out[j] = static_cast<float>((element(bytes, j) - mean) / scale);
      }
    });
  }

  if (classifies()) {
    buffers[1].mutable_data_ptr<int64_t>()[row] = class_of(*part, i);
    return;
  }

  // Targets are normalized as well. facts() holds their mean and scale, so that errors can be
  // reported in raw units.
  with_reader(part->targets.type(), [&](auto element) {
    float* target = buffers[1].mutable_data_ptr<float>() + row * manifest_.outputs;
    for (int64_t k = 0; k < manifest_.outputs; ++k) {
      const auto n = static_cast<size_t>(k);
      target[k] = static_cast<float>((element(part->targets.example(i), k) - targets_.mean[n]) /
                                     targets_.scale[n]);
    }
  });
}

class ExampleTraining final : public TrainingBatches {
 public:
  ExampleTraining(const ExampleData& data, int64_t batch_size, uint64_t seed)
      : data_(data), batch_size_(batch_size), seed_(seed) {}

  std::vector<at::Tensor> make_buffers() const override { return data_.buffers(batch_size_); }
  void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const override {
    for (int64_t b = 0; b < batch_size_; ++b) {
      const int64_t sample = micro_batch * batch_size_ + b, epoch = sample / data_.train_size();
      const Permutation order(
          static_cast<uint64_t>(data_.train_size()),
          make_key(seed_, hash_name("data/examples") + static_cast<uint64_t>(epoch)));
      const auto i =
          static_cast<int64_t>(order(static_cast<uint64_t>(sample % data_.train_size())));
      const Change change = data_.augmentation_of(seed_, sample);
      data_.put(data_.train_example(i), buffers, b, data_.changes() ? &change : nullptr);
    }
  }
  Batch batch_of(const std::vector<at::Tensor>& on_device) const override {
    return {on_device[0], on_device[1]};
  }

 private:
  const ExampleData& data_;
  int64_t batch_size_;
  uint64_t seed_;
};

class ExampleEvaluation final : public EvaluationBatches {
 public:
  ExampleEvaluation(const ExampleData& data, int64_t batch_size, int64_t batches, at::Device device)
      : data_(data), batch_size_(batch_size), end_(data.val_size()), device_(device) {
    if (batches > 0 && batches <= end_ / batch_size) end_ = batches * batch_size;
  }

  bool next(Batch& batch) override {
    const int64_t n = std::min(batch_size_, end_ - at_);
    if (n == 0) return false;
    const auto buffers = data_.buffers(n);
    for (int64_t b = 0; b < n; ++b, ++at_) {
      const int64_t i = end_ < data_.val_size() ? spread_index(at_, end_, data_.val_size()) : at_;
      data_.put(data_.val_example(i), buffers, b, nullptr);
    }
    batch = {buffers[0].to(device_), buffers[1].to(device_)};
    return true;
  }

 private:
  const ExampleData& data_;
  int64_t batch_size_, at_ = 0, end_;
  at::Device device_;
};

std::unique_ptr<TrainingBatches> ExampleData::training(const BatchSizes& sizes,
                                                       uint64_t seed) const {
  return std::make_unique<ExampleTraining>(*this, sizes.batch_size, seed);
}

std::unique_ptr<EvaluationBatches> ExampleData::evaluation(const BatchSizes& sizes, int64_t batches,
                                                           at::Device device) const {
  return std::make_unique<ExampleEvaluation>(*this, sizes.batch_size, batches, device);
}

std::vector<std::pair<MappedFile, const ArrayInfo*>> ExampleData::files() const {
  std::vector<std::pair<MappedFile, const ArrayInfo*>> found;
  for (const auto* split : {&manifest_.train, &manifest_.val}) {
    if (split->examples == 0) continue;
    found.emplace_back(MappedFile(folder_ / split->inputs.file, Exit::data), &split->inputs);
    if (split->targets.file != split->inputs.file)
      found.emplace_back(MappedFile(folder_ / split->targets.file, Exit::data), &split->targets);
  }
  return found;
}

std::string ExampleData::hash() const {
  Checksum all;
  const auto all_files = files();
  for (const auto& [file, info] : all_files) {
    const std::string sum =
        str(manifest_.train.examples, " ", manifest_.val.examples, " ", info->xxh3, " ",
            // The samples from all files together have at most 128 MiB.
            sampled_checksum(file.bytes(), 128 / all_files.size()));
    all.update(sum.data(), sum.size());
  }
  for (const auto* numbers : {&manifest_.inputs.mean, &manifest_.inputs.scale,
                              &manifest_.targets.mean, &manifest_.targets.scale})
    all.update(numbers->data(), numbers->size() * sizeof(double));
  return all.hex();
}

std::string ExampleData::table() const {
  std::string text =
      str("  ", manifest_.task, ", ", manifest_.outputs, classifies() ? " classes" : " outputs");
  for (int64_t i = 0; i < std::min<int64_t>(20, std::ssize(manifest_.labels)); ++i)
    text += (i == 0 ? ": " : " ") + printable_line(manifest_.labels[static_cast<size_t>(i)]);
  text += manifest_.labels.size() > 20 ? " ...\n" : "\n";
  // If columns have no names, there is nothing to show.
  if (manifest_.table && manifest_.table->has_header) text += table_text(*manifest_.table);
  for (const auto& part : parts_) {
    for (const auto* array : {&part.inputs, &part.targets}) {
      text += str("  ", array->path().filename().string(), "  ", array->examples(), " examples  ",
                  array->sizes().empty() ? "" : sizes_text(array->sizes()) + " ",
                  array_type_name(array->type()), "\n");
    }
  }
  return text;
}

}  // namespace

std::unique_ptr<Data> open_examples(const DataConfig& config) {
  return std::make_unique<ExampleData>(config);
}

}  // namespace lathe
