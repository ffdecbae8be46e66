#include "data/tokens/padded.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/rng.h"
#include "data/tokens/sampler.h"

namespace lathe {
namespace {

std::vector<at::Tensor> make_rows(int64_t rows, int64_t t) {
  return {at::empty({rows, t}, at::kLong), at::empty({rows, t}, at::kLong)};
}

class PaddedTraining final : public TrainingBatches {
 public:
  PaddedTraining(const PaddedItems& items, const BatchSizes& sizes, uint64_t seed)
      : items_(items), sizes_(sizes), in_batch_(sizes.batch_size / items.rows()), seed_(seed) {}

  std::vector<at::Tensor> make_buffers() const override {
    return make_rows(sizes_.batch_size, sizes_.block_size);
  }
  void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const override {
    for (int64_t i = 0; i < in_batch_; ++i)
      items_.put(item(micro_batch * in_batch_ + i), buffers, i, in_batch_, sizes_.vocab_size);
    // If the batch size is not a multiple of the rows of an item, the remaining rows are padding.
    for (int64_t row = in_batch_ * items_.rows(); row < sizes_.batch_size; ++row)
      put_padded({}, {}, buffers, row);
  }
  std::optional<int64_t> targets(int64_t micro_batch) const override {
    int64_t all = 0;
    for (int64_t i = 0; i < in_batch_; ++i)
      all += items_.targets(item(micro_batch * in_batch_ + i), sizes_.block_size);
    return all;
  }
  Batch batch_of(const std::vector<at::Tensor>& on_device) const override {
    return {on_device[0], on_device[1]};
  }

 private:
  /// Returns the n-th item since the start of training.
  int64_t item(int64_t n) const {
    const int64_t all = items_.size(), epoch = n / all;
    const Permutation order(
        static_cast<uint64_t>(all),
        make_key(seed_, hash_name(items_.stream()) + static_cast<uint64_t>(epoch)));
    return static_cast<int64_t>(order(static_cast<uint64_t>(n % all)));
  }

  const PaddedItems& items_;
  BatchSizes sizes_;
  int64_t in_batch_;
  uint64_t seed_;
};

class PaddedEvaluation final : public EvaluationBatches {
 public:
  PaddedEvaluation(const PaddedItems& items, const BatchSizes& sizes, int64_t batches,
                   at::Device device)
      : items_(items),
        sizes_(sizes),
        in_batch_(std::max<int64_t>(1, sizes.batch_size / items.rows())),
        end_(items.size()),
        device_(device) {
    if (batches > 0 && batches <= end_ / in_batch_) end_ = batches * in_batch_;
  }

  bool next(Batch& batch) override {
    const int64_t n = std::min(in_batch_, end_ - at_);
    if (n == 0) return false;
    const auto buffers = make_rows(items_.rows() * n, sizes_.block_size);
    for (int64_t i = 0; i < n; ++i, ++at_) {
      const int64_t item = end_ < items_.size() ? spread_index(at_, end_, items_.size()) : at_;
      items_.put(item, buffers, i, n, sizes_.vocab_size);
    }
    batch = {buffers[0].to(device_), buffers[1].to(device_)};
    return true;
  }

 private:
  const PaddedItems& items_;
  BatchSizes sizes_;
  int64_t in_batch_, at_ = 0, end_;
  at::Device device_;
};

}  // namespace

void put_padded(const std::vector<int64_t>& ids, const std::vector<int64_t>& targets,
                const std::vector<at::Tensor>& buffers, int64_t row) {
  const int64_t t = buffers[0].size(1);
  const int64_t count = std::clamp<int64_t>(std::ssize(ids) - 1, 0, t);
  int64_t* inputs = buffers[0].mutable_data_ptr<int64_t>() + row * t;
  int64_t* out = buffers[1].mutable_data_ptr<int64_t>() + row * t;
  std::fill(inputs, inputs + t, 0);
  std::fill(out, out + t, -100);
  std::copy_n(ids.begin(), count, inputs);
  if (count > 0) std::copy_n(targets.begin() + 1, count, out);
}

std::unique_ptr<TrainingBatches> padded_training(const PaddedItems& items, const BatchSizes& sizes,
                                                 uint64_t seed) {
  return std::make_unique<PaddedTraining>(items, sizes, seed);
}

std::unique_ptr<EvaluationBatches> padded_evaluation(const PaddedItems& items,
                                                     const BatchSizes& sizes, int64_t batches,
                                                     at::Device device) {
  return std::make_unique<PaddedEvaluation>(items, sizes, batches, device);
}

PaddedDocuments::PaddedDocuments(const TokenFile& tokens, int64_t document_end) : tokens_(tokens) {
  std::vector<int64_t> ends = tokens.positions_of(document_end);
  if (ends.empty() || ends.back() + 1 < tokens.size()) ends.push_back(tokens.size() - 1);
  int64_t begin = 0;
  for (const int64_t end : ends) {
    // An end token at the beginning of a document is the token that begins the document, if the
    // tokenizer has one token for both.
    if (end == begin) continue;
    documents_.push_back({begin, end + 1 - begin});
    begin = end + 1;
  }
}

int64_t PaddedDocuments::count_longer(int64_t window) const {
  return std::count_if(documents_.begin(), documents_.end(),
                       [&](const Document& d) { return d.length > window + 1; });
}

int64_t PaddedDocuments::targets(int64_t item, int64_t window) const {
  const Document& d = documents_[static_cast<size_t>(item)];
  return tokens_.count_unmarked(d.begin + 1, std::min(d.length - 1, window));
}

void PaddedDocuments::put(int64_t item, const std::vector<at::Tensor>& buffers, int64_t n,
                          int64_t /*items*/, int64_t vocab_size) const {
  const Document& d = documents_[static_cast<size_t>(item)];
  const int64_t count = std::min(d.length, buffers[0].size(1) + 1);
  std::vector<int64_t> ids(static_cast<size_t>(count)), targets(ids.size());
  tokens_.read(d.begin, count, vocab_size, ids.data());
  tokens_.read_targets(d.begin, count, targets.data());
  put_padded(ids, targets, buffers, n);
}

}  // namespace lathe
