#include "core/kernels/lstm.h"

#include <algorithm>

#include "core/kernels/epilogue.h"
#include "core/kernels/gemm.h"
#include "core/kernels/recurrent.h"
#include "core/kernels/scratch.h"

namespace lathe {
namespace {

constexpr int64_t panel_columns = 64;
constexpr int64_t large_layer = 384;  // the smallest number of hidden units of a large layer, whose
                                      // weight has 2.4 MB in float32

/// Returns the number of rows of a task. This number depends only on the shape, so that each row is
/// always computed in a block of the same size. Small tasks occupy more threads. But each task
/// reads the complete weight at every step, which takes longer than the arithmetic if the weight is
/// larger than a core's cache.
int64_t rows_of_task(const LstmShape& s) {
  if (s.batch >= 128) return 32;
  return s.batch >= 64 || (s.batch >= 32 && s.h >= large_layer) ? 16 : 8;
}

/// The right factor [k, n] that the matmuls of all steps share, packed in panels of 64 columns.
class PackedFactor {
 public:
  /// Packs w [k, n], or the transpose of w [n, k] if `transposed` is true.
  PackedFactor(Matrix w, int64_t k, int64_t n, bool transposed)
      : type_(multiplied_as(w.type)),
        k_(k),
        n_(n),
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

  /// Returns the type in which the factors are multiplied.
  Element type() const { return type_; }
  /// Returns the length of a row of a product: n rounded up to complete panels.
  int64_t width() const { return panels_ * panel_columns; }

  /// Computes out [rows, width()] = a [rows, k] times the factor, on this thread. If `a` does not
  /// have the type type(), it is converted to float32 in `widened`, which must have space for rows
  /// * k elements.
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

  /// Computes a [rows, k] times the factor in blocks of `block` rows and 64 columns. ATen's threads
  /// divide the panels among themselves. Calls finish(product, row, rows, column, columns) for each
  /// block, where (row, column) is the block's position and `rows` and `columns` are its size. Rows
  /// of `product` are 64 elements apart. `a` must have the type type(), and a thread's part of
  /// `scratch` must have space for a block.
  template <class F>
  void multiply_in_blocks(Matrix a, int64_t rows, int64_t block, const Scratch& scratch,
                          const F& finish) const {
    parallel_for(0, panels_, 1, [&](int64_t begin, int64_t end) {
      auto* const product = reinterpret_cast<float*>(scratch.mine());
      for (int64_t p = begin; p < end; ++p) {
        const int64_t column = p * panel_columns, columns = std::min(panel_columns, n_ - column);
        for (int64_t row = 0; row < rows; row += block) {
          const int64_t n = std::min(block, rows - row);
          block_gemm({a.at(row, 0), a.stride, type_}, {panel(p), panel_columns, type_}, n,
                     panel_columns, k_, product, panel_columns, /*add=*/false);
          finish(product, row, n, column, columns);
        }
      }
      release_gemm(type_);
    });
  }

 private:
  char* panel(int64_t p) const { return static_cast<char*>(data_.get()) + p * panel_bytes_; }

  Element type_;
  int64_t k_, n_, panels_, panel_bytes_;
  c10::DataPtr data_;
};

/// The left factor [rows, k] of a step's matmul: a matrix, or a float32 copy of the matrix if the
/// type of the matrix is not multiplied directly.
class LeftFactor {
 public:
  LeftFactor(Element type, Element multiplied, int64_t rows, int64_t k)
      : k_(k),
        copy_(type == multiplied ? c10::DataPtr()
                                 : c10::GetCPUAllocator()->allocate(static_cast<size_t>(rows * k) *
                                                                    sizeof(float))) {}
  /// Updates the copy, if there is one, after rows [row, row + rows) of the matrix `a` got new
  /// values.
  void set_rows(Matrix a, int64_t row, int64_t rows) const {
    if (copy_) widen({a.at(row, 0), a.stride, a.type}, rows, k_, copy() + row * k_, k_);
  }
  /// Returns the copy if there is one, otherwise `a`. The rows of `a` must have been passed to
  /// set_rows().
  Matrix of(Matrix a) const { return copy_ ? Matrix{copy(), k_, Element::f32} : a; }

 private:
  float* copy() const { return static_cast<float*>(copy_.get()); }

