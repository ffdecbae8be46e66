// Scores of texts by a language model: their loss, and the likeliest of several endings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "amp/amp.h"
#include "data/tokenizers/tokenizer.h"
#include "nn/models/model.h"
#include "train/tasks/choices.h"

namespace lathe {

/// The model and the parameters of scoring.
struct Scoring {
  const Model& model;
  const Tokenizer& tokenizer;
  int64_t context = 0;     ///< the model sees at most this many tokens
  int64_t stride = 0;      ///< distance in tokens between the beginnings of windows; 0: context
  int64_t batch_size = 1;  ///< windows in a batch
  Compute compute = {};
  at::Device device{at::kCPU};
};

/// Returns the token that precedes each text: one that begins texts, or else one that ends
/// documents; -1 where the tokenizer has none.
int64_t text_begin_token(const Tokenizer& tokenizer);

/// The loss of a text.
struct TextScore {
  double loss = 0;                ///< summed negative log-likelihood of the scored tokens, in nats
  int64_t tokens = 0, bytes = 0;  ///< number of scored tokens, and of their bytes
};
/// Returns the loss of a text. Special tokens in it are encoded as ordinary text. If the tokenizer
/// has a token that begins or ends documents, it precedes the text and every token is scored;
/// otherwise the first one is not. Windows have `context` tokens and begin `stride` tokens apart; a
/// token is scored once, in the first window that has it. Throws Exit::diverged where a loss is not
/// finite.
TextScore score_text(const Scoring& scoring, std::string_view text);

/// The index of the likeliest ending: by the total log-likelihood, and by that per byte.
struct Answer {
  int64_t by_total = 0, by_byte = 0;
};
/// Returns the likeliest ending. The log-likelihoods of an ending's tokens after the context are
/// summed; `by_byte` compares these sums divided by the endings' bytes. A space is put between the
/// context and an ending, unless the context is empty or one of them has white space there. A text
/// that is longer than the model's context loses its beginning. Throws Exit::data if the choice has
/// no context and the tokenizer has no token that begins texts or ends documents, or if an ending
/// has more tokens than the model's context, and Exit::diverged if a loss is not finite.
Answer answer(const Scoring& scoring, const MultipleChoice& choice);

}  // namespace lathe
