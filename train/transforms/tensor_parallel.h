// Cuts a model's layers among tensor ranks (dist.tensor), by the rules of the model kind.
#pragma once

#include <vector>

#include "train/config/transform.h"

namespace lathe {

/// Returns the rules by which the config's model kind cuts its layers; empty if the kind has no
/// rules.
std::vector<LayerCut> layer_cuts_of(const RunConfig& config);
/// Replaces each parameter that the rules cut with this process's part of the parameter, unless it
/// is already a part. If a layer is cut along its outputs, the matrix B of its adapter is also cut.
/// If a layer is cut along its inputs, the matrix A of its adapter is also cut. Does nothing if
/// there is only one tensor rank. Throws Exit::usage if the number of ranks does not divide the
/// units of a rule, or if a parameter's size along the cut dimension can't be divided among the
/// ranks.
void cut_for_tensor_ranks(Model& model, const TransformContext& context);

}  // namespace lathe
