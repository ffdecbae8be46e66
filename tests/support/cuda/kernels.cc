// The library's .cu files as C++. One file, so that their includes of CUDA's headers find the
// stand-ins beside it.
#include "core/kernels/activation.cu"
#include "core/kernels/dropout.cu"
#include "core/kernels/e4m3.cu"
#include "core/kernels/interleave.cu"
#include "core/kernels/linear.cu"
#include "core/kernels/loss.cu"
#include "core/kernels/norm.cu"
#include "core/kernels/rotary.cu"
#include "core/kernels/swiglu.cu"
#include "core/kernels/update.cu"
