// Several separate documents in a row of tokens: attention does not see other documents, and
// positions restart at 0. A model that supports this declares `static constexpr bool
// separates_documents = true`.
//
// The keys of a query begin at its document, and attention skips blocks of keys that no query of a
// block sees, so shorter documents take less work. Transformer blocks receive the starts as an
// argument, so recomputation has them too. A document begins with the token that ended the previous
// one. So the model learns to end a document with all of it in context, and to begin one from that
// token alone, as in `generate`.
//
// Models take positions from token_positions(), which also knows of cached tokens and of positions
// that are divided among processes.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/mode.h"

namespace lathe {

/// While alive, the thread's forwards take rows of several documents. `starts` is int64 [B, T]: for
/// each token, the position in the row at which the token's document begins. If it is undefined,
/// each row is one document. It must outlive the guard.
struct SeparateDocuments : ModeGuard {
  explicit SeparateDocuments(const at::Tensor& starts) {
    mode().document_starts = starts.defined() ? &starts : nullptr;
  }
};

/// Returns the starts that apply to a forward, or an undefined tensor.
inline at::Tensor document_starts() {
  return mode().document_starts != nullptr ? *mode().document_starts : at::Tensor();
}
/// Returns the position of each of the `t` tokens of a row in its text or document: int64 [t] or
/// [B, t]. Under a KeyValueCache::Use, the tokens follow the cached ones. Under DividePositions,
/// they are the tokens of this process. Returns an undefined tensor if neither guard is alive and
/// there are no document starts; the positions are then 0 to t - 1.
at::Tensor token_positions(int64_t t, at::Device device);

}  // namespace lathe
