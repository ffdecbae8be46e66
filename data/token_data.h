// Token shards as data for language models: windows of a long sequence.
#pragma once

#include "data/data.h"
#include "data/manifest.h"
#include "data/tokens.h"

namespace lathe {

class TokenData final : public Data {
 public:
  /// Opens the splits that a folder has. Exit::data where it has none.
  explicit TokenData(const fs::path& folder);

  const DataFacts& facts() const override { return facts_; }
  int64_t train_size() const override { return train_ ? train_->size() : 0; }
  int64_t val_size() const override { return val_ ? val_->size() : 0; }
  std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes, uint64_t seed) const override;
  /// In non-overlapping windows, the last one short; all rows of a batch have one length.
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override;
  /// Looks for ids beyond the vocabulary, in shards of up to 128 MiB together; others are checked as they are read.
  void check_ids(int64_t vocab_size) const override;
  std::string hash() const override;
  bool matches(const std::string& saved) const override;
  void verify(const std::function<bool()>& stop) const override;
  std::string table() const override;

 private:
  std::optional<DataManifest> manifest_;
  std::optional<TokenFile> train_, val_;
  DataFacts facts_;
};

}  // namespace lathe
