// What a run learns from: a data folder of any kind. The trainer knows this interface; each kind is
// a file of its own and a line in the table of data/data.cc.
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
#include "data/tokenizers/tokenizer.h"

namespace lathe {

struct DataConfig {
  LATHE_FIELD(std::string, dir, "data/quickstart",
              "folder that `lathe prepare` made, or one with token shards", anything())
  LATHE_FIELD(int64_t, workers, 1, "threads that prepare batches; 0: the training thread does",
              between(0, 64))
  LATHE_FIELD(int64_t, prefetch, 2, "micro-batches prepared ahead", between(1, 1000))
  LATHE_FIELD(std::string, mix, "",
              "mixtures: shares of training windows by source, as web:0.7,code:0.3; a source "
              "without one gives none. "
              "Empty: as prepared",
              anything().fixed())
  LATHE_FIELD(std::string, documents, "joined",
              "tokens: windows over documents that follow each other; joined: as one text; "
              "separate: none sees "
              "another, and positions start again at 0 with each (gpt, llama; on a GPU memory then "
              "grows with the context's "
              "square)",
              one_of({"joined", "separate"}).fixed())
  LATHE_FIELD(int64_t, document_end, -1,
              "documents = separate: id of the token between documents; -1: the tokenizer's "
              "<|endoftext|> or "
              "<|end_of_text|>",
              at_least(-1).fixed())
  LATHE_FIELD(int64_t, folds, 0,
              "example sets: split all examples into this many parts, one of them for validation; "
              "0: as prepared",
              between(0, 1000).fixed())
  LATHE_FIELD(int64_t, fold, 0, "example sets: which of data.folds is for validation, from 0",
              between(0, 999).fixed())
  LATHE_FIELD(bool, flip, false, "images: mirror half of the training samples left to right",
              anything().fixed())
  LATHE_FIELD(int64_t, crop, 0,
              "images: shift training samples by up to so many pixels, what moves in is zero",
              between(0, 1000).fixed())
};

/// A micro-batch on the run's device.
///   tokens:   inputs int64 [B, T], targets int64 [B, T], one later, -100 where none is learned
///   examples: inputs float32 [B, ...], targets int64 [B] (classes) or float32 [B, outputs]
struct Batch {
  at::Tensor inputs, targets;
  at::Tensor starts{};  ///< data.documents = separate: what SeparateDocuments takes; else undefined
  std::string source{};  ///< of an evaluation of a mixture: which of its sources it is from
};
/// How many targets a batch has that are learned.
int64_t count_targets(const Batch& batch);

/// How large a micro-batch is. The last two are for tokens alone.
struct BatchSizes {
  int64_t batch_size = 1;
  int64_t block_size = 0;  ///< tokens of a window
  int64_t vocab_size = 0;  ///< an id must be below it
};

/// Training micro-batches: what the n-th one holds is a pure function of (seed, n), so that any
/// number of threads may make them and a resumed run sees the same.
class TrainingBatches {
 public:
  virtual ~TrainingBatches() = default;
  /// The host tensors that one micro-batch is written into, uninitialized.
  virtual std::vector<at::Tensor> make_buffers() const = 0;
  /// Writes micro-batch n (from 0). Threads call it at once, each with buffers of its own.
  virtual void fill(const std::vector<at::Tensor>& buffers, int64_t micro_batch) const = 0;
  /// How many targets of micro-batch n are learned, where that is not as many as it has units.
  virtual std::optional<int64_t> targets(int64_t /*micro_batch*/) const { return std::nullopt; }
  /// Filled buffers, copied to the run's device, as a batch that shares their memory.
  virtual Batch batch_of(const std::vector<at::Tensor>& on_device) const = 0;
};

/// The batches of one evaluation, in order.
class EvaluationBatches {
 public:
  virtual ~EvaluationBatches() = default;
  /// False at the end.
  virtual bool next(Batch& batch) = 0;
};

/// What tasks and models need to know of a data folder.
struct DatasetInfo {
  std::string task{};  ///< "language", "classification", "regression": what the data is made for
  std::optional<Tokenizer> tokenizer{};  ///< token data with a manifest
  int64_t vocab_size = 0;                ///< token data with a manifest: ids are below it
  std::vector<int64_t> input_sizes{};    ///< examples: of one input, as {64} or {1, 8, 8}
  int64_t outputs = 0;                   ///< examples: classes, or numbers of one target
  std::vector<std::string> labels{};     ///< classification: what each class is called, or empty
  /// Regression: targets in batches are (raw - target_mean) / target_scale, so that errors can be
  /// told in raw units. One number for each output.
  std::vector<double> target_mean{}, target_scale{};
};

/// A data folder, opened: both splits.
class Data {
 public:
  virtual ~Data() = default;
  /// What the config, the model and the task need to know of it; valid for the object's life.
  virtual const DatasetInfo& facts() const = 0;
  /// Tokens or examples of a split; 0 where there is none.
  virtual int64_t train_size() const = 0;
  /// Units of the validation part: tokens or examples; 0 where there is none.
  virtual int64_t val_size() const = 0;
  /// Token data: Exit::data where there are too few tokens for a training window, and, with the
  /// file and the place, where an id is not below the vocabulary's size.
  virtual void check_windows(const BatchSizes& /*sizes*/) const {}
  /// Training micro-batches; the folder must outlive them.
  virtual std::unique_ptr<TrainingBatches> training(const BatchSizes& sizes,
                                                    uint64_t seed) const = 0;
  /// The whole validation split, once, the last batch short; its first `batches` batches (of a
  /// mixture, of each source) where that is not 0.
  virtual std::unique_ptr<EvaluationBatches> evaluation(const BatchSizes& sizes, int64_t batches,
                                                        at::Device device) const = 0;
  /// A short identity of the contents of both splits (sampled, a fraction of a second), and whether
  /// a saved one is this data's.
  virtual std::string hash() const = 0;
  /// Whether what a run saved of its data (`fingerprint`) is this data.
  virtual bool matches(const std::string& saved) const = 0;
  /// Reads every byte and compares with the manifest's checksums. Exit::data with the file that
  /// differs; Exit::stopped once `stop`, asked every 16 MiB, says so.
  virtual void verify(const std::function<bool()>& stop = nullptr) const = 0;
  /// Its files and what they hold, lines for `lathe inspect`.
  virtual std::string table() const = 0;
};

/// A kind of data folder, by the "kind" in its manifest.json.
struct DataKind {
  std::string name;
  /// Opens data.dir. Exit::data with what, where and what to do; Exit::usage for keys that do not
  /// fit it.
  std::function<std::unique_ptr<Data>(const DataConfig&)> open;
};
/// Adds one, before the command line is run. Exit::internal where its name is taken.
void add_data_kind(DataKind kind);
/// Opens data.dir, whatever its kind; without a manifest, or without a kind in it, it holds token
/// shards. Errors as in DataKind.
std::unique_ptr<Data> open_data(const DataConfig& config);

}  // namespace lathe
