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
  int64_t stride = 0;      ///< tokens between the first tokens of two windows; 0: context
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
  int64_t tokens = 0, bytes = 0;  ///< scored
};
/// Returns the loss of a text. Texts of special tokens in it are ordinary text. If the tokenizer
/// has a token that begins or ends documents, it precedes the text and every token is scored;
/// otherwise the first one is not. Windows have `context` tokens and begin `stride` tokens apart; a
/// token is scored once, in the first window that has it. Throws Exit::diverged where a loss is not
/// finite.
TextScore score_text(const Scoring& scoring, std::string_view text);

/// The index of the likeliest ending: in total, and by byte.
struct Answer {
  int64_t whole = 0, by_byte = 0;
};
/// Sums the log-likelihoods of an ending's tokens after the context. Where neither the context ends
/// nor the ending begins with white space, the ending is " ENDING". By byte: the sum divided by the
/// ending's bytes. A text longer than the model's context loses its beginning. Throws Exit::data
/// where the context is empty and the tokenizer has no token that begins texts, and Exit::diverged
/// where a loss is not finite.
Answer answer(const Scoring& scoring, const MultipleChoice& choice);

}  // namespace lathe
