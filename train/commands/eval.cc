#include <algorithm>
#include <cmath>
#include <iostream>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/memory.h"
#include "data/folder.h"
#include "data/prepare/documents.h"
#include "train/commands/commands.h"
#include "train/commands/table.h"
#include "train/session/frozen_model.h"
#include "train/store/encoding.h"
#include "train/tasks/task.h"
#include "train/tasks/text_score.h"

namespace lathe {
namespace {

/// Throws Exit::data if the data is of another kind than the model's training data, or if there is
/// nothing to evaluate.
void check_same_kind(const LoadedModel& m, const Task& task, const Data& data,
                     const std::string& folder) {
  const DatasetInfo& facts = data.facts();
  const ModelSizes sizes = task.sizes(facts);
  // Every task on tokens can evaluate every model of tokens.
  const bool both_tokens = m.state.sizes.outputs == 0 && facts.outputs == 0;
  if ((task.name() != m.state.task && !both_tokens) || sizes.outputs != m.state.sizes.outputs ||
      sizes.input != m.state.sizes.input) {
    fail(Exit::data, folder, " doesn't match the run's training data: it is for ", facts.task,
         ", with inputs of ", describe(at::IntArrayRef(sizes.input)), " and ", sizes.outputs,
         " outputs, and the run's data is for ", m.state.task, ", with inputs of ",
         describe(at::IntArrayRef(m.state.sizes.input)), " and ", m.state.sizes.outputs,
         " outputs");
  }
  check_tokenizer(folder, facts, m.state);
  const bool tokens = facts.outputs == 0;
  if (data.val_size() < (tokens ? 2 : 1)) {
    fail(Exit::data, folder, " has ", data.val_size(),
         tokens ? " validation tokens; a loss needs at least two"
                : " validation examples; there is nothing to evaluate");
  }
}

/// Adds the dtypes of the model and the memory used to the result of an evaluation.
void add_model(Json& json, const LoadedModel& m) {
  const int64_t peak = m.device.is_cuda() ? cuda_api().memory_peak() : memory_stats().total_peak;
  json.update({{"save_dtype", m.saved_dtype},
               {"load_dtype", m.load_dtype},
               {"compute_dtype", dtype_name(m.compute.dtype)},
               {"weight_bytes", m.weight_bytes},
               {"loading_peak_bytes", m.loading_peak_bytes},
               {"peak_bytes", peak},
               {"peak_rss_bytes", peak_rss_bytes()}});
}

/// Prints the details of an evaluation as tables. A list of objects has a column for each key. The
/// confusion matrix has a row for each class and a column for each predicted class.
void print_tables(const Json& details) {
  const auto cell = [](const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    return value.is_number_float() ? format("%.4g", value.get<double>()) : json_text(value);
  };
  for (const auto& [name, list] : details.items()) {
    if (!list.is_array() || list.empty()) continue;
    std::vector<std::string> head;
    const bool is_confusion = name == "confusion";
    if (is_confusion) head.emplace_back("class \\ predicted");
    const Json& columns = is_confusion ? details["classes"] : list[0];
    for (const auto& [key, value] : columns.items())
      head.push_back(is_confusion ? cell(value["class"]) : key);

    TextTable table(head);
    for (size_t i = 0; i < list.size(); ++i) {
      std::vector<std::string> row;
      if (is_confusion) row.push_back(head[i + 1]);
      for (const Json& value : list[i]) row.push_back(cell(value));
      table.add(row);
    }
    std::cout << table.text() << "\n";
  }
}

/// Returns the loss of texts as JSON: the loss per token, and the same loss as bits per byte.
Json text_json(const TextScore& s) {
  const double loss = s.loss / static_cast<double>(s.tokens);
  return {{"loss", json_number(loss)},
          {"perplexity", json_number(std::exp(loss))},
          {"bits_per_byte", json_number(s.loss / std::log(2.0) / static_cast<double>(s.bytes))},
          {"tokens", s.tokens},
          {"bytes", s.bytes}};
}

/// Reads the texts of a file, which may be compressed. Each line of a JSON Lines file (is_jsonl)
/// has a text in the field `field`; any other file is one text.
std::vector<std::string> texts_of(const std::string& file, const std::string& field) {
  std::vector<std::string> texts;
  const DocumentSource source{.files = {file}, .field = field};
  if (is_jsonl(source, file)) {
    PartReader reader(source, /*whole=*/false);
    for (Part part; reader.next(part);)
      each_document(part, source, [&](std::string_view text) { texts.emplace_back(text); });
  } else {
    InputStream input(file);
    for (texts.emplace_back(); input.read(texts[0], size_t{1} << 20);) {
    }
    texts[0] = without_byte_order_mark(texts[0]);
  }
  return texts;
}

Json evaluate_files(const Scoring& scoring, const std::vector<std::string>& files,
                    const std::string& field) {
  // Read all files before scoring the first file, so that a missing file is noticed early.
  std::vector<std::pair<std::string, std::vector<std::string>>> all_texts;
  for (const std::string& file : files) all_texts.emplace_back(file, texts_of(file, field));

  TextScore all;
  Json each = Json::array();
  for (const auto& [file, texts] : all_texts) {
    TextScore s;
    size_t bytes = 0;
    for (const std::string& text : texts) {
      const TextScore one = score_text(scoring, text);
      bytes += text.size();
      // Losses are summed over tokens, so each token has the same weight, whichever text it is in.
      s.loss += one.loss;
      s.tokens += one.tokens;
      s.bytes += one.bytes;
    }

    if (s.tokens == 0)
      fail(Exit::data, file, " is too short for a loss, which needs two tokens: ", bytes, " bytes");
    all.loss += s.loss;
    all.tokens += s.tokens;
    all.bytes += s.bytes;
    Json json{{"file", file}};
    json.update(text_json(s));
    each.push_back(json);
  }

  Json json = text_json(all);
  if (const int64_t begin = text_begin_token(scoring.tokenizer); begin >= 0) {
    // Print this to standard error, since standard output is for the result.
    std::cerr << "token " << begin
              << " precedes each text, so that the first token of the text is scored as well; the "
                 "perplexity without token "
              << begin << " would differ slightly\n";
    json["begin_token"] = begin;
  }
  if (files.size() > 1) json["files"] = each;
  return json;
}

Json evaluate_choices(const Scoring& scoring, const std::string& file) {
  const std::vector<MultipleChoice> choices = read_choices(file);
  ProgressBar bar("evaluating", static_cast<double>(choices.size()));
  int64_t whole = 0, by_byte = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    bar.show(static_cast<double>(i));
    const Answer a = answer(scoring, choices[i]);
    whole += a.by_total == choices[i].label;
    by_byte += a.by_byte == choices[i].label;
  }
  clear_progress();
  const auto n = static_cast<double>(choices.size());
  return {{"questions", choices.size()},
          {"accuracy", static_cast<double>(whole) / n},
          {"accuracy_by_byte", static_cast<double>(by_byte) / n}};
}

Exit run_eval_text(const Arguments& arguments) {
  for (const char* flag : {"data", "batches"}) {
    if (arguments.flags.contains(flag))
      fail(Exit::usage, "command line: --", flag,
           " is for the loss over a data folder; leave it out, or leave out the files and "
           "--choices");
  }
  const std::vector<std::string> files(arguments.positionals.begin() + 1,
                                       arguments.positionals.end());
  for (const char* flag : {"stride", "batch-size", "field"}) {
    if (files.empty() && arguments.flags.contains(flag))
      fail(Exit::usage, "command line: --", flag,
           " is for files, but --choices answers questions one by one; leave it out");
  }

  if (!files.empty()) check_field_is_used(arguments, {.files = files});

  const LoadedModel m = load_model_argument(arguments);
  Scoring scoring{*m.model, text_tokenizer(arguments, m)};
  scoring.context = model_context(m.config);
  scoring.compute = m.compute;
  scoring.device = m.device;

  scoring.batch_size = static_cast<int64_t>(arguments.number(
      "batch-size", static_cast<double>(m.config.train.batch_size), between(1, 1e6), true));
  // With a stride below the context, windows overlap, and each token has more context.
  scoring.stride = static_cast<int64_t>(
      arguments.number("stride", static_cast<double>(scoring.context),
                       between(1, static_cast<double>(scoring.context)), true));

  Json json = Json::object();
  if (!files.empty()) json.update(evaluate_files(scoring, files, arguments.get("field", "text")));
  if (arguments.flags.contains("choices"))
    json.update(evaluate_choices(scoring, arguments.get("choices", "")));
  add_model(json, m);
  std::cout << json_text(json) << std::endl;
  return Exit::done;
}

/// Resets the keys that describe sources or a split of the run's training data, and the keys that
/// do not apply to the data in config.dir.
void set_other_data(DataConfig& config) {
  const DataConfig initial;
  config.mix.clear();
  config.folds = config.fold = 0;

  const std::string kind = kind_of_data(config.dir);
  if (kind != "tokens" && config.packing == "examples") {
    config.packing = initial.packing;
    config.document_end = initial.document_end;
  }
  if (kind == "preferences") {
    config.documents = initial.documents;
    config.document_end = initial.document_end;
  }
}

/// Returns the data to evaluate on: the data in --data or, by default, the data of the run.
DataConfig data_argument(const Arguments& arguments, const LoadedModel& m) {
  DataConfig data_config = m.config.data;
  data_config.dir = arguments.get("data", m.config.data.dir);
  if (data_config.dir.empty())
    fail(Exit::usage, arguments.positionals[0],
         " was imported and has no data of its own; give some as --data FOLDER");
  if (arguments.flags.contains("data")) set_other_data(data_config);
  // To separate documents, the token that ends a document must be known. If its key is not set,
  // take it from the run's tokenizer.
  if ((data_config.documents == "separate" || data_config.packing == "examples") &&
      data_config.document_end < 0 && m.state.tokenizer)
    data_config.document_end = m.state.tokenizer->document_end();
  return data_config;
}

Exit run_eval(const Arguments& arguments) {
  if (arguments.positionals.size() > 1 || arguments.flags.contains("choices"))
    return run_eval_text(arguments);

  if (arguments.flags.contains("stride"))
    fail(Exit::usage, "command line: --stride is for text files; give some after the run");
  if (arguments.flags.contains("field"))
    fail(Exit::usage, "command line: --field is for text files; give some after the run");

  const LoadedModel m = load_model_argument(arguments);

  const DataConfig data_config = data_argument(arguments, m);

  const auto data = open_data(data_config);
  // With --data, the given data, not the run, determines the task of a token model.
  LoadedConfig measured{.config = m.config, .origins = {}};
  if (arguments.flags.contains("data") && m.state.sizes.outputs == 0)
    measured.config.train.task = "auto";
  const Task& of_table = task_of(measured, data->facts());
  if (of_table.name() != m.state.task && !of_table.frozen_key(m.config).empty()) {
    fail(Exit::usage, data_config.dir, " is for the task ", of_table.name(),
         ", which compares a model with the one that it was trained from; evaluate a run of that "
         "task on this data");
  }
  check_same_kind(m, of_table, *data, data_config.dir);
  if (const auto& theirs = data->facts().encoding) {
    const ExampleEncoding ours = encoding_of(arguments.positionals[0], m.state, m.config);
    check_compatible_encoding(
        ours, *theirs, data_config.dir,
        "; `lathe predict RUN FILE` encodes a file like the model's training data");
    data->normalize_as(ours);
  }
  const RunTask run_task = make_run_task(m, of_table, data->facts());
  const Task& task = run_task.own ? *run_task.own : of_table;

  const auto batch = static_cast<int64_t>(arguments.number(
      "batch-size", static_cast<double>(m.config.train.batch_size), between(1, 1e6), true));
  BatchSizes sizes = batch_sizes(m.config);
  sizes.batch_size = batch;
  const auto batches = static_cast<int64_t>(arguments.number("batches", 0, between(0, 1e12), true));

  // Splits are measured in tokens or examples, and a sequence has block_size tokens.
  const int64_t units = batch * std::max<int64_t>(1, sizes.block_size);
  const double all = std::ceil(static_cast<double>(data->val_size()) / static_cast<double>(units));
  ProgressBar bar("evaluating", batches > 0 ? std::min(all, static_cast<double>(batches)) : all);
  double done = 0;
  const auto show = [&] {
    bar.show(done++);
    return false;
  };
  const EvalResult r = *evaluate(task, *m.model, *data, sizes, batches, m.compute, m.device, show,
                                 /*detailed=*/true);
  clear_progress();
  print_tables(r.details);

  // Print this to standard error, since standard output is for the result.
  if (m.state.encoding)
    std::cerr << "for new data: lathe predict " << arguments.positionals[0] << " FILE\n";
  Json json = Json::object();
  for (const auto& [name, value] : r.metrics) json[name] = json_number(value);
  json[task.unit()] = r.targets;
  json.update(r.details);
  add_model(json, m);
  std::cout << json_text(json) << std::endl;
  return Exit::done;
}

}  // namespace

