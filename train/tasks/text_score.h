// Scores texts with a language model: computes the loss of a text, and finds the likeliest of
// several endings.
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

/// Holds the model and the parameters of scoring.
struct Scoring {
  const Model& model;
  const Tokenizer& tokenizer;
  int64_t context = 0;     ///< length of a window, in tokens
  int64_t stride = 0;      ///< distance in tokens between the beginnings of windows; 0: `context`
                           ///< tokens
  int64_t batch_size = 1;  ///< largest number of windows in a batch
  Compute compute = {};
  at::Device device{at::kCPU};
};

/// Returns the token to put before each text: the token that begins texts or, if there is none, the
/// token that ends documents. Returns -1 if the tokenizer has neither.
int64_t text_begin_token(const Tokenizer& tokenizer);

/// Holds the loss of a text.
struct TextScore {
  double loss = 0;                ///< summed negative log-likelihood of the scored tokens, in nats
  int64_t tokens = 0, bytes = 0;  ///< number of scored tokens, and number of bytes of their text
};
/// Returns the loss of a text. If the text contains names of special tokens, they are encoded as
/// ordinary text. If there is a text_begin_token(), it is put before the text, and every token of
/// the text is scored; otherwise, the first token is not scored. Windows have `context` tokens (the
/// last window may have fewer), and begin `stride` tokens apart. Each token is scored once, in the
/// first window that contains it.
/// Throws Exit::diverged if a loss is not finite.
TextScore score_text(const Scoring& scoring, std::string_view text);

/// Holds the index of the likeliest ending, by its total log-likelihood and by its log-likelihood
/// per byte.
struct Answer {
  int64_t by_total = 0, by_byte = 0;
};
/// Returns the likeliest ending of a question. The log-likelihood of an ending is the sum over its
/// tokens, given the question's context. A space is put between the context and an ending, unless
/// the context is empty, the context ends with white space or the ending begins with white space.
/// If the context and an ending together are longer than `scoring.context`, the beginning of the
/// context is cut off. Throws Exit::data if the question has no context and there is no
/// text_begin_token(), or if an ending has more tokens than `scoring.context`. Throws
/// Exit::diverged if a loss is not finite.
Answer answer(const Scoring& scoring, const MultipleChoice& choice);

}  // namespace lathe
