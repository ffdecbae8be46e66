#include "data/preferences.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/io/log.h"
#include "core/rng.h"
#include "data/sampler.h"
#include "data/token_data.h"

namespace lathe {
namespace {

/// The pairs of a split.
class Pairs {
 public:
  /// Throws Exit::data where the rows are not pairs.
  Pairs(const TokenFile& tokens, const std::string& where) : tokens_(tokens) {
    begins_ = tokens.begins();
    if (begins_.empty() || begins_[0] != 0 || begins_.size() % 2 != 0)
      fail(Exit::data, where, " holds no pairs of answers; make the data again");
    begins_.push_back(tokens.size());
  }

  int64_t size() const { return std::ssize(begins_) / 2; }

  /// Returns how many pairs have an answer that, behind its prompt, is longer than a window.
  int64_t count_longer(int64_t window) const {
    int64_t longer = 0;
    for (int64_t pair = 0; pair < size(); ++pair)
      longer += std::max(length(2 * pair), length(2 * pair + 1)) > window + 1;
    return longer;
  }

  /// Writes both rows of a pair into rows `chosen` and `rejected` of inputs and targets [B, T].
  void put(int64_t pair, const std::vector<at::Tensor>& buffers, int64_t chosen, int64_t rejected,
           int64_t vocab_size) const {
    const int64_t t = buffers[0].size(1);
    const Row rows[]{read(2 * pair, vocab_size), read(2 * pair + 1, vocab_size)};

    // Both answers must follow the same tokens, of which one at least remains.
    int64_t skipped = 0;
    for (const Row& row : rows) skipped = std::max(skipped, std::ssize(row.ids) - (t + 1));
    skipped = std::max<int64_t>(0, std::min(skipped, rows[0].prompt - 1));

    for (const auto& [row, at] : {std::pair(&rows[0], chosen), std::pair(&rows[1], rejected)}) {
      int64_t* inputs = buffers[0].mutable_data_ptr<int64_t>() + at * t;
      int64_t* targets = buffers[1].mutable_data_ptr<int64_t>() + at * t;
      const int64_t count = std::min(t, std::ssize(row->ids) - skipped - 1);
      std::fill(std::copy_n(row->ids.begin() + skipped, count, inputs), inputs + t, 0);
      std::fill(std::copy_n(row->targets.begin() + skipped + 1, count, targets), targets + t, -100);
    }
  }

 private:
  struct Row {
    std::vector<int64_t> ids, targets;
    int64_t prompt = 0;  // tokens before the first that is learned
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
  std::vector<int64_t> begins_;  // of each row, and the end of the last one
};

std::vector<at::Tensor> make_rows(int64_t rows, int64_t t) {
  return {at::empty({rows, t}, at::kLong), at::empty({rows, t}, at::kLong)};
}

class PairTraining final : public TrainingBatches {
 public:
  PairTraining(const Pairs& pairs, const BatchSizes& sizes, uint64_t seed)
      : pairs_(pairs), sizes_(sizes), seed_(seed) {}

  std::vector<at::Tensor> make_buffers() const override {
    return make_rows(sizes_.batch_size, sizes_.block_size);
  }
  void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const override {
    const int64_t all = pairs_.size(), n = sizes_.batch_size / 2;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sample = micro_batch * n + i, epoch = sample / all;
      const Permutation order(
          static_cast<uint64_t>(all),
          make_key(seed_, hash_name("data/pairs") + static_cast<uint64_t>(epoch)));
      const auto pair = static_cast<int64_t>(order(static_cast<uint64_t>(sample % all)));
      pairs_.put(pair, buffers, i, n + i, sizes_.vocab_size);
    }
    // `lathe plan` and `lathe find batch` try sizes that fit() would refuse.
    if (sizes_.batch_size % 2 == 0) return;
    buffers[0].select(0, 2 * n).zero_();
    buffers[1].select(0, 2 * n).fill_(-100);
  }
  /// Returns the number of pairs, which the sum of their losses is divided by.
  std::optional<int64_t> targets(int64_t /*micro_batch*/) const override {
    return sizes_.batch_size / 2;
  }
  Batch batch_of(const std::vector<at::Tensor>& on_device) const override {
    return {on_device[0], on_device[1]};
  }

 private:
  const Pairs& pairs_;
  BatchSizes sizes_;
  uint64_t seed_;
};

class PairEvaluation final : public EvaluationBatches {
 public:
  PairEvaluation(const Pairs& pairs, const BatchSizes& sizes, int64_t batches, at::Device device)
      : pairs_(pairs),
        sizes_(sizes),
        in_batch_(std::max<int64_t>(1, sizes.batch_size / 2)),
        end_(pairs.size()),
        device_(device) {
    if (batches > 0 && batches <= end_ / in_batch_) end_ = batches * in_batch_;
  }

  bool next(Batch& batch) override {
    const int64_t n = std::min(in_batch_, end_ - at_);
    if (n == 0) return false;
    const auto buffers = make_rows(2 * n, sizes_.block_size);
    for (int64_t i = 0; i < n; ++i, ++at_) {
      const int64_t pair = end_ < pairs_.size() ? spread_index(at_, end_, pairs_.size()) : at_;
      pairs_.put(pair, buffers, i, n + i, sizes_.vocab_size);
    }
    batch = {buffers[0].to(device_), buffers[1].to(device_)};
    return true;
  }

 private:
  const Pairs& pairs_;
  BatchSizes sizes_;
  int64_t in_batch_, at_ = 0, end_;
  at::Device device_;
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
    return std::make_unique<PairTraining>(*train_, sizes, seed);
  }
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override {
    LATHE_CHECK(val_, "there are no validation pairs");
    return std::make_unique<PairEvaluation>(*val_, sizes, batches, device);
  }
  void check_windows(const BatchSizes& sizes) const override {
    if (!train_) fail(Exit::data, folder_.string(), " has no training pairs");
    if (const int64_t longer = train_->count_longer(sizes.block_size); longer > 0) {
      log_warn(longer, " of the ", train_->size(), " pairs of ", folder_.string(),
               " are longer than a window of ", sizes.block_size,
               " tokens; they lose the beginning of their prompt, and then the end of an answer");
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
  if (config.documents != DataConfig().documents)
    fail(Exit::usage, "data.documents has no effect on ", config.dir,
         ", which holds preferences: each answer is a row of its own; leave it out");
  return std::make_unique<PreferenceData>(config);
}

}  // namespace lathe
