// Windows of token shards as batches, from one split or from several sources in turn.
//
// Instruction data marks ids that are read but not learned with the bit token_mark, so that one
// file with one checksum and one fingerprint holds ids and marks. In batches, their targets are
// -100. Micro-batches then differ in their number of targets, so the divisor of a step is counted
// in advance (TrainingBatches::targets).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/data.h"
#include "data/tokens/tokens.h"

namespace lathe {

/// A split that windows are read from.
struct WindowSource {
  const TokenFile* tokens;
  double weight = 1;   ///< share of the training windows, relative to the sum of all
  std::string name{};  ///< in a mixture; the order of the windows depends on it
};

/// The contents of windows in addition to inputs and targets.
struct WindowKind {
  /// Separate documents: the id of the token between two documents. It belongs to the second one.
  std::optional<int64_t> document_end{};
};

/// Returns training windows; the token files of the sources must outlive them.
std::unique_ptr<TrainingBatches> training_windows(const std::vector<WindowSource>& sources,
                                                  const BatchSizes& sizes, uint64_t seed,
                                                  const WindowKind& kind);
/// Returns all tokens of each source in turn, in windows that do not overlap; the last is short. If
/// `batches` is not 0 and there are enough windows, returns the windows of that many batches,
/// spread evenly over the tokens of all sources. All rows of a batch have the same source and
/// length, so there can be more batches if there are several sources. The token files must outlive
/// the result.
std::unique_ptr<EvaluationBatches> evaluation_windows(const std::vector<WindowSource>& sources,
                                                      const BatchSizes& sizes, int64_t batches,
                                                      at::Device device, const WindowKind& kind);

}  // namespace lathe
