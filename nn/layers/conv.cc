#include "nn/layers/conv.h"

#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {

Conv2d::Conv2d(int64_t in, int64_t out, Pair kernel, const Conv2dOptions& options_, bool with_bias)
    : options(options_) {
  LATHE_CHECK(options.groups >= 1 && in % options.groups == 0 && out % options.groups == 0,
              "Conv2d: ", options.groups, " groups do not divide ", in, " channels in and ", out,
              " channels out");
  weight = new_parameter({out, in / options.groups, kernel.h, kernel.w});
  if (with_bias) bias = new_parameter({out});
}

Variable Conv2d::operator()(const Variable& x_BCHW) const {
  ModuleCall call(*this, {{'C', weight.size(1) * options.groups}, {'O', weight.size(0)}});
  call.input(x_BCHW, "B C H W");
  return call.result(conv2d(x_BCHW, weight, bias, options), "B O Y X");
}

Conv1d::Conv1d(int64_t in, int64_t out, int64_t kernel, const Conv1dOptions& options_,
               bool with_bias)
    : options(options_) {
  LATHE_CHECK(options.groups >= 1 && in % options.groups == 0 && out % options.groups == 0,
              "Conv1d: ", options.groups, " groups do not divide ", in, " channels in and ", out,
              " channels out");
  weight = new_parameter({out, in / options.groups, kernel});
  if (with_bias) bias = new_parameter({out});
}

Variable Conv1d::operator()(const Variable& x_BCL) const {
  ModuleCall call(*this, {{'C', weight.size(1) * options.groups}, {'O', weight.size(0)}});
  call.input(x_BCL, "B C L");
  return call.result(conv1d(x_BCL, weight, bias, options), "B O X");
}

}  // namespace lathe
