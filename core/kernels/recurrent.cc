#include "core/kernels/recurrent.h"

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/recurrent.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/activation-inl.h"
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// The logistic function s of a gate v, and its derivative s (1 - s). The derivative is computed as
/// s e s with e = exp(-v), to avoid cancellation in 1 - s.
struct Gate {
  V s, derivative;
};
HWY_INLINE Gate gate_of(V v) {
  const V e = exp_of(hn::Neg(v)), s = inverse_of(hn::Add(set(1), e));
  return {s, hn::Mul(s, hn::Mul(e, s))};
}
/// Returns the gradient of v, given the gradient g of t = tanh(v).
HWY_INLINE V through_tanh(V g, V t) { return hn::NegMulAdd(hn::Mul(g, t), t, g); }

template <class T>
void lstm_as(const void* gates, const float* c, void* h_out, float* c_out, int64_t begin,
             int64_t end, int64_t h) {
  for (int64_t r = begin; r < end; ++r) {
    const T* g = static_cast<const T*>(gates) + r * 4 * h;
    T* out = static_cast<T*>(h_out) + r * h;
    for_vectors(h, [&](int64_t i, auto part) HWY_ATTR {
      const V kept = hn::Mul(sigmoid_of(part(g + h + i)), part(c + r * h + i));
      const V next = hn::MulAdd(sigmoid_of(part(g + i)), tanh_of(part(g + 2 * h + i)), kept);
      part(next, c_out + r * h + i);
      part(hn::Mul(sigmoid_of(part(g + 3 * h + i)), tanh_of(next)), out + i);
    });
  }
}
void lstm_rows(const void* gates, Element type, const float* c, void* h_out, float* c_out,
               int64_t begin, int64_t end, int64_t h) {
  with_element(
      type, [&](auto t) HWY_ATTR { lstm_as<decltype(t)>(gates, c, h_out, c_out, begin, end, h); });
}

template <class T>
void lstm_backward_as(const void* gates, const float* c, const float* c_out, const void* dh,
                      const float* dc_out, void* dgates, float* dc, int64_t begin, int64_t end,
                      int64_t h) {
  for (int64_t r = begin; r < end; ++r) {
    const T* g = static_cast<const T*>(gates) + r * 4 * h;
    T* dg = static_cast<T*>(dgates) + r * 4 * h;
    for_vectors(h, [&](int64_t i, auto part) HWY_ATTR {
      const int64_t at = r * h + i;
      const Gate in = gate_of(part(g + i)), forget = gate_of(part(g + h + i)),
                 out = gate_of(part(g + 3 * h + i));
      const V cell = tanh_of(part(g + 2 * h + i)), t = tanh_of(part(c_out + at));
      const V up = dh != nullptr ? part(static_cast<const T*>(dh) + at) : set(0);
      const V later = dc_out != nullptr ? part(dc_out + at) : set(0);
      const V grad = hn::Add(later, through_tanh(hn::Mul(up, out.s), t));
      part(hn::Mul(hn::Mul(grad, cell), in.derivative), dg + i);
      part(hn::Mul(hn::Mul(grad, part(c + at)), forget.derivative), dg + h + i);
      part(through_tanh(hn::Mul(grad, in.s), cell), dg + 2 * h + i);
      part(hn::Mul(hn::Mul(up, t), out.derivative), dg + 3 * h + i);
      part(hn::Mul(grad, forget.s), dc + at);
    });
  }
}
void lstm_backward_rows(const void* gates, Element type, const float* c, const float* c_out,
                        const void* dh, const float* dc_out, void* dgates, float* dc, int64_t begin,
                        int64_t end, int64_t h) {
  with_element(type, [&](auto t) HWY_ATTR {
    lstm_backward_as<decltype(t)>(gates, c, c_out, dh, dc_out, dgates, dc, begin, end, h);
  });
}

template <class T>
void gru_as(const void* x_gates, const void* h_gates, const void* state, void* out, int64_t begin,
            int64_t end, int64_t h) {
  for (int64_t r = begin; r < end; ++r) {
    const T *x = static_cast<const T*>(x_gates) + r * 3 * h,
            *g = static_cast<const T*>(h_gates) + r * 3 * h;
    const T* before = static_cast<const T*>(state) + r * h;
    T* after = static_cast<T*>(out) + r * h;
    for_vectors(h, [&](int64_t i, auto part) HWY_ATTR {
      const V reset = sigmoid_of(hn::Add(part(x + i), part(g + i)));
      const V update = sigmoid_of(hn::Add(part(x + h + i), part(g + h + i)));
      const V fresh = tanh_of(hn::MulAdd(reset, part(g + 2 * h + i), part(x + 2 * h + i)));
      part(hn::MulAdd(update, hn::Sub(part(before + i), fresh), fresh), after + i);
    });
  }
}
void gru_rows(const void* x_gates, const void* h_gates, const void* state, void* out, Element type,
              int64_t begin, int64_t end, int64_t h) {
  with_element(type, [&](auto t) HWY_ATTR {
    gru_as<decltype(t)>(x_gates, h_gates, state, out, begin, end, h);
  });
}

