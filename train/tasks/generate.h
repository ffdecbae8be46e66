// Writing text with a model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "amp/amp.h"
#include "nn/models/model.h"

namespace lathe {

struct Sampling {
  double temperature = 0.8;  ///< 0: always the likeliest token
  int64_t top_k = 0;         ///< only the k likeliest; 0: all. Fan et al. 2018
  double top_p =
      1;  ///< only the likeliest that reach this probability together. Holtzman et al. 2020
  double min_p =
      0;  ///< only those at least this times as likely as the likeliest. Nguyen et al. 2024
  /// Above 1 tokens that are in the text already get less likely: their logits are divided by it,
  /// or multiplied where they are negative. Keskar et al. 2019
  double repetition_penalty = 1;
  uint64_t seed = 1;
};

/// What is written, and how.
struct Writing {
  int64_t context = 0;  ///< the last so many tokens are what the model sees
  int64_t tokens = 0;   ///< at most so many for each text
  Sampling sampling = {};
  Compute compute = {};
  at::Device device{at::kCPU};
  /// Keep the keys and values of models that can (Model::caches_keys), and give them new tokens
  /// alone, until a text is longer than the context; false: give them the whole window for each
  /// token.
  bool cache = true;
  bool log_probabilities = false;  ///< tell those of the tokens
};

/// A token that generation wrote, and the text (by its place in the list) that it continues.
struct GeneratedToken {
  int64_t text, id;
  double log_probability;  ///< as the model has it, before any sampling; NaN unless asked for
};

/// Continues each of `texts` (none empty); on_token, where given, sees each token as it comes, and
/// ends that text by returning false. Token i of text j depends on the seed, i, j and what is
/// before it in that text alone: on other texts and the cache not, to the bit where Lathe's kernels
/// run in float32 (docs/internals/kernels.md).
std::vector<std::vector<int64_t>> generate(
    const Model& model, std::vector<std::vector<int64_t>> texts, const Writing& writing,
    const std::function<bool(const GeneratedToken&)>& on_token = nullptr);

/// Picks from logits [V], V > 0; `draw` is uniform in (0, 1). At least the likeliest token is kept,
/// whatever top_k, top_p and min_p say. The repetition penalty is not applied here. Exit::diverged
/// where a logit is not finite.
int64_t pick(const at::Tensor& logits_V, const Sampling& sampling, double draw);

/// Watches a text that is written for the first of some strings.
class StopMatcher {
 public:
  /// None of `stops` is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Appends `piece` to the text. Returns what of it may be shown, without what might be the
  /// beginning of a stop.
  std::string feed(std::string_view piece);
  /// Whether a stop was met; the text ends before it.
  bool stopped() const { return stopped_; }
  /// What was held back, where the text ended without a stop.
  std::string rest() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lathe
