// Trains a byte-level BPE tokenizer (Sennrich et al. 2016). Hugging Face's trainer learns the same
// merges: a word never extends over several lines, and if several pairs have equal counts, the pair
// with the smallest ids is merged first.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/prepare/documents.h"
#include "data/tokenizers/bpe.h"

namespace lathe {

struct BPETraining {
  int64_t vocab_size = 0;     ///< largest number of tokens, including special tokens and 256 bytes
  int64_t min_frequency = 2;  ///< a pair that occurs less often is not merged
  std::vector<std::string> special{"<|endoftext|>"};  ///< special tokens, which get the first ids
  std::string pattern = gpt2_pattern;
  int threads = 1;  ///< number of threads that count words; it does not change the result
  /// Called regularly, possibly by several threads at the same time. Once it returns true, training
  /// throws Exit::stopped.
  std::function<bool()> stop = nullptr;
  /// Called during merging, with the current number of tokens divided by `vocab_size`.
  std::function<void(double)> show = nullptr;
};

/// Trains on the lines of all documents of `source` (text or JSON Lines, compressed or not). Throws
/// Exit::data for a file that can't be read, and Exit::usage if a special token is a single byte or
/// if vocab_size is too small for the special tokens and the 256 bytes.
BPEDefinition train_bpe(const DocumentSource& source, const BPETraining& training);

}  // namespace lathe
