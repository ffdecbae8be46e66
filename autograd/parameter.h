// Defines the properties of a parameter for initialization, optimizers and precision.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "autograd/variable.h"
#include "core/rng.h"

namespace lathe {

/// The role of a parameter in its model. The constants below are the roles in Lathe's layers. Your
/// own layers can define other roles: `constexpr Role gate{.name = "gate", .start =
/// Role::Start::one}`.
struct Role {
  /// The initial values (nn/init.h).
  enum class Start : uint8_t {
    scheme,  ///< by the scheme of `model.init`; needs 2 dimensions or more
    normal,  ///< normal, with standard deviation 0.02
    fan_in,  ///< normal, with standard deviation 1 / sqrt(fan_in)
    one,
    zero,
  };

  std::string_view name;    ///< name of the role; must outlive the role, as a literal does
  bool multiplied = false;  ///< whether inputs are multiplied by this matrix, so that low precision
                            ///< applies to it
  bool linear = false;      ///< whether the parameter is the weight of a linear layer, to which
                            ///< fp8 and quantized loading apply
  bool residual = false;    ///< whether the layer writes into a residual stream, so that
                            ///< Init::gpt2 scales the parameter down
  bool adapter = false;     ///< whether the parameter is part of a low-rank adapter
  bool hidden = false;      ///< whether the parameter is a matrix or filters that map features to
                            ///< features, so that Muon applies to it
  std::optional<bool>
      decayed{};  ///< whether weight decay acts on it; nullopt: only if it has 2 dimensions or more
  Start start = Start::zero;
  /// If set, this function draws the initial values, and `start` is ignored. `values` is the
  /// parameter, and `key` is the parameter's stream of random numbers.
  void (*fill)(const at::Tensor& values, RngKey key) = nullptr;

  friend bool operator==(const Role&, const Role&) = default;

  static const Role weight;           ///< [out, in] of a linear layer
  static const Role residual_weight;  ///< [out, in] of a layer that writes into the residual stream
  static const Role head;       ///< [out, in] of the linear layer that computes the model's outputs
  static const Role filter;     ///< [out, in, ...] of a convolution
  static const Role embedding;  ///< [rows, C]
  static const Role tied_embedding;  ///< [rows, C], also used as the weight of the output head
  static const Role scale;           ///< starts at one
  static const Role bias;            ///< starts at zero
  static const Role lora_a;          ///< [rank, in] of a low-rank adapter
  static const Role lora_b;  ///< [out, rank] of a low-rank adapter; starts at zero, so that the
                             ///< adapter has no effect at first
  static const Role lora_m;  ///< [out] magnitudes of a DoRA adapter
};

inline constexpr Role Role::weight{.name = "weight",
                                   .multiplied = true,
                                   .linear = true,
                                   .hidden = true,
                                   .start = Role::Start::scheme};
inline constexpr Role Role::head{
    .name = "head", .multiplied = true, .linear = true, .start = Role::Start::scheme};
inline constexpr Role Role::residual_weight{.name = "residual weight",
                                            .multiplied = true,
                                            .linear = true,
                                            .residual = true,
                                            .hidden = true,
                                            .start = Role::Start::scheme};
inline constexpr Role Role::filter{
    .name = "filter", .multiplied = true, .hidden = true, .start = Role::Start::scheme};
inline constexpr Role Role::embedding{.name = "embedding", .start = Role::Start::normal};
inline constexpr Role Role::tied_embedding{
    .name = "tied embedding", .multiplied = true, .start = Role::Start::normal};
inline constexpr Role Role::scale{.name = "scale", .start = Role::Start::one};
inline constexpr Role Role::bias{.name = "bias", .start = Role::Start::zero};
inline constexpr Role Role::lora_a{.name = "lora_a",
                                   .multiplied = true,
                                   .linear = true,
                                   .adapter = true,
                                   .hidden = true,
                                   .start = Role::Start::fan_in};
inline constexpr Role Role::lora_b{.name = "lora_b",
                                   .multiplied = true,
                                   .linear = true,
                                   .adapter = true,
                                   .hidden = true,
                                   .start = Role::Start::zero};
inline constexpr Role Role::lora_m{.name = "lora_m", .adapter = true, .start = Role::Start::one};

/// A parameter of a model, as returned by parameters() (nn/module.h). It holds a handle of the
/// model's Variable.
struct NamedParameter {
  std::string path;
  Variable parameter;
  Role role;
  int64_t block = -1;  ///< index of the repeated block that contains the parameter; -1: none
};

/// Returns whether a path fits a pattern, in which * stands for any number of characters:
/// "blocks.*.weight".
bool matches(std::string_view pattern, std::string_view path);

/// Returns whether inputs are multiplied by the parameter, so that low precision applies to it.
inline bool is_multiplied(const Role& role) { return role.multiplied; }
/// Returns whether the parameter is the weight of a linear layer.
inline bool is_linear_weight(const Role& role) { return role.linear; }

}  // namespace lathe
