#include "data/tokens/windows.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/rng.h"
#include "data/tokens/sampler.h"

namespace lathe {
namespace {

/// Makes and fills the host tensors of a batch of windows, and converts them to a Batch. The first
/// tensor has ids [rows, T + 1]. Targets [rows, T] follow if some ids do not count toward the loss,
/// and after these Batch::starts [rows, T] if documents are separate.
class WindowLayout {
 public:
  WindowLayout(const std::vector<WindowSource>& sources, const WindowOptions& kind) : kind_(kind) {
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

    // The token between two documents belongs to the second document. The first document of a
    // window starts at position 0, even if it began before the window.
    int64_t* starts = row_of(buffers.size() - 1);
    for (int64_t i = 0, start = 0; i < t; ++i) {
      if (ids[i] == *kind_.document_end) start = i;
      starts[i] = start;
    }
  }
  Batch batch_of(const std::vector<at::Tensor>& buffers) const {
    const int64_t t = buffers[0].size(1) - 1;
    return {.inputs = buffers[0].slice(1, 0, t),
            .targets = marked_ ? buffers[1] : buffers[0].slice(1, 1, t + 1),
            .starts = kind_.document_end ? buffers.back() : at::Tensor()};
  }
  bool marked() const { return marked_; }

 private:
  WindowOptions kind_;
  bool marked_ = false;
};

class Windows final : public TrainingBatches {
 public:
  Windows(const std::vector<WindowSource>& sources, const BatchSizes& sizes, uint64_t seed,
          const WindowOptions& kind)
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
      learned += tokens->count_unmarked(begin + 1, sizes_.block_size);
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

/// The windows of all sources in order, or a sample that is spread evenly over the complete
/// windows. If the last window of a source is shorter than the other windows, it is a separate
/// batch.
class EvaluationWindows final : public EvaluationBatches {
 public:
  EvaluationWindows(const std::vector<WindowSource>& sources, const BatchSizes& sizes,
                    int64_t batches, at::Device device, const WindowOptions& kind)
      : sources_(sources), sizes_(sizes), device_(device), layout_(sources, kind) {
    int64_t complete = 0;
    for (const WindowSource& s : sources) complete += targets_of(s) / sizes.block_size;

    // Divide instead of multiplying, since a product with a huge `batches` could overflow.
    const bool samples = batches > 0 && batches <= complete / sizes.batch_size;
    for (int64_t end = 0; const WindowSource& s : sources) {
      const int64_t partial = !samples && targets_of(s) % sizes.block_size > 0 ? 1 : 0;
      ends_.push_back(end += targets_of(s) / sizes.block_size + partial);
    }
    count_ = samples ? batches * sizes.batch_size : ends_.back();
  }

  bool next(Batch& batch) override {
    if (at_ == count_) return false;

    // All rows of a batch must have the same source and length.
    std::vector<Window> rows{window(at_)};
    for (++at_; at_ < count_ && std::ssize(rows) < sizes_.batch_size; ++at_) {
      const Window w = window(at_);
      if (w.source != rows[0].source || w.length != rows[0].length) break;
      rows.push_back(w);
    }

    const WindowSource& source = sources_[rows[0].source];
    std::vector<at::Tensor> buffers = layout_.make(std::ssize(rows), rows[0].length);
    for (int64_t row = 0; row < std::ssize(rows); ++row)
      layout_.fill(buffers, row, *source.tokens, rows[static_cast<size_t>(row)].begin,
                   sizes_.vocab_size);

    for (at::Tensor& buffer : buffers) buffer = buffer.to(device_);
    batch = layout_.batch_of(buffers);
    batch.source = source.name;
    return true;
  }

 private:
  struct Window {
    size_t source;
    int64_t begin, length;
  };
  /// Returns the n-th window of this evaluation.
  Window window(int64_t n) const {
    const int64_t index = count_ < ends_.back() ? spread_index(n, count_, ends_.back()) : n;
    const auto source =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const int64_t begin = (index - (source == 0 ? 0 : ends_[source - 1])) * sizes_.block_size;
    return {.source = source,
            .begin = begin,
            .length = std::min(sizes_.block_size, targets_of(sources_[source]) - begin)};
  }
  /// Returns how many tokens of a source are targets: all but the first.
  static int64_t targets_of(const WindowSource& s) {
    return std::max<int64_t>(0, s.tokens->size() - 1);
  }

  std::vector<WindowSource> sources_;
  BatchSizes sizes_;
  at::Device device_;
  WindowLayout layout_;
  std::vector<int64_t> ends_;  // the end of each source's range of windows
  int64_t at_ = 0, count_ = 0;
};

}  // namespace

std::unique_ptr<TrainingBatches> training_windows(const std::vector<WindowSource>& sources,
                                                  const BatchSizes& sizes, uint64_t seed,
                                                  const WindowOptions& kind) {
  return std::make_unique<Windows>(sources, sizes, seed, kind);
}

std::unique_ptr<EvaluationBatches> evaluation_windows(const std::vector<WindowSource>& sources,
                                                      const BatchSizes& sizes, int64_t batches,
                                                      at::Device device,
                                                      const WindowOptions& kind) {
  return std::make_unique<EvaluationWindows>(sources, sizes, batches, device, kind);
}

}  // namespace lathe
