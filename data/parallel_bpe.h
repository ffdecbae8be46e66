// Encoding one long text on several threads. No LibTorch header.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "data/bpe.h"

namespace lathe {

/// Gives the ids that BPE::Encoder::encode_pieces gives, whatever the number of workers: each begins at a guessed end
/// of a piece, and where the one before does not come to that place its part is encoded again.
class ParallelEncoder {
 public:
  ParallelEncoder(const BPE& bpe, int workers);
  /// As BPE::Encoder::encode_pieces.
  size_t encode_pieces(std::string_view text, size_t begin, size_t end, std::vector<int32_t>& out);

 private:
  const BPE& bpe_;
  std::deque<BPE::Encoder> encoders_;
};

}  // namespace lathe
