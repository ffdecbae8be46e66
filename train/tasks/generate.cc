// With Lathe's kernels in float32 and without capped logits, tokens and the bits of their
// probabilities are the same with and without the cache: each row of a matrix product is summed
// separately in one order, attention processes the same blocks of keys, and rows are independent.
// The same holds for bfloat16 where it is multiplied in float32. With ATen's kernels, native
// bfloat16 or quantized weights, the sums of one row and of many differ in order: logits agree to
// rounding, and a token differs only where two are equally likely to that rounding.
#include "train/tasks/generate.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "core/error.h"
#include "core/rng.h"
#include "nn/layers/cache.h"

namespace lathe {
namespace {

/// Returns one text's logits [V] in float64 on the CPU. Throws where one is not finite.
at::Tensor readable(const at::Tensor& logits_V) {
  const at::Tensor logits = logits_V.to(at::kCPU, at::kDouble).contiguous();
  LATHE_CHECK(logits.numel() > 0, "sample_token: there are no logits");
  const double* x = logits.const_data_ptr<double>();
  for (int64_t i = 0; i < logits.numel(); ++i) {
    if (!std::isfinite(x[i])) {
      fail(Exit::diverged, "the model's logits are not finite (", x[i], " for token ", i,
           "): its weights have diverged; take an earlier checkpoint");
    }
  }
  return logits;
}

double log_probability_of(const at::Tensor& logits, int64_t id) {
  const double* x = logits.const_data_ptr<double>();
  const double top = *std::max_element(x, x + logits.numel());
  double total = 0;
  for (int64_t i = 0; i < logits.numel(); ++i) total += std::exp(x[i] - top);
  return x[id] - top - std::log(total);
}

void penalize(const at::Tensor& logits, const std::vector<int64_t>& ids, double penalty) {
  double* x = logits.mutable_data_ptr<double>();
  for (const int64_t id : std::unordered_set<int64_t>(ids.begin(), ids.end())) {
    if (id < logits.numel()) x[id] = x[id] > 0 ? x[id] / penalty : x[id] * penalty;
  }
}

/// Returns the logits of the next token of each row: [B, V].
at::Tensor next_logits(const Model& model, const at::Tensor& ids_BT) {
  const int64_t last = ids_BT.size(1) - 1;
  if (!model.has_head()) return model(ids_BT).data().select(1, last);
  const Variable x = slice(model.features(ids_BT), 1, last, last + 1);
  return head_logits(x, model.head_weight(), model.logit_softcap()).data().select(1, 0);
}

/// A text that is being generated.
struct Text {
  std::vector<int64_t> ids;
  size_t given;  // length of the prompt
  bool ended = false;
};

/// Computes the logits of the texts that have not ended, in their order.
class Forwards {
 public:
  Forwards(const Model& model, const GenerateOptions& w, const std::vector<Text>& texts)
      : model_(model), w_(w) {
    if (!w.cache || !model.caches_keys()) return;
    int64_t longest = 0;
    for (const Text& t : texts)
      longest = std::max(longest, static_cast<int64_t>(t.ids.size()) + w.tokens);
    cache_.emplace(static_cast<int64_t>(texts.size()), std::min(w.context, longest));
  }

  std::vector<at::Tensor> operator()(const std::vector<Text>& texts) {
    std::vector<at::Tensor> logits(texts.size());
    std::vector<int64_t> together;  // texts with one new token
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].ended) continue;
      const auto length = static_cast<int64_t>(texts[i].ids.size()), text = static_cast<int64_t>(i);
      // Beyond the context the window moves at each token, so cached positions do not apply.
      if (!cache_ || length > w_.context)
        logits[i] =
            next_logits(model_, ids_of(texts[i], std::max<int64_t>(0, length - w_.context)))[0];
      else if (length - cache_->length(text) == 1)
        together.push_back(text);
      else
        logits[i] = cached({text}, ids_of(texts[i], cache_->length(text)))[0];
    }

    if (together.empty()) return logits;
    std::vector<int64_t> last;
    for (const int64_t text : together) last.push_back(texts[static_cast<size_t>(text)].ids.back());
    // One call shares the work; the top of this file describes when the bits are those of single
    // calls.
    const at::Tensor rows =
        cached(together, at::tensor(last, at::kLong).unsqueeze(1).to(w_.device));
    for (size_t i = 0; i < together.size(); ++i)
      logits[static_cast<size_t>(together[i])] = rows[static_cast<int64_t>(i)];
    return logits;
  }

 private:
  at::Tensor ids_of(const Text& text, int64_t from) const {
    return at::tensor(at::ArrayRef<int64_t>(text.ids).slice(static_cast<size_t>(from)), at::kLong)
        .unsqueeze(0)
        .to(w_.device);
  }
  at::Tensor cached(const std::vector<int64_t>& rows, const at::Tensor& ids_BT) {
    KeyValueCache::Use use(*cache_, rows);
    const at::Tensor logits = next_logits(model_, ids_BT);
    use.done(ids_BT.size(1));
    return logits;
  }

  const Model& model_;
  const GenerateOptions& w_;
  std::optional<KeyValueCache> cache_;
};

}  // namespace

