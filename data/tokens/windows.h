// Makes batches of windows of token shards, from one split or from several sources.
//
// In instruction data, ids that do not count toward the loss have the bit token_mark, so that one
// file with one checksum and one fingerprint holds ids and marks. In batches, the targets of such
// ids are -100. Micro-batches then differ in their number of targets, so the divisor of a step's
// mean loss is counted in advance (TrainingBatches::targets).
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
  double weight = 1;   ///< share of the training windows, relative to the sum of all weights
  std::string name{};  ///< name in a mixture; the order of the source's windows depends on it
};

/// Defines what batches of windows have in addition to inputs and targets.
struct WindowOptions {
  /// If set, batches have Batch::starts, and this is the id of the token between two documents. The
  /// token belongs to the second document.
  std::optional<int64_t> document_end{};
};

/// Returns the batches of training windows; the token files of the sources must outlive the result.
std::unique_ptr<TrainingBatches> training_windows(const std::vector<WindowSource>& sources,
                                                  const BatchSizes& sizes, uint64_t seed,
                                                  const WindowOptions& kind);
/// Returns the batches of an evaluation. They cover all tokens of each source in turn, in windows
/// that do not overlap; the last window of a source may be shorter. If `batches` is not 0 and there
/// are enough windows, the batches cover only a sample of `batches` times `sizes.batch_size`
/// windows, spread evenly over the tokens of all sources. All rows of a batch have the same source
/// and length, so with several sources there can be more than `batches` batches. The token files
/// must outlive the result.
std::unique_ptr<EvaluationBatches> evaluation_windows(const std::vector<WindowSource>& sources,
                                                      const BatchSizes& sizes, int64_t batches,
                                                      at::Device device, const WindowOptions& kind);

}  // namespace lathe
