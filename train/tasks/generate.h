// Declares the generation of text with a model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "amp/amp.h"
#include "nn/models/model.h"
#include "train/tasks/sampling.h"

namespace lathe {

/// Holds the parameters of generation.
struct GenerateOptions {
  int64_t context = 0;  ///< largest number of a text's last tokens that the model reads
  int64_t tokens = 0;   ///< largest number of new tokens for each text
  Sampling sampling = {};
  Compute compute = {};
  at::Device device{at::kCPU};
  /// Whether to cache the keys and values of models that support it (Model::caches_keys), and to
  /// compute only new tokens until a text is longer than the context. If false, the complete window
  /// is computed for each token.
  bool cache = true;
  bool log_probabilities = false;  ///< whether to report the log probability of each new token
};

/// Holds a generated token, and the index of the text that it continues.
struct GeneratedToken {
  int64_t text, id;
  double log_probability;  ///< log probability from the model, before any sampling; NaN unless
                           ///< requested
};

/// Continues each of `texts`, none of which is empty, and returns the new tokens of each text.
/// `on_token`, if given, receives each token as it is generated; if it returns false, the text ends
/// after that token. The draw for token i of text j depends only on the seed, i and j. Other texts
/// and the cache change at most the rounding of logits; TextBatch states when they change no bit.
std::vector<std::vector<int64_t>> generate(
    const Model& model, std::vector<std::vector<int64_t>> texts, const GenerateOptions& writing,
    const std::function<bool(const GeneratedToken&)>& on_token = nullptr);

/// If a logit is not finite, returns the text of an error, since no token can be sampled. Returns
/// "" if all logits are finite. `logits_V` is [V], float64, contiguous and on the CPU.
std::string logits_fault(const at::Tensor& logits_V);

/// Samples a token from logits [V], V > 0. `draw` is a random number, uniform in (0, 1). At least
/// the likeliest token is kept, whatever top_k, top_p and min_p are. Does not apply the repetition
/// penalty. Throws Exit::diverged if a logit is not finite.
int64_t sample_token(const at::Tensor& logits_V, const Sampling& sampling, double draw);

/// Searches a text that is being generated for the first occurrence of a stop string.
class StopMatcher {
 public:
  /// `stops` are the stop strings, none of which is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Appends `piece` to the text. Returns the part of the text that may now be shown. The end of
  /// the text is held back if it may be the beginning of a stop string.
  std::string feed(std::string_view piece);
  /// Returns whether a stop string was found. The text ends before the stop string.
  bool stopped() const { return stopped_; }
  /// Returns the text that was held back. Call it if the text has ended without a stop string.
  std::string rest() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lathe
