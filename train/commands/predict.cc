// Implements `lathe predict`, which applies a model for tables, arrays or images to new examples.
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <iostream>
#include <limits>
#include <optional>

#include "autograd/engine.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "data/prepare/csv.h"
#include "data/prepare/example_source.h"
#include "train/commands/commands.h"
#include "train/store/encoding.h"
#include "train/tasks/task.h"

namespace lathe {
namespace {

/// Returns the shortest decimal text that is read as the same value. Probabilities are float32,
/// other numbers are float64.
template <class Number>
std::string number_text(Number x) {
  char text[64];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), x);
  return {text, end};
}

/// Returns the number with the fewest decimal digits that is within `tolerance` of x.
double with_fewest_digits(double x, double tolerance) {
  if (!std::isfinite(x) || x == 0) return x;
  // Start with so few digits that neighboring decimals are more than two tolerances apart. Then at
  // most one decimal is within the tolerance. A shorter decimal is found as well, since it equals a
  // decimal of this length.
  const double few = std::floor(std::log10(std::abs(x) / (2 * tolerance)));
  for (int digits = static_cast<int>(std::clamp(few, 1.0, 16.0)); digits < 17; ++digits) {
    char text[64];
    const auto end = std::to_chars(std::begin(text), std::end(text), x,
                                   std::chars_format::scientific, digits - 1)
                         .ptr;
    double rounded = 0;
    std::from_chars(std::begin(text), end, rounded);
    if (std::abs(rounded - x) <= tolerance) return rounded;
  }
  return x;
}

/// Returns an output of the model in the units of the target, with only as many digits as the
/// float32 output justifies. Computes in float64, because float32 would lose digits if the mean is
/// far above the deviation.
double in_raw_units(float y, double scale, double mean) {
  const double step =
      std::nextafter(std::abs(y), std::numeric_limits<float>::infinity()) - std::abs(y);
  return with_fewest_digits(y * scale + mean, step * scale / 2);
}

/// Formats predictions as CSV or as JSON Lines.
class PredictionFormat {
 public:
  /// `id` is the name of the column of ids ("file" for images). If `id` is empty, rows are
  /// numbered.
  PredictionFormat(bool json, bool classifies, std::string id, const ExampleEncoding& encoding);
  /// Returns the header line of a CSV file, or an empty string for JSON Lines.
  std::string header() const;
  /// Returns a text that is near the beginning of a file of predictions, for check_output().
  std::string mark() const;
  /// Returns the line of a row with its probabilities or numbers. Row numbers begin at 1.
  std::string line(int64_t row, const std::string& id, const std::vector<double>& numbers) const;

 private:
  std::string text_of(double x) const {
    return classifies_ ? number_text(static_cast<float>(x)) : number_text(x);
  }
  std::string csv_line(const std::string& name, const std::vector<double>& numbers) const;
  std::string json_line(int64_t row, const std::string& id,
                        const std::vector<double>& numbers) const;

  bool json_, classifies_;
  std::string id_;
  std::vector<std::string> names_;  // names of the classes or of the outputs
};

PredictionFormat::PredictionFormat(bool json, bool classifies, std::string id,
                                   const ExampleEncoding& encoding)
    : json_(json), classifies_(classifies), id_(std::move(id)), names_(encoding.labels) {
  if (!names_.empty() && classifies) return;
  names_.clear();
  for (int64_t i = 0; i < encoding.outputs; ++i)
    names_.push_back(classifies              ? std::to_string(i)
                     : encoding.outputs == 1 ? "prediction"
                                             : "prediction_" + std::to_string(i + 1));
}

std::string PredictionFormat::header() const {
  if (json_) return "";
  std::vector<std::string> columns;
  if (classifies_) columns.push_back("class");
  for (const std::string& name : names_) columns.push_back(classifies_ ? "p_" + name : name);

  // If another column has the name of the id column, the id column is called "id".
  const bool is_taken = std::find(columns.begin(), columns.end(), id_) != columns.end();
  std::string text = id_.empty() ? "row" : csv_field(is_taken ? "id" : id_);
  for (const std::string& column : columns) text += "," + csv_field(column);
  return text + "\n";
}

