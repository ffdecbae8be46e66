// Declares the part of `lathe serve` that does not depend on HTTP: it describes the model, and
// prepares requests for the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizers/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "train/serve/reply.h"
#include "train/serve/request.h"
#include "train/serve/scheduler.h"

namespace lathe {

/// The model that is served, and limits of a request.
struct ServedModel {
  std::string name;
  Tokenizer tokenizer;
  int64_t context = 0;     ///< context length in tokens
  int64_t max_tokens = 0;  ///< largest max_tokens of a text; 0: as many as the context allows
  double max_time = 600;   ///< largest number of seconds for a request, including its time in the
                           ///< queue
};

/// Answers requests with the model. Any number of threads may call its functions at the same time.
class Service {
 public:
  /// The scheduler must outlive the service.
  Service(ServedModel model, Scheduler& scheduler);

  /// Returns whether the model has a chat template that `lathe chat` follows.
  bool has_chat() const { return chat_.has_value(); }
  /// Returns the body of GET /v1/models.
  std::string models() const;
  /// Returns the body of GET /v1/models/NAME. If `name` is not the model's name, throws ApiError
  /// with status 404.
  std::string model(const std::string& name) const;
  /// Parses a request and gives its texts to the scheduler. Returns the answer, which the scheduler
  /// fills. Throws ApiError with status 400 if the request is invalid or too long, 404 if it names
  /// another model, 429 if the queue is full, and 503 if the server is stopping.
  std::shared_ptr<Reply> start(std::string_view body, bool is_chat) const;

 private:
  void check_model(const std::string& name) const;
  std::vector<EncodedPrompt> read(const GenerationRequest& request) const;
  EncodedPrompt read_prompt(const Prompt& prompt) const;
  /// Returns the largest number of tokens to generate after a prompt of `prompt` tokens: the
  /// request's max_tokens, or a default. Throws ApiError with status 400 if the context is too
  /// short, or if the request asks for more tokens than the server allows.
  int64_t room_for(const GenerationRequest& request, int64_t prompt) const;

  ServedModel model_;
  Scheduler& scheduler_;
  std::optional<ChatTemplate> chat_;
  std::string no_chat_;  // why chat_ is empty; empty if chat_ is set
  int64_t created_;
};

}  // namespace lathe
