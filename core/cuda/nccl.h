// Provides NCCL through PyTorch's c10d, if the build found NCCL's header.
#pragma once

#include "core/device.h"

namespace lathe {

/// Holds the function for CudaApi::make_nccl; null if the build did not find the header of the NCCL
/// version that LibTorch uses.
extern decltype(CudaApi::make_nccl) const nccl_maker;

}  // namespace lathe
