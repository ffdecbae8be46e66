// The loss of next-token language modeling.
#pragma once

#include "data/data.h"
#include "nn/models/model.h"

namespace lathe {

/// Returns the cross-entropy summed over a batch's targets that are not -100, divided by `divisor`.
/// []
Variable token_loss(const Model& model, const Batch& batch, double divisor);

}  // namespace lathe
