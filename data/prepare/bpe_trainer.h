// Training of a byte-level BPE tokenizer (Sennrich et al. 2016), with the same merges as Hugging
// Face's trainer: words are those of single lines, equal counts are decided by the smaller ids.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/prepare/documents.h"
#include "data/tokenizers/bpe.h"

namespace lathe {

struct BPETraining {
  int64_t vocab_size = 0;     ///< tokens at most, with the special ones and 256 bytes
  int64_t min_frequency = 2;  ///< a pair that is rarer is not merged
  std::vector<std::string> special{"<|endoftext|>"};  ///< they have the first ids
  std::string pattern = gpt2_pattern;
  int threads = 1;                       ///< that count words; the result is the same
  std::function<bool()> stop = nullptr;  ///< asked now and then; true ends it with Exit::stopped
  std::function<void(double)> show = nullptr;  ///< told the share that is done
};

/// From the lines of documents, text or JSON Lines, compressed or not. Exit::data for a file that
/// can't be read, Exit::usage for a vocab_size without room for the bytes and special tokens.
BPEDefinition train_bpe(const DocumentSource& source, const BPETraining& training);

}  // namespace lathe
