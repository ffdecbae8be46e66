#include "data/prepare/prepare_examples.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/rng.h"
#include "data/examples/example_manifest.h"
#include "data/prepare/array_out.h"
#include "data/prepare/csv.h"
#include "data/prepare/example_source.h"
#include "data/prepare/example_writer.h"
#include "data/prepare/fills.h"

namespace lathe {
namespace {

/// The results of one pass over the examples.
struct ExampleSurvey {
  int64_t examples = 0;
  bool bytes = true;                      ///< all inputs are integers from 0 to 255
  bool whole = true;                      ///< is_integer() holds for all targets that are numbers
  std::map<int64_t, int64_t> numbers;     ///< integer targets, and how many examples have each
  std::map<std::string, int64_t> labels;  ///< text targets, and how many examples have each
  bool many = false;  ///< more than max_classes different targets; further targets are not counted
};

bool is_integer(double x) { return std::fabs(x) <= 0x1p53 && std::trunc(x) == x; }

/// Throws Exit::data if every text target is a number with commas. These targets would become
/// classes.
void refuse_comma_numbers(const ExampleSurvey& s, const ExampleSource& source) {
  const auto is_comma_label = [](const auto& label) { return is_comma_number(label.first); };
  if (s.labels.empty() || !std::all_of(s.labels.begin(), s.labels.end(), is_comma_label)) return;
  fail(Exit::data, source.where(), ": every target is a number with a comma, such as \"",
       s.labels.begin()->first,
       "\"; write decimal points and no separators of thousands, or give --task classification");
}

/// Adds the target of an example. Throws Exit::data if it does not fit the task or earlier targets.
void add_target(ExampleSurvey& s, const RawExample& e, const ExampleSource& source,
                const std::string& task) {
  const bool text = e.targets.empty();
  const bool first_text = text && s.labels.empty();
  if (text) {
    const std::string label(e.label);
    const std::string shown = "\"" + label.substr(0, 100) + "\"";
    if (task == "regression")
      fail(Exit::data, source.where(), " is ", shown, ", which is not a number");
    if (label.size() > 1000)
      fail(Exit::data, source.where(), " is text of ", label.size(),
           " bytes, too long for a class");
    if (!is_utf8(label)) fail(Exit::data, source.where(), " is not UTF-8; convert the file");
    if (!s.many) ++s.labels[label];
  } else if (e.targets.size() != 1 || !is_integer(e.targets[0])) {
    s.whole = false;
    if (task == "classification") {
      fail(Exit::data, source.where(), " is ",
           e.targets.size() == 1 ? str(e.targets[0]) : "several numbers",
           "; a class is text or a whole number");
    }
  } else if (!s.many) {
    ++s.numbers[static_cast<int64_t>(e.targets[0])];
  }

  // Text among numbers is most likely an error, unless --task classification makes classes of both.
  const bool number_before = !s.numbers.empty() || !s.whole;
  if (task.empty() && (text ? first_text && number_before : !s.labels.empty())) {
    fail(Exit::data, source.where(),
         text ? " is text, but earlier targets are numbers"
              : " is a number, but earlier targets are text",
         "; repair it, or give --task classification to make each distinct target a class");
  }

  // Stop counting different targets, which limits the memory for a regression.
  if (std::ssize(s.numbers) + std::ssize(s.labels) > max_classes) {
    s.many = true;
    if (task.empty()) refuse_comma_numbers(s, source);
    if (!s.labels.empty() || task == "classification")
      fail(Exit::data, source.where(), ": the input has more than ", max_classes,
           " different targets, which is the largest number of classes");
  }
}

ExampleSurvey survey(ExampleSource& source, const std::string& task, ProgressReporter& meter) {
  ExampleSurvey s;
  meter.begin("read", source.bytes());
  source.each(meter, [&](const RawExample& e) {
    ++s.examples;
    // Arrays keep their type. For tables, the type depends on the values.
    if (!source.input_type()) {
      for (const double x : e.inputs) s.bytes = s.bytes && x >= 0 && x <= 255 && std::trunc(x) == x;
    }
    add_target(s, e, source, task);
  });
  if (task.empty()) refuse_comma_numbers(s, source);
  return s;
}

/// The task, and for a classification the number of each class.
struct Targets {
  std::string task;
  std::vector<std::string> labels;
  std::map<int64_t, int64_t> of_number;
  std::map<std::string, int64_t> of_label;

