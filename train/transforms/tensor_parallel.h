// Cuts a model's layers among tensor ranks (dist.tensor), by the rules of its kind.
#pragma once

#include <vector>

#include "train/config/transform.h"

namespace lathe {

/// Returns the rules by which the config's model kind cuts its layers; empty if it has none.
std::vector<LayerCut> layer_cuts_of(const RunConfig& config);
/// Replaces each parameter that the rules cut with this process's part of it, unless it is already
/// a part. If a layer is cut along its outputs, the matrix B of its adapter is cut too; if it is
/// cut along its inputs, the matrix A is. Does nothing with one tensor rank. Throws Exit::usage if
/// the number of ranks does not divide the units of a rule, or if a parameter's size along the cut
/// dimension can't be divided among the ranks.
void cut_for_tensor_ranks(Model& model, const TransformContext& context);

}  // namespace lathe
