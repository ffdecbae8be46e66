#include "data/windows.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/rng.h"
#include "data/sampler.h"

namespace lathe {
namespace {

/// The host tensors of a batch of windows, and their conversion to a Batch. The first has ids
/// [rows, T + 1]. Targets [rows, T] follow where some are not learned, and starts [rows, T] where
/// documents are separate.
class WindowLayout {
 public:
  WindowLayout(const std::vector<WindowSource>& sources, const WindowKind& kind) : kind_(kind) {
    for (const WindowSource& s : sources) marked_ = marked_ || s.tokens->marked();
  }

  std::vector<at::Tensor> make(int64_t rows, int64_t t) const {
    std::vector<at::Tensor> buffers{at::empty({rows, t + 1}, at::kLong)};
    for (int i = 0; i < (marked_ ? 1 : 0) + (kind_.document_end ? 1 : 0); ++i)
      buffers.push_back(at::empty({rows, t}, at::kLong));
    return buffers;
  }
  /// Fills a row with the window that begins at token `begin`.
  void fill(const std::vector<at::Tensor>& buffers, int64_t row, const TokenFile& tokens,
            int64_t begin, int64_t vocab_size) const {
    const int64_t t = buffers[0].size(1) - 1;
    const auto row_of = [&](size_t i) {
      return buffers[i].mutable_data_ptr<int64_t>() + row * buffers[i].size(1);
    };
    int64_t* ids = row_of(0);
    tokens.read(begin, t + 1, vocab_size, ids);
    if (marked_) tokens.read_targets(begin + 1, t, row_of(1));
    if (!kind_.document_end) return;

    // The end token of a document begins the next one, and a window begins one in any case.
    int64_t* starts = row_of(buffers.size() - 1);
    for (int64_t i = 0, start = 0; i < t; ++i) {
      if (ids[i] == *kind_.document_end) start = i;
      starts[i] = start;
    }
  }
  Batch batch_of(const std::vector<at::Tensor>& buffers) const {
    const int64_t t = buffers[0].size(1) - 1;
    return {buffers[0].slice(1, 0, t), marked_ ? buffers[1] : buffers[0].slice(1, 1, t + 1),
            kind_.document_end ? buffers.back() : at::Tensor()};
  }
  bool marked() const { return marked_; }

 private:
  WindowKind kind_;
  bool marked_ = false;
};

class Windows final : public TrainingBatches {
 public:
  Windows(const std::vector<WindowSource>& sources, const BatchSizes& sizes, uint64_t seed,
          const WindowKind& kind)
      : sources_(sources), sizes_(sizes), layout_(sources, kind) {
    std::vector<double> weights;
    for (const WindowSource& s : sources) {
      // The order of a source's windows depends on its name, not on its position in the mixture.
      const uint64_t own = sources.size() == 1 ? 0 : hash_name(s.name);
      samplers_.emplace_back(s.tokens->size(), sizes.block_size, seed + own);
      weights.push_back(s.weight);
    }
    if (sources.size() > 1) mixture_.emplace(weights, seed);
  }

  std::vector<at::Tensor> make_buffers() const override {
    return layout_.make(sizes_.batch_size, sizes_.block_size);
  }
  void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const override {
    for (int64_t row = 0; row < sizes_.batch_size; ++row) {
      const auto [tokens, begin] = window(micro_batch * sizes_.batch_size + row);
      layout_.fill(buffers, row, *tokens, begin, sizes_.vocab_size);
    }
  }
  std::optional<int64_t> targets(int64_t micro_batch) const override {
    if (!layout_.marked()) return std::nullopt;
    int64_t learned = 0;
    for (int64_t row = 0; row < sizes_.batch_size; ++row) {
      const auto [tokens, begin] = window(micro_batch * sizes_.batch_size + row);
      learned += tokens->count_learned(begin + 1, sizes_.block_size);
    }
    return learned;
  }
  Batch batch_of(const std::vector<at::Tensor>& on_device) const override {
    return layout_.batch_of(on_device);
  }

 private:
  struct Window {
    const TokenFile* tokens;
    int64_t begin;
  };
  Window window(int64_t n) const {
    const MixtureSampler::Place place = mixture_ ? (*mixture_)(n) : MixtureSampler::Place{0, n};
    return {sources_[place.source].tokens, samplers_[place.source].start_of(place.index)};
  }

  std::vector<WindowSource> sources_;
  BatchSizes sizes_;
  WindowLayout layout_;
  std::vector<WindowSampler> samplers_;
  std::optional<MixtureSampler> mixture_;
};

class EvaluationWindows final : public EvaluationBatches {
 public:
  EvaluationWindows(const std::vector<WindowSource>& sources, const BatchSizes& sizes,
                    int64_t batches, at::Device device, const WindowKind& kind)
      : sources_(sources),
        sizes_(sizes),
        batches_(batches),
        device_(device),
        layout_(sources, kind) {}

  bool next(Batch& batch) override {
    while (at_ >= end_of(source_)) {
      at_ = 0;
      if (++source_ >= sources_.size()) return false;
    }

    // A remainder shorter than a window becomes a batch of one row.
    const int64_t left = end_of(source_) - at_, t = std::min(sizes_.block_size, left);
    const int64_t rows = std::min(sizes_.batch_size, left / t);
    std::vector<at::Tensor> buffers = layout_.make(rows, t);
    for (int64_t row = 0; row < rows; ++row)
      layout_.fill(buffers, row, *sources_[source_].tokens, at_ + row * t, sizes_.vocab_size);
    at_ += rows * t;

    for (at::Tensor& buffer : buffers) buffer = buffer.to(device_);
    batch = layout_.batch_of(buffers);
    batch.source = sources_[source_].name;
    return true;
  }

 private:
  int64_t end_of(size_t source) const {
    if (source >= sources_.size()) return 0;
    // The last token is only a target. Dividing keeps a huge `batches_` from overflowing.
    const int64_t end = sources_[source].tokens->size() - 1,
                  each = sizes_.batch_size * sizes_.block_size;
    return batches_ > 0 && batches_ <= end / each ? batches_ * each : end;
  }

  std::vector<WindowSource> sources_;
  BatchSizes sizes_;
  int64_t batches_;
  at::Device device_;
  WindowLayout layout_;
  size_t source_ = 0;
  int64_t at_ = 0;
};

}  // namespace

std::unique_ptr<TrainingBatches> training_windows(const std::vector<WindowSource>& sources,
                                                  const BatchSizes& sizes, uint64_t seed,
                                                  const WindowKind& kind) {
  return std::make_unique<Windows>(sources, sizes, seed, kind);
}

std::unique_ptr<EvaluationBatches> evaluation_windows(const std::vector<WindowSource>& sources,
                                                      const BatchSizes& sizes, int64_t batches,
                                                      at::Device device, const WindowKind& kind) {
  return std::make_unique<EvaluationWindows>(sources, sizes, batches, device, kind);
}

}  // namespace lathe
