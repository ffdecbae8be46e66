// Cells of recurrent layers, element by element, in float32 whatever the elements are. Rows are
// sequences, a gate is h columns of a row.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// gates [rows, 4 h]: input, forget, cell, output before their activations; c [rows, h] -> h_out,
/// of the gates' type, and c_out.
void lstm_cell_forward(const void* gates, Element type, const float* c, void* h_out, float* c_out,
                       int64_t rows, int64_t h);
/// From the same gates and c, the next c, and the gradients of both results (either may be null:
/// zero) those of the gates, in their type, and of c.
void lstm_cell_backward(const void* gates, Element type, const float* c, const float* c_out,
                        const void* dh, const float* dc_out, void* dgates, float* dc, int64_t rows,
                        int64_t h);
/// x_gates and h_gates [rows, 3 h]: reset, update, new; state [rows, h] -> out [rows, h], all of
/// one type.
void gru_cell_forward(const void* x_gates, const void* h_gates, const void* state, void* out,
                      Element type, int64_t rows, int64_t h);
void gru_cell_backward(const void* x_gates, const void* h_gates, const void* state,
                       const void* dout, void* dx_gates, void* dh_gates, void* dstate, Element type,
                       int64_t rows, int64_t h);

}  // namespace lathe
