#include "data/mixture.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include "core/config.h"
#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/text.h"
#include "data/folder.h"
#include "data/token_data.h"

namespace lathe {
namespace {

constexpr const char* mixture_format = "lathe-mixture-1";

/// "web:0.7,code:0.3".
std::vector<MixturePart> read_mix(const std::string& text) {
  std::vector<MixturePart> parts;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t colon = word.rfind(':');
    const ConfigValue weight = read_value(colon == std::string::npos ? "" : word.substr(colon + 1), 0.0);
    const auto* number = std::get_if<double>(&weight);
    if (colon == std::string::npos || number == nullptr)
      fail(Exit::usage, "data.mix = \"", text, "\": \"", word, "\" is no source with its share, as web:0.7");
    parts.push_back({word.substr(0, colon), *number});
  }
  check_mixture(parts, "data.mix", Exit::usage);
  return parts;
}

class Mixture final : public Data {
 public:
  /// Of the sources `all` in config.dir, as far as data.mix takes them.
  Mixture(const DataConfig& config, const std::vector<MixturePart>& all) {
    parts_ = config.mix.empty() ? all : read_mix(config.mix);
    for (const MixturePart& part : parts_) {
      const auto known = [&](const MixturePart& p) { return p.name == part.name; };
      if (std::none_of(all.begin(), all.end(), known)) {
        std::string names;
        for (const MixturePart& p : all) names += (names.empty() ? "" : ", ") + p.name;
        fail(Exit::usage, "data.mix names the source ", part.name, ", and ", config.dir, " has ", names);
      }
      data_.push_back(std::make_unique<TokenData>(fs::path(config.dir) / part.name, config));
    }
    const DataFacts& first = data_[0]->facts();
    facts_.task = first.task, facts_.tokenizer = first.tokenizer;
    for (size_t i = 0; i < data_.size(); ++i) {
      const DataFacts& facts = data_[i]->facts();
      if (facts.tokenizer.has_value() != first.tokenizer.has_value() ||
          (facts.tokenizer && !(*facts.tokenizer == *first.tokenizer))) {
        fail(Exit::data, config.dir, ": the sources ", parts_[0].name, " and ", parts_[i].name,
             " have different tokenizers; prepare them with one");
      }
      facts_.vocab_size = std::max(facts_.vocab_size, facts.vocab_size);
    }
  }

  const DataFacts& facts() const override { return facts_; }
  int64_t train_size() const override {
    return sum([](const TokenData& d) { return d.train_size(); });
  }
  int64_t val_size() const override {
    return sum([](const TokenData& d) { return d.val_size(); });
  }
  void check_windows(const BatchSizes& sizes) const override {
    for (const auto& d : data_) d->check_windows(sizes);
  }
  std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes, uint64_t seed) const override {
    return training_windows(sources(&TokenData::train), sizes, seed, data_[0]->windows());
  }
  std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                at::Device device) const override {
    return evaluation_windows(sources(&TokenData::val), sizes, batches, device, data_[0]->windows());
  }
  std::string hash() const override {
    Checksum all;
    for (size_t i = 0; i < data_.size(); ++i) {
      const std::string one = str(parts_[i].name, " ", parts_[i].weight, " ", data_[i]->hash(), "\n");
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
    const double all = std::accumulate(parts_.begin(), parts_.end(), 0.0,
                                       [](double sum, const MixturePart& p) { return sum + p.weight; });
    for (size_t i = 0; i < data_.size(); ++i)
      text +=
          str(parts_[i].name, "  ", format("%.4g", 100 * parts_[i].weight / all), "% of windows\n", data_[i]->table());
    return text;
  }

 private:
  int64_t sum(const std::function<int64_t(const TokenData&)>& of) const {
    int64_t all = 0;
    for (const auto& d : data_) all += of(*d);
    return all;
  }
  /// The sources that have that split.
  std::vector<WindowSource> sources(const TokenFile* (TokenData::*split)() const) const {
    std::vector<WindowSource> all;
    for (size_t i = 0; i < data_.size(); ++i) {
      if (const TokenFile* tokens = (*data_[i].*split)()) all.push_back({tokens, parts_[i].weight, parts_[i].name});
    }
    LATHE_CHECK(!all.empty(), "there are no tokens of that split");
    return all;
  }

  std::vector<MixturePart> parts_;
  std::vector<std::unique_ptr<TokenData>> data_;
  DataFacts facts_;
};

}  // namespace

void check_mixture(const std::vector<MixturePart>& parts, const std::string& where, Exit code) {
  std::set<std::string> names;
  for (const MixturePart& part : parts) {
    const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
    if (part.name.empty() || !std::all_of(part.name.begin(), part.name.end(), allowed))
      fail(code, where, ": \"", part.name, "\" can't name a source; take letters, digits, - and _");
    if (!names.insert(part.name).second) fail(code, where, ": the source ", part.name, " stands twice");
    if (!(part.weight > 0) || !std::isfinite(part.weight))
      fail(code, where, ": the share of ", part.name, " must be above 0, not ", part.weight);
  }
}

int64_t write_mixture(const fs::path& folder, const std::vector<MixturePart>& parts) {
  DataConfig config;
  config.dir = folder.string();
  const Mixture made(config, parts);
  Json sources = Json::array();
  for (const MixturePart& part : parts) sources.push_back({{"name", part.name}, {"weight", part.weight}});
  write_manifest_json(folder, {{"format", mixture_format}, {"kind", "mixture"}, {"sources", sources}});
  return made.train_size();
}

std::unique_ptr<Data> open_mixture(const DataConfig& config) {
  check_token_keys(config, /*mixes=*/true);
  const std::string where = (fs::path(config.dir) / "manifest.json").string();
  const Json json = *read_manifest_json(config.dir);
  if (json.value("format", "") != mixture_format)
    fail(Exit::data, where, ": a format that this build does not know; make the data again with `lathe prepare`");
  check_manifest_checksum(json, where);
  std::vector<MixturePart> all;
  const auto sources = json_get<Json>(json, "sources", where, Exit::data);
  for (const Json& source : sources) {
    all.push_back({json_get<std::string>(source, "name", where, Exit::data),
                   json_get<double>(source, "weight", where, Exit::data)});
  }
  if (all.empty()) fail(Exit::data, where, ": a mixture of no sources");
  check_mixture(all, where, Exit::data);
  return std::make_unique<Mixture>(config, all);
}

}  // namespace lathe
