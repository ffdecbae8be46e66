// Implements TextBatch. In float32 with Lathe's kernels and without model.logit_softcap, neither
// the cache nor the other texts change a token or a bit of its probability. The reasons are that
// each row of a matrix product is summed separately in one order, that attention processes the same
// blocks of keys, and that rows are independent. The same holds for bfloat16 on CPUs that multiply
// bfloat16 numbers in float32. With ATen's kernels, native bfloat16 or quantized weights, a single
// row is summed in a different order than many rows, so logits are equal only up to rounding. This
// rounding changes a token only if two tokens are almost equally likely, or if a draw falls almost
// on the boundary between two tokens.
#include "train/tasks/text_batch.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "amp/amp.h"
#include "core/error.h"
#include "core/rng.h"
#include "train/tasks/generate.h"

namespace lathe {
namespace {

/// The number of prompt positions whose logits are computed and held in memory together.
constexpr int64_t scored_block = 64;

void penalize(const at::Tensor& logits, const std::vector<int64_t>& ids, double penalty) {
  double* x = logits.mutable_data_ptr<double>();
  for (const int64_t id : std::unordered_set<int64_t>(ids.begin(), ids.end())) {
    if (id < logits.numel()) x[id] = x[id] > 0 ? x[id] / penalty : x[id] * penalty;
  }
}

/// Returns the logits of the positions from `begin` up to, but not including, `end`: [B, end -
/// begin, V]. `x` is the result of features_of().
at::Tensor logits_at(const Model& model, const Variable& x, int64_t begin, int64_t end) {
  if (!model.has_head()) return x.data().slice(1, begin, end);
  return head_logits(slice(x, 1, begin, end), model.head_weight(), model.logit_softcap()).data();
}

/// Returns the input of the model's head. If the model has no head, returns the logits.
Variable features_of(const Model& model, const at::Tensor& ids_BT) {
  return model.has_head() ? model.features(ids_BT) : model(ids_BT);
}

/// Returns the logits of the last position of each row: [B, V].
at::Tensor next_logits(const Model& model, const at::Tensor& ids_BT) {
  const int64_t last = ids_BT.size(1) - 1;
  return logits_at(model, features_of(model, ids_BT), last, last + 1).select(1, 0);
}

}  // namespace

TokenScore score_token(const at::Tensor& logits_V, int64_t id, int64_t top) {
  const double* x = logits_V.const_data_ptr<double>();
  const int64_t n = logits_V.numel();
  const double highest = *std::max_element(x, x + n);
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::exp(x[i] - highest);
  const double log_total = std::log(total);

  TokenScore score{.id = id, .log_probability = x[id] - highest - log_total};
  const auto likelier = [](const auto& a, const auto& b) {
    return a.second > b.second || (a.second == b.second && a.first < b.first);
  };

  // score.top is a heap of the `top` likeliest tokens so far, with the least likely of these tokens
  // in front.
  for (int64_t i = 0; top > 0 && i < n; ++i) {
    const std::pair<int64_t, double> own{i, x[i] - highest - log_total};
    if (std::ssize(score.top) == top) {
      if (!likelier(own, score.top.front())) continue;
      std::pop_heap(score.top.begin(), score.top.end(), likelier);
      score.top.pop_back();
    }
    score.top.push_back(own);
    std::push_heap(score.top.begin(), score.top.end(), likelier);
  }
  std::sort_heap(score.top.begin(), score.top.end(), likelier);
  return score;
}

TextBatch::TextBatch(const Model& model, const BatchOptions& options)
    : model_(model), options_(options), rows_(static_cast<size_t>(options.texts)) {
  if (options.cache && model.caches_keys())
    cache_.emplace(options.texts, std::min(options.capacity, options.context));
}

int64_t TextBatch::join(BatchText text) {
  LATHE_CHECK(!text.ids.empty(), "TextBatch: a text that joins must have a token");
  const auto free =
      std::find_if(rows_.begin(), rows_.end(), [](const Row& r) { return !r.is_taken; });
  LATHE_CHECK(free != rows_.end(), "TextBatch: no room for another text");

  *free = {.text = std::move(text), .is_taken = true};
  ++texts_;
  const int64_t row = free - rows_.begin();
  if (cache_) cache_->truncate(row, 0);
  return row;
}

void TextBatch::leave(int64_t row) {
  Row& left = rows_.at(static_cast<size_t>(row));
  LATHE_CHECK(left.is_taken, "TextBatch: row ", row, " has no text");
  left = {};
  --texts_;
}

std::vector<NextToken> TextBatch::next() {
  const NoGrad no_grad;
  // Models in fp8 compute in bfloat16 here. An fp8 layer scales all rows by the largest value in
  // all rows, so each text would depend on the other texts.
  const Autocast autocast({matmul_dtype(options_.compute.dtype), options_.compute.cache});
  const std::vector<at::Tensor> logits = forward();

  std::vector<NextToken> tokens;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].is_taken) continue;
    BatchText& text = rows_[i].text;
    const at::Tensor own = logits[i].to(at::kCPU, at::kDouble).contiguous();
    if (std::string fault = logits_fault(own); !fault.empty()) {
      tokens.push_back(
          {.row = static_cast<int64_t>(i), .id = -1, .logits_V = {}, .error = std::move(fault)});
      continue;
    }

    // The reported probability is the model's, without the repetition penalty.
    at::Tensor penalized = own;
    if (text.sampling.repetition_penalty != 1)
      penalize(penalized = own.clone(), text.ids, text.sampling.repetition_penalty);

    // The draw depends only on the text's seed, its index and the number of its new tokens, so
    // other texts do not change it.
    const RngKey key = make_key(text.sampling.seed, hash_name("generate"));
    const double draw = unit(philox(counter(rows_[i].tokens++, text.index), key)[0]);
    const int64_t id = sample_token(penalized, text.sampling, draw);
    text.ids.push_back(id);
    tokens.push_back({.row = static_cast<int64_t>(i), .id = id, .logits_V = own});
  }
  return tokens;
}

