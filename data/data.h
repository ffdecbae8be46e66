// Declares the interface through which data folders of every kind are used. A kind is implemented
// in one file, and has a line in the table of data/data.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/io/file.h"
#include "data/examples/example_encoding.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe {

struct DataConfig {
  LATHE_FIELD(std::string, dir, "data/quickstart",
              "Data folder, written by `lathe prepare`, or a folder of token shards.", anything())
  LATHE_FIELD(int64_t, window, 0,
              "Tokens: length of the windows of training and evaluation. 0: model.block_size. A "
              "shorter window does not change the model's context.",
              between(0, 1000000).fixed())
  LATHE_FIELD(int64_t, workers, 1,
              "Number of threads that prepare batches. 0: the training thread prepares them.",
              between(0, 64))
  LATHE_FIELD(int64_t, prefetch, 2, "Number of micro-batches that are prepared ahead.",
              between(1, 1000))
  LATHE_FIELD(
      std::string, mix, "",
      "Mixtures: share of the training windows per source, for example web:0.7,code:0.3. Sources "
      "that are not named are not used. Empty: the shares that were given to `lathe prepare`.",
      anything().list().fixed())
  LATHE_FIELD(
      std::string, documents, "joined",
      "Tokens: how a window treats the documents in it. joined: as one text; separate: no document "
      "attends to another, and positions restart at 0 in each (only for the kinds gpt and llama).",
      one_of({"joined", "separate"}).fixed())
  LATHE_FIELD(std::string, packing, "windows",
              "Tokens: what a row of a batch is. windows: a window of the whole text; examples: "
              "one document, padded or cut on the right to data.window tokens.",
              one_of({"windows", "examples"}).fixed())
  LATHE_FIELD(int64_t, document_end, -1,
              "With documents = separate or packing = examples: id of the token that ends a "
              "document. -1: the tokenizer's <|endoftext|>, <|end_of_text|> or </s>.",
              at_least(-1).fixed())
  LATHE_FIELD(int64_t, folds, 0,
              "Example sets: number of folds of cross-validation, one of which is the validation "
              "set. 0: the split that `lathe prepare` made.",
              between(0, 1000).fixed())
  LATHE_FIELD(int64_t, fold, 0,
              "Example sets: which of the data.folds folds is the validation set, counted from 0.",
              between(0, 999).fixed())
  LATHE_FIELD(bool, flip, false,
              "Images: mirror a random half of the training samples left to right.",
              anything().fixed())
  LATHE_FIELD(
      int64_t, crop, 0,
      "Images: shift training samples at random by up to this many pixels, filling with zeros.",
      between(0, 1000).fixed())
};

/// A micro-batch on the run's device.
///   tokens:   inputs int64 [B, T], targets int64 [B, T] shifted by one; -100 is ignored
///   pairs:    as for tokens; each row is a prompt with an answer. The first half of the rows has
///             the chosen answers, and the second half has the rejected answers of the same pairs
///   examples: inputs float32 [B, ...], targets int64 [B] (classes) or float32 [B, outputs]
struct Batch {
  at::Tensor inputs, targets;
  /// With data.documents = separate: for each token, the position in its row at which the token's
  /// document begins (see SeparateDocuments), int64 [B, T]. Otherwise undefined.
  at::Tensor starts{};
  std::string source{};  ///< in the evaluation of a mixture: name of the source of the batch;
                         ///< otherwise empty
};
/// Returns how many targets of a batch count toward the loss: the number of integer targets other
/// than -100, or the number of rows if targets are floats.
int64_t count_targets(const Batch& batch);

/// The size of a micro-batch. The last two members apply only to tokens.
struct BatchSizes {
  int64_t batch_size = 1;
  int64_t block_size = 0;  ///< tokens per window
  int64_t vocab_size = 0;  ///< number of token ids: every token id must be below this number
};

/// Training micro-batches. The contents of micro-batch n are a pure function of (seed, n), so any
/// number of threads may prepare micro-batches, and a resumed run gets the same batches.
class TrainingBatches {
 public:
  virtual ~TrainingBatches() = default;
  /// Returns uninitialized host tensors into which fill() can write one micro-batch.
  virtual std::vector<at::Tensor> make_buffers() const = 0;
  /// Writes micro-batch number `micro_batch` (counted from 0) to `buffers`. Threads call this
  /// function concurrently, each with separate buffers.
  virtual void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const = 0;
  /// Returns how many targets of a micro-batch count toward the loss; nullopt if all targets do.
  virtual std::optional<int64_t> targets(int64_t /*micro_batch*/) const { return std::nullopt; }
  /// Returns a batch that shares the memory of the tensors `on_device`, which are filled buffers
  /// that were copied to the run's device.
  virtual Batch batch_of(const std::vector<at::Tensor>& on_device) const = 0;
};