  /// Returns the class of an example; 0 for regression.
  int64_t class_of(const RawExample& e, const ExampleSource& source) const {
    if (task == "regression") return 0;
    const bool text = e.targets.empty();
    const auto number = text || !is_integer(e.targets[0])
                            ? of_number.end()
                            : of_number.find(std::llround(e.targets[0]));
    const auto label = text ? of_label.find(std::string(e.label)) : of_label.end();
    if (number == of_number.end() && label == of_label.end()) {
      fail(Exit::data, source.where(), " is ",
           text ? "\"" + std::string(e.label.substr(0, 100)) + "\"" : str(e.targets[0]),
           ", a class that no training example has");
    }
    return text ? label->second : number->second;
  }
};

/// Chooses the task if it is not given, and numbers the classes. Sets `chosen` to an explanation of
/// the choice for the user.
Targets choose(const ExampleSurvey& s, const ExampleSource& source, const ExampleOptions& options,
               std::string& chosen) {
  Targets t{.task = options.task, .labels = {}, .of_number = {}, .of_label = {}};
  const auto different = std::ssize(s.numbers) + std::ssize(s.labels);
  // Many examples for each value suggest classes, since the targets of a regression rarely repeat.
  const bool few = s.whole && !s.many &&
                   (different <= 20 || (different <= 1000 && s.examples >= 50 * different));

  if (t.task.empty()) {
    const bool classes = source.target_numel() == 1 && (!s.labels.empty() || few);
    t.task = classes ? "classification" : "regression";
    const std::string kinds = s.labels.empty() ? "whole numbers" : "texts";
    chosen = classes ? str(" (its target has ", different, " different ", kinds,
                           s.labels.empty() ? "; --task regression treats them as numbers)" : ")")
                     : str(" (its targets are many different numbers; --task classification treats "
                           "whole numbers as classes)");
  }

  if (t.task != "classification") return t;
  // The maps are sorted, so class numbers do not depend on the order of the examples.
  for (const auto& [number, count] : s.numbers) {
    // Targets are read as float64, which can't represent all integers beyond 2^53.
    if (std::abs(number) >= int64_t{1} << 53) {
      fail(Exit::data, options.inputs[0], ": class ", number,
           " is beyond 2^53, where neighboring whole numbers are equal in float64; put a letter "
           "before each");
    }
    t.of_number[number] = std::ssize(t.labels);
    t.labels.push_back(std::to_string(number));
  }
  for (const auto& [label, count] : s.labels) {
    t.of_label[label] = std::ssize(t.labels);
    t.labels.push_back(label);
  }

  if (t.labels.size() < 2)
    fail(Exit::data, options.inputs[0], ": every target is ", t.labels.at(0),
         "; there must be two classes or more");
  return t;
}

/// Chooses the validation examples: about the same share of each class, by a keyed permutation that
/// does not depend on a run's seed. At least one example of each class remains for training.
class StratifiedSplit {
 public:
  StratifiedSplit(const std::vector<int64_t>& class_sizes, double share) {
    double wanted = 0;
    int64_t given = 0;
    for (size_t c = 0; c < class_sizes.size(); ++c) {
      wanted += share * static_cast<double>(class_sizes[c]);
      const int64_t here = std::clamp<int64_t>(std::llround(wanted) - given, 0,
                                               std::max<int64_t>(0, class_sizes[c] - 1));
      given += here;
      orders_.emplace_back(static_cast<uint64_t>(std::max<int64_t>(1, class_sizes[c])),
                           make_key(c, hash_name("data/val")));
      chosen_.push_back(static_cast<uint64_t>(here));
      sizes_.push_back(static_cast<uint64_t>(class_sizes[c]));
    }
    total_ = given;
    seen_.resize(class_sizes.size());
  }
  int64_t total() const { return total_; }
  /// Returns whether the next example, which has class c, is for validation.
  bool operator()(size_t c) {
    const uint64_t i = seen_[c]++;
    if (i >= sizes_[c]) fail_changed_input();
    return orders_[c](i) < chosen_[c];
  }

