// Implements dropout. Its mask depends on the seed, the step and the position in the global batch.
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/formula.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/dropout.h"
#include "core/parallel.h"
#include "core/position_part.h"

namespace lathe {
namespace {

/// Applies dropout to `in`, whose elements begin at index mask.first of the global batch. Both
/// tensors are contiguous.
void drop(const at::Tensor& in, const at::Tensor& y, const DropoutMask& mask) {
  const Element type = element_of(in.scalar_type());
  if (in.is_cuda())
    return cuda_api().dropout(in.const_data_ptr(), y.mutable_data_ptr(), in.numel(), type, mask);
  parallel_for(0, in.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    dropout_cpu(in.const_data_ptr(), y.mutable_data_ptr(), begin, end, type, mask);
  });
  bump_version(y);
}

struct Dropout {
  static constexpr OpInfo info{.name = "dropout", .elementwise = true};
  DropoutMask mask;
  PositionPart part{};   // the part of dim 1 that this process has (context parallelism)
  SequencePart share{};  // the process's share of `part` (sequence parallelism)

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor in = x.contiguous();
    at::Tensor y = at::empty_like(in);
    if (part.parts == 1 && share.parts == 1) {
      drop(in, y, mask);
      return y;
    }

    // The elements of successive positions are also contiguous in the global batch.
    const int64_t count = in.size(1), all = count * share.parts * part.parts;
    const int64_t width = in[0].numel() / count;
    for (int64_t row = 0; row < in.size(0); ++row) {
      int64_t at = 0;
      for (const PositionRange& range : position_ranges(part, share, count)) {
        DropoutMask here = mask;
        here.first += static_cast<uint64_t>((row * all + range.begin) * width);
        drop(in[row].narrow(0, at, range.length), y[row].narrow(0, at, range.length), here);
        at += range.length;
      }
    }
    return y;
  }
  // dx = dy under the same mask
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) {
      return {Dropout{.mask = mask, .part = part, .share = share}.forward(dy)};
    } else {
      return {apply(Dropout{.mask = mask, .part = part, .share = share}, dy)};
    }
  }
};

}  // namespace

Variable dropout(const Variable& x, double p, uint64_t stream) {
  require_defined("dropout", {&x});
  LATHE_CHECK(p >= 0 && p < 1, "dropout: p = ", p, " is outside [0, 1)");
  if (p == 0 || !is_training()) return x;

  const auto& random = mode().random;
  LATHE_CHECK(random,
              "dropout: random numbers need a TrainingStep or Training guard (core/mode.h); create "
              "one first");
  LATHE_CHECK(x.dim() >= 1 && x.size(0) > 0, "dropout(", describe(x.data()),
              "): needs dim 0, the batch, with at least one element");

  // Count the elements of complete samples, including those on other ranks, so that the mask is the
  // same on any number of ranks.
  const PositionPart part =
      mode().position_part != nullptr ? *mode().position_part : PositionPart();
  const SequencePart share =
      mode().sequence_part != nullptr ? *mode().sequence_part : SequencePart();
  const int64_t row = x.numel() / x.size(0) * part.parts * share.parts;

  const uint64_t use = (*mode().uses)[stream]++;
  return apply(Dropout{.mask = {.key = make_key(random->seed, stream + use * 0x9e3779b97f4a7c15u),
                                .step = random->step,
                                .first = static_cast<uint64_t>(random->first_sample * row),
                                .threshold = static_cast<uint32_t>(
                                    std::min(std::llround(p * 0x1p32), 0xffffffffLL)),
                                .scale = 1 / (1 - p)},
                       .part = part,
                       .share = share},
               x);
}

}  // namespace lathe
