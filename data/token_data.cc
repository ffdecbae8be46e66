#include "data/token_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "data/sampler.h"

namespace lathe {
namespace {

class Windows final : public TrainingBatches {
 public:
  Windows(const TokenFile& tokens, const BatchSizes& sizes, uint64_t seed)
      : tokens_(tokens), sizes_(sizes), sampler_(tokens.size(), sizes.block_size, seed) {}

  std::vector<at::Tensor> make_buffers() const override {
    return {at::empty({sizes_.batch_size, sizes_.block_size + 1}, at::kLong)};
  }
  void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const override {
    auto* out = buffers[0].mutable_data_ptr<int64_t>();
    const int64_t length = sizes_.block_size + 1;
    for (int64_t b = 0; b < sizes_.batch_size; ++b) {
      tokens_.read(sampler_.start_of(micro_batch * sizes_.batch_size + b), length, sizes_.vocab_size, out + b * length);
    }
  }
  Batch batch_of(const std::vector<at::Tensor>& on_device) const override {
    return {on_device[0].slice(1, 0, sizes_.block_size), on_device[0].slice(1, 1, sizes_.block_size + 1)};
  }

 private:
  const TokenFile& tokens_;
  BatchSizes sizes_;
  WindowSampler sampler_;
};

class EvaluationWindows final : public EvaluationBatches {
 public:
  EvaluationWindows(const TokenFile& tokens, const BatchSizes& sizes, int64_t batches, at::Device device)
      : tokens_(tokens), sizes_(sizes), device_(device), end_(tokens.size() - 1) {
    const int64_t each = sizes.batch_size * sizes.block_size;
    if (batches > 0 && batches <= end_ / each) end_ = batches * each;
  }

  bool next(Batch& batch) override {
    if (at_ >= end_) return false;
    const int64_t left = end_ - at_, t = std::min(sizes_.block_size, left);
    const int64_t rows = std::min(sizes_.batch_size, left / t);
    const at::Tensor windows = at::empty({rows, t + 1}, at::kLong);
    for (int64_t b = 0; b < rows; ++b) {
      tokens_.read(at_ + b * t, t + 1, sizes_.vocab_size, windows.mutable_data_ptr<int64_t>() + b * (t + 1));
    }
    at_ += rows * t;
    const at::Tensor there = windows.to(device_);
    batch = {there.slice(1, 0, t), there.slice(1, 1, t + 1)};
    return true;
  }

 private:
  const TokenFile& tokens_;
  BatchSizes sizes_;
  at::Device device_;
  int64_t at_ = 0, end_;
};

}  // namespace

TokenData::TokenData(const fs::path& folder) : manifest_(read_manifest(folder)) {
  if (has_split(folder, "val", manifest_)) val_.emplace(folder, "val", manifest_);
  if (!val_ || has_split(folder, "train", manifest_)) train_.emplace(folder, "train", manifest_);
  facts_.task = "language";
  if (manifest_) facts_.tokenizer = manifest_->tokenizer, facts_.vocab_size = manifest_->vocab_size;
}

std::unique_ptr<TrainingBatches> TokenData::training(const BatchSizes& sizes, uint64_t seed) const {
  LATHE_CHECK(train_, "there are no training tokens");
  return std::make_unique<Windows>(*train_, sizes, seed);
}

std::unique_ptr<EvaluationBatches> TokenData::evaluation(const BatchSizes& sizes, int64_t batches,
                                                         at::Device device) const {
  LATHE_CHECK(val_, "there are no validation tokens");
  return std::make_unique<EvaluationWindows>(*val_, sizes, batches, device);
}

void TokenData::check_ids(int64_t vocab_size) const {
  if (train_) train_->check_ids(vocab_size);
  if (val_) val_->check_ids(vocab_size);
}

std::string TokenData::hash() const {
  return (train_ ? train_->fingerprint() : "") + (val_ ? "-" + val_->fingerprint() : "");
}

bool TokenData::matches(const std::string& saved) const {
  const auto between = saved.find('-');
  if (!train_ || !train_->matches(saved.substr(0, between))) return false;
  return between == std::string::npos ? !val_ : val_ && val_->matches(saved.substr(between + 1));
}

void TokenData::verify(const std::function<bool()>& stop) const {
  if (train_) train_->verify(stop);
  if (val_) val_->verify(stop);
}

std::string TokenData::table() const {
  std::string text;
  if (!manifest_) {
    text = "  no manifest.json, and so no tokenizer and no checksums\n";
    for (const auto* split : {&train_, &val_}) text += *split ? (*split)->table() : "";
    return text;
  }
  text = str("  tokenizer ", manifest_->tokenizer.kind(), ", vocabulary ", manifest_->vocab_size, ", ",
             manifest_->dtype, ", largest id ", manifest_->largest_id, "\n");
  if (manifest_->documents.is_object()) {
    text += "  documents";
    for (const auto& [name, count] : manifest_->documents.items()) text += str("  ", name, " ", count.dump());
    text += "\n";
  }
  for (const auto* split : {&manifest_->train, &manifest_->val}) {
    for (const auto& s : *split) text += str("  ", s.file, "  ", s.tokens, " tokens  ", s.xxh3, "\n");
  }
  return text;
}

}  // namespace lathe