 private:
  std::vector<Permutation> orders_;
  std::vector<uint64_t> chosen_, sizes_, seen_;
  int64_t total_ = 0;
};

/// Fills empty cells of a table with statistics of its training split. `is_val` is passed by value,
/// since each call of it counts an example.
void fill_empty_cells(ExampleSource& source, ExampleSource* val_source, const std::string& missing,
                      const Targets& targets, StratifiedSplit is_val, ProgressReporter& meter) {
  if (missing != "mean" && missing != "median") return;
  Fills fills(*source.table(), missing == "median");
  meter.begin("averaged", source.bytes());
  source.each(meter, [&](const RawExample& e) {
    if (!is_val(static_cast<size_t>(targets.class_of(e, source)))) fills.add(e.inputs);
  });
  const std::vector<double> by_input = fills.result();
  source.set_fills(by_input);
  if (val_source != nullptr) val_source->set_fills(by_input);
}

/// Checks the option --layout, and warns if images seem to need this option.
void check_layout(const std::vector<int64_t>& sizes, const ExampleOptions& options) {
  const auto few = [](int64_t size) { return size == 1 || size == 3; };
  if (options.channels_last && sizes.size() != 3)
    fail(Exit::usage, "--layout hwc is for images of three sizes, and the inputs of ",
         options.inputs[0], " are ", sizes_text(sizes),
         "; also give --shape H,W,C, or leave --layout out");
  if (!options.channels_last && sizes.size() == 3 && few(sizes[2]) && !few(sizes[0]))
    log_warn(options.inputs[0], ": inputs of ", sizes_text(sizes), " are read as images of ",
             sizes[0],
             " channels; if the last size counts the channels, prepare them again with "
             "--layout hwc");
}

/// Sets the sizes of an input in the manifest: to --shape if that option is given, otherwise to the
/// sizes in the source.
void set_input_sizes(ExampleManifest& m, const ExampleSource& source,
                     const ExampleOptions& options) {
  m.input_sizes = options.shape.empty() ? source.sizes() : options.shape;
  m.channels_last = options.channels_last;
  m.image_files = options.images.has_value();

  int64_t numel = 1, shaped = 1;
  for (const int64_t size : source.sizes()) numel *= size;
  // Limit each factor, and continue with 0 once the product exceeds numel, so that large sizes
  // can't overflow.
  for (const int64_t size : m.input_sizes)
    shaped = size > 0 && shaped <= numel ? shaped * std::min(size, numel + 1) : 0;
  if (shaped != numel) {
    fail(Exit::usage, "--shape ", sizes_text(m.input_sizes), " does not fit: an input of ",
         options.inputs[0], " has ", numel, " numbers");
  }

  const std::vector<int64_t> sizes_of_files = m.input_sizes;
  check_layout(m.input_sizes, options);
  if (m.channels_last) m.input_sizes = channels_first(sizes_of_files);
}

/// Checks that `opened`, the source of --val-file, has the sizes and types of the training source,
/// and counts its examples. Returns `opened` and the number of its examples. Updates `found`, the
/// survey of the training source, since both splits are stored in one type. Throws Exit::data if
/// the sources do not fit together.
std::pair<std::unique_ptr<ExampleSource>, int64_t> open_validation(
    const ExampleOptions& options, std::unique_ptr<ExampleSource> opened,
    const ExampleSource& source, const std::string& task, ExampleSurvey& found,
    ProgressReporter& meter) {
  if (opened->sizes() != source.sizes() || opened->target_numel() != source.target_numel() ||
      opened->input_type() != source.input_type() ||
      opened->target_type() != source.target_type()) {
    fail(Exit::data, options.val_inputs[0],
         ": its inputs or targets have other sizes or types than those of ", options.inputs[0]);
  }
  const ExampleSurvey seen = survey(*opened, task, meter);
  // Both splits are stored in one type.
  found.bytes = found.bytes && seen.bytes;
  if (seen.examples == 0) fail(Exit::data, options.val_inputs[0], " holds no examples");
  return {std::move(opened), seen.examples};
}

/// Returns the number of examples of each class, or for regression the number of all examples.
std::vector<int64_t> class_sizes_of(const ExampleSurvey& found, bool classifies) {
  if (!classifies) return {found.examples};
  std::vector<int64_t> sizes;
  for (const auto& [number, count] : found.numbers) sizes.push_back(count);
  for (const auto& [label, count] : found.labels) sizes.push_back(count);
  return sizes;
}

}  // namespace

void prepare_examples(const ExampleOptions& options) {
  OutFolder::check(options.out);
  const auto open = [&](const std::vector<std::string>& inputs, const ExampleSource* like) {
    return options.images ? open_image_folder(inputs.at(0), *options.images, like)
                          : open_source(inputs, options.table, like);
  };
  const auto source = open(options.inputs, nullptr);
  ProgressReporter meter(options.out, options.stop);
  source->scan(meter);
  ExampleManifest m;
  set_input_sizes(m, *source, options);

  ExampleSurvey found = survey(*source, options.task, meter);
  if (found.examples == 0) fail(Exit::data, options.inputs[0], " holds no examples");
  std::string chosen;
  const Targets targets = choose(found, *source, options, chosen);
  const bool classifies = targets.task == "classification";

  // Validation examples come from separate files, or are a share of each class.
  std::unique_ptr<ExampleSource> val_source;
  int64_t val = 0;
  if (!options.val_inputs.empty()) {
    std::tie(val_source, val) = open_validation(options, open(options.val_inputs, source.get()),
                                                *source, targets.task, found, meter);
  }
  StratifiedSplit for_val(class_sizes_of(found, classifies), val_source ? 0 : options.val_share);
  if (!val_source) val = for_val.total();

  if (source->table() != nullptr) {
    fill_empty_cells(*source, val_source.get(), options.table.missing, targets, for_val, meter);
    m.table = *source->table();
  }

  // Nothing is created until all input has been accepted.
  OutFolder out(options.out);
  out.clear();

  m.task = targets.task;
  m.labels = targets.labels;
  m.outputs = classifies ? std::ssize(targets.labels) : source->target_numel();
  m.train.examples = found.examples - (val_source ? 0 : val);
  m.val.examples = val;
  ExampleWriter writer(options.out, *source, /*all_bytes=*/found.bytes, m);

  meter.begin("written", source->bytes() + (val_source ? val_source->bytes() : 0));
  source->each(meter, [&](const RawExample& e) {
    const int64_t c = targets.class_of(e, *source);
    writer.add(e, c, for_val(static_cast<size_t>(c)));
  });
  if (val_source) {
    val_source->each(meter, [&](const RawExample& e) {
      writer.add(e, targets.class_of(e, *val_source), /*is_val=*/true);
    });
  }
  const std::vector<FinishedFile> files = writer.finish();
  out.publish(files,
              [&](const std::string& name) { write_example_manifest(options.out, m, name); });

  const std::string layout = source->layout();
  if (!layout.empty()) log_info(options.inputs[0], ": ", layout);
  log_info(options.out.string(), ": ", m.train.examples, " training and ", val,
           " validation examples, inputs of ", sizes_text(m.input_sizes), ", ", m.task, " with ",
           classifies ? str(m.outputs, " classes") : quantity(m.outputs, "output"), chosen);
  if (val == 0 && options.val_share > 0 && !val_source) {
    log_warn("no example was held out for validation, because there are too few examples",
             classifies ? " of each class" : "", " for a share of ", options.val_share,
             classifies ? "; if the targets are numbers, give --task regression" : "");
  }
}

}  // namespace lathe
