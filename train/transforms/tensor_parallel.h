// Cuts a model's layers among tensor ranks (dist.tensor), by the rules of its kind.
#pragma once

#include <vector>

#include "train/config/transform.h"

namespace lathe {

/// Returns the rules of the model kind; empty if it has none.
std::vector<LayerCut> layer_cuts_of(const RunConfig& config);
/// Replaces each parameter that the rules cut with this process's part of it, unless it is a part
/// already. An adapter is cut where its layer is: B along the outputs, A along the inputs. Does
/// nothing with one tensor rank. Throws Exit::usage if the ranks do not divide the units of a rule,
/// or a parameter has too few rows.
void cut_for_tensor_ranks(Model& model, const TransformContext& context);

}  // namespace lathe
