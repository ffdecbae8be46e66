// Implements `lathe tokenizer`, which trains, inspects and applies tokenizers.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "core/device.h"
#include "core/error.h"
#include "core/io/checksum.h"
#include "core/io/claimed_folder.h"
#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/io/text.h"
#include "data/prepare/bpe_trainer.h"
#include "data/prepare/prepare.h"
#include "data/tokenizers/chat_template.h"
#include "data/tokenizers/pretokenizer.h"
#include "train/commands/commands.h"
#include "train/config/path_kind.h"
#include "train/loop/stop.h"

namespace lathe {
namespace {

/// Reads the file that the second positional names. Reads standard input if there is no second
/// positional.
std::string input_text(const Arguments& arguments) {
  if (arguments.positionals.size() > 1)
    return std::string(without_byte_order_mark(
        read_file(arguments.positionals[1], Exit::data, uint64_t{1} << 40)));
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

Tokenizer tokenizer_of(const Arguments& arguments) {
  const std::string path = arguments.get("tokenizer", "");
  if (path.empty())
    fail(Exit::usage, "lathe tokenizer ", arguments.positionals[0],
         " needs --tokenizer PATH: a tokenizer.json, a folder with one or with vocab.json and "
         "merges.txt, or a run");
  return tokenizer_at(path);
}

SpecialText special_of(const Arguments& arguments) {
  const std::string what = arguments.get("special", "token");
  if (what == "token") return SpecialText::token;
  if (what == "text") return SpecialText::text;
  if (what == "refuse") return SpecialText::refuse;
  fail(Exit::usage, "command line: --special must be token, text or refuse, not ", what);
}

Exit encode(const Arguments& arguments) {
  const Tokenizer tokenizer = tokenizer_of(arguments);
  const BPE& bpe = *tokenizer.bpe();
  BPE::Encoder encoder(bpe);
  const SpecialText special = special_of(arguments);

  const auto print = [&](std::string_view text) {
    std::vector<int32_t> ids;
    encoder.encode(text, ids, special);
    std::string line;
    for (const int32_t id : ids) (line += line.empty() ? "" : " ") += std::to_string(id);
    std::cout << line << "\n";
  };

  const std::string text = input_text(arguments);
  if (!arguments.is_true("json")) {
    print(text);
    return Exit::done;
  }

  // Each line is a JSON string, so that a text may contain line breaks.
  std::istringstream lines(text);
  int64_t n = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = str("line ", ++n, " of the input");
    const Json json = parse_json(line, where, Exit::data);
    if (!json.is_string())
      fail(Exit::data, where, " is not a JSON string; --json takes one per line");
    print(json.get<std::string>());
  }
  return Exit::done;
}

Exit decode(const Arguments& arguments) {
  const Tokenizer tokenizer = tokenizer_of(arguments);
  const BPE& bpe = *tokenizer.bpe();
  std::istringstream words(input_text(arguments));
  std::vector<int64_t> ids;
  for (std::string word; words >> word;) {
    const ConfigValue value = read_value(word, int64_t{0});
    const auto* id = std::get_if<int64_t>(&value);
    if (id == nullptr || *id < 0 || *id >= bpe.size())
      fail(Exit::data, "\"", word, "\" is not a token id; ids go from 0 to ", bpe.size() - 1);
    ids.push_back(*id);
  }
  std::cout << bpe.decode(ids) << std::flush;
  return Exit::done;
}

Exit inspect_tokenizer(const Arguments& arguments) {
  const Tokenizer tokenizer = tokenizer_of(arguments);
  const BPE& bpe = *tokenizer.bpe();

  const BPEDefinition& d = bpe.definition();
  const std::string json = json_text(bpe_to_json(d));
  Checksum sum;
  sum.update(json.data(), json.size());

  std::cout << (d.byte_tokens.empty() ? "byte-level BPE, " : "SentencePiece's BPE with bytes, ")
            << bpe.size() << " ids, " << d.merges.size() << " merges, xxh3 " << sum.hex() << "\n";

  for (const std::string& pattern : d.patterns) std::cout << "pieces    " << pattern << "\n";
  if (d.nfc) std::cout << "text      in Unicode's normal form C\n";
  if (d.whole_pieces) std::cout << "merges    are skipped for pieces that are tokens\n";
  for (const SpecialToken& s : d.special)
    std::cout << (s.special ? "special   " : "added     ") << s.id << " " << s.text << "\n";
  if (d.begin >= 0)
    std::cout << "texts     begin with " << d.tokens[static_cast<size_t>(d.begin)] << "\n";
  if (const std::string chat = describe_chat(tokenizer); !chat.empty())
    std::cout << "chat      " << chat << "\n";
  return Exit::done;
}

/// Returns the training options that the flags set. Throws Exit::usage for an invalid value.
BPETraining training_argument(const Arguments& arguments) {
  BPETraining t;
  t.vocab_size =
      static_cast<int64_t>(arguments.number("vocab-size", 4096, between(257, 10'000'000), true));
  t.min_frequency = static_cast<int64_t>(arguments.number("min-frequency", 2, at_least(1), true));
  t.threads =
      static_cast<int>(arguments.number("threads", default_threads(), between(1, 1024), true));
  check_threads(t.threads);

  if (const std::string text = arguments.get("special", "<|endoftext|>"); text != "none")
    t.special = comma_list(text);
  else
    t.special.clear();

  const std::set<std::string> different(t.special.begin(), t.special.end());
  if (different.size() < t.special.size() || different.contains(""))
    fail(Exit::usage, "command line: --special ", arguments.get("special", ""),
         " has an empty token, or one twice");

  const std::string pattern = arguments.get("pattern", "gpt2");
  t.pattern = pattern == "gpt2" ? gpt2_pattern : pattern == "llama3" ? llama3_pattern : pattern;
  if (const std::string syntax = differing_syntax(t.pattern); !syntax.empty())
    fail(Exit::usage, "command line: --pattern has ", syntax,
         ", which Hugging Face's tokenizers read differently; write the characters out");
  try {
    const Pretokenizer check(t.pattern, "command line: --pattern");
  } catch (const Error& e) {
    fail(Exit::usage, e.what());
  }
  return t;
}

Exit train_tokenizer(const Arguments& arguments) {
  const fs::path out = arguments.get("out", "");
  if (out.empty()) fail(Exit::usage, "lathe tokenizer train needs --out FOLDER");
  check_output_folder("command line: --out", out, PathKind::folder);
  const fs::path file = out / "tokenizer.json";

  // Check this before the training, and again when no other process can write to the folder.
  const auto check_free = [&] {
    if (fs::exists(file))
      fail(Exit::usage, file.string(), " is there already; name another --out or remove it");
  };
  check_free();

  DocumentSource source{.files = {},
                        .format = arguments.get("format", "auto"),
                        .field = arguments.get("field", "text")};
  for (const fs::path& path :
       expand_inputs({arguments.positionals.begin() + 1, arguments.positionals.end()}))
    source.files.push_back(path.string());

  if (source.files.empty())
    fail(Exit::usage, "lathe tokenizer train needs text files, or folders of them");
  if (source.format != "auto" && source.format != "text" && source.format != "jsonl")
    fail(Exit::usage, "command line: --format must be auto, text or jsonl, not ", source.format);
  check_field_is_used(arguments, source);

  BPETraining t = training_argument(arguments);

  const ClaimedFolder claim(out, "`lathe tokenizer train`");
  check_free();  // another process may have written the file since the first check

  install_stop_handlers("the training; nothing is written");
  // Only a complete tokenizer is written, so a stop loses the training so far.
  t.stop = [] { return stop_signal() != 0; };
  ProgressBar bar("training the tokenizer", 1);
  t.show = [&bar](double share) { bar.show(share); };

  const BPEDefinition made = train_bpe(source, t);
  write_bpe(made, file);
  log_info(file.string(), ": ", made.tokens.size(), " tokens, ", made.merges.size(), " merges",
           static_cast<int64_t>(made.tokens.size()) < t.vocab_size
               ? str("; no further pair occurs at least ", t.min_frequency, " times")
               : "");
  return Exit::done;
}

Exit run_tokenizer(const Arguments& arguments) {
  const std::string& what = arguments.positionals[0];
  // The parser accepts the flags of all four subcommands, so refuse flags of the other subcommands
  // here.
  static const std::map<std::string, std::set<std::string>> known{
      {"train",
       {"out", "vocab-size", "min-frequency", "pattern", "special", "threads", "format", "field"}},
      {"inspect", {"tokenizer"}},
      {"encode", {"tokenizer", "json", "special"}},
      {"decode", {"tokenizer"}}};

  const auto found = known.find(what);
  if (found == known.end())
    fail(Exit::usage, "lathe tokenizer has train, inspect, encode and decode, not ", what);

  check_flags(arguments, found->second);
  if (what == "inspect" && arguments.positionals.size() > 1)
    fail(Exit::usage, "lathe tokenizer inspect takes no file; name the tokenizer as --tokenizer ",
         arguments.positionals[1]);
  if (what != "train" && arguments.positionals.size() > 2)
    fail(Exit::usage, "lathe tokenizer ", what, " takes one file, not ",
         arguments.positionals.size() - 1);

  if (what == "encode") return encode(arguments);
  if (what == "decode") return decode(arguments);
  if (what == "inspect") return inspect_tokenizer(arguments);
  return train_tokenizer(arguments);
}

}  // namespace

Command tokenizer_command() {
  return {
      .name = "tokenizer",
      .usage = "train|inspect|encode|decode [FILE...]",
      .doc =
          "Train a byte-level BPE on text or JSON Lines, inspect a BPE, or convert a file or "
          "standard input to token ids and back.",
      .examples = {"tokenizer train my.txt --out data/bpe --vocab-size 4096",
                   "tokenizer encode my.txt --tokenizer data/bpe"},
      .flags =
          {{"tokenizer",
            "Use this tokenizer: a tokenizer.json, a folder with one or with vocab.json and "
            "merges.txt, or a run."},
           {"json", "Read each line of the input as a JSON string, and encode its text."},
           {"special",
            "When encoding, read the text of a special token as that token, as plain text, or "
            "refuse it. When training, add these special tokens, separated by commas, or none. "
            "Default: token for encoding, and <|endoftext|> for training.",
            {"token", "text", "refuse", "none"}},
           {"out", "Write the trained tokenizer.json to this folder."},
           {"vocab-size",
            "Train this many tokens, including the 256 bytes and the special tokens. Default: "
            "4096."},
           {"min-frequency", "Merge only pairs that occur at least this often. Default: 2."},
           {"pattern",
            "Split text before training as gpt2, as llama3, or by a regular expression. Default: "
            "gpt2.",
            {"gpt2", "llama3"}},
           {"format",
            "Read training files as text or jsonl. Default: auto, which reads .jsonl and .ndjson, "
            "also with .gz or .zst, as jsonl.",
            {"auto", "text", "jsonl"}},
           {"field", "Read the training text of each JSON line from this field. Default: text."},
           {"threads",
            "Count words on this many threads in training, which does not change the result. "
            "Default: OMP_NUM_THREADS, or all cores."}},
      .min_positionals = 1,
      .max_positionals = 1000000,
      .run = run_tokenizer,
      .switches = {"json"},
      .subcommands = {"train", "inspect", "encode", "decode"}};
}

}  // namespace lathe
