// Makes batches whose rows are padded on the right. An item of the data fills one row (a document,
// with data.packing = "examples") or two rows (the answers of a preference pair).
#pragma once

#include <memory>
#include <vector>

#include "data/data.h"
#include "data/tokens/tokens.h"

namespace lathe {

/// The items of the data that fill rows.
class PaddedItems {
 public:
  virtual ~PaddedItems() = default;
  /// Returns the number of items.
  virtual int64_t size() const = 0;
  /// Returns the name of the stream of random numbers by which the items are ordered.
  virtual const char* stream() const = 0;
  /// Returns the number of rows that an item takes in a batch. The n-th of the N items of a batch
  /// has rows n, n + N, n + 2 N, ...
  virtual int64_t rows() const { return 1; }
  /// Returns what an item adds to the divisor of the mean loss: the number of its targets that are
  /// not -100, or 1 for a preference pair.
  virtual int64_t targets(int64_t item, int64_t window) const = 0;
  /// Writes the rows of an item into `buffers`: inputs and targets [B, T]. `n` is the item's index
  /// among the `items` items of the batch. Throws Exit::data for an id that is not below
  /// `vocab_size`.
  virtual void put(int64_t item, const std::vector<at::Tensor>& buffers, int64_t n, int64_t items,
                   int64_t vocab_size) const = 0;
};

/// Writes row `row` of the inputs and targets [B, T] in `buffers`. `ids` has up to T + 1 ids, and
/// the inputs are all ids but the last. `targets` has the same ids, except for -100 where a token
/// does not count toward the loss; the row's targets are all elements of `targets` but the first.
/// Pads the row with inputs of 0 and targets of -100.
void put_padded(const std::vector<int64_t>& ids, const std::vector<int64_t>& targets,
                const std::vector<at::Tensor>& buffers, int64_t row);

/// Returns training batches; `items` must outlive them. A keyed permutation orders the items of
/// each epoch. Epochs are concatenated, so a batch may contain items of two epochs.
std::unique_ptr<TrainingBatches> padded_training(const PaddedItems& items, const BatchSizes& sizes,
                                                 uint64_t seed);
/// Returns batches of all items in order. If `batches` is not 0 and there are enough items, returns
/// that many batches, whose items are spread evenly over all items.
std::unique_ptr<EvaluationBatches> padded_evaluation(const PaddedItems& items,
                                                     const BatchSizes& sizes, int64_t batches,
                                                     at::Device device);

/// The documents of a split, each with the token that ends it. A window of T positions takes at
/// most the first T + 1 tokens of a document, and the remaining tokens are left out.
class PaddedDocuments final : public PaddedItems {
 public:
  /// Reads all tokens of the split, which must outlive this object. An end token at the beginning
  /// of a document does not end the document, since some tokenizers have one token for both the
  /// beginning and the end. A single token after the last document is left out, since it has no
  /// target.
  PaddedDocuments(const TokenFile& tokens, int64_t document_end);
  /// Returns how many documents have more than `window` + 1 tokens, and are therefore truncated.
  int64_t count_longer(int64_t window) const;

  int64_t size() const override { return std::ssize(documents_); }
  const char* stream() const override { return "data/documents"; }
  int64_t targets(int64_t item, int64_t window) const override;
  void put(int64_t item, const std::vector<at::Tensor>& buffers, int64_t n, int64_t all,
           int64_t vocab_size) const override;

 private:
  struct Document {
    int64_t begin, length;
  };
  const TokenFile& tokens_;
  std::vector<Document> documents_;
};

}  // namespace lathe
