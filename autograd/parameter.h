// What init, optimizers and precision know of a parameter beside its values.
#pragma once

#include <string>

#include "autograd/variable.h"

namespace lathe {

/// What a parameter is, for init and weight decay.
enum class Role {
  weight,           ///< [out, in] of a linear layer
  residual_weight,  ///< the same, writing into the residual stream: GPT-2 scales its init by depth
  embedding,        ///< [rows, C]
  scale,            ///< starts at one
  bias,             ///< starts at zero
  lora_a,           ///< [rank, in] of a low-rank adapter
  lora_b,           ///< [out, rank] of a low-rank adapter: starts at zero, so that the adapter starts as nothing
};

struct NamedParameter {
  std::string path;
  Variable parameter;
  Role role;
};

}  // namespace lathe