// The forward pass is out = (1 - update) fresh + update before, where fresh = tanh(x_new + reset
// h_new).
template <class T>
void gru_backward_as(const void* x_gates, const void* h_gates, const void* state, const void* dout,
                     void* dx_gates, void* dh_gates, void* dstate, int64_t begin, int64_t end,
                     int64_t h) {
  for (int64_t r = begin; r < end; ++r) {
    const T *x = static_cast<const T*>(x_gates) + r * 3 * h,
            *g = static_cast<const T*>(h_gates) + r * 3 * h;
    T *dx = static_cast<T*>(dx_gates) + r * 3 * h, *dg = static_cast<T*>(dh_gates) + r * 3 * h;
    const T *before = static_cast<const T*>(state) + r * h,
            *dy = static_cast<const T*>(dout) + r * h;
    T* dbefore = static_cast<T*>(dstate) + r * h;
    // Compute the gates again from their inputs, in the order of the forward pass.
    for_vectors(h, [&](int64_t i, auto part) HWY_ATTR {
      const Gate reset = gate_of(hn::Add(part(x + i), part(g + i)));
      const Gate update = gate_of(hn::Add(part(x + h + i), part(g + h + i)));
      const V inner = part(g + 2 * h + i), up = part(dy + i);
      const V fresh = tanh_of(hn::MulAdd(reset.s, inner, part(x + 2 * h + i)));

      const V dn = through_tanh(hn::NegMulAdd(up, update.s, up), fresh);
      const V dr = hn::Mul(hn::Mul(dn, inner), reset.derivative);
      const V dz = hn::Mul(hn::Mul(up, hn::Sub(part(before + i), fresh)), update.derivative);

      // The reset and update gates depend on the sum of the contributions of the input and of the
      // state, so both contributions get the same gradient. In `fresh`, the reset gate scales only
      // the contribution of the state.
      part(dr, dx + i);
      part(dr, dg + i);
      part(dz, dx + h + i);
      part(dz, dg + h + i);
      part(dn, dx + 2 * h + i);
      part(hn::Mul(dn, reset.s), dg + 2 * h + i);
      part(hn::Mul(up, update.s), dbefore + i);
    });
  }
}
void gru_backward_rows(const void* x_gates, const void* h_gates, const void* state,
                       const void* dout, void* dx_gates, void* dh_gates, void* dstate, Element type,
                       int64_t begin, int64_t end, int64_t h) {
  with_element(type, [&](auto t) HWY_ATTR {
    gru_backward_as<decltype(t)>(x_gates, h_gates, state, dout, dx_gates, dh_gates, dstate, begin,
                                 end, h);
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(lstm_rows);
HWY_EXPORT(lstm_backward_rows);
HWY_EXPORT(gru_rows);
HWY_EXPORT(gru_backward_rows);

namespace {
/// Calls f(begin, end) for ranges of rows with h columns. Each range is large enough to be worth a
/// thread.
template <class F>
void each_rows(int64_t rows, int64_t h, F&& f) {
  parallel_for(0, rows, divide_up(1 << 11, h), [&](int64_t begin, int64_t end) { f(begin, end); });
}
}  // namespace

void lstm_cell_forward(const void* gates, Element type, const float* c, void* h_out, float* c_out,
                       int64_t rows, int64_t h) {
  each_rows(rows, h, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(lstm_rows)(gates, type, c, h_out, c_out, begin, end, h);
  });
}
void lstm_cell_backward(const void* gates, Element type, const float* c, const float* c_out,
                        const void* dh, const float* dc_out, void* dgates, float* dc, int64_t rows,
                        int64_t h) {
  each_rows(rows, h, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(lstm_backward_rows)(gates, type, c, c_out, dh, dc_out, dgates, dc, begin,
                                             end, h);
  });
}
void gru_cell_forward(const void* x_gates, const void* h_gates, const void* state, void* out,
                      Element type, int64_t rows, int64_t h) {
  each_rows(rows, h, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gru_rows)(x_gates, h_gates, state, out, type, begin, end, h);
  });
}
void gru_cell_backward(const void* x_gates, const void* h_gates, const void* state,
                       const void* dout, void* dx_gates, void* dh_gates, void* dstate, Element type,
                       int64_t rows, int64_t h) {
  each_rows(rows, h, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gru_backward_rows)
    (x_gates, h_gates, state, dout, dx_gates, dh_gates, dstate, type, begin, end, h);
  });
}

}  // namespace lathe
#endif
