// Declares the answer to a request, which collects the tokens that the scheduler generates and
// formats them as OpenAI's JSON.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"
#include "data/tokenizers/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "train/serve/request.h"
#include "train/serve/scheduler.h"
#include "train/tasks/generate.h"

namespace lathe {

/// Converts the bytes of tokens to the text that a client sees. The text is UTF-8: bytes that are
/// not UTF-8 become U+FFFD. The text ends before the first stop string, and the beginning of a
/// possible stop string is held back.
class ShownText {
 public:
  /// `stops` are the stop strings, none of which is empty.
  explicit ShownText(std::vector<std::string> stops) : stop_(std::move(stops)) {}
  /// Appends a token's bytes. Returns the additional text that can be shown now, in complete
  /// characters.
  std::string add(std::string_view bytes) { return complete(stop_.feed(bytes), false); }
  /// Returns the index of the character at which the next token begins. `bytes`: the token's bytes.
  /// A byte that does not belong to a character counts as one character, since add() replaces it by
  /// one.
  size_t next_character(std::string_view bytes) const;
  /// Ends the text, and returns the text that was held back.
  std::string rest() { return complete(stop_.rest(), true); }
  /// Returns whether a stop string was found.
  bool stopped() const { return stop_.stopped(); }
  /// Returns the number of bytes that were not held back as a possible stop string.
  size_t bytes() const { return bytes_; }

 private:
  std::string complete(const std::string& bytes, bool is_end);

  StopMatcher stop_;
  std::string held_;                   // first bytes of an incomplete character
  size_t bytes_ = 0, characters_ = 0;  // bytes(), and the number of characters that are shown
};

/// Tokens of a choice that become visible together.
struct ReplyPart {
  /// A token with its score.
  struct Token {
    std::string bytes;
    std::optional<double> log_probability;  ///< nullopt for the first token of a prompt
    std::vector<std::pair<std::string, double>> top;
    size_t offset = 0;  ///< index of the character of the choice's text at which the token begins
  };
  size_t choice = 0;
  std::string text;
  std::vector<Token> tokens;  ///< empty unless the request asks for log probabilities
  std::string finish;  ///< "stop" or "length" in the last part of a choice, "" in other parts
};

/// A prompt that was encoded for the model.
struct EncodedPrompt {
  std::string text;  ///< the text that the field `echo` repeats
  std::vector<int64_t> ids;
  bool has_begin = false;  ///< whether the first id is a begin token that was added to the prompt
  int64_t max_tokens = 0;
};

/// The answer to a request. One thread reads the answer while the scheduler's thread writes it.
class Reply : public TextReceiver {
 public:
  /// Choice i continues prompt i / request.n. `chat_end` is the id that ends an answer in a chat,
  /// or -1 for a completion. The tokenizer must outlive the answer.
  Reply(GenerationRequest request, std::vector<EncodedPrompt> prompts, const Tokenizer& tokenizer,
        int64_t chat_end, std::string model);

  /// Returns the texts to generate, one for each choice.
  std::vector<ServedText> texts() const;
  bool streams() const { return request_.streams; }
  /// Waits until there is something to read, for at most `most`. Returns whether there is something
  /// to read.
  bool wait_for(std::chrono::milliseconds most);
  /// Returns the new events of a stream in the format text/event-stream; "" if there are none.
  std::string take_events();
  /// Returns whether take_events() has returned the last event.
  bool is_over();
  /// Returns the answer as one JSON object if all texts have ended, and nullopt otherwise. Throws
  /// ApiError if a text failed.
  std::optional<std::string> whole();
  /// Drops the texts that have not ended.
  void cancel() { is_cancelled_ = true; }

  void on_prompt(size_t text, size_t position, const TokenScore& score) override;
  bool on_token(size_t text, const TokenScore& score) override;
  void on_end(size_t text, TextEnd end, const std::string& why) override;
  bool is_cancelled() const override { return is_cancelled_; }

 private:
  struct Choice {
    ShownText shown;
    ShownText whole{std::vector<std::string>()};  // bytes of all tokens, including the prompt's
                                                  // tokens and tokens after a stop string
    std::vector<ReplyPart::Token> tokens{};       // tokens that are not in a part yet
    size_t bytes = 0;                             // number of bytes of all generated tokens
    size_t first = 0;                   // byte at which the first element of `tokens` begins
    bool strips_leading_space = false;  // whether the first token begins with a space and the
                                        // prompt does not
    bool has_begun = false;             // whether a part was published
    bool is_written = false;            // whether a part was converted to JSON
  };

  ReplyPart::Token scored(const TokenScore& score) const;
  /// Appends a token to a choice, and sets its offset.
  static void append(Choice& choice, ReplyPart::Token token);
  /// Adds a part to a choice. If the request echoes prompts, the first part begins with the prompt.
  void publish(size_t choice, std::string text, const std::string& finish);
  std::string token_bytes(int64_t id) const { return tokenizer_.piece(id); }
  /// Returns the fields that all events of a stream share, or the fields of a complete answer.
  Json head(bool is_chunk) const;
  Json choice_json(Choice& choice, const ReplyPart& part, bool is_chunk);
  Json chat_logprobs(const std::vector<ReplyPart::Token>& tokens) const;
  Json completion_logprobs(const std::vector<ReplyPart::Token>& tokens) const;
  Json usage() const;

  const GenerationRequest request_;
  const std::vector<EncodedPrompt> prompts_;
  const Tokenizer& tokenizer_;
  const int64_t chat_end_;
  const std::string model_, id_;
  const int64_t created_;
  std::atomic<bool> is_cancelled_{false};

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Choice> choices_;
  std::deque<ReplyPart> parts_;  // parts that take_events() or whole() have not taken yet
  std::optional<ApiError> error_;
  size_t ended_ = 0;    // number of texts that have ended
  int64_t tokens_ = 0;  // number of generated tokens
  bool is_over_ = false;
};

}  // namespace lathe
