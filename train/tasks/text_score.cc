#include "train/tasks/text_score.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/io/text.h"
#include "core/memory.h"
#include "train/tasks/language.h"

namespace lathe {
namespace {

/// Encodes a text. If the text contains the name of a special token, such as <|endoftext|>, encodes
/// this name as ordinary text. `begins`: whether nothing precedes the text (see
/// BPE::Encoder::encode()).
std::vector<int64_t> plain_ids(const Tokenizer& tokenizer, std::string_view text,
                               bool begins = true) {
  if (tokenizer.bpe() == nullptr) return tokenizer.encode(text);
  std::vector<int32_t> ids;
  BPE::Encoder(*tokenizer.bpe()).encode(text, ids, SpecialText::text, begins);
  return {ids.begin(), ids.end()};
}

/// Returns the summed loss of `rows`. Each row points to t + 1 tokens: the first t tokens are
/// inputs, and the last t tokens are their targets. Targets at positions before `from` are not
/// scored.
double loss_of(const Scoring& s, const std::vector<const int64_t*>& rows, int64_t t, int64_t from) {
  const auto n = static_cast<int64_t>(rows.size());
  const at::Tensor ids = at::empty({n, t + 1}, at::kLong);
  for (int64_t i = 0; i < n; ++i)
    std::copy_n(rows[static_cast<size_t>(i)], t + 1, ids.mutable_data_ptr<int64_t>() + i * (t + 1));

  // Copy the targets before changing them, since the inputs share the memory of `ids`.
  const at::Tensor targets = ids.slice(1, 1, t + 1).clone();
  if (from > 0) targets.slice(1, 0, from).fill_(-100);

  const NoGrad no_grad;
  const Autocast autocast(s.compute);
  const MemoryScope memory(Memory::activations);
  const double loss =
      token_loss(s.model, {ids.slice(1, 0, t).to(s.device), targets.to(s.device)}, 1).item();
  if (!std::isfinite(loss))
    fail(Exit::diverged, "the model's loss is ", loss, "; the weights have diverged");
  return loss;
}

}  // namespace

int64_t text_begin_token(const Tokenizer& tokenizer) {
  const BPE* bpe = tokenizer.bpe();
  const int64_t begin = bpe != nullptr ? boundary_tokens(bpe->definition()).begin : -1;
  return begin >= 0 ? begin : tokenizer.document_end();
}

TextScore score_text(const Scoring& s, std::string_view text) {
  std::vector<int64_t> ids = plain_ids(s.tokenizer, text);
  if (ids.empty()) return {};

  // The first token can be predicted only after a token that begins texts. If the tokenizer has no
  // such token, the bytes of the first token do not count.
  TextScore score{.loss = 0, .tokens = 0, .bytes = static_cast<int64_t>(text.size())};
  if (const int64_t begin = text_begin_token(s.tokenizer); begin >= 0)
    ids.insert(ids.begin(), begin);
  else
    score.bytes -= std::ssize(s.tokenizer.decode({ids[0]}));
  score.tokens = std::ssize(ids) - 1;

  const int64_t stride = s.stride == 0 ? s.context : s.stride;
  // Windows with the same length and the same first scored position form a batch. If windows
  // overlap, the first window forms a separate batch. A shorter last window also forms a separate
  // batch.
  std::vector<const int64_t*> rows;
  int64_t length = 0, from = 0;
  const auto run = [&] {
    if (!rows.empty()) score.loss += loss_of(s, rows, length, from);
    rows.clear();
  };

  for (int64_t scored = 0; scored < score.tokens;) {
    const int64_t begin = scored == 0 ? 0 : scored - (s.context - stride);
    const int64_t t = std::min(s.context, score.tokens - begin), first = scored - begin;
    if (!rows.empty() && (t != length || first != from || std::ssize(rows) == s.batch_size)) run();
    length = t;
    from = first;
    rows.push_back(ids.data() + begin);
    scored = begin + t;
  }
  run();
  return score;
}

Answer answer(const Scoring& s, const MultipleChoice& c) {
  const auto is_space = [](char x) { return std::isspace(static_cast<unsigned char>(x)) != 0; };
  Answer best;
  double best_whole = 0, best_by_byte = 0;
  for (int64_t i = 0; i < std::ssize(c.endings); ++i) {
    std::string ending = c.endings[static_cast<size_t>(i)];
    const auto bytes = static_cast<double>(ending.size());
    if (!c.context.empty() && !is_space(c.context.back()) && !is_space(ending.front()))
      ending = " " + ending;

    std::vector<int64_t> ids = plain_ids(s.tokenizer, c.context);
    // A token that ends documents, such as GPT-2's <|endoftext|>, is put before the question only
    // if the question has no context.
    const int64_t begin = text_begin_token(s.tokenizer);
    if (begin >= 0 && (ids.empty() || begin != s.tokenizer.document_end()))
      ids.insert(ids.begin(), begin);
    const std::vector<int64_t> of_ending = plain_ids(s.tokenizer, ending, c.context.empty());
    ids.insert(ids.end(), of_ending.begin(), of_ending.end());

    if (ids.size() == of_ending.size())
      fail(Exit::data,
           "a question has no context, and the tokenizer has no token that begins a text or ends a "
           "document; add a context of at least one word");

    if (std::ssize(of_ending) > s.context) {
      fail(Exit::data, "the ending \"", printable_line(c.endings[static_cast<size_t>(i)]),
           "\" of a question has ", of_ending.size(), " tokens, but the model's context is ",
           s.context, "; shorten the ending");
    }
    const int64_t t = std::min(s.context, std::ssize(ids) - 1);
    // The tokens of the context are not scored.
    const int64_t from = std::max<int64_t>(0, t - std::ssize(of_ending));
    const double loss = loss_of(s, {ids.data() + (std::ssize(ids) - 1 - t)}, t, from);

    if (i == 0 || loss < best_whole) {
      best.by_total = i;
      best_whole = loss;
    }
    if (i == 0 || loss / bytes < best_by_byte) {
      best.by_byte = i;
      best_by_byte = loss / bytes;
    }
  }
  return best;
}

}  // namespace lathe
