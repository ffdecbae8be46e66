#include "core/kernels/gemm.h"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

#include "core/kernels/gemv.h"
#include "core/kernels/isa.h"
#include "core/kernels/scratch.h"

namespace lathe {
namespace {

constexpr int64_t block_rows = 32;      // of a result block: 8 KB of float32 with
constexpr int64_t block_columns = 64;   // these columns
constexpr int64_t waiting_rows = 1024;  // whose blocks wait between two steps in depth: 256 KB
constexpr int64_t tall_rows = 64;       // of a block of a^T b
constexpr int64_t wide_columns = 1024;  // of a^T b that one task holds: 256 KB

bool kernels_on = true;

/// Depth of a product between two visits to its block: a panel of that depth is 128 to 192 KB and stays in a core's own
/// cache.
int64_t depth_step(Element type) { return type == Element::f32 ? 768 : 1024; }

/// [0, n) in parts of equal size, at most `most` each and multiples of 16.
struct Parts {
  Parts(int64_t n_, int64_t most) : n(n_), size(std::min(most, round_up(divide_up(n_, divide_up(n_, most)), 16))) {}
  int64_t count() const { return divide_up(n, size); }
  int64_t begin(int64_t i) const { return i * size; }
  int64_t length(int64_t i) const { return std::min(size, n - begin(i)); }
  int64_t n, size;
};

/// Into how many parts a dimension of `n` is cut, beside `tasks` that there are already, so that each thread has two or
/// more; a part is not shorter than `least`.
int64_t cuts(int64_t tasks, int64_t n, int64_t least) {
  const int64_t threads = at::get_num_threads();
  return threads == 1 ? 1 : std::clamp<int64_t>(divide_up(2 * threads, tasks), 1, std::max<int64_t>(1, n / least));
}

/// What two factors are multiplied in.
Element common(Element a, Element b) { return a == b ? multiplied_as(a) : Element::f32; }

/// Rows of a left factor as a small product reads them: where they are, or copied to `space` [rows][stride] because
/// they have to be wider, or `deep` where they are only `have` long.
Matrix left_factor(Matrix a, Element as, int64_t rows, int64_t have, int64_t deep, char* space, int64_t stride) {
  if (a.type != as) {
    widen(a, rows, have, reinterpret_cast<float*>(space), stride);
    return {space, stride, as};
  }
  if (have == deep) return a;
  for (int64_t r = 0; r < rows; ++r) {
    char* to = space + r * stride * 2;
    std::memcpy(to, a.at(r, 0), static_cast<size_t>(have) * 2);
    std::memset(to + have * 2, 0, static_cast<size_t>(deep - have) * 2);
  }
  return {space, stride, as};
}

/// a b or a b^T: a thread packs a panel of b's columns, at most depth_step() deep, and takes a's rows past it. Where
/// the panel is deeper, a part's blocks wait for the next step side by side.
void gemm_rows(Matrix a, Matrix b, bool transposed, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  if (m == 0 || n == 0) return;
  const Element as = common(a.type, b.type);
  const Parts panels(n, block_columns);
  const int64_t depth = packed_depth(k, as), step = std::min(depth, depth_step(as));
  const bool at_once = step == depth;
  const int64_t most = round_up(divide_up(m, cuts(panels.count(), m, 4 * block_rows)), block_rows);
  const Parts rows(m, at_once ? most : std::min(most, waiting_rows));
  const int64_t packed = round_up(step * panels.size * bytes_of(as), 64);
  const bool copies = a.type != as || depth != k;
  const int64_t copied = copies ? round_up(block_rows * step * bytes_of(as), 64) : 0;
  const Scratch scratch(packed + copied + (at_once ? block_rows : rows.size) * panels.size * 4);
  std::vector<int64_t> packed_panel(static_cast<size_t>(at::get_num_threads()), -1);  // that each thread has
  const auto run = [&](int64_t task) {
    char* mine = scratch.mine();
    float* blocks = reinterpret_cast<float*>(mine + packed + copied);
    const int64_t panel = task / rows.count(), part = task % rows.count();
    const int64_t column = panels.begin(panel), columns = panels.length(panel), width = round_up(columns, 16);
    const int64_t first = rows.begin(part), last = first + rows.length(part);
    for (int64_t at = 0; at < depth; at += step) {
      const int64_t deep = std::min(step, depth - at), have = std::min(deep, k - at);
      int64_t& ready = packed_panel[static_cast<size_t>(at::get_thread_num())];
      if (!at_once || ready != panel) {
        ready = panel;
        if (transposed)
          pack_right_transposed({b.at(column, at), b.stride, b.type}, have, columns, width, mine, as);
        else
          pack_right({b.at(at, column), b.stride, b.type}, have, columns, width, mine, as);
      }
      for (int64_t row = first; row < last; row += block_rows) {
        const int64_t count = std::min(block_rows, last - row);
        const Matrix left = left_factor({a.at(row, at), a.stride, a.type}, as, count, have, deep, mine + packed, step);
        float* block = blocks + (at_once ? 0 : (row - first) * width);
        block_gemm(left, {mine, width, as}, count, width, deep, block, width, at > 0);
        if (at + deep == depth) finish_block(block, width, row, column, count, columns, e);
      }
    }
  };
  parallel_tasks(panels.count() * rows.count(), run, [&] { release_gemm(as); });
}

/// Whether oneDNN has a small product for T's type, which ONEDNN_MAX_CPU_ISA in the environment may forbid.
template <class T>
[[maybe_unused]] bool probe(T) {
  T a[2] = {}, b[32] = {};
  float c[16];
  try {
    at::native::cpublas::brgemm(1, 16, 2, 2, 16, 16, false, a, b, c, !std::is_same_v<T, float>);
    at::native::cpublas::brgemm_release(!std::is_same_v<T, float>);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

void use_kernels(bool on) { kernels_on = on; }
bool kernels_wanted() { return kernels_on; }

bool gemm_ready(Element type) { return kernels_on && gemm_possible(type); }

bool gemm_possible(Element type) {
#ifdef __x86_64__
  static const bool atens_float16 = has_amx_fp16();
  if (type == Element::f64 || (type == Element::f16 && atens_float16) || active_isa() < Isa::avx2) return false;
  static const bool works = probe(0.0f);
  return works;
#else
  (void)type;
  return false;
#endif
}

Element multiplied_as(Element type) {
  if (type != Element::bf16 || !multiplies_bf16()) return Element::f32;
  static const bool works = probe(c10::BFloat16(0));
  return works ? Element::bf16 : Element::f32;
}

void block_gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_stride, bool add) {
  if (a.type == Element::f32) {
    at::native::cpublas::brgemm(m, n, k, a.stride, b.stride, c_stride, add, static_cast<const float*>(a.data),
                                static_cast<const float*>(b.data), c, false);
  } else {
    at::native::cpublas::brgemm(m, n, k, a.stride, b.stride, c_stride, add, static_cast<const c10::BFloat16*>(a.data),
                                static_cast<const c10::BFloat16*>(b.data), c, true);
  }
}

void release_gemm(Element type) {
  if (type != Element::f32) at::native::cpublas::brgemm_release(true);
}

void gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  gemm_rows(a, b, /*transposed=*/false, m, n, k, e);
}

void gemm_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  if (m > 0 && n > 0 && gemv_ready(a.type, b.type, m))
    return gemv_nt(a, b, m, n, k, depth_step(common(a.type, b.type)), e);
  gemm_rows(a, b, /*transposed=*/true, m, n, k, e);
}

void gemm_tn(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e, float* column_sums) {
  if (m == 0 || n == 0) return;
  const Element as = common(a.type, b.type);
  const int64_t depth = packed_depth(k, as), step = depth_step(as);
  const Parts rows(m, tall_rows);
  const Parts spans(
      n, std::min(wide_columns, round_up(divide_up(n, cuts(rows.count(), n, block_columns)), block_columns)));
  // A right factor in bfloat16 is packed once, in panels; in float32 it is read where it is, and one that has to be
  // wider is widened a panel at a time, so that it takes no memory.
  const bool packs = as != Element::f32, widens = b.type != as;
  const Parts panels(spans.size, block_columns);
  const int64_t panel_bytes = depth * panels.size * bytes_of(as);
  c10::DataPtr packed;
  if (packs) {
    packed = c10::GetCPUAllocator()->allocate(static_cast<size_t>(spans.count() * panels.count() * panel_bytes));
    // A thread takes a few rows through all panels: it reads them in order.
    constexpr int64_t rows_each = 64;
    parallel_for(0, divide_up(k, rows_each), 1, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * rows_each; at < std::min(k, end * rows_each); at += rows_each) {
        const int64_t have = std::min(rows_each, k - at);
        for (int64_t i = 0; i < spans.count() * panels.count(); ++i) {
          const int64_t span = i / panels.count(), in_span = panels.begin(i % panels.count());
          const int64_t columns = std::min(panels.size, spans.length(span) - in_span);
          if (columns <= 0) continue;
          pack_right({b.at(at, spans.begin(span) + in_span), b.stride, b.type}, have, columns, panels.size,
                     static_cast<char*>(packed.get()) + i * panel_bytes + at * panels.size * 2, as);
        }
      }
    });
  }
  const int64_t left_bytes = round_up(rows.size * step * bytes_of(as), 64);
  const int64_t wide_bytes = widens ? std::min(step, k) * panels.size * 4 : 0;
  const int64_t block_stride = panels.count() * panels.size;
  const Scratch scratch(left_bytes + wide_bytes + rows.size * block_stride * 4);
  const auto run = [&](int64_t task) {
    char* left = scratch.mine();
    float* wide = reinterpret_cast<float*>(left + left_bytes);
    float* block = reinterpret_cast<float*>(left + left_bytes + wide_bytes);
    const int64_t part = task / spans.count(), span = task % spans.count();
    const int64_t row = rows.begin(part), count = rows.length(part), column = spans.begin(span);
    const bool sums = column_sums != nullptr && span == 0;
    if (sums) std::memset(column_sums + row, 0, static_cast<size_t>(count) * 4);
    /// The panel of b's rows from `at` whose first column is `in_span` of the span.
    const auto right = [&](int64_t p, int64_t at, int64_t have, int64_t columns) -> Matrix {
      if (packs) {
        return {static_cast<char*>(packed.get()) + (span * panels.count() + p) * panel_bytes + at * panels.size * 2,
                panels.size, as};
      }
      const Matrix there{b.at(at, column + panels.begin(p)), b.stride, b.type};
      if (!widens) return there;
      widen(there, have, columns, wide, panels.size);
      return {wide, panels.size, as};
    };
    for (int64_t at = 0; at < k; at += step) {
      const int64_t have = std::min(step, k - at), even = packed_depth(have, as);
      pack_left_transposed({a.at(at, row), a.stride, a.type}, have, count, left, as);
      const Matrix piece{left, even, as};
      if (sums) add_row_sums(piece, count, even, column_sums + row);
      for (int64_t p = 0; p < panels.count(); ++p) {
        const int64_t in_span = panels.begin(p), columns = std::min(panels.size, spans.length(span) - in_span);
        if (columns <= 0) break;
        block_gemm(piece, right(p, at, have, columns), count, packs ? panels.size : columns, even, block + in_span,
                   block_stride, at > 0);
      }
    }
    finish_block(block, block_stride, row, column, count, spans.length(span), e);
  };
  parallel_tasks(rows.count() * spans.count(), run, [&] { release_gemm(as); });
}

}  // namespace lathe
