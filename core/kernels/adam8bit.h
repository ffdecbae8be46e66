// Declares Adam and AdamW with moments that are stored in 8 bits (Dettmers et al. 2022, "8-bit
// optimizers via block-wise quantization"). The elements of a block share a scale, which is their
// largest absolute value. The codes index the levels of a dynamic tree (Dettmers 2016, "8-bit
// approximations for parallelism in deep learning"). A step decodes both moments, updates the
// moments and the parameter as Adam does, and rounds the moments to the nearest levels. It computes
// in float64 if the parameter is float64, otherwise in float32. A positive mean of squares is
// rounded to a positive level.
//
// The parameter is updated with the new moments before the moments are rounded to 8 bits.
#pragma once

#include <array>

#include "core/kernels/update.h"

namespace lathe {

/// Returns the 256 levels in ascending order: 0, 1, and the values 10^-e f for e = 0, ..., 6. With
/// `with_sign`, f takes the midpoints of 2^(6 - e) equal parts of [0.1, 1], and each value occurs
/// with both signs. Otherwise f takes the midpoints of 2^(7 - e) parts, and no value is negative.
const std::array<float, 256>& dynamic_levels(bool with_sign);
/// Returns the bounds between the levels of dynamic_levels(): the values halfway between neighbors.
/// If `with_sign` is false, the first bound is 0, so that no positive mean of squares is rounded to
/// 0. With a mean of squares of 0, the update would divide the mean of the gradient only by
/// epsilon.
const std::array<float, 255>& level_bounds(bool with_sign);

/// The arguments of an update. state[0] holds the codes of the mean, and state[1] the codes of the
/// mean of squares, as uint8 [n]. state[2] and state[3] hold the scales of these codes in float32,
/// one for each block of `block` elements.
struct Adam8bitArgs {
  UpdateArgs update;
  int64_t block = 0;
  bool decoupled = false;
};
/// Updates the elements of blocks [begin, end).
void adam8bit_cpu(const Adam8bitArgs& args, const UpdateRule& rule, StepControl* control,
                  int64_t begin, int64_t end);

}  // namespace lathe
