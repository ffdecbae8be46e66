// Separates several documents in a row of tokens: attention does not see other documents, and
// positions restart at 0 in each document. A model that supports such rows declares `static
// constexpr bool separates_documents = true`.
//
// A query sees no keys before the start of its document. Attention skips blocks of keys that no
// query of a block of queries sees, so shorter documents take less work. Transformer blocks receive
// the starts of documents as an argument, so recomputation has the starts as well. A document
// begins with the token that ends the previous document. So the model sees all of a document when
// it learns to predict the document's end. When the model learns to begin a document, it sees only
// this token, as in `lathe generate`.
//
// Models take positions from token_positions(), which also handles cached tokens and positions that
// are divided among processes.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/mode.h"

namespace lathe {

/// While this object exists, forward passes of this thread take rows of several documents. `starts`
/// is int64 [B, T]: for each token, the position in the row at which the token's document begins.
/// If `starts` is undefined, each row is one document. `starts` must outlive the guard.
struct SeparateDocuments : ModeGuard {
  explicit SeparateDocuments(const at::Tensor& starts) {
    mode().document_starts = starts.defined() ? &starts : nullptr;
  }
};

/// Returns the `starts` of this thread's innermost SeparateDocuments, or an undefined tensor if
/// there is none.
inline at::Tensor document_starts() {
  return mode().document_starts != nullptr ? *mode().document_starts : at::Tensor();
}
/// Returns the position of each of the `t` tokens of each row, counted from the start of the
/// token's text or document: int64 [t] or [B, t]. Under a KeyValueCache::Use, the tokens follow the
/// cached tokens. Under DividePositions, the tokens are this process's part. If neither of these
/// guards exists and there are no document starts, returns an undefined tensor, which stands for
/// the positions 0 to t - 1.
at::Tensor token_positions(int64_t t, at::Device device);

}  // namespace lathe
