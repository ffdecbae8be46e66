// Declares TextBatch, whose texts a model continues together, one token at a time. A text may join
// or leave the batch between any two tokens. Each text has separate sampling parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "amp/amp.h"
#include "nn/layers/cache.h"
#include "nn/models/model.h"
#include "train/tasks/sampling.h"

namespace lathe {

/// Holds a token and its log probability under the model. Sampling parameters, such as the
/// temperature, do not affect this probability.
struct TokenScore {
  int64_t id = 0;
  double log_probability = 0;
  std::vector<std::pair<int64_t, double>> top{};  ///< the likeliest tokens with their log
                                                  ///< probabilities, the likeliest token first
};

/// Returns the log probabilities of token `id` and of the `top` likeliest tokens. Equally likely
/// tokens are ordered by id. `logits_V` is [V], float64, contiguous and on the CPU.
TokenScore score_token(const at::Tensor& logits_V, int64_t id, int64_t top);

/// Describes a text that joins a batch.
struct BatchText {
  std::vector<int64_t> ids;  ///< the text so far, not empty
  Sampling sampling{};
  uint64_t index = 0;  ///< texts with the same seed and different indices draw different numbers
  /// Function that receives the logits [V] (float64, on the CPU) from which the model predicts a
  /// token of `ids`, and the token's position in `ids`. It is called for every token of `ids` but
  /// the first. May be null.
  std::function<void(size_t position, const at::Tensor& logits_V)> on_prompt{};
};

/// Holds the next token of a text.
struct NextToken {
  int64_t row, id;
  at::Tensor logits_V;  ///< float64, on the CPU, before the repetition penalty
  /// The error if a logit is not finite, otherwise empty. With an error, there is no token, and the
  /// text can't continue.
  std::string error{};
};

/// Holds the parameters of a batch.
struct BatchOptions {
  int64_t texts = 1;     ///< largest number of texts at a time
  int64_t capacity = 0;  ///< largest number of tokens to cache for a text, limited by `context`
  int64_t context = 0;   ///< largest number of a text's last tokens that the model reads
  Compute compute = {};
  at::Device device{at::kCPU};
  /// Whether to cache keys and values, if the model supports it (Model::caches_keys). With the
  /// cache, only a text's new tokens are computed. The cache is not used for a text that is longer
  /// than the context.
  bool cache = true;
};

/// Continues texts together. The draw for a new token depends only on the text's seed, its index
/// and the number of its new tokens. In float32, with Lathe's kernels and without
/// model.logit_softcap, neither the other texts nor the cache change a bit of a text's logits. In
/// other cases, the other texts and the cache may change the rounding of the logits, and therefore
/// a token (train/tasks/text_batch.cc, docs/internals/kernels.md).
class TextBatch {
 public:
  /// The model must outlive the batch.
  TextBatch(const Model& model, const BatchOptions& options);

  /// Returns whether another text may join.
  bool has_room() const { return texts_ < rows_.size(); }
  /// Returns the number of texts.
  size_t size() const { return texts_; }
  /// Adds a text and returns its row. Throws Exit::internal if the text is empty or there is no
  /// room.
  int64_t join(BatchText text);
  /// Removes the text of a row.
  void leave(int64_t row);
  /// Returns the ids of a row's text, including the tokens that were added.
  const std::vector<int64_t>& ids(int64_t row) const { return at(row).text.ids; }
  /// Adds a token to each text and returns these tokens in the order of the rows. After an error in
  /// a text, only leave() may be called for this text.
  std::vector<NextToken> next();

 private:
  struct Row {
    BatchText text;
    bool is_taken = false;
    uint64_t tokens = 0;  // number of tokens that next() has added
  };

  const Row& at(int64_t row) const { return rows_.at(static_cast<size_t>(row)); }
  /// Returns the logits [V] of each row that has a text.
  std::vector<at::Tensor> forward();
  /// Passes the logits of a prompt to the prompt's on_prompt. If logits are not finite, stops at
  /// them and returns them. Otherwise returns the logits for the first token after the prompt.
  at::Tensor prompt_logits(int64_t row);
  at::Tensor cached_logits(const std::vector<int64_t>& rows, const at::Tensor& ids_BT);
  at::Tensor ids_from(int64_t row, size_t from) const;

  const Model& model_;
  BatchOptions options_;
  std::optional<KeyValueCache> cache_;
  std::vector<Row> rows_;
  size_t texts_ = 0;
};

}  // namespace lathe
