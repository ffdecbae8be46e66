// A cache of keys and values (Pope et al. 2022, "Efficiently scaling transformer inference",
// section 3.3), so that a forward takes the new tokens of a text alone. Attention modules write
// into it and read from it; a model whose attention does so says `static constexpr bool caches_keys
// = true`.
//
// There is no second forward. Models without `caches_keys` recompute the window for each token.
// Beyond the context every model does: the window's first token changes, so every key changes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "autograd/variable.h"
#include "core/mode.h"

namespace lathe {

/// Keys and values that a model's layers made of the tokens of some texts.
class KeyValueCache {
 public:
  /// For `texts` of up to `capacity` tokens each. Memory is taken by each layer at its first
  /// forward.
  KeyValueCache(int64_t texts, int64_t capacity)
      : capacity_(capacity), lengths_(static_cast<size_t>(texts), 0) {}

  int64_t capacity() const { return capacity_; }
  /// Tokens of a text that the layers have seen.
  int64_t length(int64_t text) const { return lengths_.at(static_cast<size_t>(text)); }
  /// Forgets all but the first `length` tokens of a text.
  void cut(int64_t text, int64_t length);

  // For modules, within a Use.
  /// Places of the t new tokens of each row in its text: int64 [B, t] on `device`.
  at::Tensor places(int64_t t, at::Device device) const;
  /// Causal attention of the new tokens to those before them and to themselves: q [B, t, H D], k
  /// and v [B, t, K D], rows of any stride -> [B, t, H D]. `layer` says whose keys these are.
  Variable attend(const void* layer, const Variable& q, const Variable& k, const Variable& v,
                  int64_t heads, int64_t kv_heads);

  /// While alive, no graph is recorded, and the thread's forwards take the next tokens of `texts`,
  /// a row each and of one length, for cached ones. done() says that they went through all layers.
  class Use : ModeGuard {
   public:
    Use(KeyValueCache& cache, std::vector<int64_t> texts);
    /// `tokens` a text are cached from now on.
    void done(int64_t tokens);

   private:
    KeyValueCache& cache_;
  };

 private:
  struct Layer {
    at::Tensor keys, values;  // [texts, capacity, K D]
  };
  int64_t capacity_;
  std::vector<int64_t> lengths_, rows_;  // rows_: the texts of a forward's rows
  std::unordered_map<const void*, Layer> layers_;
};

}  // namespace lathe
