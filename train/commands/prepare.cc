#include <algorithm>
#include <functional>
#include <utility>

#include "core/device.h"
#include "core/io/checksum.h"
#include "core/io/claimed_folder.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "data/folder.h"
#include "data/mixture/mixture.h"
#include "data/prepare/documents.h"
#include "data/prepare/example_source.h"
#include "data/prepare/file_type.h"
#include "data/prepare/out_folder.h"
#include "data/prepare/prepare.h"
#include "data/prepare/prepare_documents.h"
#include "data/tokenizers/chat_template.h"
#include "train/commands/commands.h"
#include "train/commands/prepare_tables.h"
#include "train/config/path_kind.h"
#include "train/loop/stop.h"
#include "train/store/checkpoint.h"

namespace lathe {
namespace {

/// Flags that make `lathe prepare` read text as documents. text_flags() also has the other flags of
/// text.
const std::vector<const char*> document_flags{
    "format",      "field",   "separator", "chat-template", "dedup",
    "dedup-lines", "invalid", "min-bytes", "max-bytes",     "val-by"};
std::vector<const char*> text_flags() {
  std::vector<const char*> all = document_flags;
  all.insert(all.end(), {"tokenizer", "shard-tokens", "workers"});
  return all;
}

/// Returns all input files. Leaves out the folder --out if an input folder contains it, because an
/// interrupted command may have left files in it.
std::vector<fs::path> input_files(const Arguments& arguments) {
  return expand_inputs(arguments.positionals, arguments.get("out", ""));
}

/// Returns whether the inputs are read as documents. They are if a flag of document_flags is given,
/// or if an input is a JSON Lines file, a compressed file or standard input.
bool is_documents(const Arguments& arguments) {
  for (const char* flag : document_flags) {
    if (arguments.flags.contains(flag)) return true;
  }
  for (const fs::path& file : input_files(arguments)) {
    if (file == "-" || has_compressed_name(file) || is_jsonl({}, file.string())) return true;
  }
  return false;
}

/// Throws Exit::usage for a flag that would have no effect, because it applies to none of the
/// files.
void check_file_flags(const Arguments& arguments, const DocumentSource& source) {
  const bool texts = std::ranges::any_of(
      source.files, [&](const std::string& file) { return !is_jsonl(source, file); });
  check_field_is_used(arguments, source);
  if (arguments.flags.contains("field") && source.format == "preferences")
    fail(Exit::usage,
         "command line: --field has no effect with --format preferences, which reads \"prompt\", "
         "\"chosen\" and \"rejected\"; leave it out");
  if (arguments.flags.contains("separator") && source.separator.empty())
    fail(Exit::usage, "command line: --separator must not be empty; leave it out");
  if (arguments.flags.contains("separator") && !texts)
    fail(Exit::usage,
         "command line: --separator is for text, but JSON Lines have a document on each line; "
         "leave it out");
  if (arguments.get("invalid", "refuse") == "repair" && !texts)
    fail(Exit::usage,
         "command line: --invalid repair is for texts; lines of JSON that are not UTF-8 are "
         "refused; leave it out");
}

/// Returns the inputs as documents, with the options that choose how they are read.
DocumentSource document_source(const Arguments& arguments) {
  DocumentSource source;
  for (const fs::path& file : input_files(arguments)) source.files.push_back(file.string());
  source.format = arguments.choice(
      "format", "auto", {"auto", "text", "jsonl", "instructions", "preferences", "images"});
  // A line of instructions has messages instead of a text.
  source.field =
      arguments.get("field", source.format == "instructions" ? "messages" : source.field);
  source.separator = arguments.get("separator", "");
  return source;
}

Exit prepare_as_documents(const Arguments& arguments, const std::string& tokenizer) {
  DocumentOptions o;
  o.source = document_source(arguments);
  const bool preferences = o.source.format == "preferences",
             instructions = o.source.format == "instructions";
  check_file_flags(arguments, o.source);

  // Collecting a vocabulary of characters takes a separate pass, but standard input can be read
  // only once.
  if (tokenizer == "char")
    fail(Exit::usage,
         "command line: --tokenizer char accepts only plain text files and no options of "
         "documents, such as --dedup; use byte or a BPE");
  if (tokenizer != "byte") o.tokenizer = tokenizer_at(tokenizer);

  if (const std::string chat = arguments.get("chat-template", ""); !chat.empty()) {
    if (!instructions && !preferences)
      fail(
          Exit::usage,
          "command line: --chat-template is for --format instructions or preferences; leave it out "
          "or give one of them");
    set_chat_template(o.tokenizer, chat);
  }

  o.out = arguments.get("out", "");
  o.val_share = arguments.number("val", 0.1, between(0, 0.9), false);
  o.val_by_hash = arguments.choice("val-by", "tail", {"tail", "hash"}) == "hash";

  o.dedup = arguments.is_true("dedup");
  o.dedup_lines = arguments.is_true("dedup-lines");
  if (o.dedup_lines && (instructions || preferences))
    fail(Exit::usage,
         "command line: --dedup-lines is for texts, not for conversations; use --dedup");

  o.repair = arguments.choice("invalid", "refuse", {"refuse", "repair"}) == "repair";

  o.min_bytes = static_cast<uint64_t>(arguments.number("min-bytes", 0, at_least(0), true));
  if (arguments.flags.contains("max-bytes"))
    o.max_bytes = static_cast<uint64_t>(arguments.number("max-bytes", 0, at_least(1), true));
  o.shard_tokens = static_cast<int64_t>(arguments.number("shard-tokens", 1e8, at_least(1), true));
  o.workers =
      static_cast<int>(arguments.number("workers", default_threads(), between(1, 1024), true));
  check_threads(o.workers);

  o.stop = [] { return stop_signal() != 0; };
  prepare_documents(o);
  return Exit::done;
}

Exit prepare_plain(const Arguments& arguments, const std::string& tokenizer, bool binary) {
  PrepareOptions o{.inputs = arguments.positionals, .out = arguments.get("out", "")};
  o.tokenizer = tokenizer;
  o.binary = binary;
  o.val_share = arguments.number("val", 0.1, between(0, 0.9), false);
  o.shard_tokens = static_cast<int64_t>(arguments.number("shard-tokens", 1e8, at_least(1), true));
  if (arguments.flags.contains("workers"))
    fail(Exit::usage,
         "command line: --workers has no effect on files of text that are not divided into "
         "documents; leave it out");
  o.stop = [] { return stop_signal() != 0; };
  prepare(o);
  return Exit::done;
}

/// Prepares files as binary data, in which every byte becomes a token.
Exit prepare_binary(const Arguments& arguments) {
  const std::string what = "files of text; --binary takes files as they are";
  refuse_flags(arguments, document_flags, what.c_str());
  refuse_flags(arguments, table_flag_names(), "tables and arrays");
  if (arguments.get("tokenizer", "") != "byte")
    fail(Exit::usage,
         "command line: --binary needs --tokenizer byte; give that, or leave --binary out");
  if (arguments.positionals[0] == "-")
    fail(Exit::usage, "command line: --binary takes files, not standard input; name some");
  return prepare_plain(arguments, "byte", /*binary=*/true);
}

/// Throws Exit::usage for a compressed table, which would otherwise be read as a text.
void check_not_compressed_table(const fs::path& file) {
  const std::string inner = lower_extension(file.stem());
  if (has_compressed_name(file) && (inner == ".csv" || inner == ".tsv" || inner == ".tab"))
    fail(Exit::usage, "command line: ", file.string(), " is a compressed table; decompress it");
}

/// Throws Exit::usage if a path is a table or an array, or a folder that holds nothing else, and
/// there is no --format. Otherwise, these would be prepared as text.
void check_not_examples(const Arguments& arguments, const std::vector<std::string>& paths) {
  if (arguments.flags.contains("format")) return;
  for (const std::string& path : paths) {
    if (path == "-") continue;  // standard input
    const std::vector<fs::path> files = expand_inputs({path});
    if (files.empty() || !std::ranges::all_of(files, is_example_file)) continue;
    fail(Exit::usage, "command line: ", path, " holds examples (", files[0].filename().string(),
         "), not text; give the files of tables and arrays by name and alone, or prepare them as "
         "text with --format text");
  }
}

Exit prepare_words(const Arguments& arguments) {
  if (arguments.is_true("binary")) return prepare_binary(arguments);
  for (const std::string& file : arguments.positionals) {
    check_not_parquet(file);
    check_not_compressed_table(file);
  }
  if (arguments.get("format", "") == "images") return prepare_images(arguments, text_flags());
  if (is_example_file(arguments.positionals[0])) return prepare_tables(arguments, text_flags());
  refuse_flags(arguments, table_flag_names(), "tables and arrays");
  check_not_examples(arguments, arguments.positionals);
  const std::string tokenizer = arguments.get("tokenizer", "byte");
  const bool is_bpe = tokenizer != "byte" && tokenizer != "char";
  if (is_bpe && !fs::exists(tokenizer))
    fail(Exit::usage,
         "command line: --tokenizer must be byte, char, or the path of a tokenizer or a run, and "
         "there is no ",
         "file ", tokenizer);
  if (is_bpe || is_documents(arguments)) return prepare_as_documents(arguments, tokenizer);
  return prepare_plain(arguments, tokenizer, /*binary=*/false);
}

/// Parses NAME=PATH or NAME=PATH:SHARE.
std::pair<MixturePart, std::string> read_source(const std::string& text) {
  const size_t equals = text.find('='), colon = text.rfind(':');
  if (equals == std::string::npos || equals + 1 == text.size())
    fail(Exit::usage, "command line: --source ", text,
         " is not NAME=PATH:SHARE, such as web=corpus/web:0.7");
  MixturePart part{text.substr(0, equals), 1};
  std::string path = text.substr(equals + 1);
  // A path may contain colons, so the part after the last colon is a share only if it is a number.
  if (colon != std::string::npos && colon > equals) {
    const ConfigValue share = read_value(text.substr(colon + 1), 0.0);
    if (const auto* number = std::get_if<double>(&share)) {
      part.weight = *number;
      path = text.substr(equals + 1, colon - equals - 1);
    }
  }
  return {part, path};
}

/// Returns a checksum that identifies the command. The checksum covers all options except
/// --workers, and the contents of the tokenizer and of the chat template. Prepared sources are kept
/// only if this checksum is unchanged.
std::string identity(const Arguments& arguments) {
  std::string all;
  for (const auto& [flag, value] : arguments.flags) {
    if (flag != "workers") all += flag + '\0' + value + '\0';
  }
  for (const std::string& source : arguments.lists.at("source")) all += source + '\0';
  if (const fs::path chat = arguments.get("chat-template", ""); fs::is_regular_file(chat))
    all += read_file(chat, Exit::usage) + '\0';
  if (const std::string path = arguments.get("tokenizer", "byte");
      path != "byte" && fs::exists(path)) {
    Json json;
    tokenizer_at(path).add_to_json(json, "tokenizer");
    all += json_text(json);
  }
  const Digest d = digest(all);
  return str(d.high, "-", d.low);
}

/// Returns a checksum of the files of a source and their paths. `meter` shows the progress, and
/// throws if a stop is requested.
std::string input_checksum(const std::string& path, ProgressReporter& meter) {
  const std::vector<fs::path> files = expand_inputs({path});
  uint64_t bytes = 0;
  for (const fs::path& file : files) bytes += fs::is_regular_file(file) ? fs::file_size(file) : 0;
  meter.begin("checked", bytes);

  Checksum all;
  for (const fs::path& file : files) {
    uint64_t shown = 0;
    const std::string sum = file_checksum(
        file, [&](uint64_t done) { meter.advance(done - std::exchange(shown, done)); });
    const std::string text = str(file.string(), '\0', sum, '\0');
    all.update(text.data(), text.size());
  }
  return all.hex();
}

/// Name of the file that records a mixture in progress: the command, and the input checksum of each
/// source whose preparation has begun.
constexpr const char* mixture_record = ".unfinished-mixture";

struct MixtureRecord {
  /// Input checksum of each source; nullopt if there is no record of this command.
  std::optional<Json> inputs;
  bool is_other_command = false;  ///< whether the record is of another command
};

/// Reads the record in the folder `out`. Ignores a record that is damaged.
MixtureRecord read_mixture_record(const fs::path& out, const std::string& command) try {
  const std::string where = (out / mixture_record).string();
  const auto record = read_manifest_json(out, mixture_record);
  if (!record) return {};
  if (json_get<std::string>(*record, "command", where, Exit::data) != command)
    return {.inputs = std::nullopt, .is_other_command = true};
  check_manifest_checksum(*record, where);
  auto inputs = json_get<Json>(*record, "inputs", where, Exit::data);
  if (!inputs.is_object()) fail(Exit::data, where, ": \"inputs\" is not an object");
  return {.inputs = std::move(inputs)};
} catch (const Error& e) {
  log_warn(e.what());
  return {};
}

void prepare_source(const Arguments& all, const std::string& path, const fs::path& out) {
  Arguments one = all;
  one.lists.clear();
  one.positionals = {path};
  one.flags["out"] = out.string();

  // prepare_mixture() has checked that each of these options applies to one of the sources.
  bool has_lines = false, has_text = false;
  const DocumentSource source = document_source(one);
  for (const std::string& file : source.files)
    (is_jsonl(source, file) ? has_lines : has_text) = true;
  if (!has_lines) one.flags.erase("field");
  if (!has_text) one.flags.erase("separator");
  if (!has_text) one.flags.erase("invalid");
  prepare_words(one);
}

/// Prepares each source into a subfolder of `out`. Keeps the sources that the same command finished
/// before it was interrupted. Throws Exit::data if the input of such a source has changed.
void prepare_sources(const Arguments& arguments, const fs::path& out,
                     const std::vector<MixturePart>& parts, const std::vector<std::string>& paths) {
  const std::string command = identity(arguments);
  const auto [recorded, is_other_command] = read_mixture_record(out, command);
  const auto is_made = [&](const MixturePart& part) {
    return fs::exists(out / part.name / "manifest.json");
  };

  // If there is no record of this command, this command did not write the folders in `out`, so
  // never replace them.
  for (const MixturePart& part : parts) {
    if (!recorded && is_made(part)) {
      fail(Exit::usage, (out / part.name).string(), " already holds data",
           is_other_command ? " of another command; repeat that command to continue it, " : "; ",
           "remove ", out.string(), is_other_command ? ", or" : " or", " give another --out");
    }
  }

  const std::function<bool()> stop = [] { return stop_signal() != 0; };
  ProgressReporter meter(out, stop);
  if (std::any_of(parts.begin(), parts.end(), is_made)) meter.resumable();

  Json inputs = recorded.value_or(Json::object());
  try {
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string& name = parts[i].name;
      const fs::path folder = out / name;
      const std::string input = input_checksum(paths[i], meter);
      if (is_made(parts[i])) {
        if (!inputs.contains(name) || inputs[name] != input)
          fail(Exit::data, "the input of the source ", name,
               " has changed since this command was interrupted; remove ", folder.string(),
               " to prepare it again");
        log_info(folder.string(), " is already complete and is kept");
        continue;
      }

      // Record the checksum before the input is read, so that a later change is noticed.
      inputs[name] = input;
      write_manifest_json(out, {{"command", command}, {"inputs", inputs}}, mixture_record);
      prepare_source(arguments, paths[i], folder);
      meter.resumable();
    }
  } catch (...) {
    std::error_code error;
    // If no source is finished, there is nothing to resume.
    if (std::none_of(parts.begin(), parts.end(), is_made)) fs::remove(out / mixture_record, error);
    throw;
  }
}

Exit prepare_mixture(const Arguments& arguments) {
  if (!arguments.positionals.empty())
    fail(Exit::usage, "command line: ", arguments.positionals[0],
         " cannot be combined with --source; also name it as a source");
  if (const std::string format = arguments.get("format", "");
      format == "preferences" || format == "images")
    fail(Exit::usage, "command line: --format ", format,
         " is not for mixtures; prepare all files in one folder");
  refuse_flags(arguments, table_flag_names(), "tables and arrays");
  // A token id must have the same meaning in all sources of a mixture.
  if (arguments.get("tokenizer", "byte") == "char")
    fail(Exit::usage,
         "command line: --tokenizer char gives each source a vocabulary of its own; use byte or a "
         "BPE");

  const fs::path out = arguments.get("out", "");
  OutFolder::check(out);

  // Check every source before preparing the first source, which may take hours.
  std::vector<MixturePart> parts;
  std::vector<std::string> paths;
  for (const std::string& text : arguments.lists.at("source")) {
    const auto [part, path] = read_source(text);
    parts.push_back(part);
    paths.push_back(path);
    if (!fs::exists(path))
      fail(Exit::data, "there is no file ", path, ", which --source ", part.name, " names");
    if (fs::is_directory(path) &&
        (fs::weakly_canonical(out) / "").string().starts_with((fs::canonical(path) / "").string()))
      fail(Exit::usage, "command line: --out ", out.string(), " is inside the folder of --source ",
           part.name, "; write the mixture to another folder");
    check_not_parquet(path);
    check_not_compressed_table(path);
    if (is_example_file(path)) {
      fail(Exit::usage, "command line: --source ", part.name, ": mixtures are of text, but ", path,
           " holds examples");
    }
  }
  check_not_examples(arguments, paths);
  check_mixture(parts, "command line: --source", Exit::usage);
  Arguments together = arguments;
  together.positionals = paths;
  check_file_flags(together, document_source(together));

  const ClaimedFolder claim(out, "`lathe prepare`");
  prepare_sources(arguments, out, parts, paths);
  const int64_t tokens = write_mixture(out, parts);
  // Remove the record last, so that the same command can resume until the mixture is written.
  remove_tree(out / mixture_record);
  log_info(out.string(), ": a mixture of ", parts.size(), " sources, ", tokens, " training tokens");
  return Exit::done;
}

Exit run_prepare(const Arguments& arguments) {
  if (arguments.get("out", "").empty()) fail(Exit::usage, "lathe prepare needs --out FOLDER");
  check_output_folder("command line: --out", arguments.get("out", ""), PathKind::data);
  if (arguments.get("format", "") != "images") refuse_flags(arguments, {"size"}, "--format images");
  install_stop_handlers("the preparation");
  if (arguments.lists.contains("source")) return prepare_mixture(arguments);
  if (arguments.positionals.empty())
    fail(Exit::usage, "lathe prepare needs files, folders, - or --source NAME=PATH:SHARE");
  return prepare_words(arguments);
}

}  // namespace

