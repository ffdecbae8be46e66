// A cache of keys and values (Pope et al. 2022, "Efficiently scaling transformer inference",
// section 3.3), so that a forward pass computes only the new tokens of a text. Attention modules
// write into the cache and read from it. A model whose attention uses a cache declares `static
// constexpr bool caches_keys = true`.
//
// A model's forward pass is the same code with and without a cache. Models without `caches_keys`
// recompute the complete window for each token. Beyond the context length, every model recomputes
// the window, because the window's first token changes, which changes every key.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "autograd/ops/attention.h"
#include "autograd/variable.h"
#include "core/mode.h"

namespace lathe {

/// Keys and values that a model's layers computed from the tokens of several texts.
class KeyValueCache {
 public:
  /// Creates a cache for `texts` texts of up to `capacity` tokens each. Each layer allocates its
  /// memory in its first forward pass.
  KeyValueCache(int64_t texts, int64_t capacity)
      : capacity_(capacity), lengths_(static_cast<size_t>(texts), 0) {}

  int64_t capacity() const { return capacity_; }
  /// Returns the number of cached tokens of a text.
  int64_t length(int64_t text) const { return lengths_.at(static_cast<size_t>(text)); }
  /// Drops all but the first `length` tokens of a text.
  void truncate(int64_t text, int64_t length);

  // Modules call the functions below while a Use exists.
  /// Returns the positions of each row's t new tokens in the row's text: int64 [B, t] on `device`.
  at::Tensor position_ids(int64_t t, at::Device device) const;
  /// Caches k and v, and computes causal attention of the new tokens to the cached tokens and to
  /// each other: q [B, t, H D], k and v [B, t, K D], with rows of any stride -> [B, t, H D].
  /// `layer` identifies the layer that computed k and v. Keys outside of the sliding window of
  /// `scores` stay cached, but are not read.
  Variable attend(const void* layer, const Variable& q, const Variable& k, const Variable& v,
                  int64_t heads, int64_t kv_heads, const ScoreOptions& scores = {});

  /// While this object exists, no graph is recorded, and the forward passes of this thread take the
  /// next tokens of `texts`: one row for each text, with the same number of tokens in each row.
  /// Call commit() after all layers have computed these tokens.
  class Use : ModeGuard {
   public:
    Use(KeyValueCache& cache, std::vector<int64_t> texts);
    /// Marks `tokens` more tokens of each text as cached.
    void commit(int64_t tokens);

   private:
    KeyValueCache& cache_;
  };

 private:
  struct Layer {
    at::Tensor keys, values;  // [texts, capacity, K D]
  };
  int64_t capacity_;
  std::vector<int64_t> lengths_, rows_;  // rows_: the text of each row of a forward pass
  std::unordered_map<const void*, Layer> layers_;
};

}  // namespace lathe
