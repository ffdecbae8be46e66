#include "core/kernels/loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/loss.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// Returns the loss of one row. If `gradient` is true, replaces the row by the gradient of the
/// loss, multiplied by `weight`.
template <class T>
float loss_of_row(T* x, int64_t classes, int64_t target, float weight, bool gradient) {
  V top = set(-INFINITY);
  const V low = top;
  for_vectors(classes, [&](int64_t i, auto part)
                           HWY_ATTR { top = hn::Max(top, part.keep_or(part(x + i), low)); });
  const V most = set(max_of(top));
  V sum = set(0);
  for_vectors(classes, [&](int64_t i, auto part) HWY_ATTR {
    sum = hn::Add(sum, part.keep(exp_of(hn::Sub(part(x + i), most))));
  });
  const float total = sum_of(sum),
              loss = std::log(total) - (static_cast<float>(x[target]) - hn::GetLane(most));
  if (!gradient) return loss;
  const V w = set(weight / total);
  const float at_target = (std::exp(-loss) - 1) * weight;
  for_vectors(classes, [&](int64_t i, auto part) HWY_ATTR {
    part(hn::Mul(exp_of(hn::Sub(part(x + i), most)), w), x + i);
  });
  x[target] = static_cast<T>(at_target);
  return loss;
}

void loss_rows(Matrix logits, int64_t begin, int64_t end, int64_t classes, int64_t padding,
               const int64_t* targets, int64_t ignore, float weight, bool gradient, float* losses) {
  with_element(logits.type, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (int64_t r = begin; r < end; ++r) {
      T* row = static_cast<T*>(const_cast<void*>(logits.at(r, 0)));
      const bool counts = targets[r] != ignore;
      losses[r] = counts ? loss_of_row(row, classes, targets[r], weight, gradient) : 0;
      if (!gradient) continue;
      const int64_t from = counts ? classes : 0;
      std::fill(row + from, row + classes + padding, T(0.0f));
    }
  });
}

/// Adds row order[i] of `values` to row ids[order[i]] of `table` for begin <= i < end.
/// ids[order[i]] must not decrease with i.
void add_rows(Matrix values, const int64_t* ids, const int64_t* order, int64_t begin, int64_t end,
              int64_t columns, Matrix table, float* sum) {
  with_elements(values.type, table.type, [&](auto value, auto entry) HWY_ATTR {
    using Value = decltype(value);
    using Entry = decltype(entry);
    for (int64_t i = begin; i < end;) {
      const int64_t id = ids[order[i]];
      Entry* to = static_cast<Entry*>(const_cast<void*>(table.at(id, 0)));
      std::fill_n(sum, columns, 0.0f);
      for (; i < end && ids[order[i]] == id; ++i) {
        const Value* row = static_cast<const Value*>(values.at(order[i], 0));
        for_vectors(columns, [&](int64_t c, auto part) HWY_ATTR {
          part(hn::Add(part(row + c), part(sum + c)), sum + c);
        });
      }
      for_vectors(columns, [&](int64_t c, auto part)
                               HWY_ATTR { part(hn::Add(part(sum + c), part(to + c)), to + c); });
    }
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(loss_rows);
HWY_EXPORT(add_rows);

void cross_entropy_rows(Matrix logits, int64_t rows, int64_t classes, int64_t padding,
                        const int64_t* targets, int64_t ignore, float weight, bool gradient,
                        float* losses) {
  parallel_for(0, rows, divide_up(1 << 13, classes), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(loss_rows)
    (logits, begin, end, classes, padding, targets, ignore, weight, gradient, losses);
  });
}

void scatter_add_rows(Matrix values, const int64_t* ids, int64_t n, int64_t columns, Matrix table) {
  // Task t processes the ids with id % tasks == t. Frequent ids are often neighboring numbers, so
  // this spreads them over the tasks. For any number of tasks, one thread sums the rows of an id in
  // their order.
  const int64_t threads = at::get_num_threads();
  const int64_t tasks =
      threads == 1 ? 1 : std::min<int64_t>(4 * threads, divide_up(n * columns, 1 << 13));
  const Scratch scratch(columns * 4);
  const auto run = [&](int64_t task) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < n; ++i) {
      if (ids[i] % tasks == task) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return ids[a] < ids[b]; });
    HWY_DYNAMIC_DISPATCH(add_rows)
    (values, ids, order.data(), 0, static_cast<int64_t>(order.size()), columns, table,
     reinterpret_cast<float*>(scratch.mine()));
  };
  parallel_tasks(tasks, run, [] {});
}

}  // namespace lathe
#endif
