// What a language model makes of texts: their loss, and which of several endings it takes for the
// likeliest.
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

/// A model that scores, and how.
struct Scoring {
  const Model& model;
  const Tokenizer& tokenizer;
  int64_t context = 0;     ///< tokens that the model sees at most
  int64_t stride = 0;      ///< by how many tokens a window is behind the one before; 0: context
  int64_t batch_size = 1;  ///< windows at once
  Compute compute = {};
  at::Device device{at::kCPU};
};

/// What a text costs a model.
struct TextScore {
  double loss = 0;  ///< summed negative log-likelihood of the tokens that are scored, in nats
  int64_t tokens = 0, bytes = 0;  ///< scored
};
/// The loss of a text. Texts of special tokens in it are text. Where the tokenizer has a token that
/// begins or ends documents, the text stands behind it and every token is scored; otherwise the
/// first one is not. In windows of `context` tokens, each `stride` behind the one before, a token
/// is scored once, in the first window that has it. Exit::diverged where a loss is not finite.
TextScore score_text(const Scoring& scoring, std::string_view text);

/// Which ending is the likeliest: as a whole, and by byte.
struct Answer {
  int64_t whole = 0, by_byte = 0;
};
/// Sums the log-likelihoods of an ending's tokens behind the context; where neither the context
/// ends nor the ending begins with white space, the ending is " ENDING". By byte: the sum over the
/// ending's bytes. What is longer than the model's context is cut at its front. Exit::data where
/// the context is empty and the tokenizer has no token that texts begin behind; Exit::diverged
/// where a loss is not finite.
Answer answer(const Scoring& scoring, const Choice& choice);

}  // namespace lathe
