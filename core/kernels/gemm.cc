// Implements the functions of gemm.h. split_count() balances the load of threads for sizes such as
// 344 hidden units, which are 5.4 panels. When tasks were not split, a step of a Llama model took
// 24.7 ms; for 0.4 ms of this time, the other threads waited for the thread that computed the sixth
// panel.
#include "core/kernels/gemm.h"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <vector>

#include "core/kernels/gemv.h"
#include "core/kernels/isa.h"
#include "core/kernels/scratch.h"

namespace lathe {
namespace {

constexpr int64_t block_rows = 32;      // rows of a result block, which has 8 KB of float32
constexpr int64_t block_columns = 64;   // columns of a result block
constexpr int64_t waiting_rows = 1024;  // largest number of rows of a part whose partial sums are
                                        // kept for the next panel (256 KB)
constexpr int64_t tall_rows = 64;       // rows of a result block of a^T b
constexpr int64_t wide_columns = 1024;  // largest number of columns of a^T b in a task (256 KB)

bool kernels_on = true;

/// Returns the largest depth of a panel. A panel of that depth takes 128 to 192 KB and stays in a
/// cache that belongs to one core.
int64_t depth_step(Element type) { return type == Element::f32 ? 768 : 1024; }

/// Divides [0, n) into parts of equal size. The size is at most `most`. If `most` is a multiple of
/// 16, so is the size. The last part may be shorter. n must be above 0.
struct Parts {
  Parts(int64_t n_, int64_t most)
      : n(n_), size(std::min(most, round_up(divide_up(n_, divide_up(n_, most)), 16))) {}
  int64_t count() const { return divide_up(n, size); }
  int64_t begin(int64_t i) const { return i * size; }
  int64_t length(int64_t i) const { return std::min(size, n - begin(i)); }
  std::vector<int64_t> lengths() const {
    std::vector<int64_t> all(static_cast<size_t>(count()), size);
    if (!all.empty()) all.back() = length(count() - 1);
    return all;
  }
  int64_t n, size;
};

/// Returns the largest load of a thread if each task is divided into `parts` parts and the thread
/// with the smallest load always takes the next part.
double max_load(const std::vector<int64_t>& tasks, int64_t parts, int64_t threads) {
  std::vector<double> load(static_cast<size_t>(threads));  // a heap with the smallest load on top
  for (const int64_t size : tasks) {
    for (int64_t i = 0; i < parts; ++i) {
      std::ranges::pop_heap(load, std::greater());
      load.back() += static_cast<double>(size) / static_cast<double>(parts);
      std::ranges::push_heap(load, std::greater());
    }
  }
  return std::ranges::max(load);
}

/// Returns the number of parts into which a dimension of size `n` is divided. `tasks` are the sizes
/// of the tasks along the other dimension. Starts with enough parts for two tasks per thread,
/// unless parts would be shorter than `least`. Takes up to four times as many parts if that
/// balances the load better. Returns 1 for a single thread.
int64_t split_count(const std::vector<int64_t>& tasks, int64_t n, int64_t least) {
  const int64_t threads = at::get_num_threads(), count = std::ssize(tasks),
                most = std::max<int64_t>(1, n / least);
  if (threads == 1) return 1;
  int64_t best = std::clamp<int64_t>(divide_up(2 * threads, count), 1, most);
  constexpr double worth = 0.95;  // more parts must save 5%, since each part packs its factor again
  double longest = worth * max_load(tasks, best, threads);
  for (int64_t more = best + 1; more <= std::min(most, 4 * best) && count * more <= 8 * threads;
       ++more) {
    if (const double now = max_load(tasks, more, threads); now < longest) {
      best = more;
      longest = worth * now;
    }
  }
  return best;
}

/// Returns the type in which two factors are multiplied.
Element common(Element a, Element b) { return a == b ? multiplied_as(a) : Element::f32; }

/// Returns rows of a left factor in the form that brgemm reads. Rows that must be converted to
/// float32, or padded from `have` to `deep` elements, are copied to `space` [rows][stride]. Other
/// rows are read in place.
Matrix left_factor(Matrix a, Element as, int64_t rows, int64_t have, int64_t deep, char* space,
                   int64_t stride) {
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

/// A section of a product's depth: elements [at, at + have) along k, padded to `deep` elements. In
/// the packed panel, the section begins at row `place`.
struct Stretch {
  const Product* of;
  int64_t at, have, deep, place;
};

/// Divides the depths of the products into sections, and groups the sections into panels. Each
/// panel is at most depth_step() deep.
std::vector<std::vector<Stretch>> by_panels(std::span<const Product> products, Element as) {
  std::vector<std::vector<Stretch>> panels(1);
  const int64_t step = depth_step(as);
  int64_t filled = 0;
  for (const Product& p : products) {
    for (int64_t at = 0, deep = 0; at < p.k; at += deep) {
      const int64_t have = std::min(step, p.k - at);
      deep = packed_depth(have, as);
      if (filled + deep > step) {
        panels.emplace_back();
        filled = 0;
      }
      panels.back().push_back({.of = &p, .at = at, .have = have, .deep = deep, .place = filled});
      filled += deep;
    }
  }
  return panels;
}

/// Computes the sum of the products a b, or a b^T if `transposed` is true. A thread packs a panel
/// of b's columns, which is at most depth_step() deep, and multiplies rows of a by this panel. If
/// the depth needs several panels, the partial sums of all blocks of the task stay in memory until
/// the next panel is packed.
void gemm_rows(std::span<const Product> products, bool transposed, int64_t m, int64_t n,
               const Epilogue& e) {
  if (m == 0 || n == 0) return;

  const Element as = common(products[0].a.type, products[0].b.type);
  const Parts panels(n, block_columns);
  const std::vector<std::vector<Stretch>> depths = by_panels(products, as);
  const bool at_once = depths.size() == 1;

  // If the depth needs several panels, the partial sums of all blocks of a part are in memory at
  // the same time. This limits the number of the part's rows.
  const int64_t most =
      round_up(divide_up(m, split_count(panels.lengths(), m, 4 * block_rows)), block_rows);
  const Parts rows(m, at_once ? most : std::min(most, waiting_rows));

  // The memory of a thread contains the packed panel, copied rows of a, and result blocks.
  int64_t deepest = 0;
  bool copies = products[0].a.type != as;
  for (const auto& depth : depths)
    deepest = std::max(deepest, depth.back().place + depth.back().deep);
  for (const Product& p : products) copies = copies || packed_depth(p.k, as) != p.k;
  const int64_t packed = round_up(deepest * panels.size * bytes_of(as), 64);
  const int64_t copied = copies ? round_up(block_rows * deepest * bytes_of(as), 64) : 0;
  const Scratch scratch(packed + copied + (at_once ? block_rows : rows.size) * panels.size * 4);

  // Consecutive tasks of a thread often share a panel, which is then packed once.
  std::vector<int64_t> packed_panel(static_cast<size_t>(at::get_num_threads()),
                                    -1);  // for each thread, the panel that is packed in its
                                          // memory; -1: none

  const auto run = [&](int64_t task) {
    char* mine = scratch.mine();
    float* blocks = reinterpret_cast<float*>(mine + packed + copied);
    const int64_t panel = task / rows.count(), part = task % rows.count();
    const int64_t column = panels.begin(panel), columns = panels.length(panel),
                  width = round_up(columns, 16);
    const int64_t first = rows.begin(part), last = first + rows.length(part);

    const Matrix right{mine, width, as};
    for (const auto& depth : depths) {
      // The panel in memory can be used again only if the depth needs a single panel.
      int64_t& ready = packed_panel[static_cast<size_t>(at::get_thread_num())];
      if (!at_once || ready != panel) {
        ready = panel;
        for (const Stretch& s : depth) {
          const Matrix b = s.of->b;
          void* to = const_cast<void*>(right.at(s.place, 0));
          if (transposed)
            pack_right_transposed({b.at(column, s.at), b.stride, b.type}, s.have, columns, width,
                                  to, as);
          else
            pack_right({b.at(s.at, column), b.stride, b.type}, s.have, columns, width, to, as);
        }
      }

      for (int64_t row = first; row < last; row += block_rows) {
        const int64_t count = std::min(block_rows, last - row);
        // If the partial sums of blocks are kept for the next panel, the blocks follow each other
        // in memory.
        float* block = blocks + (at_once ? 0 : (row - first) * width);
        for (const Stretch& s : depth) {
          const Matrix a = s.of->a;
          const Matrix left = left_factor({a.at(row, s.at), a.stride, a.type}, as, count, s.have,
                                          s.deep, mine + packed, deepest);
          const bool add = &s != &depths.front().front();  // the first section overwrites the block
          block_gemm(left, {right.at(s.place, 0), width, as}, count, width, s.deep, block, width,
                     add);
        }

        // The epilogue runs while the block is in cache.
        if (&depth == &depths.back()) finish_block(block, width, row, column, count, columns, e);
      }
    }
  };

  parallel_tasks(panels.count() * rows.count(), run, [&] { release_gemm(as); });
}

/// Returns whether oneDNN has a brgemm for T. The environment variable ONEDNN_MAX_CPU_ISA may
/// disable the brgemm.
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
bool kernels_enabled() { return kernels_on; }

bool gemm_ready(Element type) { return kernels_on && gemm_possible(type); }

bool gemm_possible(Element type) {
#ifdef __x86_64__
  static const bool atens_float16 = has_amx_fp16();
  if (type == Element::f64 || (type == Element::f16 && atens_float16) || active_isa() < Isa::avx2)
    return false;
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

void block_gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_stride,
                bool add) {
  if (a.type == Element::f32) {
    at::native::cpublas::brgemm(m, n, k, a.stride, b.stride, c_stride, add,
                                static_cast<const float*>(a.data),
                                static_cast<const float*>(b.data), c, false);
  } else {
    at::native::cpublas::brgemm(m, n, k, a.stride, b.stride, c_stride, add,
                                static_cast<const c10::BFloat16*>(a.data),
                                static_cast<const c10::BFloat16*>(b.data), c, true);
  }
}

void release_gemm(Element type) {
  if (type != Element::f32) at::native::cpublas::brgemm_release(true);
}

void gemm(std::span<const Product> products, int64_t m, int64_t n, const Epilogue& e) {
  gemm_rows(products, /*transposed=*/false, m, n, e);
}

void gemm_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  if (m > 0 && n > 0 && gemv_ready(a.type, b.type, m))
    return gemv_nt(a, b, m, n, k, depth_step(common(a.type, b.type)), e);
  gemm_rows({{{a, b, k}}}, /*transposed=*/true, m, n, e);
}

void gemm_tn(std::span<const LeftFactor> lefts, Matrix b, int64_t n, int64_t k) {
  // A task computes a block of rows and a span of columns of a result. The tasks of a result follow
  // the tasks of the previous result.
  struct Rows {
    const LeftFactor* of;
    int64_t begin, count;
  };
  std::vector<Rows> rows;
  std::vector<int64_t> lengths;
  for (const LeftFactor& left : lefts) {
    const Parts parts(left.m, tall_rows);
    for (int64_t i = 0; i < parts.count(); ++i)
      rows.push_back({.of = &left, .begin = parts.begin(i), .count = parts.length(i)});
    for (const int64_t length : parts.lengths()) lengths.push_back(length);
  }
  if (rows.empty() || n == 0) return;

  const Element as = common(lefts[0].a.type, b.type);
  const int64_t depth = packed_depth(k, as), step = depth_step(as);
  const Parts spans(
      n,
      std::min(wide_columns, round_up(divide_up(n, split_count(lengths, n, block_columns)), 16)));

  // A right factor that is multiplied in bfloat16 is packed once, in panels. A float32 factor is
  // read in place. A factor that must be converted to float32 is converted one panel at a time, so
  // that no complete copy is needed.
  const bool packs = as != Element::f32, widens = b.type != as;
  const Parts panels(spans.size, block_columns);
  const int64_t panel_bytes = depth * panels.size * bytes_of(as);

  c10::DataPtr packed;
  if (packs) {
    packed = c10::GetCPUAllocator()->allocate(
        static_cast<size_t>(spans.count() * panels.count() * panel_bytes));
    // A thread packs a few rows for all panels before it packs the next rows, so that it reads the
    // matrix in order.
    constexpr int64_t rows_each = 64;
    parallel_for(0, divide_up(k, rows_each), 1, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * rows_each; at < std::min(k, end * rows_each); at += rows_each) {
        const int64_t have = std::min(rows_each, k - at);
        for (int64_t i = 0; i < spans.count() * panels.count(); ++i) {
          const int64_t span = i / panels.count(), in_span = panels.begin(i % panels.count());
          const int64_t columns = std::min(panels.size, spans.length(span) - in_span);
          if (columns <= 0) continue;
          pack_right({b.at(at, spans.begin(span) + in_span), b.stride, b.type}, have, columns,
                     panels.size,
                     static_cast<char*>(packed.get()) + i * panel_bytes + at * panels.size * 2, as);
        }
      }
    });
  }

