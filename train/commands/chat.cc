#include <unistd.h>

#include <iostream>

#include "core/io/log.h"
#include "data/tokenizers/chat_template.h"
#include "train/commands/commands.h"
#include "train/tasks/generate.h"

namespace lathe {
namespace {

/// Removes the oldest questions and answers from `history` until the prompt and an answer of `room`
/// tokens fit in the context. Keeps the system message and the last question even if they do not
/// fit. Returns the token ids of the prompt.
std::vector<int64_t> question(const ChatTemplate& chat, std::vector<ChatMessage>& history,
                              int64_t context, int64_t room) {
  for (;;) {
    auto ids = chat.encode_prompt(history);
    const size_t first = history[0].role == "system" ? 1 : 0;
    if (static_cast<int64_t>(ids.size()) + room <= context || history.size() < first + 3)
      return ids;
    history.erase(history.begin() + static_cast<std::ptrdiff_t>(first),
                  history.begin() + static_cast<std::ptrdiff_t>(first + 2));
  }
}

Exit run_chat(const Arguments& arguments) {
  GenerateOptions w{.sampling = sampling_argument(arguments)};
  w.tokens = static_cast<int64_t>(arguments.number("tokens", 512, between(1, 1e9), true));
  const LoadedModel m = load_model_argument(arguments);
  const Tokenizer& tokenizer = text_tokenizer(arguments, m);
  const ChatTemplate chat(tokenizer, arguments.positionals[0],
                          "`lathe generate` continues a text of your own");
  w.context = model_context(m.config);
  w.compute = m.compute;
  w.device = m.device;

  const std::string system = arguments.get("system", "");
  std::vector<ChatMessage> history;
  const auto new_conversation = [&] {
    history.clear();
    if (!system.empty()) history.push_back({"system", system});
  };
  new_conversation();

  const bool person = isatty(STDIN_FILENO) == 1;
  if (person) std::cerr << "/new starts a new conversation; end of file (Ctrl-D) ends the chat\n";

  // Use another seed for each answer, because with the same seed all answers would use the same
  // random numbers.
  for (std::string line; std::cout;) {
    if (person) std::cerr << "> " << std::flush;
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    if (line == "/new") {
      new_conversation();
      continue;
    }

    history.push_back({"user", line});
    // Reserve at most half of the context for the answer, so that the history has room as well.
    const auto ids = question(chat, history, w.context, std::min(w.tokens, w.context / 2));
    if (std::ssize(ids) > w.context) {
      log_warn("the message takes ", ids.size(),
               " tokens with the chat template, but the model's context has only ", w.context,
               "; the beginning of the message is cut off");
    }

    std::string answer;
    generate(*m.model, {ids}, w, [&](const GeneratedToken& token) {
      if (token.id == chat.end() || tokenizer.ends_text(token.id)) return false;
      const std::string piece = tokenizer.piece(token.id);
      answer += piece;
      // End the answer if its reader has closed standard output.
      return bool(std::cout << piece << std::flush);
    });

    std::cout << std::endl;
    history.push_back({"assistant", answer});
    ++w.sampling.seed;
  }
  return Exit::done;
}

}  // namespace

Command chat_command() {
  return {
      .name = "chat",
      .usage = "RUN|CHECKPOINT",
      .doc =
          "Chat with a model whose chat template or special tokens are those of ChatML or Llama 3; "
          "each line of standard input is a message, and the context holds the earlier ones.",
      .examples = {"chat runs/assistant --temperature 0.7",
                   "chat runs/assistant --system \"Answer briefly.\" --tokens 100"},
      .flags = with_load_flags(with_sampling_flags(
          {{"system",
            "Begin the conversation with this system message. Default: the chat template's."},
           {"tokens", "Generate at most this many tokens for an answer. Default: 512."}})),
      .run = run_chat,
      .switches = {"double-quant"}};
}

}  // namespace lathe
