#include "core/kernels/chain.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/log.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/kernels/chain_plan.h"
#include "core/kernels/row_ops.h"
#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/chain.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// Highway requires these includes after foreach_target.h.
#include "core/kernels/activation-inl.h"
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// Returns the nearest bfloat16 numbers as float32; ties round to even. NaN stays NaN.
HWY_INLINE V rounded(V v) {
  const DU du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto near =
      hn::And(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))), hn::Set(du, 0xffff0000u));
  // store_output() keeps only the upper 16 bits. Set one of these bits in NaN, so that NaN stays
  // NaN.
  const auto nan = hn::Or(bits, hn::Set(du, 0x00400000u));
  return hn::IfThenElse(hn::Eq(v, v), hn::BitCast(D(), near), hn::BitCast(D(), nan));
}

HWY_INLINE hn::Mask<D> holds(V mask) { return hn::Ne(mask, hn::Zero(D())); }

// The number of vectors that an instruction processes together. They take half of the registers,
// and are enough to hide the time to dispatch the next instruction.
constexpr int at_once = HWY_TARGET == HWY_AVX3 ? 16 : 8;

/// Hides from the compiler how an address was computed. Otherwise, the compiler would keep the
/// address of each vector in a register, for which there are not enough registers.
template <class T>
HWY_INLINE T* opaque(T* p) {
  asm("" : "+r"(p));
  return p;
}

// Prefetch explicitly, because the hardware prefetcher does not recognize a loop with this many
// instructions between its loads.
constexpr int64_t ahead = 2048;  // prefetch distance, in elements
HWY_INLINE void fetch(const float* from) {
  const float* const p = opaque(from);
  for (int k = 0; k < at_once; ++k) hwy::Prefetch(p + k * lanes());
}

/// Runs instructions on K vectors that begin at element `at` of a tile. A result that only the next
/// instruction reads stays in vector registers. `part` loads and stores a vector, which may be
/// incomplete at the end of the tile (Whole and Part in simd-inl.h).
template <int K, class P>
class Machine {
 public:
  Machine(float* const* places, int64_t at, P part) : places_(places), at_(at), part_(part) {}

  HWY_INLINE void run(const ChainInstruction* code, size_t count) {
    V v[K];
    for (int k = 0; k < K; ++k) v[k] = hn::Zero(D());
    for (const ChainInstruction* i = code; i < code + count; ++i) {
      if (i->a >= 0) {
        const float* const a = place(i->a);
        each(v, [&](V, int k) HWY_ATTR { return part_(a + k * lanes()); });
      }
      apply(*i, v);
      if (i->low) round(v);
      if (i->to >= 0) {
        float* const to = place(i->to);
        for (int k = 0; k < K; ++k) part_(v[k], to + k * lanes());
      }
    }
  }

 private:
  HWY_INLINE float* place(int i) const { return opaque(places_[i] + at_); }
  template <class F>
  HWY_INLINE void each(V* v, F&& f) const {
    HWY_UNROLL(16) for (int k = 0; k < K; ++k) v[k] = f(v[k], k);
  }
  /// Rounds vectors to bfloat16.
  HWY_INLINE void round(V* v) const {
#if HWY_TARGET == HWY_AVX3
    // The CPU's instruction treats subnormal numbers as zero, so use it only if no number is
    // subnormal.
    if (HWY_LIKELY(active_isa() >= Isa::avx512_bf16)) {
      constexpr int is_subnormal = 0x20;
      __mmask16 small = 0;
      HWY_UNROLL(16) for (int k = 0; k < K; ++k) {
        small |= _mm512_fpclass_ps_mask(v[k].raw, is_subnormal);
      }
      if (HWY_LIKELY(small == 0)) {
        return each(v, [&](V x, int) HWY_ATTR {
          const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded_by_cpu(x)), 16);
          return V{_mm512_castsi512_ps(wide)};
        });
      }
    }
