// Declares the cells of recurrent layers, which are computed element by element, in float32 for
// every element type. A row belongs to a sequence of the batch. Each gate takes h columns of a row.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// Computes h_out [rows, h], in the gates' type, and c_out [rows, h] from c [rows, h] and `gates`
/// [rows, 4 h]. The gates have the order input, forget, cell, output, and are given before their
/// activations.
void lstm_cell_forward(const void* gates, Element type, const float* c, void* h_out, float* c_out,
                       int64_t rows, int64_t h);
/// Computes `dgates`, in the gates' type, and `dc` from the arguments and c_out of
/// lstm_cell_forward(), and from the gradients dh and dc_out of both results. If dh or dc_out is
/// null, that gradient is zero.
void lstm_cell_backward(const void* gates, Element type, const float* c, const float* c_out,
                        const void* dh, const float* dc_out, void* dgates, float* dc, int64_t rows,
                        int64_t h);
/// Computes out [rows, h] from state [rows, h], x_gates [rows, 3 h] and h_gates [rows, 3 h].
/// x_gates and h_gates are the contributions of the input and of the state to the gates reset,
/// update and new, in this order. All arrays have the same type.
void gru_cell_forward(const void* x_gates, const void* h_gates, const void* state, void* out,
                      Element type, int64_t rows, int64_t h);
/// Computes the gradients of the gates and of the state from the inputs of gru_cell_forward() and
/// the gradient dout of its result.
void gru_cell_backward(const void* x_gates, const void* h_gates, const void* state,
                       const void* dout, void* dx_gates, void* dh_gates, void* dstate, Element type,
                       int64_t rows, int64_t h);

}  // namespace lathe
