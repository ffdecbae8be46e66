// Several documents in a row of tokens, each by itself: attention of one sees nothing of another,
// and positions start again at 0. A model that supports this declares `static constexpr bool
// separates_documents = true`.
//
// Attention starts each query's keys at its document and skips blocks of keys that no query of
// a block may see, so the work falls with the document length. Blocks receive the starts as a
// value, so recomputation has them too. A document begins with the token that ended the
// previous one: the model learns to end a document with all of it in context and to begin one
// from that token alone, which is what `generate` gives it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include "core/mode.h"

namespace lathe {

/// While alive, the thread's forwards take rows of several documents. starts, int64 [B, T]: the
/// place in its row where the document of each place begins; undefined: rows are of one document.
struct SeparateDocuments : ModeGuard {
  explicit SeparateDocuments(const at::Tensor& starts) {
    mode().document_starts = starts.defined() ? &starts : nullptr;
  }
};

/// The starts that a forward is to go by, or an undefined tensor.
inline at::Tensor document_starts() {
  return mode().document_starts != nullptr ? *mode().document_starts : at::Tensor();
}
/// Place of each token in its document, [B, T].
inline at::Tensor position_ids(const at::Tensor& starts) {
  return at::arange(starts.size(1), starts.options()) - starts;
}

}  // namespace lathe