#endif
    each(v, [&](V x, int) HWY_ATTR { return rounded(x); });
  }
  /// Sets operand a, which is in `v`, to f(a, b). If the instruction has no operand b, b is the
  /// instruction's number.
  template <class F>
  HWY_INLINE void binary(const ChainInstruction& i, V* v, F&& f) const {
    if (i.b >= 0) {
      const float* const b = place(i.b);
      each(v, [&](V a, int k) HWY_ATTR { return f(a, part_(b + k * lanes())); });
    } else {
      const V value = set(static_cast<float>(i.number));
      each(v, [&](V a, int) HWY_ATTR { return f(a, value); });
    }
  }
  template <class F>
  HWY_INLINE void compare(const ChainInstruction& i, V* v, F&& f) const {
    binary(i, v, [&](V a, V b) HWY_ATTR { return hn::IfThenElseZero(f(a, b), set(1)); });
  }

  HWY_INLINE void apply(const ChainInstruction& i, V* v) const {
    const auto number = static_cast<float>(i.number);
    switch (i.op) {
      case ChainOp::neg: return each(v, [](V a, int) HWY_ATTR { return hn::Neg(a); });
      case ChainOp::reciprocal:
        return each(v, [](V a, int) HWY_ATTR { return hn::Div(set(1), a); });
      case ChainOp::inverse_root:
        return each(v, [](V a, int) HWY_ATTR { return hn::Div(set(1), hn::Sqrt(a)); });
      case ChainOp::own_tanh: return each(v, [](V a, int) HWY_ATTR { return tanh_of(a); });
      case ChainOp::own_silu: return each(v, [](V a, int) HWY_ATTR { return silu_of(a); });
      case ChainOp::own_gelu: return each(v, [](V a, int) HWY_ATTR { return gelu_of(a); });
      case ChainOp::own_tanh_grad:
        return binary(i, v,
                      [](V a, V b) HWY_ATTR { return hn::Mul(a, hn::NegMulAdd(b, b, set(1))); });
      case ChainOp::own_silu_grad:
        return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Mul(a, silu_grad(b)); });
      case ChainOp::own_gelu_grad:
        return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Mul(a, gelu_grad(b)); });
      case ChainOp::relu: return each(v, [](V a, int) HWY_ATTR { return at_least(0, a); });
      case ChainOp::clamp:
        return each(v, [&](V a, int) HWY_ATTR { return at_most(number, at_least(-number, a)); });
      case ChainOp::square: return each(v, [](V a, int) HWY_ATTR { return hn::Mul(a, a); });
      case ChainOp::add: return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
      case ChainOp::sub: return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Sub(a, b); });
      case ChainOp::sub_from: return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Sub(b, a); });
      case ChainOp::mul: return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Mul(a, b); });
      case ChainOp::div: return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Div(a, b); });
      case ChainOp::div_into: return binary(i, v, [](V a, V b) HWY_ATTR { return hn::Div(b, a); });
      case ChainOp::relu_grad:
        return binary(i, v, [](V a, V b) HWY_ATTR {
          return hn::IfThenZeroElse(hn::Le(b, hn::Zero(D())), a);
        });
      case ChainOp::less: return compare(i, v, [](V a, V b) HWY_ATTR { return hn::Lt(a, b); });
      case ChainOp::less_equal:
        return compare(i, v, [](V a, V b) HWY_ATTR { return hn::Le(a, b); });
      case ChainOp::greater: return compare(i, v, [](V a, V b) HWY_ATTR { return hn::Gt(a, b); });
      case ChainOp::greater_equal:
        return compare(i, v, [](V a, V b) HWY_ATTR { return hn::Ge(a, b); });
      case ChainOp::equal: return compare(i, v, [](V a, V b) HWY_ATTR { return hn::Eq(a, b); });
      case ChainOp::not_equal:
        return compare(i, v, [](V a, V b) HWY_ATTR { return hn::Not(hn::Eq(a, b)); });
      case ChainOp::select: {
        const float *const b = place(i.b), *const c = place(i.c);
        return each(v, [&](V a, int k) HWY_ATTR {
          return hn::IfThenElse(holds(a), part_(b + k * lanes()), part_(c + k * lanes()));
        });
      }
      case ChainOp::fill:
        return binary(i, v,
                      [&](V a, V b) HWY_ATTR { return hn::IfThenElse(holds(a), set(number), b); });
      case ChainOp::keep:
        return binary(i, v,
                      [&](V a, V b) HWY_ATTR { return hn::IfThenElse(holds(a), b, set(number)); });
      default: return;  // `copy` changes nothing
    }
  }

  float* const* places_;
  int64_t at_;
  P part_;
};

HWY_INLINE float float_of(float x) { return x; }
HWY_INLINE float float_of(c10::BFloat16 x) { return static_cast<float>(x); }
HWY_INLINE float float_of(bool x) { return x ? 1.0f : 0.0f; }

