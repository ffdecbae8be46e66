#include "nn/layers/pool.h"

#include "nn/module_call.h"

namespace lathe {
namespace {

template <class Module, class F>
Variable along_one(const Module& module, const Variable& x_BCL, F&& f) {
  ModuleCall call(module);
  call.input(x_BCL, "B C L");
  return call.result(f(x_BCL), "B C X");
}
template <class Module, class F>
Variable along_two(const Module& module, const Variable& x_BCHW, F&& f) {
  ModuleCall call(module);
  call.input(x_BCHW, "B C H W");
  return call.result(f(x_BCHW), "B C Y X");
}

}  // namespace

Variable MaxPool2d::operator()(const Variable& x_BCHW) const {
  return along_two(*this, x_BCHW, [&](const Variable& x) {
    return max_pool2d(x, kernel, stride, padding, dilation, ceil_mode);
  });
}
Variable AvgPool2d::operator()(const Variable& x_BCHW) const {
  return along_two(*this, x_BCHW, [&](const Variable& x) {
    return avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad);
  });
}
Variable AdaptiveAvgPool2d::operator()(const Variable& x_BCHW) const {
  return along_two(*this, x_BCHW, [&](const Variable& x) { return adaptive_avg_pool2d(x, out); });
}
Variable MaxPool1d::operator()(const Variable& x_BCL) const {
  return along_one(*this, x_BCL, [&](const Variable& x) {
    return max_pool1d(x, kernel, stride, padding, dilation, ceil_mode);
  });
}
Variable AvgPool1d::operator()(const Variable& x_BCL) const {
  return along_one(*this, x_BCL, [&](const Variable& x) {
    return avg_pool1d(x, kernel, stride, padding, ceil_mode, count_include_pad);
  });
}
Variable AdaptiveAvgPool1d::operator()(const Variable& x_BCL) const {
  return along_one(*this, x_BCL, [&](const Variable& x) { return adaptive_avg_pool1d(x, out); });
}

}  // namespace lathe
