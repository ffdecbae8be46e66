#include "data/mixture/mixture.h"

#include <algorithm>
#include <numeric>

#include "core/io/checksum.h"
#include "core/io/text.h"
#include "data/folder.h"
#include "data/tokens/token_data.h"

namespace lathe {
namespace {

class Mixture final : public Data {
 public:
  /// Opens the sources in config.dir that data.mix names, or every source in `all` if data.mix is
  /// empty.
  Mixture(const DataConfig& config, const std::vector<MixturePart>& all) {
    parts_ = config.mix.empty() ? all : read_mix(config.mix);
    for (const MixturePart& part : parts_) {
      const auto known = [&](const MixturePart& p) { return p.name == part.name; };
      if (std::none_of(all.begin(), all.end(), known)) {
        std::string names;
        for (const MixturePart& p : all) names += (names.empty() ? "" : ", ") + p.name;
        fail(Exit::usage, "data.mix names the source ", part.name, ", but ", config.dir,
             " has only ", names);
      }
      // Sources that data.mix does not name are not opened.
      data_.push_back(std::make_unique<TokenData>(fs::path(config.dir) / part.name, config));
      if (data_.back()->facts().pairs)
        fail(Exit::data, config.dir, ": the source ", part.name,
             " holds preferences, which can't be mixed; prepare texts or instructions");
    }

    // One model reads all sources, so an id must have the same meaning in each.
    const DatasetInfo& first = data_[0]->facts();
    facts_.task = first.task;
    facts_.tokenizer = first.tokenizer;
    for (size_t i = 0; i < data_.size(); ++i) {
      const DatasetInfo& facts = data_[i]->facts();
      if (facts.tokenizer.has_value() != first.tokenizer.has_value() ||
          (facts.tokenizer && !(*facts.tokenizer == *first.tokenizer))) {
        fail(Exit::data, config.dir, ": the sources ", parts_[0].name, " and ", parts_[i].name,
             " have different tokenizers; prepare them with the same one");
      }
      facts_.vocab_size = std::max(facts_.vocab_size, facts.vocab_size);
    }
  }

  const DatasetInfo& facts() const override { return facts_; }
  int64_t train_size() const override {
    return sum([](const TokenData& d) { return d.train_size(); });
  }
  int64_t val_size() const override {
    return sum([](const TokenData& d) { return d.val_size(); });
  }
  void check_windows(const BatchSizes& sizes) const override {
    // A source may have only validation tokens.
    const bool is_trained = std::ranges::any_of(data_, [](const auto& d) { return d->train(); });
    for (const auto& d : data_) {
      if (d->train() != nullptr || !is_trained) d->check_windows(sizes);
    }
  }
  std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes, uint64_t seed) const override {
    return training_windows(sources(&TokenData::train), sizes, seed, data_[0]->windows());
  }
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override {
    return evaluation_windows(sources(&TokenData::val), sizes, batches, device,
                              data_[0]->windows());
  }
  std::string hash() const override {
    Checksum all;
    for (size_t i = 0; i < data_.size(); ++i) {
      const std::string one =
          str(parts_[i].name, " ", parts_[i].weight, " ", data_[i]->hash(), "\n");
      all.update(one.data(), one.size());
    }
    return all.hex();
  }
  bool matches(const std::string& saved) const override { return saved == hash(); }
  void verify(const std::function<bool()>& stop) const override {
    for (const auto& d : data_) d->verify(stop);
  }
  std::string table() const override {
    std::string text;
    const double all =
        std::accumulate(parts_.begin(), parts_.end(), 0.0,
                        [](double sum, const MixturePart& p) { return sum + p.weight; });
    for (size_t i = 0; i < data_.size(); ++i)
      text += str(parts_[i].name, "  ", format("%.4g", 100 * parts_[i].weight / all),
                  "% of windows\n", data_[i]->table());
    return text;
  }

 private:
  int64_t sum(const std::function<int64_t(const TokenData&)>& of) const {
    int64_t all = 0;
    for (const auto& d : data_) all += of(*d);
    return all;
  }
  /// Returns the sources that have the split `split`, which is TokenData::train or TokenData::val.
  std::vector<WindowSource> sources(const TokenFile* (TokenData::*split)() const) const {
    std::vector<WindowSource> all;
    for (size_t i = 0; i < data_.size(); ++i) {
      if (const TokenFile* tokens = (*data_[i].*split)())
        all.push_back({.tokens = tokens, .weight = parts_[i].weight, .name = parts_[i].name});
    }
    LATHE_CHECK(!all.empty(), "there are no tokens of that split");
    return all;
  }

  std::vector<MixturePart> parts_;
  std::vector<std::unique_ptr<TokenData>> data_;
  DatasetInfo facts_;
};

}  // namespace

int64_t write_mixture(const fs::path& folder, const std::vector<MixturePart>& parts) {
  DataConfig config;
  config.dir = folder.string();
  // Opening the mixture checks that its parts fit together before anything is written.
  const Mixture made(config, parts);
  write_manifest_json(folder, mixture_manifest(parts));
  return made.train_size();
}

std::unique_ptr<Data> open_mixture(const DataConfig& config) {
  check_token_keys(config, /*mixes=*/true);
  const std::string where = (fs::path(config.dir) / "manifest.json").string();
  return std::make_unique<Mixture>(config,
                                   read_mixture_manifest(*read_manifest_json(config.dir), where));
}

}  // namespace lathe
