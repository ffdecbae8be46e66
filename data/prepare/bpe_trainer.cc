#include "data/prepare/bpe_trainer.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <numeric>
#include <optional>
#include <queue>
#include <unordered_map>

#include "core/io/text.h"

namespace lathe {
namespace {

using Words = std::unordered_map<std::string, int64_t>;
using Pair = std::pair<int32_t, int32_t>;

/// Adds the words of `lines` to the counts in `words`. A word never extends over several lines.
void count_words(const Pretokenizer& pretokenizer, std::string_view lines, Words& words) {
  std::string word;
  Pretokenizer::Cursor cursor(pretokenizer);
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, std::min(lines.find('\n'), lines.size() - 1) + 1);
    lines.remove_prefix(line.size());
    cursor.begin(line);
    for (std::string_view piece = cursor.next(); !piece.empty(); piece = cursor.next()) {
      word.assign(piece);
      ++words[word];
    }
  }
}

Words count_words(const DocumentSource& source, const BPETraining& t) {
  const Pretokenizer pretokenizer(t.pattern, "--pattern");
  PartReader reader(source, /*whole=*/false);
  std::mutex mutex;  // guards the reader
  std::atomic<bool> stopped = false;

  // Only reading is serial: each thread counts into a separate map.
  const auto work = [&] {
    Words words;
    try {
      for (Part part; !stopped;) {
        {
          const std::lock_guard lock(mutex);
          if (!reader.next(part)) break;
        }
        each_document(part, source,
                      [&](std::string_view text) { count_words(pretokenizer, text, words); });
        if (t.stop && t.stop()) stopped = true;
      }
    } catch (...) {
      stopped = true;  // ends the other threads, so that the error is reported without delay
      throw;
    }
    return words;
  };

  std::vector<std::future<Words>> others;
  try {
    for (int i = 1; i < t.threads; ++i) others.push_back(std::async(std::launch::async, work));
  } catch (...) {
    stopped = true;  // the destructors of `others` wait for the threads that have started
    throw;
  }
  Words all = work();
  for (auto& other : others) {
    for (const auto& [word, count] : other.get()) all[word] += count;
  }

  if (stopped) fail(Exit::stopped, "tokenizer training was stopped; nothing was written");
  return all;
}

struct HashPair {
  size_t operator()(const Pair& p) const {
    const uint64_t x = static_cast<uint64_t>(static_cast<uint32_t>(p.first)) << 32 |
                       static_cast<uint32_t>(p.second);
    return (x ^ x >> 29) * 0x9E3779B97F4A7C15ULL;
  }
};

/// A pair in the queue, with the words that contained it when it was queued. Later merges may have
/// removed the pair from some of these words.
struct Waiting {
  Pair pair;
  int64_t count;
  std::vector<int32_t> words;
  bool operator<(const Waiting& o) const {
    return count != o.count ? count < o.count : o.pair < pair;
  }
};

/// Replaces each occurrence of a pair in a word by `id`. Appends to `changes` by how much the
/// counts of adjacent pairs change.
void replace(std::vector<int32_t>& word, Pair pair, int32_t id,
             std::vector<std::pair<Pair, int>>& changes) {
  size_t to = 0;
  for (size_t from = 0; from < word.size(); ++to) {
    if (word[from] != pair.first || from + 1 == word.size() || word[from + 1] != pair.second) {
      word[to] = word[from++];
      continue;
    }

    // With each neighbor, a pair with an old id disappears, and a pair with the new id appears.
    from += 2;
    if (to > 0) {
      changes.push_back({{word[to - 1], pair.first}, -1});
      changes.push_back({{word[to - 1], id}, 1});
    }
    if (from < word.size()) {
      changes.push_back({{pair.second, word[from]}, -1});
      changes.push_back({{id, word[from]}, 1});
    }
    word[to] = id;
  }
  word.resize(to);
}

/// Returns the 256 bytes in the order of GPT-2's alphabet.
std::vector<int> sorted_bytes() {
  std::vector<int> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  const auto& letters = byte_alphabet();  // UTF-8 strings sort in the order of their code points
  std::sort(bytes.begin(), bytes.end(), [&](int a, int b) {
    return letters[static_cast<size_t>(a)] < letters[static_cast<size_t>(b)];
  });
  return bytes;
}

/// Learns merges from the counts of words.
class Merger {
 public:
  /// `d.tokens` must hold the special tokens, followed by the bytes, whose ids are `first_byte` and
  /// higher. `of_byte` has the id of each byte.
  Merger(BPEDefinition& d, size_t first_byte, const std::array<int32_t, 256>& of_byte,
         Words word_counts)
      : d_(d) {
    for (size_t id = first_byte; id < d.tokens.size(); ++id)
      ids_[d.tokens[id]] = static_cast<int32_t>(id);
    for (const auto& [text, count] : word_counts) {
      std::vector<int32_t>& word = words_.emplace_back();
      for (const char c : text) word.push_back(of_byte[static_cast<unsigned char>(c)]);
      counts_.push_back(count);
    }
    word_counts = {};  // frees its memory

    for (size_t w = 0; w < words_.size(); ++w) {
      for (size_t i = 0; i + 1 < words_[w].size(); ++i) {
        const Pair pair{words_[w][i], words_[w][i + 1]};
        pair_counts_[pair] += counts_[w];
        note_word(pair, static_cast<int32_t>(w));
      }
    }
    queue_new_pairs();
  }