/// Loads the elements of an input that correspond to elements [begin, begin + n) of the chain.
template <class T>
void load_as(const Chain::Input& input, const T* from, int64_t begin, int64_t n, float* to) {
  const auto convert = [&](const T* source, int64_t at, int64_t count) HWY_ATTR {
    if constexpr (std::is_same_v<T, float>) {
      std::copy_n(source, count, to + at);
    } else if constexpr (std::is_same_v<T, bool>) {
      for (int64_t k = 0; k < count; ++k) to[at + k] = float_of(source[k]);
    } else {
      for_vectors(count,
                  [&](int64_t k, auto part) HWY_ATTR { part(part(source + k), to + at + k); });
    }
  };
  if (input.size == 0) return convert(from + begin, 0, n);

  for (int64_t i = 0; i < n;) {
    const int64_t element = begin + i, of = element / input.inner % input.size;
    if (input.inner == 1 && input.size > 1) {
      const int64_t count = std::min(n - i, input.size - of);
      convert(from + of, i, count);
      i += count;
    } else {
      const int64_t count =
          input.size == 1 ? n : std::min(n - i, input.inner - element % input.inner);
      std::fill_n(to + i, count, float_of(from[of]));
      i += count;
    }
  }
}
void load_input(const Chain::Input& input, const void* from, int64_t begin, int64_t n, float* to) {
  switch (input.type) {
    case ChainType::f32: return load_as(input, static_cast<const float*>(from), begin, n, to);
    case ChainType::bf16:
      return load_as(input, static_cast<const c10::BFloat16*>(from), begin, n, to);
    case ChainType::mask: return load_as(input, static_cast<const bool*>(from), begin, n, to);
  }
}

/// Writes n elements of a value as float32 or as bfloat16. For bfloat16, the elements must have
/// been rounded to bfloat16 already.
void store_output(ChainType type, const float* from, int64_t n, void* to, int64_t begin) {
  if (type == ChainType::f32) {
    std::copy_n(from, n, static_cast<float*>(to) + begin);
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(to) + begin;
  const hn::Rebind<uint16_t, D> half;
  for_vectors(n, [&](int64_t i, auto part) HWY_ATTR {
    const auto bits = hn::ShiftRight<16>(hn::BitCast(DU(), part(from + i)));
    uint16_t lane[HWY_MAX_BYTES / sizeof(float)];
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<D>(), bits)), half, lane);
    std::memcpy(out + i, lane, sizeof(uint16_t) * static_cast<size_t>(std::min(lanes(), n - i)));
  });
}

