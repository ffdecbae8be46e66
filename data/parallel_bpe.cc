#include "data/parallel_bpe.h"

#include <algorithm>
#include <future>

namespace lathe {

constexpr size_t least_bytes = size_t{1} << 16;  // of a worker's part

ParallelEncoder::ParallelEncoder(const BPE& bpe, int workers) : bpe_(bpe) {
  for (int i = 0; i < std::max(1, workers); ++i) encoders_.emplace_back(bpe);
}

size_t ParallelEncoder::encode_pieces(std::string_view text, size_t begin, size_t end, std::vector<int32_t>& out) {
  std::vector<size_t> begins{begin};
  const size_t each = std::max(least_bytes, (end - begin + encoders_.size() - 1) / encoders_.size());
  while (begins.size() < encoders_.size() && end - begins.back() > 2 * least_bytes) {
    if (begins.back() + each >= end) break;
    const size_t guess = bpe_.guess_boundary(text, begins.back() + each);
    if (guess >= end) break;
    begins.push_back(guess);
  }
  struct Made {
    std::vector<int32_t> ids;
    size_t next;
  };
  std::vector<std::future<Made>> others;
  const auto encode = [&](size_t i, size_t from) {
    Made made;
    made.next = encoders_[i].encode_pieces(text, from, i + 1 < begins.size() ? begins[i + 1] : end, made.ids);
    return made;
  };
  for (size_t i = 1; i < begins.size(); ++i) others.push_back(std::async(std::launch::async, encode, i, begins[i]));
  for (size_t i = 0, at = begin;; ++i) {
    Made made = i == 0 ? encode(0, begin) : others[i - 1].get();
    if (at != begins[i]) made = encode(i, at);  // the guess was wrong
    out.insert(out.end(), made.ids.begin(), made.ids.end());
    at = made.next;
    if (i + 1 == begins.size()) return at;
  }
}

}  // namespace lathe
