#include "core/kernels/lstm.h"

#include <algorithm>

#include "core/kernels/epilogue.h"
#include "core/kernels/gemm.h"
#include "core/kernels/recurrent.h"
#include "core/kernels/scratch.h"

namespace lathe {
namespace {

constexpr int64_t panel_columns = 64;

/// Returns the number of rows of a task. It depends on the shape alone, so that each row is always
/// computed in a block of the same size. Small tasks serve more threads, but each reads the
/// complete weight at every step, which takes longer than its products where the weight exceeds a
/// core's cache.
int64_t rows_of_task(const LstmShape& s) {
  constexpr int64_t large = 384;  // units: 2.4 MB of weights
  if (s.batch >= 128) return 32;
  return s.batch >= 64 || (s.batch >= 32 && s.h >= large) ? 16 : 8;
}

/// The right factor [k, n] of the products of all steps, packed in panels of 64 columns.
class PackedFactor {
 public:
  /// Packs w [k, n] or, if `transposed`, the transpose of w [n, k].
  PackedFactor(Matrix w, int64_t k, int64_t n, bool transposed)
      : type_(multiplied_as(w.type)),
        k_(k),
        panels_(divide_up(n, panel_columns)),
        panel_bytes_(packed_depth(k, type_) * panel_columns * bytes_of(type_)),
        data_(c10::GetCPUAllocator()->allocate(static_cast<size_t>(panels_ * panel_bytes_))) {
    parallel_for(0, panels_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t column = p * panel_columns;
        const int64_t columns = std::min(panel_columns, n - column);
        if (transposed) {
          const Matrix rows{w.at(column, 0), w.stride, w.type};
          pack_right_transposed(rows, k, columns, panel_columns, panel(p), type_);
        } else {
          const Matrix part{w.at(0, column), w.stride, w.type};
          pack_right(part, k, columns, panel_columns, panel(p), type_);
        }
      }
    });
  }

  /// Returns the type of the factors in memory.
  Element type() const { return type_; }
  /// Returns the length of a row of the products: n rounded up to whole panels.
  int64_t width() const { return panels_ * panel_columns; }

  /// Computes out [rows, width()] = a [rows, k] times the factor, on this thread. `widened` has
  /// room for a in float32, for the case that it must be multiplied in that type.
  void multiply(Matrix a, int64_t rows, float* widened, float* out) const {
    if (a.type != type_) {
      widen(a, rows, k_, widened, k_);
      a = {widened, k_, Element::f32};
    }
    for (int64_t p = 0; p < panels_; ++p) {
      block_gemm(a, {panel(p), panel_columns, type_}, rows, panel_columns, k_,
                 out + p * panel_columns, width(), /*add=*/false);
    }
  }

 private:
  char* panel(int64_t p) const { return static_cast<char*>(data_.get()) + p * panel_bytes_; }

  Element type_;
  int64_t k_, panels_, panel_bytes_;
  c10::DataPtr data_;
};

/// A thread's working memory.
struct Working {
  float *product = nullptr, *widened = nullptr;
  char* up = nullptr;  // the gradient of a hidden state, in the weight's type

  Working(Carver carver, const LstmShape& s, const PackedFactor& factor, int64_t k, Element type) {
    const int64_t rows = rows_of_task(s);
    product = carver.take<float>(rows * factor.width());
    if (factor.type() != type) widened = carver.take<float>(rows * k);
    up = carver.take(rows * s.h * bytes_of(type));
    bytes = carver.used();
  }
  int64_t bytes = 0;
};

/// Calls f(first row, rows, working memory) for each task of a pass.
template <class F>
void each_task(const LstmShape& s, const PackedFactor& factor, int64_t k, Element type,
               const F& f) {
  const int64_t rows = rows_of_task(s);
  const Scratch scratch(Working(Carver(nullptr), s, factor, k, type).bytes);
  parallel_tasks(
      divide_up(s.batch, rows),
      [&](int64_t task) {
        const int64_t row = task * rows;
        const Working working(Carver(scratch.mine()), s, factor, k, type);
        f(row, std::min(rows, s.batch - row), working);
      },
      [&] { release_gemm(factor.type()); });
}

}  // namespace

void lstm_forward(const LstmShape& s, Matrix weight, void* gates, void* hidden, float* cells) {
  const Element type = weight.type;
  const PackedFactor factor(weight, s.h, 4 * s.h, /*transposed=*/true);
  const Matrix all_states{hidden, s.h, type}, all_gates{gates, 4 * s.h, type};

  each_task(s, factor, s.h, type, [&](int64_t row, int64_t rows, const Working& w) {
    for (int64_t i = 0; i < s.steps; ++i) {
      const int64_t t = s.reverse ? s.steps - 1 - i : i;
      const int64_t before = s.before(t) * s.batch + row, after = s.after(t) * s.batch + row;
      const int64_t here = t * s.batch + row;

      factor.multiply({all_states.at(before, 0), s.h, type}, rows, w.widened, w.product);
      finish_block(w.product, factor.width(), here, 0, rows, 4 * s.h,
                   {.out = all_gates, .residual = all_gates});
      lstm_cell_forward(all_gates.at(here, 0), type, cells + before * s.h,
                        const_cast<void*>(all_states.at(after, 0)), cells + after * s.h, rows, s.h);
    }
  });
}

void lstm_backward(const LstmShape& s, Matrix weight, const void* gates, const float* cells,
                   const void* dy, const float* dc, void* dgates, void* dh0, float* dc0) {
  const Element type = weight.type;
  const PackedFactor factor(weight, 4 * s.h, s.h, /*transposed=*/false);
  const Matrix all_gates{gates, 4 * s.h, type}, all_dgates{dgates, 4 * s.h, type},
      all_dy{dy, s.h, type};

  each_task(s, factor, 4 * s.h, type, [&](int64_t row, int64_t rows, const Working& w) {
    const float* later = dc == nullptr ? nullptr : dc + row * s.h;
    float* const dcell = dc0 + row * s.h;

    for (int64_t i = 0; i < s.steps; ++i) {
      const int64_t t = s.reverse ? i : s.steps - 1 - i;
      const int64_t before = s.before(t) * s.batch + row, after = s.after(t) * s.batch + row;
      const int64_t here = t * s.batch + row;

      // The gradient of the hidden state: that of the result, and through the gates of the next
      // step.
      const void* up = dy == nullptr ? nullptr : all_dy.at(here, 0);
      if (i > 0) {
        Epilogue sum{.out = {w.up, s.h, type}};
        if (up != nullptr) sum.residual = {up, s.h, type};
        finish_block(w.product, factor.width(), 0, 0, rows, s.h, sum);
        up = w.up;
      }

      lstm_cell_backward(all_gates.at(here, 0), type, cells + before * s.h, cells + after * s.h, up,
                         later, const_cast<void*>(all_dgates.at(here, 0)), dcell, rows, s.h);
      later = dcell;
      factor.multiply({all_dgates.at(here, 0), 4 * s.h, type}, rows, w.widened, w.product);
    }
    finish_block(w.product, factor.width(), row, 0, rows, s.h, {.out = {dh0, s.h, type}});
  });
}

}  // namespace lathe