/// Runs instructions on elements [first, first + n) of the tile that begins at element `tile` of
/// the chain. None of the instructions may need a complete tile.
void chain_block(const ChainInstruction* code, size_t count, const ChainFrame& frame, int64_t tile,
                 int64_t first, int64_t n) {
  const auto of_memory = [](const ChainInstruction& i) {
    return i.op == ChainOp::load || i.op == ChainOp::store;
  };
  const auto* const end = code + count;
  for (const ChainInstruction* i = code; i < end;) {
    if (i->op == ChainOp::load) {
      load_input(frame.inputs[i->a], frame.sources[i->a], tile + first, n,
                 frame.places[i->to] + first);
      ++i;
    } else if (i->op == ChainOp::store) {
      store_output(frame.types[i->to], frame.places[i->a] + first, n, frame.results[i->to],
                   tile + first);
      ++i;
    } else {
      const auto* const next = std::find_if(i, end, of_memory);
      const auto length = static_cast<size_t>(next - i);
      const int64_t step = lanes();
      int64_t at = 0;
      for (; at + at_once * step <= n; at += at_once * step) {
        for (int s = 0; s < frame.read; ++s) {
          if (frame.places[s] != nullptr) fetch(frame.places[s] + first + at + ahead);
        }
        Machine<at_once, Whole>(frame.places, first + at, Whole()).run(i, length);
      }
      for (; at + step <= n; at += step)
        Machine<1, Whole>(frame.places, first + at, Whole()).run(i, length);
      if (at < n) Machine<1, Part>(frame.places, first + at, Part{n - at}).run(i, length);
      i = next;
    }
  }
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(chain_block);

namespace {

constexpr int64_t block = 1024;  // elements in a call of chain_block()

/// Calls the ATen function of an instruction with the result y and the operands a and b.
void call_aten(const ChainInstruction& i, at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  switch (i.op) {
    case ChainOp::sqrt: at::sqrt_out(y, a); break;
    case ChainOp::rsqrt: at::rsqrt_out(y, a); break;
    case ChainOp::exp: at::exp_out(y, a); break;
    case ChainOp::log: at::log_out(y, a); break;
    case ChainOp::tanh: at::tanh_out(y, a); break;
    case ChainOp::erf: at::erf_out(y, a); break;
    case ChainOp::sigmoid: at::sigmoid_out(y, a); break;
    case ChainOp::silu: at::silu_out(y, a); break;
    case ChainOp::gelu: at::gelu_out(y, a, "tanh"); break;
    case ChainOp::gelu_exact: at::gelu_out(y, a, "none"); break;
    case ChainOp::pow: at::pow_out(y, a, i.number); break;
    case ChainOp::tanh_grad: at::tanh_backward_out(y, a, b); break;
    case ChainOp::sigmoid_grad: at::sigmoid_backward_out(y, a, b); break;
    case ChainOp::silu_grad: at::silu_backward_out(y, a, b); break;
    case ChainOp::gelu_grad: at::gelu_backward_out(y, a, b, "tanh"); break;
    default: at::gelu_backward_out(y, a, b, "none");
  }
}

/// A call of one of ATen's functions. The operands and the result are tensors of n elements that
/// share the memory of registers. If the result is rounded to bfloat16, the function works on
/// bfloat16 copies of these tensors. `copies` is memory for three tensors of `room` elements.
class Call {
 public:
  Call(const ChainInstruction& instruction, float* const* places, c10::BFloat16* copies,
       int64_t room, int64_t n)
      : instruction_(instruction) {
    const int of[]{instruction.to, instruction.a, instruction.b};
    for (size_t k = 0; k < 3; ++k) {
      if (of[k] < 0) continue;
      wide_[k] = at::from_blob(places[of[k]], {n}, at::TensorOptions(at::kFloat));
      used_[k] = instruction.low ? at::from_blob(copies + static_cast<int64_t>(k) * room, {n},
                                                 at::TensorOptions(at::kBFloat16))
                                 : wide_[k];
    }
  }

  void run() {
    auto& [y, a, b] = used_;
    if (instruction_.low) {
      a.copy_(wide_[1]);
      if (b.defined()) b.copy_(wide_[2]);
    }
    call_aten(instruction_, y, a, b);
    if (instruction_.low) wide_[0].copy_(y);
  }

 private:
  const ChainInstruction& instruction_;
  std::array<at::Tensor, 3> wide_, used_;  // of the result and the operands: wide_ are the float32
                                           // registers, used_ the tensors that the function gets
};

}  // namespace

/// A run of a chain. All threads share this object.
class ChainRun {
 public:
  ChainRun(const Chain& chain, const ChainPlan& plan, const ChainTiles& tiles,
           std::span<const void* const> inputs, std::span<void* const> outputs)
      : chain_(chain), plan_(plan), tiles_(tiles), inputs_(inputs), outputs_(outputs) {
    for (const Chain::Output& output : chain.outputs_) types_.push_back(output.type);
    layouts_ = chain.inputs_;
    for (Chain::Input& input : layouts_) {
      if (input.per_row) input.size = 0;
    }
    calls_low_ = std::any_of(plan.code.begin(), plan.code.end(),
                             [](const ChainInstruction& i) { return i.low && calls_aten(i.op); });
  }

  /// Returns the bytes of working memory that a thread needs.
  int64_t scratch_bytes() const { return carved(nullptr).bytes; }
  /// Computes elements [begin, end) on the calling thread, with working memory at `scratch`.
  void run(int64_t begin, int64_t end, char* scratch) const;

 private:
  /// The working memory of a thread, and a description of the tile that the thread processes.
  struct Work {
    std::vector<float*> places;
    c10::BFloat16* copies = nullptr;
    int64_t bytes = 0;
    std::vector<Call> calls;  // calls for a tile of the current size, in the order of the code
    int64_t rows = 0;         // number of rows of the tile
  };

  int64_t room() const { return tiles_.tile + tiles_.slack; }  // number of elements of a register
  Work carved(char* base) const;
  void prepare_calls(Work& w, int64_t count) const;
  void run_tile(Work& w, int64_t first, int64_t count) const;
  void run_rows(const Work& w, const ChainInstruction& i) const;

  const Chain& chain_;
  const ChainPlan& plan_;
  const ChainTiles tiles_;
  const std::span<const void* const> inputs_;
  const std::span<void* const> outputs_;
  std::vector<Chain::Input> layouts_;
  std::vector<ChainType> types_;
  bool calls_low_ = false;
};

void ChainRun::run(int64_t begin, int64_t end, char* scratch) const {
  Work w = carved(scratch);
  for (int64_t first = begin, count = 0; first < end; first += count) {
    const int64_t left = end - first, before = count;
    count = left > room() ? tiles_.tile : left;
    w.rows = chain_.columns_ > 0 ? count / chain_.columns_ : 0;
    if (count != before) prepare_calls(w, count);
    run_tile(w, first, count);
  }
}

/// Divides a thread's memory, which begins at `base`, into registers and copies. If `base` is null,
/// only computes the size of the memory.
ChainRun::Work ChainRun::carved(char* base) const {
  const int64_t stride = room() + 144;  // with this stride, registers begin in different sets of
                                        // the caches
  Work w;
  Carver carver(base);
  auto* const registers = carver.take<float>(std::max(1, plan_.registers) * stride);
  w.copies = carver.take<c10::BFloat16>(calls_low_ ? 3 * room() : 0);
  w.bytes = carver.used();
  if (base == nullptr) return w;

  w.places.assign(inputs_.size() + outputs_.size(), nullptr);
  for (int r = 0; r < plan_.registers; ++r) w.places.push_back(registers + r * stride);
  return w;
}

void ChainRun::prepare_calls(Work& w, int64_t count) const {
  w.calls.clear();
  for (const ChainInstruction& i : plan_.code) {
    if (calls_aten(i.op))
      w.calls.emplace_back(i, w.places.data(), w.copies, room(), i.per_row ? w.rows : count);
  }
}

/// Runs an instruction that needs complete rows. It processes all rows of a tile.
void ChainRun::run_rows(const Work& w, const ChainInstruction& i) const {
  const auto place = [&](int of) { return w.places[static_cast<size_t>(of)]; };
  const int64_t columns = chain_.columns_;
  float *const a = place(i.a), *const to = place(i.to);
  switch (i.op) {
    case ChainOp::row_sum: return sum_rows(a, columns, w.rows, columns, to);
    case ChainOp::softmax: return softmax_rows(a, w.rows, columns, to);
    case ChainOp::softmax_grad: return softmax_rows_gradient(a, place(i.b), w.rows, columns, to);
    case ChainOp::log_softmax: return log_softmax_rows(a, w.rows, columns, to);
    case ChainOp::log_softmax_grad:
      return log_softmax_rows_gradient(a, place(i.b), w.rows, columns, to);
    default:  // the op is `spread`
      for (int64_t r = 0; r < w.rows; ++r) std::fill_n(to + r * columns, columns, a[r]);
  }
}

void ChainRun::run_tile(Work& w, int64_t first, int64_t count) const {
  const int64_t row = chain_.columns_ > 0 ? first / chain_.columns_ : 0;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (layouts_[i].type == ChainType::f32 && layouts_[i].size == 0)
      w.places[i] = const_cast<float*>(static_cast<const float*>(inputs_[i])) +
                    (layouts_[i].per_row ? row : first);
  }
  for (size_t o = 0; o < outputs_.size(); ++o) {
    if (types_[o] == ChainType::f32)
      w.places[inputs_.size() + o] = static_cast<float*>(outputs_[o]) +
                                     (chain_.is_per_row(chain_.outputs_[o].value) ? row : first);
  }

  const ChainFrame frame{.places = w.places.data(),
                         .inputs = layouts_.data(),
                         .sources = inputs_.data(),
                         .results = outputs_.data(),
                         .types = types_.data(),
                         .read = static_cast<int>(inputs_.size())};
  auto call = w.calls.begin();
  const std::vector<ChainInstruction>& code = plan_.code;
  for (size_t i = 0; i < code.size();) {
    const ChainInstruction& c = code[i];
    if (runs_on_tile(c.op)) {
      if (calls_aten(c.op))
        (call++)->run();
      else
        run_rows(w, c);
      ++i;
      continue;
    }

    size_t next = i;
    while (next < code.size() && !runs_on_tile(code[next].op) && code[next].per_row == c.per_row)
      ++next;
    const int64_t begin = c.per_row ? row : first, n = c.per_row ? w.rows : count;
    for (int64_t at = 0; at < n; at += block)
      HWY_DYNAMIC_DISPATCH(chain_block)(code.data() + i, next - i, frame, begin, at,
                                        std::min(block, n - at));
    i = next;
  }
}

void Chain::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                int64_t n) const {
  const ChainPlan plan(*this);
  const ChainTiles tiles = chain_tiles(columns_, plan.calls, plan.calls_per_row);
  const ChainRun chain(*this, plan, tiles, inputs, outputs);
  const Scratch scratch(chain.scratch_bytes());
  const int64_t parts = divide_up(n, tiles.part),
                grain = std::max<int64_t>(1, chain_grain / tiles.part);
  parallel_for(0, parts, grain, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowAutograd plain;
    chain.run(begin * tiles.part, std::min(n, end * tiles.part), scratch.mine());
  });
}

}  // namespace lathe
#endif
