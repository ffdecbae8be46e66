// NCCL by PyTorch's c10d, if the build found NCCL's header.
#pragma once

#include "core/device.h"

namespace lathe {

/// CudaApi::make_nccl.
extern decltype(CudaApi::make_nccl) const nccl_maker;

}  // namespace lathe
