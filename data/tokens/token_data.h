// Opens token shards as data for language models: as windows of a long sequence, or with one
// document per row.
#pragma once

#include "data/data.h"
#include "data/tokens/manifest.h"
#include "data/tokens/padded.h"
#include "data/tokens/tokens.h"
#include "data/tokens/windows.h"

namespace lathe {

class TokenData final : public Data {
 public:
  /// Opens the splits that exist in a folder. Throws Exit::data if there are no splits, and
  /// Exit::usage if `config` needs a token between documents and no such token is known.
  explicit TokenData(const fs::path& folder, const DataConfig& config = {});
  TokenData(const TokenData&) = delete;
  TokenData& operator=(const TokenData&) = delete;

  const DatasetInfo& facts() const override { return facts_; }
  int64_t train_size() const override { return train_ ? train_->size() : 0; }
  int64_t val_size() const override { return val_ ? val_->size() : 0; }
  std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes, uint64_t seed) const override;
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override;
  /// Checks the ids of the first shards of each split, up to 128 MiB. The other ids are checked
  /// when they are read.
  void check_windows(const BatchSizes& sizes) const override;
  std::string hash() const override;
  bool matches(const std::string& saved) const override;
  void verify(const std::function<bool()>& stop) const override;
  std::string table() const override;

  /// Returns the tokens of the training split; null if it is missing.
  const TokenFile* train() const { return train_ ? &*train_ : nullptr; }
  /// Returns the tokens of the validation split; null if it is missing.
  const TokenFile* val() const { return val_ ? &*val_ : nullptr; }
  /// Returns the options with which batches of windows are made.
  const WindowOptions& windows() const { return windows_; }

 private:
  fs::path folder_;
  std::optional<DataManifest> manifest_;
  std::optional<TokenFile> train_, val_;
  DatasetInfo facts_;
  WindowOptions windows_;
  int64_t document_end_ = -1;  // -1 unless data.documents = separate or data.packing = examples
  std::optional<PaddedDocuments> train_documents_, val_documents_;  // for data.packing = examples
};
/// Opens the token data in data.dir. Throws the errors of check_token_keys and of TokenData.
std::unique_ptr<Data> open_tokens(const DataConfig& config);
/// Throws Exit::usage if `config` has keys for examples, keys for mixtures although `mixes` is
/// false, data.packing = "examples" although `mixes` is true, or two keys about documents of which
/// one makes the other ineffective.
void check_token_keys(const DataConfig& config, bool mixes);

}  // namespace lathe
