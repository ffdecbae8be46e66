// Generation of text with a model.
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

/// The parameters of generation.
struct GenerateOptions {
  int64_t context = 0;  ///< the model sees at most this many tokens, the last ones
  int64_t tokens = 0;   ///< largest number of new tokens for each text
  Sampling sampling = {};
  Compute compute = {};
  at::Device device{at::kCPU};
  /// Keep the keys and values of models that support it (Model::caches_keys), and compute new
  /// tokens only, until a text is longer than the context. false: compute the whole window for each
  /// token.
  bool cache = true;
  bool log_probabilities = false;  ///< report those of the tokens
};

/// A generated token, and the index of the text that it continues.
struct GeneratedToken {
  int64_t text, id;
  double log_probability;  ///< from the model, before any sampling; NaN unless requested
};

/// Continues each of `texts` (none empty) and returns the new tokens of each. on_token, if given,
/// receives each token as it is generated, and ends that text after the token by returning false.
/// Token i of text j depends only on the seed, i, j and the text before it. It is independent of
/// other texts and of the cache, bit for bit where Lathe's kernels run in float32
/// (docs/internals/kernels.md).
std::vector<std::vector<int64_t>> generate(
    const Model& model, std::vector<std::vector<int64_t>> texts, const GenerateOptions& writing,
    const std::function<bool(const GeneratedToken&)>& on_token = nullptr);

/// Returns why no token can be sampled: a logit is not finite; "" if all logits are finite.
/// `logits_V` is [V], float64, contiguous and on the CPU.
std::string logits_fault(const at::Tensor& logits_V);

/// Samples a token from logits [V], V > 0; `draw` is uniform in (0, 1). At least the likeliest
/// token is kept, whatever top_k, top_p and min_p are. The repetition penalty is not applied here.
/// Throws Exit::diverged where a logit is not finite.
int64_t sample_token(const at::Tensor& logits_V, const Sampling& sampling, double draw);

/// Searches a text that is being generated for the first of some strings.
class StopMatcher {
 public:
  /// None of `stops` is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Appends `piece` to the text. Returns the part that may be shown, without what may be the
  /// beginning of a stop.
  std::string feed(std::string_view piece);
  /// Returns whether a stop was found; the text ends before it.
  bool stopped() const { return stopped_; }
  /// Returns what was held back, if the text ended without a stop.
  std::string rest() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lathe
