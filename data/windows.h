// Windows of token shards as batches: of one split, or of several in turn.
//
// Instruction data marks ids that are read but not learned with the bit token_mark: one file,
// one checksum, one fingerprint. Batches have targets of -100 there. Micro-batches then have
// different numbers of targets, so the divisor of a step is counted in advance
// (TrainingBatches::targets).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/data.h"
#include "data/tokens.h"

namespace lathe {

/// A split that windows are from.
struct WindowSource {
  const TokenFile* tokens;
  double weight = 1;   ///< share of the training windows, over the sum of all
  std::string name{};  ///< of a mixture's: its windows' order depends on it
};

/// What windows are beside tokens and their successors.
struct WindowKind {
  /// Documents by themselves: the id of the token between them, with which a document begins.
  std::optional<int64_t> document_end{};
};

/// Training windows; the sources must outlive them.
std::unique_ptr<TrainingBatches> training_windows(const std::vector<WindowSource>& sources,
                                                  const BatchSizes& sizes, uint64_t seed,
                                                  const WindowKind& kind);
/// All of each source in turn, in windows that do not overlap, the last one short; all rows of a
/// batch have one length.
std::unique_ptr<EvaluationBatches> evaluation_windows(const std::vector<WindowSource>& sources,
                                                      const BatchSizes& sizes, int64_t batches,
                                                      at::Device device, const WindowKind& kind);

}  // namespace lathe
