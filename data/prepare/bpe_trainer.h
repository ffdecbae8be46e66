// Training of a byte-level BPE tokenizer (Sennrich et al. 2016), with the same merges as Hugging
// Face's trainer: words do not cross lines, and of pairs with equal counts the one with the smaller
// ids is merged first.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/prepare/documents.h"
#include "data/tokenizers/bpe.h"

namespace lathe {

struct BPETraining {
  int64_t vocab_size = 0;  ///< largest number of tokens, including the special ones and 256 bytes
  int64_t min_frequency = 2;  ///< a pair that occurs less often is not merged
  std::vector<std::string> special{"<|endoftext|>"};  ///< they get the first ids
  std::string pattern = gpt2_pattern;
  int threads = 1;  ///< threads that count words; the result does not depend on them
  /// Called regularly, also by several threads at the same time. The training throws Exit::stopped
  /// once it returns true.
  std::function<bool()> stop = nullptr;
  /// Called during merging with the number of tokens so far as a fraction of `vocab_size`.
  std::function<void(double)> show = nullptr;
};

/// Trains on the lines of documents (text or JSON Lines, compressed or not). Throws Exit::data for
/// a file that can't be read, and Exit::usage for a vocab_size that can't hold the bytes and
/// special tokens.
BPEDefinition train_bpe(const DocumentSource& source, const BPETraining& training);

}  // namespace lathe