std::vector<at::Tensor> TextBatch::forward() {
  std::vector<at::Tensor> logits(rows_.size());
  std::vector<int64_t> together, last;  // texts with one new token, and the last token of each
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].is_taken) continue;
    const auto row = static_cast<int64_t>(i);
    const std::vector<int64_t>& ids = rows_[i].text.ids;
    const auto length = static_cast<int64_t>(ids.size());
    if (rows_[i].tokens == 0 && rows_[i].text.on_prompt) {
      logits[i] = prompt_logits(row);
    } else if (!cache_ || length > options_.context) {
      // Beyond the context, the window moves at each token, so cached positions would be wrong.
      const auto from = static_cast<size_t>(std::max<int64_t>(0, length - options_.context));
      logits[i] = next_logits(model_, ids_from(row, from))[0];
    } else if (length - cache_->length(row) == 1) {
      together.push_back(row);
      last.push_back(ids.back());
    } else {
      const auto from = static_cast<size_t>(cache_->length(row));
      logits[i] = cached_logits({row}, ids_from(row, from))[0];
    }
  }

  if (together.empty()) return logits;
  // All these texts share one call. The top of this file states when the results are bitwise equal
  // to the results of separate calls.
  const at::Tensor rows =
      cached_logits(together, at::tensor(last, at::kLong).unsqueeze(1).to(options_.device));
  for (size_t i = 0; i < together.size(); ++i)
    logits[static_cast<size_t>(together[i])] = rows[static_cast<int64_t>(i)];
  return logits;
}

at::Tensor TextBatch::prompt_logits(int64_t row) {
  const auto& text = at(row).text;
  const auto length = static_cast<int64_t>(text.ids.size());
  LATHE_CHECK(length <= options_.context, "TextBatch: a scored prompt has ", length,
              " tokens, more than the context of ", options_.context);

  std::optional<KeyValueCache::Use> use;
  if (cache_) use.emplace(*cache_, std::vector<int64_t>{row});
  const Variable x = features_of(model_, ids_from(row, 0));
  for (int64_t begin = 0; begin < length - 1; begin += scored_block) {
    const int64_t end = std::min(length - 1, begin + scored_block);
    const at::Tensor block = logits_at(model_, x, begin, end)[0];
    for (int64_t i = begin; i < end; ++i) {
      const at::Tensor own = block[i - begin].to(at::kCPU, at::kDouble);
      if (!own.isfinite().all().item<bool>()) return own;
      text.on_prompt(static_cast<size_t>(i + 1), own.contiguous());
    }
  }

  const at::Tensor logits = logits_at(model_, x, length - 1, length)[0][0];
  if (use) use->commit(length);
  return logits;
}

at::Tensor TextBatch::cached_logits(const std::vector<int64_t>& rows, const at::Tensor& ids_BT) {
  KeyValueCache::Use use(*cache_, rows);
  const at::Tensor logits = next_logits(model_, ids_BT);
  use.commit(ids_BT.size(1));
  return logits;
}

at::Tensor TextBatch::ids_from(int64_t row, size_t from) const {
  return at::tensor(at::ArrayRef<int64_t>(ids(row)).slice(from), at::kLong)
      .unsqueeze(0)
      .to(options_.device);
}

}  // namespace lathe
