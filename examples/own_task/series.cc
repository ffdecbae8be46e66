// Implements the data kind. In a data folder, series.f32 has the numbers in float32, and
// manifest.json has the number of values in a window.
#include <ATen/ops/empty.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "lathe/core/error.h"
#include "lathe/core/io/checksum.h"
#include "lathe/core/rng.h"
#include "lathe/data/folder.h"
#include "lathe/data/tokens/sampler.h"
#include "own_task.h"

namespace own {
namespace {

using namespace lathe;

class Series final : public Data {
 public:
  explicit Series(const DataConfig& config)
      : folder_(config.dir),
        manifest_(*read_manifest_json(folder_)),
        file_(folder_ / "series.f32", Exit::data) {
    const std::string where = (folder_ / "manifest.json").string();
    check_manifest_checksum(manifest_, where);
    window_ = json_get<int64_t>(manifest_, "window", where, Exit::data);
    const auto size = static_cast<int64_t>(file_.bytes().size() / sizeof(float));
    windows_ = size - window_;
    if (window_ < 1 || windows_ < 10)
      fail(Exit::data, where, ": ", size, " numbers are too few for windows of ", window_);
    train_size_ = windows_ * 4 / 5;
    facts_.task = "quantiles";
    facts_.input_sizes = {window_};
    facts_.outputs = 1;
  }

  const DatasetInfo& facts() const override { return facts_; }
  int64_t train_size() const override { return train_size_; }
  int64_t val_size() const override { return windows_ - train_size_; }
  std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes, uint64_t seed) const override;
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override;
  std::string hash() const override { return sampled_checksum(file_.bytes(), 8); }
  bool matches(const std::string& saved) const override { return saved == hash(); }
  void verify(const std::function<bool()>& stop) const override {
    verify_file(file_, json_get<std::string>(manifest_, "xxh3", folder_.string(), Exit::data),
                stop);
  }
  std::string table() const override {
    return std::to_string(windows_) + " windows of " + std::to_string(window_) + " numbers\n";
  }

  std::vector<at::Tensor> buffers(int64_t n) const {
    return {at::empty({n, window_}), at::empty({n, 1})};
  }
  /// Writes the window that begins at number `window` into row `row` of buffers.
  void put(int64_t window, const std::vector<at::Tensor>& buffers, int64_t row) const {
    const auto* numbers = reinterpret_cast<const float*>(file_.bytes().data()) + window;
    std::copy_n(numbers, window_, buffers[0].mutable_data_ptr<float>() + row * window_);
    buffers[1].mutable_data_ptr<float>()[row] = numbers[window_];
  }

 private:
  fs::path folder_;
  Json manifest_;
  MappedFile file_;
  int64_t window_ = 0, windows_ = 0, train_size_ = 0;
  DatasetInfo facts_;
};

/// The content of micro-batch n depends only on the seed and n, so that a resumed run sees the same
/// data as an uninterrupted one.
class Training final : public TrainingBatches {
 public:
  Training(const Series& series, int64_t batch_size, uint64_t seed)
      : series_(series), batch_size_(batch_size), seed_(seed) {}

  std::vector<at::Tensor> make_buffers() const override { return series_.buffers(batch_size_); }
  void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const override {
    const auto size = static_cast<uint64_t>(series_.train_size());
    for (int64_t row = 0; row < batch_size_; ++row) {
      const auto sample = static_cast<uint64_t>(micro_batch * batch_size_ + row);
      const Permutation order(size, make_key(seed_, hash_name("own/series") + sample / size));
      series_.put(static_cast<int64_t>(order(sample % size)), buffers, row);
    }
  }
  Batch batch_of(const std::vector<at::Tensor>& on_device) const override {
    return {on_device[0], on_device[1]};
  }

 private:
  const Series& series_;
  int64_t batch_size_;
  uint64_t seed_;
};

class Validation final : public EvaluationBatches {
 public:
  Validation(const Series& series, int64_t batch_size, int64_t batches, at::Device device)
      : series_(series), batch_size_(batch_size), end_(series.val_size()), device_(device) {
    // A comparison with `batches * batch_size` could overflow.
    if (batches > 0 && batches <= end_ / batch_size) end_ = batches * batch_size;
  }

  bool next(Batch& batch) override {
    const int64_t n = std::min(batch_size_, end_ - at_);
    if (n == 0) return false;
    const auto buffers = series_.buffers(n);
    for (int64_t row = 0; row < n; ++row, ++at_) {
      // If only a part of the split is used, its windows are spread evenly over the split.
      const int64_t i =
          end_ < series_.val_size() ? spread_index(at_, end_, series_.val_size()) : at_;
      series_.put(series_.train_size() + i, buffers, row);
    }
    batch = {buffers[0].to(device_), buffers[1].to(device_)};
    return true;
  }

 private:
  const Series& series_;
  int64_t batch_size_, at_ = 0, end_;
  at::Device device_;
};

std::unique_ptr<TrainingBatches> Series::training(const BatchSizes& sizes, uint64_t seed) const {
  return std::make_unique<Training>(*this, sizes.batch_size, seed);
}
std::unique_ptr<EvaluationBatches> Series::evaluation(const BatchSizes& sizes, int64_t batches,
                                                      at::Device device) const {
  return std::make_unique<Validation>(*this, sizes.batch_size, batches, device);
}

}  // namespace

std::unique_ptr<Data> open_series(const DataConfig& config) {
  return std::make_unique<Series>(config);
}

void prepare_series(const std::string& file, const std::string& out, int64_t window) {
  std::ifstream text(file);
  if (!text) fail(Exit::usage, "cannot read ", file);
  std::vector<float> numbers;
  for (std::string word; text >> word;) {
    char* end = nullptr;
    numbers.push_back(std::strtof(word.c_str(), &end));
    if (*end != '\0' || !std::isfinite(numbers.back()))
      fail(Exit::data, file, ": the text after ", numbers.size() - 1, " numbers is not a number");
  }
  if (std::ssize(numbers) <= window)
    fail(Exit::data, file, ": ", numbers.size(), " numbers are too few for a window of ", window);
  const fs::path folder = out, path = folder / "series.f32";
  fs::create_directories(folder);
  write_file_durably(
      path, {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
  write_manifest_json(folder,
                      {{"kind", "series"}, {"window", window}, {"xxh3", file_checksum(path)}});
}

}  // namespace own
