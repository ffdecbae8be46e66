// Separates several documents in a row of tokens: attention does not see other documents, and
// positions restart at 0 in each document. A model that supports this declares `static constexpr
// bool separates_documents = true`.
//
// The keys that a query sees begin at its document. Attention skips blocks of keys that no query of
// a block sees, so shorter documents take less work. Transformer blocks receive the starts as an
// argument, so recomputation has them too. A document begins with the token that ends the previous
// one. So the model sees all of a document when it learns to predict the document's end, and only
// this token when it learns to begin a document, as in `lathe generate`.
//
// Models take positions from token_positions(), which also handles cached tokens and positions that
// are divided among processes.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/mode.h"

namespace lathe {

/// While alive, forward passes of this thread take rows of several documents. `starts` is int64
/// [B, T]: for each token, the position in the row at which the token's document begins. If it is
/// undefined, each row is one document. `starts` must outlive the guard.
struct SeparateDocuments : ModeGuard {
  explicit SeparateDocuments(const at::Tensor& starts) {
    mode().document_starts = starts.defined() ? &starts : nullptr;
  }
};

/// Returns the `starts` of the SeparateDocuments that is alive, or an undefined tensor.
inline at::Tensor document_starts() {
  return mode().document_starts != nullptr ? *mode().document_starts : at::Tensor();
}
/// Returns the positions of the `t` tokens of each row, counted from the start of the token's text
/// or document: int64 [t] or [B, t]. Under a KeyValueCache::Use, the tokens follow the cached ones.
/// Under DividePositions, they are the tokens of this process. Returns an undefined tensor if
/// neither guard is alive and there are no document starts; the positions are then 0 to t - 1.
at::Tensor token_positions(int64_t t, at::Device device);

}  // namespace lathe