std::string PredictionFormat::mark() const {
  if (!json_) return header();
  return classifies_ ? "\"probabilities\":{" + json_text(Json(names_[0])) + ":" : "\"prediction\":";
}

std::string PredictionFormat::line(int64_t row, const std::string& id,
                                   const std::vector<double>& numbers) const {
  if (json_) return json_line(row, id, numbers);
  return csv_line(id_.empty() ? std::to_string(row) : csv_field(id), numbers);
}

size_t likeliest(const std::vector<double>& probabilities) {
  return static_cast<size_t>(std::max_element(probabilities.begin(), probabilities.end()) -
                             probabilities.begin());
}

std::string PredictionFormat::csv_line(const std::string& name,
                                       const std::vector<double>& numbers) const {
  std::string text = name;
  if (classifies_) text += "," + csv_field(names_[likeliest(numbers)]);
  for (const double x : numbers) text += "," + text_of(x);
  return text + "\n";
}

std::string PredictionFormat::json_line(int64_t row, const std::string& id,
                                        const std::vector<double>& numbers) const {
  std::string text = id_.empty() ? "{\"row\":" + std::to_string(row) : "{\"id\":" + json_text(id);
  if (classifies_) text += ",\"class\":" + json_text(names_[likeliest(numbers)]);
  if (!classifies_ && numbers.size() == 1)
    return text + ",\"prediction\":" + text_of(numbers[0]) + "}\n";

  text += classifies_ ? ",\"probabilities\":{" : ",\"prediction\":[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += i > 0 ? "," : "";
    if (classifies_) text += json_text(names_[i]) + ":";
    text += text_of(numbers[i]);
  }
  return text + (classifies_ ? "}}\n" : "]}\n");
}

/// Writes to standard output, or to a file that gets its final name once it is complete.
class PredictionOut {
 public:
  explicit PredictionOut(const std::optional<fs::path>& path) : path_(path) {
    if (!path_) return;
    remove_abandoned();
    file_ = OutputFile(unfinished(), OutputFile::Open::create, *path_);
  }
  ~PredictionOut() {
    std::error_code error;
    if (path_ && file_.is_open()) fs::remove(unfinished(), error);
  }
  PredictionOut(const PredictionOut&) = delete;
  PredictionOut& operator=(const PredictionOut&) = delete;

  /// Writes lines. Returns false if the reader of standard output has closed it.
  bool write(const std::string& lines) {
    if (path_) {
      file_.write(lines);
      return true;
    }
    clear_progress();
    return static_cast<bool>(std::cout << lines << std::flush);
  }
  void finish() {
    if (!path_) return;
    file_.sync();
    file_.close();
    rename_file(unfinished(), *path_);
  }

 private:
  // Each process has an unfinished file of its own, since another process may write predictions to
  // the same path.
  std::string prefix() const { return path_->string() + ".unfinished-"; }
  fs::path unfinished() const { return str(prefix(), getpid()); }
  /// Removes the unfinished files that killed processes have left for this path.
  void remove_abandoned() const {
    const fs::path parent = path_->parent_path();
    const std::string begin = fs::path(prefix()).filename().string();
    for (const fs::path& file : list_folder(parent.empty() ? "." : parent)) {
      const std::string name = file.filename().string();
      if (!name.starts_with(begin)) continue;

      pid_t pid = 0;
      const char* const end = name.data() + name.size();
      const auto [stop, bad] = std::from_chars(name.data() + begin.size(), end, pid);
      if (bad != std::errc() || stop != end || pid <= 0) continue;

      std::error_code error;
      if (::kill(pid, 0) != 0 && errno == ESRCH) fs::remove(file, error);
    }
  }

  std::optional<fs::path> path_;
  OutputFile file_;
};

/// Runs a model on the examples of a file in batches.
class Predictor {
 public:
  Predictor(const LoadedModel& m, const ExampleEncoding& encoding, int64_t batch_size)
      : m_(m), encoding_(encoding), classifies_(m.state.task == "classification") {
    std::vector<int64_t> sizes{batch_size};
    sizes.insert(sizes.end(), encoding.input_sizes.begin(), encoding.input_sizes.end());
    inputs_ = at::empty(sizes, at::kFloat);
  }
  bool classifies() const { return classifies_; }
  int64_t waiting() const { return waiting_; }
  bool is_full() const { return waiting_ == inputs_.size(0); }
  /// Adds an example to the batch, normalized as in training.
  void add(std::span<const double> raw);
  /// Runs the batch and empties it. For each example, returns the probabilities, or the numbers in
  /// the units of the target.
  std::vector<std::vector<double>> run();

