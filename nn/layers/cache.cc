#include "nn/layers/cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "autograd/ops.h"
#include "core/error.h"

namespace lathe {

void KeyValueCache::truncate(int64_t text, int64_t length) {
  int64_t& now = lengths_.at(static_cast<size_t>(text));
  now = std::min(now, length);
}

at::Tensor KeyValueCache::position_ids(int64_t t, at::Device device) const {
  std::vector<int64_t> first;
  for (const int64_t text : rows_) first.push_back(length(text));
  return (at::tensor(first, at::kLong).unsqueeze(1) + at::arange(t, at::kLong)).to(device);
}

Variable KeyValueCache::attend(const void* layer, const Variable& q, const Variable& k,
                               const Variable& v, int64_t heads, int64_t kv_heads,
                               const ScoreOptions& scores) {
  const int64_t t = q.size(1), width = k.size(2);
  LATHE_CHECK(q.size(0) == static_cast<int64_t>(rows_.size()), "KeyValueCache: the input has ",
              q.size(0), " rows, but KeyValueCache::Use names ", rows_.size(), " texts");
  Layer& kept = layers_[layer];
  if (!kept.keys.defined()) {
    const auto texts = static_cast<int64_t>(lengths_.size());
    kept.keys = at::empty({texts, capacity_, width}, k.data().options());
    kept.values = at::empty({texts, capacity_, width}, v.data().options());
  }
  std::vector<Variable> out;
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t text = rows_[static_cast<size_t>(row)], before = length(text), now = before + t;
    LATHE_CHECK(now <= capacity_, "KeyValueCache: a text of ", now,
                " tokens exceeds the capacity of ", capacity_);
    const at::Tensor keys = kept.keys.slice(0, text, text + 1),
                     values = kept.values.slice(0, text, text + 1);
    keys.slice(1, before, now).copy_(k.data().slice(0, row, row + 1));
    values.slice(1, before, now).copy_(v.data().slice(0, row, row + 1));
    out.push_back(attention(slice(q, 0, row, row + 1), Variable(keys.slice(1, 0, now)),
                            Variable(values.slice(1, 0, now)), heads, kv_heads, {}, {}, scores));
  }
  return out.size() == 1 ? out[0] : cat(out, 0);
}

KeyValueCache::Use::Use(KeyValueCache& cache, std::vector<int64_t> texts) : cache_(cache) {
  cache.rows_ = std::move(texts);
  mode().grad = false;
  mode().cache = &cache;
}

void KeyValueCache::Use::commit(int64_t tokens) {
  for (const int64_t text : cache_.rows_) cache_.lengths_.at(static_cast<size_t>(text)) += tokens;
}

}  // namespace lathe
