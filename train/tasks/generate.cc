#include "train/tasks/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "train/tasks/text_batch.h"

namespace lathe {
std::string logits_fault(const at::Tensor& logits_V) {
  const double* x = logits_V.const_data_ptr<double>();
  for (int64_t i = 0; i < logits_V.numel(); ++i) {
    if (!std::isfinite(x[i])) {
      return str("the model's logits are not finite (", x[i], " for token ", i,
                 "): the weights have diverged; use an earlier checkpoint");
    }
  }
  return "";
}

namespace {

/// Ranks tokens in descending order of their probabilities. Equally likely tokens are ordered by
/// id, so that the choice is the same on every machine. A heap sorts only as many tokens as are
/// needed.
class RankedTokens {
 public:
  RankedTokens(const double* logits, int64_t n, double temperature)
      : x_(logits), temperature_(temperature), heap_(static_cast<size_t>(n)) {
    std::iota(heap_.begin(), heap_.end(), 0);
    std::make_heap(heap_.begin(), heap_.end(), After{x_});
    top_ = x_[heap_.front()];
  }
  /// Returns the probability of a token with this logit, divided by the probability of the
  /// likeliest token.
  double relative(double logit) const { return std::exp((logit - top_) / temperature_); }
  /// Returns the probability of the i-th token, divided by the probability of the likeliest token.
  double p(size_t i) {
    while (p_.size() <= i) {
      std::pop_heap(heap_.begin(), heap_.end(), After{x_});
      order_.push_back(heap_.back());
      heap_.pop_back();
      p_.push_back(relative(x_[order_.back()]));
    }
    return p_[i];
  }
  /// Returns the i-th token. Call p(i) first.
  int64_t token(size_t i) const { return order_[i]; }
  /// Returns the sum of p(i) over the first `count` tokens.
  double sum_first(size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += p(i);
    return sum;
  }

 private:
  struct After {
    const double* x;
    bool operator()(int64_t a, int64_t b) const { return x[a] < x[b] || (x[a] == x[b] && a > b); }
  };
  const double* x_;
  double temperature_, top_ = 0;
  std::vector<int64_t> heap_, order_;
  std::vector<double> p_;  // results of p() for the tokens in order_
};

}  // namespace

int64_t sample_token(const at::Tensor& logits_V, const Sampling& s, double draw) {
  const at::Tensor logits = logits_V.to(at::kCPU, at::kDouble).contiguous();
  LATHE_CHECK(logits.numel() > 0, "sample_token: there are no logits");
  if (const std::string fault = logits_fault(logits); !fault.empty()) fail(Exit::diverged, fault);
  const double* x = logits.const_data_ptr<double>();
  const int64_t n = logits.numel();
  if (s.temperature == 0) return std::max_element(x, x + n) - x;

  RankedTokens ranked(x, n, s.temperature);

  // `total` is the sum of p() over the kept tokens.
  auto kept = static_cast<size_t>(s.top_k > 0 ? std::min(s.top_k, n) : n);
  double total = 0;
  if (static_cast<int64_t>(kept) < n) {
    total = ranked.sum_first(kept);
  } else {
    for (int64_t i = 0; i < n; ++i) total += ranked.relative(x[i]);
  }

  if (s.top_p < 1) {
    const size_t most = kept;
    double reached = 0;
    kept = 0;
    do {
      reached += ranked.p(kept++);
    } while (kept < most && reached < s.top_p * total);
    total = reached;
  }

  if (s.min_p > 0) {
    size_t likely = 1;
    while (likely < kept && ranked.p(likely) >= s.min_p) ++likely;
    if (likely < kept) total = ranked.sum_first(kept = likely);
  }

  double left = draw * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= ranked.p(i);
    if (left <= 0) return ranked.token(i);
  }
  // Rounding may leave a remainder after the last token.
  return ranked.token(kept - 1);
}

std::vector<std::vector<int64_t>> generate(
    const Model& model, std::vector<std::vector<int64_t>> texts, const GenerateOptions& w,
    const std::function<bool(const GeneratedToken&)>& on_token) {
  int64_t longest = 0;
  for (const auto& ids : texts) longest = std::max(longest, std::ssize(ids) + w.tokens);
  TextBatch batch(model, {.texts = std::ssize(texts),
                          .capacity = longest,
                          .context = w.context,
                          .compute = w.compute,
                          .device = w.device,
                          .cache = w.cache});

  // All texts join before any text leaves, so a text's row is its index.
  for (size_t i = 0; i < texts.size(); ++i)
    batch.join({.ids = std::move(texts[i]), .sampling = w.sampling, .index = i});

  std::vector<std::vector<int64_t>> out(texts.size());
  for (int64_t step = 0; step < w.tokens && batch.size() > 0; ++step) {
    for (const NextToken& token : batch.next()) {
      if (!token.error.empty()) fail(Exit::diverged, token.error);
      out[static_cast<size_t>(token.row)].push_back(token.id);
      const double log_probability = w.log_probabilities
                                         ? score_token(token.logits_V, token.id, 0).log_probability
                                         : std::numeric_limits<double>::quiet_NaN();
      if (on_token &&
          !on_token({.text = token.row, .id = token.id, .log_probability = log_probability}))
        batch.leave(token.row);
    }
  }
  return out;
}

std::string StopMatcher::feed(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, end);
  }

  size_t hold = 0;  // length of the longest suffix of held_ that begins a stop string
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > hold; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) hold = n;
    }
  }

  std::string shown = held_.substr(0, held_.size() - hold);
  held_.erase(0, shown.size());
  return shown;
}

}  // namespace lathe