 private:
  const LoadedModel& m_;
  const ExampleEncoding& encoding_;
  bool classifies_;
  at::Tensor inputs_;
  int64_t waiting_ = 0;
  std::vector<double> image_;
};

void Predictor::add(std::span<const double> raw) {
  if (encoding_.channels_last) {
    put_channels_first(raw, encoding_.input_sizes, image_);
    raw = image_;
  }
  float* out = inputs_.mutable_data_ptr<float>() + waiting_++ * std::ssize(raw);
  normalize(encoding_.inputs, groups_of(encoding_.input_sizes), raw, out);
}

std::vector<std::vector<double>> Predictor::run() {
  const NoGrad no_grad;
  const Autocast autocast(m_.compute);
  const MemoryScope memory(Memory::activations);
  const at::Tensor batch = inputs_.narrow(0, 0, waiting_).to(m_.device);
  at::Tensor y = (*m_.model)(batch).data().to(at::kFloat).flatten(1);
  if (classifies_) y = at::softmax(y, -1);
  y = y.to(at::kCPU).contiguous();

  std::vector<std::vector<double>> all;
  const float* at = y.const_data_ptr<float>();
  const auto& [mean, scale] = encoding_.targets;
  for (int64_t i = 0; i < waiting_; ++i, at += y.size(1)) {
    all.emplace_back(at, at + y.size(1));
    if (classifies_) continue;
    const bool has_statistics = std::ssize(mean) == y.size(1);
    for (size_t k = 0; k < all.back().size(); ++k)
      all.back()[k] =
          has_statistics ? in_raw_units(at[k], scale[k], mean[k]) : in_raw_units(at[k], 1, 0);
  }
  waiting_ = 0;
  return all;
}

/// Throws Exit::usage for a language model. Needs only the run's state, so it can be called before
/// weights are loaded.
void check_not_language(const std::string& run, const RunState& state) {
  if (state.sizes.outputs > 0) return;
  fail(Exit::usage, run, " is a language model; `lathe generate ", run,
       "` continues a text with it, and `lathe eval ", run, " FILE` scores one");
}

/// Returns whether the file name in --out requests JSON Lines.
bool wants_json(const Arguments& arguments) {
  if (!arguments.flags.contains("out")) return false;
  const fs::path out = arguments.get("out", "");
  if (lower_extension(out) == ".jsonl") return true;
  if (lower_extension(out) != ".csv")
    fail(Exit::usage, "command line: --out must end in .csv or .jsonl, not ", out.string());
  return false;
}

std::string id_name(const ExampleEncoding& encoding) {
  if (encoding.image_files) return "file";
  if (!encoding.table) return "";
  for (const TableColumn& column : encoding.table->columns) {
    if (column.role == ColumnRole::id) return column.name.empty() ? "id" : column.name;
  }
  return "";
}

/// The results of a first pass over new examples.
struct NewExamples {
  int64_t count = 0;
  bool has_ids = false;
};

/// Reads all examples once, so that an invalid line ends the command before anything is written. If
/// `json` is true, ids must be UTF-8.
NewExamples survey_new(ExampleSource& source, const std::string& file, bool json,
                       ProgressReporter& meter) {
  NewExamples found;
  meter.begin("read", source.bytes());
  source.each(meter, [&](const RawExample& e) {
    ++found.count;
    found.has_ids = found.has_ids || !e.label.empty();
    if (json && !is_utf8(e.label))
      fail(
          Exit::data, source.where(), ": the id ", quoted(e.label),
          " is not UTF-8, which JSON requires; convert the file to UTF-8, or give a .csv as --out");
  });
  clear_progress();
  if (found.count == 0) fail(Exit::data, file, " holds no examples");
  return found;
}

