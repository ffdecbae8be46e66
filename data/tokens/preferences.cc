#include "data/tokens/preferences.h"

#include <algorithm>

#include "core/io/log.h"
#include "data/tokens/padded.h"
#include "data/tokens/token_data.h"

namespace lathe {
namespace {

/// The pairs of a split.
class Pairs final : public PaddedItems {
 public:
  /// Finds the rows of the pairs. Throws Exit::data if the number of rows is odd or 0.
  Pairs(const TokenFile& tokens, const std::string& where) : tokens_(tokens) {
    begins_ = tokens.begins();
    if (begins_.empty() || begins_[0] != 0 || begins_.size() % 2 != 0)
      fail(Exit::data, where, " holds no pairs of answers; make the data again");
    begins_.push_back(tokens.size());
  }

  int64_t size() const override { return std::ssize(begins_) / 2; }

  /// Returns how many pairs have an answer that, with its prompt, is longer than a window.
  int64_t count_longer(int64_t window) const {
    int64_t longer = 0;
    for (int64_t pair = 0; pair < size(); ++pair)
      longer += std::max(length(2 * pair), length(2 * pair + 1)) > window + 1;
    return longer;
  }

  const char* stream() const override { return "data/pairs"; }
  int64_t rows() const override { return 2; }
  /// Returns 1, so that the sum of losses is divided by the number of pairs.
  int64_t targets(int64_t /*item*/, int64_t /*window*/) const override { return 1; }
  void put(int64_t pair, const std::vector<at::Tensor>& buffers, int64_t n, int64_t items,
           int64_t vocab_size) const override {
    const int64_t window = buffers[0].size(1);
    Row rows[]{read(2 * pair, vocab_size), read(2 * pair + 1, vocab_size)};

    // Remove the same tokens from both rows, since both answers must follow the same prompt. At
    // least one token of the prompt remains.
    int64_t skipped = 0;
    for (const Row& row : rows) skipped = std::max(skipped, std::ssize(row.ids) - (window + 1));
    skipped = std::max<int64_t>(0, std::min({skipped, rows[0].prompt - 1, rows[1].prompt - 1}));

    for (int64_t i = 0; i < 2; ++i) {
      Row& row = rows[i];
      row.ids.erase(row.ids.begin(), row.ids.begin() + skipped);
      row.targets.erase(row.targets.begin(), row.targets.begin() + skipped);
      put_padded(row.ids, row.targets, buffers, n + i * items);
    }
  }

 private:
  struct Row {
    std::vector<int64_t> ids, targets;
    int64_t prompt = 0;  // number of tokens before the first token that counts toward the loss
  };
  int64_t length(int64_t row) const {
    const auto i = static_cast<size_t>(row);
    return begins_[i + 1] - begins_[i];
  }
  Row read(int64_t row, int64_t vocab_size) const {
    const int64_t begin = begins_[static_cast<size_t>(row)], n = length(row);
    Row r{std::vector<int64_t>(static_cast<size_t>(n)),
          std::vector<int64_t>(static_cast<size_t>(n))};
    tokens_.read(begin, n, vocab_size, r.ids.data());
    tokens_.read_targets(begin, n, r.targets.data());
    const auto learned =
        std::find_if(r.targets.begin(), r.targets.end(), [](int64_t id) { return id != -100; });
    r.prompt = learned - r.targets.begin();
    return r;
  }

  const TokenFile& tokens_;
  std::vector<int64_t> begins_;  // the beginning of each row, and the end of the last row
};

class PreferenceData final : public Data {
 public:
  explicit PreferenceData(const DataConfig& config)
      : folder_(config.dir), tokens_(folder_, config) {
    if (const TokenFile* split = tokens_.train()) train_.emplace(*split, config.dir);
    if (const TokenFile* split = tokens_.val()) val_.emplace(*split, config.dir);
    facts_ = tokens_.facts();
    facts_.task = "dpo";
  }

  const DatasetInfo& facts() const override { return facts_; }
  int64_t train_size() const override { return tokens_.train_size(); }
  int64_t val_size() const override { return tokens_.val_size(); }
  std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes, uint64_t seed) const override {
    LATHE_CHECK(train_, "there are no training pairs");
    return padded_training(*train_, sizes, seed);
  }
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override {
    LATHE_CHECK(val_, "there are no validation pairs");
    return padded_evaluation(*val_, sizes, batches, device);
  }
  void check_windows(const BatchSizes& sizes) const override {
    if (!train_) fail(Exit::data, folder_.string(), " has no training pairs");
    if (const int64_t longer = train_->count_longer(sizes.block_size); longer > 0) {
      log_warn(longer, " of the ", train_->size(), " pairs of ", folder_.string(),
               " are longer than a window of ", sizes.block_size,
               " tokens; they lose the beginning of their prompt and, if that is not enough, the "
               "end of an answer");
    }
    tokens_.train()->check_ids(sizes.vocab_size);
    if (val_) tokens_.val()->check_ids(sizes.vocab_size);
  }
  std::string hash() const override { return tokens_.hash(); }
  bool matches(const std::string& saved) const override { return tokens_.matches(saved); }
  void verify(const std::function<bool()>& stop) const override { tokens_.verify(stop); }
  std::string table() const override {
    return str("  pairs     ", train_ ? train_->size() : 0, " for training, ",
               val_ ? val_->size() : 0, " for validation\n", tokens_.table());
  }

 private:
  fs::path folder_;
  TokenData tokens_;
  std::optional<Pairs> train_, val_;
  DatasetInfo facts_;
};

}  // namespace

std::unique_ptr<Data> open_preferences(const DataConfig& config) {
  check_token_keys(config, /*mixes=*/false);
  const DataConfig initial;
  if (config.documents != initial.documents || config.packing != initial.packing)
    fail(Exit::usage, "data.documents and data.packing have no effect on ", config.dir,
         ", which holds preferences: each answer has a separate row; leave them out");
  return std::make_unique<PreferenceData>(config);
}

}  // namespace lathe
