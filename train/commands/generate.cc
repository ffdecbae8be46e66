#include <algorithm>
#include <deque>
#include <iostream>
#include <sstream>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/text.h"
#include "train/commands/commands.h"
#include "train/tasks/generate.h"

namespace lathe {

Flags with_sampling_flags(Flags flags) {
  flags.insert(flags.end(),
               {{"temperature",
                 "Divide the logits by this; 0 always takes the likeliest token. Default: 0.8."},
                {"top-k", "Sample from the k likeliest tokens; 0 takes all. Default: 0."},
                {"top-p",
                 "Sample from the likeliest tokens that have this probability together. Default: "
                 "1."},
                {"min-p",
                 "Sample only tokens whose probability is at least this fraction of the largest "
                 "one. Default: 0."},
                {"repetition-penalty",
                 "Penalize tokens that the text already contains; a number above 1 makes them less "
                 "likely. Default: 1."},
                {"seed", "Sample with this seed. Default: 1."}});
  return flags;
}

Sampling sampling_argument(const Arguments& arguments) {
  return {
      .temperature = arguments.number("temperature", 0.8, at_least(0), false),
      .top_k = static_cast<int64_t>(arguments.number("top-k", 0, at_least(0), true)),
      .top_p = arguments.number("top-p", 1, {.min = 0, .max = 1, .open_min = true}, false),
      .min_p = arguments.number("min-p", 0, between(0, 1), false),
      .repetition_penalty = arguments.number("repetition-penalty", 1, between(0.01, 100), false),
      .seed = static_cast<uint64_t>(arguments.number("seed", 1, at_least(0), true))};
}

const Tokenizer& text_tokenizer(const Arguments& arguments, const LoadedModel& m) {
  if (batch_sizes(m.config).vocab_size == 0) {
    fail(Exit::usage, arguments.positionals[0], " is not a language model: its kind is ",
         m.config.model.kind, ", for ", m.state.task,
         "; `lathe predict` applies it to new data, and `lathe eval` scores it");
  }
  if (!m.state.tokenizer) {
    fail(Exit::data, arguments.positionals[0],
         " has no tokenizer to read or write text with: it was imported without one, or trained on "
         "data without a manifest.json");
  }
  return *m.state.tokenizer;
}

namespace {

/// Returns a line break if the vocabulary has one. Otherwise returns the first character of the
/// vocabulary.
std::string default_prompt(const Tokenizer& tokenizer) {
  const auto& characters = tokenizer.vocabulary();
  const bool has_break = characters.empty() ||
                         std::find(characters.begin(), characters.end(), "\n") != characters.end();
  return has_break ? "\n" : characters.front();
}

/// Returns the lines of a file that are not empty.
std::vector<std::string> prompts_of(const fs::path& file) {
  const std::string bytes = read_file(file, Exit::data);
  std::istringstream text{std::string(without_byte_order_mark(bytes))};
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.empty())
    fail(Exit::data, file.string(),
         " has no prompts; write one on each line (empty lines do not count)");
  return lines;
}

/// Returns a token as a line of JSON. Bytes of the token that are not valid UTF-8 by themselves are
/// shown as U+FFFD.
std::string token_line(int64_t prompt, int64_t sample, const GeneratedToken& token,
                       const std::string& text) {
  return json_text(Json{{"prompt", prompt},
                        {"sample", sample},
                        {"id", token.id},
                        {"text", text},
                        {"logprob", json_number(token.log_probability)}});
}

/// Prints a line for each token of a text as soon as the bytes of the token may be shown. Bytes of
/// a stop text are never shown, so their tokens have no lines.
class TokenLines {
 public:
  /// Adds the line of a token that has `bytes` bytes.
  void add(size_t bytes, std::string line) {
    added_ += bytes;
    waiting_.emplace_back(added_, std::move(line));
  }
  /// Prints the lines of the tokens that end within the next `bytes` bytes of the text.
  void show(size_t bytes) {
    shown_ += bytes;
    for (; !waiting_.empty() && waiting_.front().first <= shown_; waiting_.pop_front())
      std::cout << waiting_.front().second << std::endl;
  }

