// Declares next-token language modeling, and the functions that all tasks on tokens share.
#pragma once

#include <string>

#include "train/tasks/task.h"

namespace lathe {

/// Returns the cross-entropy, summed over a batch's targets that are not -100 and divided by
/// `divisor`, as a scalar.
Variable token_loss(const Model& model, const Batch& batch, double divisor);
/// Returns the cross-entropy of each row of a batch, [B], summed over the row's targets that are
/// not -100.
Variable row_losses(const Model& model, const Batch& batch);
/// Throws Exit::data if the data holds preferences, since a task other than dpo would learn both
/// answers of a pair.
void check_no_pairs(const LoadedConfig& loaded, const Data& data);

/// Implements the parts that all tasks on tokens share.
class TokenTask : public Task {
 public:
  std::string unit() const override { return "tokens"; }
  /// Checks that the data holds tokens, that the model kind models tokens, and that the vocabulary
  /// and the windows fit the model.
  ModelSizes fit(const LoadedConfig& loaded, const Data& data) const override;
  /// Generates up to 200 tokens after token 0, and returns the text of the generated tokens.
  std::string sample(const Model& model, const Data& data, const RunConfig& config, Compute compute,
                     at::Device device, const std::function<bool()>& stop) const override;
};

}  // namespace lathe
