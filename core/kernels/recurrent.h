// Cells of recurrent layers, element by element, computed in float32 for every element type. A row
// belongs to a sequence of the batch; each gate takes h columns of a row.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// Computes h_out [rows, h], in the gates' type, and c_out [rows, h] from c [rows, h] and the gates
/// [rows, 4 h] before their activations, in the order input, forget, cell, output.
void lstm_cell_forward(const void* gates, Element type, const float* c, void* h_out, float* c_out,
                       int64_t rows, int64_t h);
/// Computes dgates, in the gates' type, and dc from the same gates and c, c_out, and the gradients
/// dh and dc_out of both results. Either of these may be null, which stands for zeros.
void lstm_cell_backward(const void* gates, Element type, const float* c, const float* c_out,
                        const void* dh, const float* dc_out, void* dgates, float* dc, int64_t rows,
                        int64_t h);
/// Computes out [rows, h] from state [rows, h] and from x_gates and h_gates [rows, 3 h], the
/// contributions of the input and of the state to the gates reset, update and new. All have one
/// type.
void gru_cell_forward(const void* x_gates, const void* h_gates, const void* state, void* out,
                      Element type, int64_t rows, int64_t h);
/// Computes the gradients of the gates and of the state from the same inputs and dout.
void gru_cell_backward(const void* x_gates, const void* h_gates, const void* state,
                       const void* dout, void* dx_gates, void* dh_gates, void* dstate, Element type,
                       int64_t rows, int64_t h);

}  // namespace lathe
