// Embedding tables. Shapes: B bags, L ids per bag, N ids in all bags together, C channels.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/ops.h"
#include "nn/module.h"

namespace lathe {

/// Looks up rows of a table: ids int64 [...] -> [..., C].
struct Embedding {
  Variable weight;  ///< [rows, C]
  Role role = Role::embedding;

  Embedding() = default;
  Embedding(int64_t rows, int64_t channels, const Role& role = Role::embedding);
  Variable operator()(const at::Tensor& ids) const;
  void visit(Visit& v) { v("weight", weight, role); }
};

/// How the rows of a bag are combined.
enum class BagMode : uint8_t { sum, mean, max };

/// Combines the table's rows for each bag of ids, like torch.nn.EmbeddingBag.
struct EmbeddingBag {
  Variable weight;  ///< [rows, C]
  BagMode bag = BagMode::mean;
  std::optional<int64_t> padding;  ///< an id that is ignored and does not count in a mean

  EmbeddingBag() = default;
  EmbeddingBag(int64_t rows, int64_t channels, BagMode bag = BagMode::mean,
               std::optional<int64_t> padding = std::nullopt);
  /// Maps ids int64 [B, L] to [B, C]. A bag in which all ids are ignored gives zeros. `scales`
  /// [B, L] has a factor for each id's row, and is allowed only for BagMode::sum.
  Variable operator()(const at::Tensor& ids_BL, const Variable& scales_BL = {}) const;
  /// Maps bags of different lengths to [B, C]. ids int64 [N] holds all bags, one after another. Bag
  /// i begins at offsets[i] (int64 [B], nondecreasing from 0) and ends where the next bag begins.
  Variable operator()(const at::Tensor& ids_N, const at::Tensor& offsets_B,
                      const Variable& scales_N = {}) const;
  void visit(Visit& v) { v("weight", weight, Role::embedding); }

 private:
  Variable reduce(const at::Tensor& ids_N, const at::Tensor& bag_N, int64_t bags,
                  const Variable& scales_N) const;
};

}  // namespace lathe