/// The batches of one evaluation, in order.
class EvaluationBatches {
 public:
  virtual ~EvaluationBatches() = default;
  /// Reads the next batch into `batch`. Returns false if there are no more batches.
  virtual bool next(Batch& batch) = 0;
};

/// The facts about a data folder that tasks and models need.
struct DatasetInfo {
  /// The purpose of the data: "language", "classification", "regression" or "dpo".
  std::string task{};
  std::optional<Tokenizer> tokenizer{};  ///< the tokenizer of token data with a manifest
  int64_t vocab_size = 0;                ///< token data with a manifest: number of token ids
  bool pairs = false;                    ///< whether batches hold preference pairs (see Batch)
  std::vector<int64_t> input_sizes{};    ///< examples: shape of one input, such as {64} or {1, 8,
                                         ///< 8}
  int64_t outputs = 0;                   ///< examples: number of classes, or number of target
                                         ///< values
  std::vector<std::string> labels{};     ///< classification: the names of the classes; empty if
                                         ///< they have no names
  /// Regression: one number for each output. Targets in batches are (raw - target_mean) /
  /// target_scale; with these numbers, errors can be reported in raw units.
  std::vector<double> target_mean{}, target_scale{};
  std::optional<ExampleEncoding> encoding{};  ///< examples: how new examples must be encoded
};

/// An open data folder with both splits.
class Data {
 public:
  virtual ~Data() = default;
  /// Returns the facts about the data that the config, the model and the task need. The reference
  /// is valid as long as this object exists.
  virtual const DatasetInfo& facts() const = 0;
  /// Replaces this folder's normalization statistics by the statistics in `encoding`, the encoding
  /// of a model, so that inputs have the scale of the model's training data. Does nothing for
  /// tokens.
  virtual void normalize_as(const ExampleEncoding& /*encoding*/) {}
  /// Returns the number of tokens or examples of the training split; 0 if the split is missing.
  virtual int64_t train_size() const = 0;
  /// Returns the number of tokens or examples of the validation split; 0 if the split is missing.
  virtual int64_t val_size() const = 0;
  /// Checks token data against the sizes. Throws Exit::data if the training split is too short for
  /// a window and its targets. Throws Exit::data with the file and the position if a token id is
  /// not below sizes.vocab_size. Throws Exit::usage if data.document_end is not below
  /// sizes.vocab_size.
  virtual void check_windows(const BatchSizes& /*sizes*/) const {}
  /// Returns the training micro-batches. This object must outlive the result.
  virtual std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes,
                                                    uint64_t seed) const = 0;
  /// Returns the batches of one evaluation. If `batches` is 0, they cover the complete validation
  /// split once, and the last batch may be shorter. Otherwise, they are a sample of `batches`
  /// batches, which are spread evenly over the split and are the same in each call. If the split
  /// has fewer batches, they are the complete split.
  virtual std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                        at::Device device) const = 0;
  /// Returns a fingerprint of the contents of both splits. It is computed from samples, which are
  /// read in a fraction of a second.
  virtual std::string hash() const = 0;
  /// Returns whether `saved`, the fingerprint that a run recorded, identifies this data.
  virtual bool matches(const std::string& saved) const = 0;
  /// Reads all files and compares them with the manifest's checksums. Throws Exit::data with the
  /// name of a file that differs. `stop` is called every 16 MiB; when it returns true, throws
  /// Exit::stopped.
  virtual void verify(const std::function<bool()>& stop = nullptr) const = 0;
  /// Returns lines for `lathe inspect` that describe the files and their contents.
  virtual std::string table() const = 0;
};

/// A kind of data folder. The entry "kind" of a folder's manifest.json names the kind of the
/// folder.
struct DataKind {
  std::string name;
  /// Opens data.dir. If the data has a fault, throws Exit::data with the fault, its position and a
  /// remedy. Throws Exit::usage for data.* keys that do not apply to this kind.
  std::function<std::unique_ptr<Data>(const DataConfig&)> open;
};
/// Adds a kind. Call this function before the command line is run. Throws Exit::internal if there
/// is already a kind with this name.
void add_data_kind(DataKind kind);
/// Opens data.dir, which may be of any kind. If the folder has no manifest, or if the manifest has
/// no "kind", opens the folder as token shards. Throws the errors of DataKind::open.
std::unique_ptr<Data> open_data(const DataConfig& config);

}  // namespace lathe
