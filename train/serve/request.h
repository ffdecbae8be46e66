// Declares requests to `lathe serve`, in the form of OpenAI's HTTP interface
// (https://platform.openai.com/docs/api-reference). Includes no LibTorch header.
//
// A field of OpenAI's interface that changes the answer and is not supported is an error, unless
// its value has no effect, such as a presence_penalty of 0. Fields that do not change the answer,
// such as `user`, are ignored. Any unknown field is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/chat_format.h"
#include "train/tasks/sampling.h"

namespace lathe {

/// Is thrown for an error that is sent as the answer to a request.
class ApiError : public std::runtime_error {
 public:
  /// `status` is the HTTP status. `code` identifies the error for programs, and `parameter` is the
  /// field that is wrong; both may be empty.
  ApiError(int status, const std::string& message, std::string code = "",
           std::string parameter = "")
      : std::runtime_error(message),
        status_(status),
        code_(std::move(code)),
        parameter_(std::move(parameter)) {}
  /// Returns the HTTP status.
  int status() const { return status_; }
  /// Returns the body of the answer, an object in the form of OpenAI's errors.
  std::string body() const;

 private:
  int status_;
  std::string code_, parameter_;
};

/// Holds the prompt of a completion: a text, or token ids.
struct Prompt {
  std::string text;
  std::vector<int64_t> ids;
  bool is_text = true;
};

/// Holds a request for texts. A completion has at least one prompt, and a chat at least one
/// message.
struct GenerationRequest {
  bool is_chat = false;
  std::string model;                  ///< model that the request names; empty if it names none
  std::vector<Prompt> prompts;        ///< prompts of a completion; empty for a chat
  std::vector<ChatMessage> messages;  ///< messages of a chat; empty for a completion
  Sampling sampling{.temperature = 1};
  bool has_seed = false;
  std::optional<int64_t> max_tokens;
  int64_t n = 1;  ///< number of texts for each prompt
  std::vector<std::string> stops;
  bool echoes = false;  ///< whether a completion's text begins with the prompt
  /// Number of likeliest tokens that are returned, with log probabilities, for each position;
  /// nullopt: the answer has no log probabilities.
  std::optional<int64_t> top;
  bool streams = false, includes_usage = false;
};

/// Parses the body of a request to /v1/completions. Throws ApiError with status 400.
GenerationRequest parse_completion_request(std::string_view body);
/// Parses the body of a request to /v1/chat/completions. Throws ApiError with status 400.
GenerationRequest parse_chat_request(std::string_view body);

}  // namespace lathe
