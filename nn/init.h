// Initial values of parameters. The values are drawn on the CPU from the counter-based generator
// (core/rng.h). The random numbers for a parameter depend only on the seed and the parameter's
// path, and not on the order of construction or the device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/module.h"

namespace lathe {

/// The initial values of the weights of linear layers and the filters of convolutions
/// (`model.init`). fan_in and fan_out are the numbers of columns and rows of a weight, times the
/// number of positions of a filter. N(m, s) is a normal distribution with mean m and standard
/// deviation s; U(-a, a) is uniform. In every scheme, other parameters are initialized by their
/// role (autograd/parameter.h).
enum class Init {
  gpt2,  ///< N(0, 0.02); residual projections N(0, 0.02 / sqrt(2 n_layer)). Radford et al. 2019
  xavier_uniform,  ///< U(-a, a), a = gain sqrt(6 / (fan_in + fan_out)), gain 1. Glorot and Bengio
                   ///< 2010
  xavier_normal,   ///< N(0, gain sqrt(2 / (fan_in + fan_out))), gain 1. Glorot and Bengio 2010
  kaiming,  ///< N(0, gain / sqrt(fan_in)), gain sqrt(2) for ReLU-like activations. He et al. 2015
  fan_in,   ///< N(0, 1 / sqrt(fan_in)). LeCun et al. 1998
};
/// Returns the scheme that is called `name` in configs. Throws Exit::internal for an unknown name,
/// since configs are checked against init_names() first.
Init init_from_config(const std::string& name);
/// Returns the names of all schemes.
std::vector<std::string> init_names();

/// Fills every parameter with its initial values. `depth` is the number of layers, which Init::gpt2
/// uses. Throws if a parameter that the scheme fills has fewer than 2 dimensions.
void initialize(const std::vector<NamedParameter>& parameters, Init init, int64_t depth,
                uint64_t seed);
/// Fills every parameter of a model, and gives its layers their streams of random numbers
/// (assign_random_streams()).
void initialize(const ModuleRef& model, Init init, uint64_t seed, int64_t depth = 1);

}  // namespace lathe
