// What init, optimizers and precision know of a parameter beside its values.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/variable.h"

namespace lathe {

/// What a parameter is, for init and weight decay.
enum class Role {
  weight,           ///< [out, in] of a linear layer
  residual_weight,  ///< the same, writing into the residual stream: GPT-2 scales its init by depth
  embedding,        ///< [rows, C]
  tied_embedding,   ///< the same, and the weight of the output head too
  scale,            ///< starts at one
  bias,             ///< starts at zero
  lora_a,           ///< [rank, in] of a low-rank adapter
  lora_b,           ///< [out, rank] of a low-rank adapter: starts at zero, so that the adapter starts as nothing
};

struct NamedParameter {
  std::string path;
  Variable parameter;
  Role role;
  int64_t block = -1;  ///< which of the model's repeated blocks it is in, from 0; -1: in none
};

/// Whether it is a matrix that inputs are multiplied by: the parameters that low precision is about.
inline bool is_multiplied(Role role) {
  return role == Role::weight || role == Role::residual_weight || role == Role::lora_a || role == Role::lora_b ||
         role == Role::tied_embedding;
}
/// Whether it is the weight of a linear layer.
inline bool is_linear_weight(Role role) { return is_multiplied(role) && role != Role::tied_embedding; }

}  // namespace lathe