  /// Merges the most frequent pair. Returns false if no pair occurs at least `least` times.
  bool merge(int64_t least) {
    std::optional<Waiting> top = most_frequent();
    const auto joined_of = [&] {
      return d_.tokens[static_cast<size_t>(top->pair.first)] +
             d_.tokens[static_cast<size_t>(top->pair.second)];
    };
    // A text belongs to only one token, so no merge may produce the text of a special token.
    const auto is_special = [&](const std::string& text) {
      return std::ranges::find(d_.special, text, &SpecialToken::text) != d_.special.end();
    };
    while (top && is_special(joined_of())) top = most_frequent();
    if (!top || top->count < least) return false;

    const std::string joined = joined_of();
    const auto [place, is_new] = ids_.emplace(joined, static_cast<int32_t>(d_.tokens.size()));
    if (is_new) d_.tokens.push_back(joined);
    d_.merges.push_back(top->pair);

    for (const int32_t w : top->words) {
      changes_.clear();
      replace(words_[static_cast<size_t>(w)], top->pair, place->second, changes_);
      for (const auto& [pair, change] : changes_) {
        pair_counts_[pair] += change * counts_[static_cast<size_t>(w)];
        if (change > 0) note_word(pair, w);
      }
    }
    queue_new_pairs();
    return true;
  }

 private:
  void note_word(Pair pair, int32_t word) {
    std::vector<int32_t>& list = where_[pair];
    if (list.empty() || list.back() != word) list.push_back(word);
  }

  void queue_new_pairs() {
    for (auto& [pair, list] : where_) {
      if (const int64_t count = pair_counts_[pair]; count > 0)
        queue_.push({.pair = pair, .count = count, .words = std::move(list)});
    }
    where_.clear();
  }

  /// Removes the most frequent pair from the queue and returns it; nullopt if the queue is empty.
  std::optional<Waiting> most_frequent() {
    while (!queue_.empty()) {
      // The element is removed immediately, so its contents may be moved.
      Waiting top = std::move(const_cast<Waiting&>(queue_.top()));
      queue_.pop();
      const int64_t now = pair_counts_[top.pair];
      if (now == top.count) return top;
      // Other merges have changed this pair's count since the pair was queued.
      top.count = now;
      if (now > 0) queue_.push(std::move(top));
    }
    return std::nullopt;
  }

  BPEDefinition& d_;
  std::unordered_map<std::string, int32_t> ids_;  // id of each text, which several merges may give
  std::vector<std::vector<int32_t>> words_;       // the ids of each word
  std::vector<int64_t> counts_;                   // how often each word occurs
  std::unordered_map<Pair, int64_t, HashPair> pair_counts_;
  // For each pair that is not in the queue yet: the words that contain it, without duplicates.
  std::unordered_map<Pair, std::vector<int32_t>, HashPair> where_;
  std::priority_queue<Waiting> queue_;
  std::vector<std::pair<Pair, int>> changes_;
};

}  // namespace

BPEDefinition train_bpe(const DocumentSource& source, const BPETraining& t) {
  BPEDefinition d;
  d.patterns = {t.pattern};

  // Assign ids in the order of Hugging Face's trainer: special tokens, bytes, merges.
  for (const std::string& text : t.special) {
    if (text.size() == 1)
      fail(Exit::usage, "the special token \"", printable_line(text),
           "\" is a single byte, which is a token already; use a longer text");
    d.special.push_back({static_cast<int32_t>(d.tokens.size()), text});
    d.tokens.push_back(text);
  }

  const size_t first_byte = d.tokens.size();
  const auto least_size = static_cast<int64_t>(first_byte) + 256;
  if (t.vocab_size < least_size) {
    fail(Exit::usage, "a vocabulary of ", t.vocab_size, " has no room for 256 bytes and ",
         first_byte, " special tokens; make it ", least_size, " or more");
  }

  std::array<int32_t, 256> of_byte{};
  for (const int byte : sorted_bytes()) {
    of_byte[static_cast<size_t>(byte)] = static_cast<int32_t>(d.tokens.size());
    d.tokens.emplace_back(1, static_cast<char>(byte));
  }

  Words words = count_words(source, t);
  if (words.empty()) fail(Exit::data, "the training files hold no text");
  Merger merger(d, first_byte, of_byte, std::move(words));
  const int64_t least_count = std::max<int64_t>(1, t.min_frequency);
  while (static_cast<int64_t>(d.tokens.size()) < t.vocab_size && merger.merge(least_count)) {
    if (d.merges.size() % 256 != 0) continue;
    if (t.stop && t.stop())
      fail(Exit::stopped, "tokenizer training was stopped; nothing was written");
    if (t.show) t.show(static_cast<double>(d.tokens.size()) / static_cast<double>(t.vocab_size));
  }
  return d;
}

}  // namespace lathe