Command eval_command() {
  return {
      .name = "eval",
      .usage = "RUN|CHECKPOINT [FILE...]",
      .doc =
          "Compute the loss of a model on its validation split or on texts (with perplexity and "
          "bits per byte), or its accuracy on questions with several endings; the last line is "
          "JSON.",
      .examples = {"eval runs/quickstart --checkpoint best",
                   "eval runs/quickstart my.txt --load-dtype bf16"},
      .flags = with_load_flags(
          {{"data", "Evaluate on this data folder. Default: the run's."},
           {"batch-size", "Compute this many sequences at a time. Default: the run's."},
           {"field", "Read the texts of JSON Lines from this field. Default: text."},
           {"batches",
            "Evaluate on this many batches of the validation split, the same sample as for "
            "train.eval_batches; 0 takes all of it. Default: 0."},
           {"choices",
            "Answer the questions in these JSON Lines, {\"context\": TEXT, \"endings\": [TEXT, "
            "...], \"label\": N}, by choosing the ending with the highest probability (accuracy), "
            "or the highest log probability per byte (accuracy_by_byte)."},
           {"stride",
            "Move the window over a text by this many tokens; fewer give each token more context. "
            "Default: the whole context."}}),
      .max_positionals = 100000,
      .run = run_eval,
      .switches = {"double-quant"}};
}

}  // namespace lathe