/// Throws Exit::diverged if a prediction is not finite.
void check_finite(const std::vector<double>& numbers, int64_t row) {
  const auto is_bad = [](double x) { return !std::isfinite(x); };
  const auto bad = std::find_if(numbers.begin(), numbers.end(), is_bad);
  if (bad == numbers.end()) return;
  fail(Exit::diverged, "example ", row, ": the model's prediction is ",
       std::isnan(*bad) ? "NaN" : "infinite",
       "; the inputs of the example are far outside of the range of the training data, or the "
       "model's weights have diverged");
}

/// Predicts all examples in batches. Ends early if the reader of standard output has closed it.
void predict_all(ExampleSource& source, ProgressReporter& meter, Predictor& predictor,
                 const PredictionFormat& format, PredictionOut& out) {
  bool is_read = out.write(format.header());
  int64_t row = 0;
  std::vector<std::string> ids;
  const auto flush = [&] {
    std::string lines;
    const auto predictions = predictor.run();
    for (size_t i = 0; i < ids.size(); ++i) {
      check_finite(predictions[i], ++row);
      lines += format.line(row, ids[i], predictions[i]);
    }
    ids.clear();
    is_read = is_read && out.write(lines);
  };
  meter.begin("predicting", source.bytes());
  source.each(meter, [&](const RawExample& e) {
    if (!is_read) return;
    predictor.add(e.inputs);
    ids.emplace_back(e.label);
    if (predictor.is_full()) flush();
  });
  if (predictor.waiting() > 0) flush();
}

Exit run_predict(const Arguments& arguments) {
  const std::string &run = arguments.positionals[0], &file = arguments.positionals[1];
  const std::vector<std::string> files(arguments.positionals.begin() + 1,
                                       arguments.positionals.end());
  const bool json = wants_json(arguments);
  if (!fs::exists(file)) fail(Exit::data, "there is no file ", file);
  const fs::path named = run_argument(arguments);
  check_not_language(run,
                     read_state(find_checkpoint(named, arguments.get("checkpoint", "newest"))));
  const LoadedModel m = load_model_argument(arguments);
  const ExampleEncoding encoding = encoding_of(run, m.state, m.config);

  const auto source = open_new_examples(files, encoding);
  const fs::path shown = file;
  const std::function<bool()> stop;
  ProgressReporter meter(shown, stop);
  const NewExamples found = survey_new(*source, file, json, meter);

  const auto batch_size = static_cast<int64_t>(arguments.number(
      "batch-size", static_cast<double>(m.config.train.batch_size), between(1, 1e6), true));
  Predictor predictor(m, encoding, std::min(found.count, batch_size));
  const PredictionFormat format(json, predictor.classifies(),
                                found.has_ids ? id_name(encoding) : "", encoding);

  std::optional<fs::path> path;
  if (arguments.flags.contains("out")) {
    path = arguments.get("out", "");
    for (const std::string& input : files) {
      if (fs::exists(*path) && fs::equivalent(*path, input))
        fail(Exit::usage, path->string(), " is also an input; name another file with --out");
    }
    check_output(arguments, *path, format.mark());
  }

  PredictionOut out(path);
  predict_all(*source, meter, predictor, format, out);
  out.finish();
  if (path) log_info(path->string(), ": ", found.count, " predictions");
  return Exit::done;
}

}  // namespace

Command predict_command() {
  return {
      .name = "predict",
      .usage = "RUN|CHECKPOINT FILE...",
      .doc =
          "Predict classes with their probabilities, or numbers in the target's units, for the "
          "rows of a table (CSV, TSV), the examples of an array (.npy, .safetensors, IDX), or PNG "
          "and JPEG images and folders of them.",
      .examples = {"predict runs/mine new.csv --out predictions.csv",
                   "predict runs/mine new.csv --checkpoint best --out predictions.jsonl"},
      .flags = with_load_flags(
          {{"out",
            "Write the predictions to this .csv or .jsonl file. Default: standard output, as CSV."},
           {"batch-size", "Predict this many examples at a time. Default: the run's."},
           force_flag}),
      .min_positionals = 2,
      .max_positionals = 1000000,
      .run = run_predict,
      .switches = {"double-quant", "force"}};
}

}  // namespace lathe