 private:
  size_t added_ = 0, shown_ = 0;
  // The lines that are not printed yet, each with the position in the text at which its token ends.
  std::deque<std::pair<size_t, std::string>> waiting_;
};

/// Returns the token ids of each prompt, `samples` times. Text i belongs to prompt i / samples.
std::vector<std::vector<int64_t>> prompt_ids(const std::vector<std::string>& prompts,
                                             const Tokenizer& tokenizer, int64_t samples) {
  std::vector<std::vector<int64_t>> ids;
  for (const std::string& prompt : prompts) {
    auto own = tokenizer.encode(prompt, Exit::usage);
    if (own.empty())
      fail(Exit::usage, "command line: --prompt is empty; give at least one character");

    // A tokenizer may require a token at the beginning of a text. The prompt may already contain
    // it.
    if (const int32_t begin = tokenizer.prompt_begin(); begin >= 0 && own[0] != begin)
      own.insert(own.begin(), begin);
    ids.insert(ids.end(), static_cast<size_t>(samples), own);
  }
  return ids;
}

Exit run_generate(const Arguments& arguments) {
  GenerateOptions w{.sampling = sampling_argument(arguments)};
  w.tokens = static_cast<int64_t>(arguments.number("tokens", 300, between(1, 1e9), true));
  w.log_probabilities = arguments.is_true("logprobs");
  w.cache = !arguments.flags.contains("cache") || arguments.is_true("cache");
  const auto samples =
      static_cast<int64_t>(arguments.number("samples", 1, between(1, 10000), true));

  const bool from_file = arguments.flags.contains("prompt-file"),
             ignore_eos = arguments.is_true("ignore-eos");
  if (from_file && arguments.flags.contains("prompt"))
    fail(Exit::usage,
         "command line: --prompt cannot be combined with --prompt-file; leave one of them out");

  const auto found = arguments.lists.find("stop");
  const auto stops = found == arguments.lists.end() ? std::vector<std::string>{} : found->second;
  if (std::find(stops.begin(), stops.end(), "") != stops.end())
    fail(Exit::usage, "command line: --stop is empty; give the text to stop at");

  std::vector<std::string> prompts;
  // Read the prompts before the model, so that an unreadable file is noticed early.
  if (from_file) prompts = prompts_of(arguments.get("prompt-file", ""));
  const LoadedModel m = load_model_argument(arguments);
  const Tokenizer& tokenizer = text_tokenizer(arguments, m);
  w.context = model_context(m.config);
  w.compute = m.compute;
  w.device = m.device;

  if (!from_file) prompts = {arguments.get("prompt", default_prompt(tokenizer))};

  const std::vector<std::vector<int64_t>> ids = prompt_ids(prompts, tokenizer, samples);

  // A single text is streamed. Several texts are printed when all of them are complete, unless the
  // output is JSON.
  const bool streams = ids.size() == 1 && !w.log_probabilities;
  std::vector<StopMatcher> ends(ids.size(), StopMatcher(stops));
  std::vector<std::string> written(ids.size());
  std::vector<TokenLines> lines(ids.size());
  if (streams) std::cout << prompts[0] << std::flush;

  generate(*m.model, ids, w, [&](const GeneratedToken& token) {
    const auto i = static_cast<size_t>(token.text);
    if (!ignore_eos && tokenizer.ends_text(token.id)) return false;
    // feed() holds back text that may be the beginning of a stop text; rest() returns this text at
    // the end.
    const std::string piece = tokenizer.piece(token.id), shown = ends[i].feed(piece);
    if (w.log_probabilities) {
      lines[i].add(piece.size(),
                   token_line(token.text / samples, token.text % samples, token, piece));
      lines[i].show(shown.size());
    } else if (streams) {
      std::cout << shown << std::flush;
    } else {
      written[i] += shown;
    }
    // End the generation if the reader has closed standard output.
    return !ends[i].stopped() && std::cout;
  });

  if (w.log_probabilities) {
    for (size_t i = 0; i < ids.size(); ++i) lines[i].show(ends[i].rest().size());
    return Exit::done;
  }
  if (streams) {
    std::cout << ends[0].rest() << std::endl;
    return Exit::done;
  }

  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) std::cout << "----\n";
    std::cout << prompts[i / static_cast<size_t>(samples)] << written[i] << ends[i].rest()
              << std::endl;
  }
  return Exit::done;
}

}  // namespace

Command generate_command() {
  return {
      .name = "generate",
      .usage = "RUN|CHECKPOINT",
      .doc = "Generate text that continues a prompt.",
      .examples = {"generate runs/quickstart --prompt \"int \" --tokens 200",
                   "generate runs/quickstart --prompt-file prompts.txt --samples 3 --seed 7"},
      .flags = with_load_flags(with_sampling_flags(
          {{"prompt",
            "Continue this text. Default: a line break, or the vocabulary's first character if it "
            "has no line break."},
           {"prompt-file", "Continue each line of this file, all in one batch."},
           {"samples", "Generate this many texts for each prompt. Default: 1."},
           {"tokens", "Generate at most this many tokens. Default: 300."},
           {"stop", "Stop before this text. It may be given several times."},
           {"ignore-eos", "Continue after the token that ends a document or a turn of a chat."},
           {"logprobs", "Print each token as a line of JSON with its log probability."},
           {"cache",
            "Keep keys and values of earlier tokens; false computes the whole window again for "
            "each token. Default: true.",
            {"true", "false"}}})),
      .run = run_generate,
      .switches = {"double-quant", "logprobs", "cache", "ignore-eos"},
      .repeatable = {"stop"}};
}

}  // namespace lathe
