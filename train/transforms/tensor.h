// Cuts a model's layers among tensor ranks (dist.tensor), by the rules of its kind.
#pragma once

#include "train/config/transform.h"

namespace lathe {

/// Replaces each parameter that a rule of the model's kind cuts by the part of this process. Does
/// nothing with one tensor rank.
void cut_for_tensor_ranks(Model& model, const TransformContext& context);
/// Returns a conflict of dist.tensor with other keys, if any.
std::optional<ConfigFault> check_tensor(const RunConfig& config);

}  // namespace lathe