Command prepare_command() {
  return {
      .name = "prepare",
      .usage = "IN... --out FOLDER",
      .doc =
          "Convert text or JSON Lines (files, folders or standard input, also .gz and .zst) into "
          "token shards, or tables (CSV, TSV), arrays (IDX, .npy, .safetensors) and folders of "
          "images into examples.",
      .examples = {"prepare my.txt --out data/my --tokenizer char",
                   "prepare table.csv --out data/table --target price --drop id"},
      .flags = with_table_flags(
          {{"out", "Write the data to this folder."},
           {"val",
            "Reserve this share for validation: the tail of a text, or a random choice of "
            "examples. Default: 0.1."},
           {"tokenizer",
            "Encode text with byte, char, or the BPE at a path or in a run. Default: byte.",
            {"byte", "char"}},
           {"binary",
            "Use the bytes of all files as tokens, even of files that are not text or that hold "
            "examples; needs --tokenizer byte."},
           {"workers",
            "Encode text with a BPE on this many threads, which does not change the result. "
            "Default: all cores."},
           {"source",
            "Name a source of a mixture as NAME=PATH:SHARE instead of IN. SHARE is the weight of "
            "PATH among the training windows, by default 1, and data.mix can set other weights. "
            "This option may be given several times."},
           {"format",
            "Read the input as text, jsonl (a text on each line), instructions (lines with "
            "\"messages\", ShareGPT's \"conversations\", Alpaca's \"instruction\", \"input\" and "
            "\"output\", or \"prompt\" and \"completion\"; the model learns only the answers), "
            "preferences (lines with \"prompt\", \"chosen\" and \"rejected\") or images (a folder "
            "that has a folder of PNG and JPEG files for each class). Default: auto, which chooses "
            "text or jsonl by the name of each file.",
            {"auto", "text", "jsonl", "instructions", "preferences", "images"}},
           {"chat-template",
            "Format instructions and preferences as chatml, as llama3, or with a Jinja file, "
            "instead "
            "of the tokenizer's template.",
            {"chatml", "llama3"}},
           {"field",
            "Read the text of each JSON line from this field. Default: text, or messages for "
            "instructions."},
           {"separator",
            "Split a text into documents at this string, such as <|endoftext|>, or the lines of a "
            "table into columns at one of , ; | and tab. By default, a text is one document, and "
            "the name or first line of a table determines its separator."},
           {"dedup",
            "Drop documents that are byte for byte equal to an earlier one, of the same source."},
           {"dedup-lines",
            "Drop lines of documents that occurred before in any document of the same source."},
           {"invalid",
            "Either refuse documents with bytes that are not UTF-8, or repair them. Default: "
            "refuse.",
            {"refuse", "repair"}},
           {"min-bytes", "Drop documents that are shorter than this. Default: 0."},
           {"max-bytes", "Drop documents that are longer than this. Default: no limit."},
           {"val-by",
            "Take the documents for validation from the tail, or by a hash of their content. "
            "Default: tail.",
            {"tail", "hash"}},
           {"shard-tokens", "Write at most this many tokens to one file. Default: 100000000."}}),
      .min_positionals = 0,
      .max_positionals = 1000000,
      .run = run_prepare,
      .switches = {"dedup", "dedup-lines", "binary"},
      .repeatable = {"source", "drop", "category"}};
}

}  // namespace lathe
