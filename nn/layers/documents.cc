#include "nn/layers/documents.h"

#include <ATen/ops/arange.h>

#include "dist/context_ranks.h"
#include "nn/layers/cache.h"

namespace lathe {

at::Tensor token_positions(int64_t t, at::Device device) {
  if (mode().cache != nullptr) return mode().cache->position_ids(t, device);
  const PositionPart* part = mode().position_part;
  const at::Tensor starts = document_starts();
  if (part == nullptr && !starts.defined()) return {};

  const int64_t whole = part == nullptr ? t : t * part->parts;  // positions of a complete row
  const at::Tensor in_row =
      own_positions(at::arange(whole, at::TensorOptions(at::kLong).device(device)).unsqueeze(0));
  return starts.defined() ? in_row - starts : in_row.squeeze(0);
}

}  // namespace lathe
