#include <sstream>

#include "data/example_source.h"
#include "data/prepare.h"
#include "data/prepare_examples.h"
#include "train/run/stop.h"
#include "train/verbs/verbs.h"

namespace lathe {
namespace {

/// Refuses flags of the other sort of input.
void refuse_flags(const Arguments& arguments, const std::vector<const char*>& names, const char* what) {
  for (const char* name : names) {
    if (arguments.flags.contains(name))
      fail(Exit::usage, "command line: --", name, " is for ", what, "; leave it out, or name other files");
  }
}

/// "1,8,8".
std::vector<int64_t> read_shape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const ConfigValue value = read_value(part, int64_t{0});
    const auto* size = std::get_if<int64_t>(&value);
    if (size == nullptr || *size < 1 || *size > 1000000)
      fail(Exit::usage, "command line: --shape must be sizes such as 1,8,8, not ", text);
    shape.push_back(*size);
  }
  return shape;
}

Exit prepare_tables(const Arguments& arguments) {
  refuse_flags(arguments, {"tokenizer", "shard-tokens"}, "text");
  ExampleOptions o;
  o.inputs = arguments.words;
  o.out = arguments.get("out", "");
  o.target = arguments.get("target", o.target);
  o.task = arguments.get("task", "");
  if (!o.task.empty() && o.task != "classification" && o.task != "regression")
    fail(Exit::usage, "command line: --task must be classification or regression, not ", o.task);
  o.val_share = arguments.number("val", 0.1, between(0, 0.9), false);
  if (arguments.flags.contains("val-file")) {
    if (arguments.flags.contains("val")) fail(Exit::usage, "command line: give --val or --val-file, not both");
    std::istringstream files(arguments.get("val-file", ""));
    for (std::string file; std::getline(files, file, ',');) o.val_inputs.push_back(file);
  }
  if (arguments.flags.contains("shape")) o.shape = read_shape(arguments.get("shape", ""));
  o.stop = [] { return stop_signal() != 0; };
  prepare_examples(o);
  return Exit::done;
}

Exit run_prepare(const Arguments& arguments) {
  if (arguments.get("out", "").empty()) fail(Exit::usage, "lathe prepare needs --out FOLDER");
  take_stop_signals("the preparation; nothing of it is kept");
  if (is_example_file(arguments.words[0])) return prepare_tables(arguments);
  refuse_flags(arguments, {"target", "task", "val-file", "shape"}, "tables and arrays");
  PrepareOptions o{.inputs = arguments.words, .out = arguments.get("out", "")};
  o.tokenizer = arguments.get("tokenizer", "byte");
  if (o.tokenizer != "byte" && o.tokenizer != "char" && !fs::exists(o.tokenizer))
    fail(Exit::usage, "command line: --tokenizer must be byte, char, or the path of a tokenizer, and there is no file ",
         o.tokenizer);
  o.val_share = arguments.number("val", 0.1, between(0, 0.9), false);
  o.shard_tokens = static_cast<int64_t>(arguments.number("shard-tokens", 1e8, at_least(1), true));
  o.stop = [] { return stop_signal() != 0; };
  prepare(o);
  return Exit::done;
}

}  // namespace

Verb prepare_verb() {
  return {
      "prepare",
      "IN... --out FOLDER",
      "turn text files, or folders of them, into token shards, or tables (CSV) and arrays (IDX, .npy, .safetensors) "
      "into examples",
      "prepare my.txt --out data/my --tokenizer char",
      {{"out", "folder for the data"},
       {"val", "share for validation: of a text its tail, of examples a random choice (0.1)"},
       {"tokenizer", "text: byte (default), char, or the path of a BPE tokenizer"},
       {"shard-tokens", "text: most tokens in one file (100000000)"},
       {"target", "CSV: the column that is learned: last (default), first, its name or its number"},
       {"task", "examples: classification or regression (as the targets look)"},
       {"val-file", "examples: files for validation instead of a share, with commas between"},
       {"shape", "examples: sizes of one input, as 1,8,8 for an image (as the files have it)"}},
      false,
      1,
      1000000,
      run_prepare};
}

}  // namespace lathe