  // The memory of a thread contains packed rows of a^T, a panel that was converted to float32, and
  // the task's result block.
  const int64_t left_bytes = round_up(tall_rows * step * bytes_of(as), 64);
  const int64_t wide_bytes = widens ? std::min(step, k) * panels.size * 4 : 0;
  const int64_t block_stride = panels.count() * panels.size;
  const Scratch scratch(left_bytes + wide_bytes + tall_rows * block_stride * 4);

  const auto run = [&](int64_t task) {
    char* left = scratch.mine();
    float* wide = reinterpret_cast<float*>(left + left_bytes);
    float* block = reinterpret_cast<float*>(left + left_bytes + wide_bytes);
    const int64_t span = task % spans.count(), column = spans.begin(span);
    const auto& [of, row, count] = rows[static_cast<size_t>(task / spans.count())];

    // The task of the first span sums the columns of a that belong to its rows of the result. The
    // tasks of other spans must not sum these columns again.
    const bool sums = of->column_sums != nullptr && span == 0;
    if (sums) std::memset(of->column_sums + row, 0, static_cast<size_t>(count) * 4);
    // Returns the part of panel p of b that begins at row `at`. Its first column is column
    // panels.begin(p) of the span.
    const auto right = [&](int64_t p, int64_t at, int64_t have, int64_t columns) -> Matrix {
      if (packs) {
        return {static_cast<char*>(packed.get()) + (span * panels.count() + p) * panel_bytes +
                    at * panels.size * 2,
                panels.size, as};
      }
      const Matrix there{b.at(at, column + panels.begin(p)), b.stride, b.type};
      if (!widens) return there;
      widen(there, have, columns, wide, panels.size);
      return {wide, panels.size, as};
    };

    // Each block is summed along the depth in a fixed order, so the number of threads does not
    // change the result.
    for (int64_t at = 0; at < k; at += step) {
      const int64_t have = std::min(step, k - at), even = packed_depth(have, as);
      pack_left_transposed({of->a.at(at, row), of->a.stride, of->a.type}, have, count, left, as);
      const Matrix piece{left, even, as};

      if (sums) add_row_sums(piece, count, even, of->column_sums + row);
      for (int64_t p = 0; p < panels.count(); ++p) {
        const int64_t in_span = panels.begin(p),
                      columns = std::min(panels.size, spans.length(span) - in_span);
        if (columns <= 0) break;
        block_gemm(piece, right(p, at, have, columns), count, packs ? panels.size : columns, even,
                   block + in_span, block_stride, at > 0);
      }
    }

    finish_block(block, block_stride, row, column, count, spans.length(span), of->e);
  };

  parallel_tasks(std::ssize(rows) * spans.count(), run, [&] { release_gemm(as); });
}

}  // namespace lathe
