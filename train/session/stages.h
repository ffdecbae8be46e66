// Divides the blocks of a run's model among the stages of its pipeline (dist.pipeline).
#pragma once

#include <memory>
#include <vector>

#include "dist/stage_parameters.h"
#include "nn/models/model.h"
#include "train/config/run_config.h"

namespace lathe {

/// Returns the parameters of this process's stage; null if there is only one stage. Each stage has
/// dist.virtual_stages parts of the pipeline. dist.stage_blocks lists the number of blocks of each
/// part. If that key is "auto", the blocks are cut so that the part with the most FLOPs has as few
/// FLOPs as possible (cut_into_stages()). `sizes`: the sizes with which the model was made.
/// `trained`: the parameters that the run trains. Throws Exit::usage if the model can't be divided
/// as the config demands.
std::unique_ptr<StageParameters> make_stage(const LoadedConfig& loaded, const Model& model,
                                            const ModelSizes& sizes,
                                            const std::vector<NamedParameter>& trained);

}  // namespace lathe