int64_t sample_token(const at::Tensor& logits_V, const Sampling& s, double draw) {
  const at::Tensor logits = readable(logits_V);
  const double* x = logits.const_data_ptr<double>();
  const int64_t n = logits.numel();
  if (s.temperature == 0) return std::max_element(x, x + n) - x;

  // Likeliest first, and equal ones by id, so that the choice is the same everywhere. The heap
  // sorts only as many tokens as are needed.
  const auto after = [x](int64_t a, int64_t b) { return x[a] < x[b] || (x[a] == x[b] && a > b); };
  std::vector<int64_t> heap(static_cast<size_t>(n)), order;
  std::iota(heap.begin(), heap.end(), 0);
  std::make_heap(heap.begin(), heap.end(), after);
  const double top = x[heap.front()];
  std::vector<double> p;  // of `order`, relative to the likeliest
  const auto p_at = [&](size_t i) {
    while (p.size() <= i) {
      std::pop_heap(heap.begin(), heap.end(), after);
      order.push_back(heap.back());
      heap.pop_back();
      p.push_back(std::exp((x[order.back()] - top) / s.temperature));
    }
    return p[i];
  };

  const auto sum_first = [&](size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += p_at(i);
    return sum;
  };

  // `total` is the probability of the kept tokens, relative to the likeliest.
  auto kept = static_cast<size_t>(s.top_k > 0 ? std::min(s.top_k, n) : n);
  double total = 0;
  if (static_cast<int64_t>(kept) < n) {
    total = sum_first(kept);
  } else {
    for (int64_t i = 0; i < n; ++i) total += std::exp((x[i] - top) / s.temperature);
  }

  if (s.top_p < 1) {
    const size_t most = kept;
    double reached = 0;
    kept = 0;
    do {
      reached += p_at(kept++);
    } while (kept < most && reached < s.top_p * total);
    total = reached;
  }

  if (s.min_p > 0) {
    size_t likely = 1;
    while (likely < kept && p_at(likely) >= s.min_p) ++likely;
    if (likely < kept) total = sum_first(kept = likely);
  }

  double left = draw * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= p_at(i);
    if (left <= 0) return order[i];
  }
  // Rounding may leave a remainder after the last token.
  return order[kept - 1];
}

std::vector<std::vector<int64_t>> generate(
    const Model& model, std::vector<std::vector<int64_t>> given, const GenerateOptions& w,
    const std::function<bool(const GeneratedToken&)>& on_token) {
  std::vector<Text> texts;
  for (auto& ids : given) {
    LATHE_CHECK(!ids.empty(), "generate: nothing to continue");
    const size_t length = ids.size();
    texts.push_back({.ids = std::move(ids), .given = length});
  }

  const NoGrad no_grad;
  const Autocast autocast(w.compute);
  const RngKey key = make_key(w.sampling.seed, hash_name("generate"));
  Forwards forwards(model, w, texts);

  const auto under_way = [](const Text& t) { return !t.ended; };
  for (int64_t step = 0; step < w.tokens && std::any_of(texts.begin(), texts.end(), under_way);
       ++step) {
    const std::vector<at::Tensor> logits = forwards(texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].ended) continue;
      const at::Tensor own = readable(logits[i]);
      // The reported probability is the model's, without the penalty.
      at::Tensor penalized = own;
      if (w.sampling.repetition_penalty != 1)
        penalize(penalized = own.clone(), texts[i].ids, w.sampling.repetition_penalty);
      // The draw depends on the step and the text's index only, so other texts do not change it.
      const double draw = unit(philox(counter(static_cast<uint64_t>(step), i), key)[0]);
      const int64_t id = sample_token(penalized, w.sampling, draw);

      texts[i].ids.push_back(id);
      const double log_probability = w.log_probabilities ? log_probability_of(own, id)
                                                         : std::numeric_limits<double>::quiet_NaN();
      if (on_token && !on_token({static_cast<int64_t>(i), id, log_probability}))
        texts[i].ended = true;
    }
  }

  std::vector<std::vector<int64_t>> out;
  for (const Text& t : texts)
    out.emplace_back(t.ids.begin() + static_cast<std::ptrdiff_t>(t.given), t.ids.end());
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

  size_t hold = 0;  // the longest suffix of held_ that begins a stop
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
