#include <algorithm>
#include <iostream>

#include "train/tasks/generate.h"
#include "train/verbs/verbs.h"

namespace lathe {
namespace {

/// A line break where the vocabulary has one, else its first character.
std::string default_prompt(const Tokenizer& tokenizer) {
  const auto& characters = tokenizer.vocabulary();
  const bool has_break =
      characters.empty() || std::find(characters.begin(), characters.end(), "\n") != characters.end();
  return has_break ? "\n" : characters.front();
}

Exit run_generate(const Arguments& arguments) {
  Sampling s{.temperature = arguments.number("temperature", 0.8, at_least(0), false),
             .top_k = static_cast<int64_t>(arguments.number("top-k", 0, at_least(0), true)),
             .top_p = arguments.number("top-p", 1, {.min = 0, .max = 1, .open_min = true}, false),
             .seed = static_cast<uint64_t>(arguments.number("seed", 1, at_least(0), true))};
  const auto n = static_cast<int64_t>(arguments.number("tokens", 300, between(1, 1e9), true));
  const LoadedModel m = load_model_argument(arguments);
  if (batch_sizes(m.config).vocab_size == 0) {
    fail(Exit::usage, arguments.words[0], " does not model text: it is a ", m.config.model.kind, " for ", m.state.task,
         "; `lathe eval` tells how well it does");
  }
  if (!m.state.tokenizer) {
    fail(Exit::data, arguments.words[0],
         " was trained on data without a manifest.json, so there is no tokenizer to read or write text with");
  }
  const std::string prompt = arguments.get("prompt", default_prompt(*m.state.tokenizer));
  const auto ids = m.state.tokenizer->encode(prompt, Exit::usage);
  if (ids.empty()) fail(Exit::usage, "command line: --prompt is empty; give at least one character");
  std::cout << prompt << std::flush;
  generate(*m.model, batch_sizes(m.config).block_size, ids, n, s, m.compute, m.device,
           [&](int64_t id) { return bool(std::cout << m.state.tokenizer->decode({id}) << std::flush); });
  std::cout << std::endl;
  return Exit::done;
}

}  // namespace

Verb generate_verb() {
  return {
      "generate",
      "RUN|CHECKPOINT",
      "write text",
      "generate runs/quickstart --prompt \"int \" --tokens 200",
      and_loading({{"prompt", "text to continue (a line break; where there is none, the vocabulary's first character)"},
                   {"tokens", "how many to write (300)"},
                   {"temperature", "0 takes the likeliest (0.8)"},
                   {"top-k", "only the k likeliest; 0: all (0)"},
                   {"top-p", "only the likeliest of this probability together (1)"},
                   {"seed", "of the draw (1)"}}),
      false,
      1,
      1,
      run_generate,
      {"double-quant"}};
}

}  // namespace lathe