  int64_t k_;
  c10::DataPtr copy_;
};

/// Returns whether threads divide the units of a layer instead of the batch. In this case, threads
/// wait for each other twice in each step, and each thread reads only its part of the weight. The
/// results are bitwise equal in both cases.
bool divides_units(const LstmShape& s) { return s.h >= large_layer; }

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

/// Computes lstm_forward() with the units divided among threads.
void forward_by_units(const LstmShape& s, const PackedFactor& factor, Matrix gates, Matrix states,
                      float* cells) {
  const int64_t block = rows_of_task(s);
  const Scratch scratch(block * panel_columns * static_cast<int64_t>(sizeof(float)));
  const LeftFactor left(states.type, factor.type(), s.batch, s.h);
  const auto at = [](Matrix m, int64_t row) { return Matrix{m.at(row, 0), m.stride, m.type}; };
  left.set_rows(at(states, s.first() * s.batch), 0, s.batch);

  for (int64_t i = 0; i < s.steps; ++i) {
    const int64_t t = s.step(i);
    const int64_t before = s.before(t) * s.batch, after = s.after(t) * s.batch, here = t * s.batch;

    factor.multiply_in_blocks(
        left.of(at(states, before)), s.batch, block, scratch,
        [&](const float* product, int64_t row, int64_t rows, int64_t column, int64_t columns) {
          finish_block(product, panel_columns, here + row, column, rows, columns,
                       {.out = gates, .residual = gates});
        });

    parallel_for(0, s.batch, 1, [&](int64_t row, int64_t end) {
      lstm_cell_forward(gates.at(here + row, 0), gates.type, cells + (before + row) * s.h,
                        const_cast<void*>(states.at(after + row, 0)), cells + (after + row) * s.h,
                        end - row, s.h);
      left.set_rows(at(states, after), row, end - row);
    });
  }
}

/// Computes lstm_backward() with the units divided among threads.
void backward_by_units(const LstmShape& s, const PackedFactor& factor, Matrix gates,
                       const float* cells, Matrix dy, const float* dc, Matrix dgates, Matrix dh0,
                       float* dc0) {
  const Element type = gates.type;
  const int64_t block = rows_of_task(s);
  const Scratch scratch(block * panel_columns * static_cast<int64_t>(sizeof(float)));
  const LeftFactor left(type, factor.type(), s.batch, 4 * s.h);
  const c10::DataPtr up_memory =
      c10::GetCPUAllocator()->allocate(static_cast<size_t>(s.batch * s.h * bytes_of(type)));
  const Matrix up{up_memory.get(), s.h, type};  // the gradient of a hidden state

  for (int64_t i = 0; i < s.steps; ++i) {
    const int64_t t = s.step(s.steps - 1 - i), here = t * s.batch;
    const int64_t before = s.before(t) * s.batch, after = s.after(t) * s.batch;

    parallel_for(0, s.batch, 1, [&](int64_t row, int64_t end) {
      const void* const first_up = dy.data == nullptr ? nullptr : dy.at(here + row, 0);
      const float* const later = i > 0 ? dc0 : dc;
      lstm_cell_backward(
          gates.at(here + row, 0), type, cells + (before + row) * s.h, cells + (after + row) * s.h,
          i > 0 ? up.at(row, 0) : first_up, later == nullptr ? nullptr : later + row * s.h,
          const_cast<void*>(dgates.at(here + row, 0)), dc0 + row * s.h, end - row, s.h);
      left.set_rows({dgates.at(here, 0), 4 * s.h, type}, row, end - row);
    });

    // The gradient of the previous hidden state is a sum: dy, since the state is an output, plus
    // the gradient through these gates.
    Epilogue sum{.out = i + 1 < s.steps ? up : dh0};
    if (i + 1 < s.steps && dy.data != nullptr)
      sum.residual = {dy.at(s.step(s.steps - 2 - i) * s.batch, 0), s.h, type};
    factor.multiply_in_blocks(
        left.of({dgates.at(here, 0), 4 * s.h, type}), s.batch, block, scratch,
        [&](const float* product, int64_t row, int64_t rows, int64_t column, int64_t columns) {
          finish_block(product, panel_columns, row, column, rows, columns, sum);
        });
  }
}

}  // namespace

void lstm_forward(const LstmShape& s, Matrix weight, void* gates, void* hidden, float* cells) {
  const Element type = weight.type;
  const PackedFactor factor(weight, s.h, 4 * s.h, /*transposed=*/true);
  const Matrix all_states{hidden, s.h, type}, all_gates{gates, 4 * s.h, type};
  if (divides_units(s)) return forward_by_units(s, factor, all_gates, all_states, cells);

  each_task(s, factor, s.h, type, [&](int64_t row, int64_t rows, const Working& w) {
    for (int64_t i = 0; i < s.steps; ++i) {
      const int64_t t = s.step(i);
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
  if (divides_units(s)) {
    return backward_by_units(s, factor, all_gates, cells, all_dy, dc, all_dgates, {dh0, s.h, type},
                             dc0);
  }

  each_task(s, factor, 4 * s.h, type, [&](int64_t row, int64_t rows, const Working& w) {
    const float* later = dc == nullptr ? nullptr : dc + row * s.h;
    float* const dcell = dc0 + row * s.h;

    for (int64_t i = 0; i < s.steps; ++i) {
      const int64_t t = s.step(s.steps - 1 - i);
      const int64_t before = s.before(t) * s.batch + row, after = s.after(t) * s.batch + row;
      const int64_t here = t * s.batch + row;

      // The gradient of the hidden state is a sum: dy, since the state is an output, plus the
      // gradient through the gates of the next step.
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
