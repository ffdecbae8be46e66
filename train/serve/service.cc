#include "train/serve/service.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <utility>

#include "core/error.h"

namespace lathe {
namespace {

constexpr size_t most_texts = 128;                 // largest number of texts of a request
constexpr int64_t default_completion_tokens = 16;  // OpenAI's default

Json model_json(const ServedModel& model, bool has_chat, int64_t created) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "lathe"},
          {"context_length", model.context},
          {"max_tokens", model.max_tokens == 0 ? model.context : model.max_tokens},
          {"has_chat_template", has_chat}};
}

}  // namespace

Service::Service(ServedModel model, Scheduler& scheduler)
    : model_(std::move(model)),
      scheduler_(scheduler),
      created_(static_cast<int64_t>(std::time(nullptr))) {
  try {
    chat_.emplace(model_.tokenizer, model_.name, "use /v1/completions");
  } catch (const Error& e) {
    no_chat_ = e.what();
  }
}

std::string Service::models() const {
  return json_text(
      {{"object", "list"}, {"data", Json::array({model_json(model_, has_chat(), created_)})}});
}

std::string Service::model(const std::string& name) const {
  check_model(name);
  return json_text(model_json(model_, has_chat(), created_));
}

void Service::check_model(const std::string& name) const {
  if (name == model_.name) return;
  throw ApiError(404, "there is no model " + name + " here; the model is " + model_.name,
                 "model_not_found", "model");
}

std::shared_ptr<Reply> Service::start(std::string_view body, bool is_chat) const {
  GenerationRequest request = is_chat ? parse_chat_request(body) : parse_completion_request(body);
  if (!request.model.empty()) check_model(request.model);
  if (is_chat && !chat_) throw ApiError(400, no_chat_, "no_chat_template");

  const size_t texts = (is_chat ? 1 : request.prompts.size()) * static_cast<size_t>(request.n);
  if (texts > most_texts) {
    throw ApiError(400, str("the request asks for ", texts, " texts; ask for at most ", most_texts),
                   "", request.n > 1 ? "n" : "prompt");
  }
  if (!request.has_seed) {
    std::random_device random;
    request.sampling.seed = (uint64_t{random()} << 32) | random();
  }

  std::vector<EncodedPrompt> prompts = read(request);
  const int64_t chat_end = is_chat ? chat_->end() : -1;
  const auto answer = std::make_shared<Reply>(std::move(request), std::move(prompts),
                                              model_.tokenizer, chat_end, model_.name);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(model_.max_time));
  switch (scheduler_.submit(answer->texts(), answer, deadline)) {
    case Scheduler::Submitted::accepted: break;
    case Scheduler::Submitted::full:
      throw ApiError(429, "too many requests are already waiting; send this request again later",
                     "rate_limit_exceeded");
    case Scheduler::Submitted::stopping:
      throw ApiError(503, "the server is stopping", "server_stopping");
  }
  return answer;
}

std::vector<EncodedPrompt> Service::read(const GenerationRequest& request) const {
  std::vector<EncodedPrompt> prompts;
  if (request.is_chat) {
    try {
      prompts.push_back({.text = "", .ids = chat_->encode_prompt(request.messages)});
    } catch (const Error& e) {
      throw ApiError(400, e.what(), "", "messages");
    }
  } else {
    for (const Prompt& prompt : request.prompts) prompts.push_back(read_prompt(prompt));
  }
  for (EncodedPrompt& prompt : prompts)
    prompt.max_tokens = room_for(request, std::ssize(prompt.ids));
  return prompts;
}

EncodedPrompt Service::read_prompt(const Prompt& prompt) const {
  EncodedPrompt read{.text = prompt.text, .ids = prompt.ids};
  if (prompt.is_text) {
    try {
      read.ids = model_.tokenizer.encode(prompt.text, Exit::usage);
    } catch (const Error& e) {
      throw ApiError(400, e.what(), "", "prompt");
    }
  } else {
    const auto is_token = [&](int64_t id) { return id < model_.tokenizer.size(); };
    const auto other = std::find_if_not(read.ids.begin(), read.ids.end(), is_token);
    if (other != read.ids.end()) {
      throw ApiError(
          400,
          str("there is no token ", *other, "; ids go from 0 to ", model_.tokenizer.size() - 1), "",
          "prompt");
    }
    read.text = model_.tokenizer.decode(read.ids);
  }
  if (read.ids.empty()) throw ApiError(400, "the prompt is empty", "", "prompt");

  // The tokenizer may require a token at the beginning of a text. Add this token unless the prompt
  // begins with it.
  const int32_t begin = model_.tokenizer.prompt_begin();
  if (prompt.is_text && begin >= 0 && read.ids[0] != begin) {
    read.ids.insert(read.ids.begin(), begin);
    read.has_begin = true;
  }
  return read;
}

int64_t Service::room_for(const GenerationRequest& request, int64_t prompt) const {
  // The model does not read the last new token, so that token needs no room in the context.
  const int64_t room = model_.context - prompt + 1;
  const auto too_long = [&](const std::string& asked) {
    throw ApiError(
        400,
        str("the model's context is ", model_.context, " tokens, but the prompt has ", prompt,
            asked,
            asked.empty() ? "; shorten the prompt" : "; shorten the prompt or lower max_tokens"),
        "context_length_exceeded", request.is_chat ? "messages" : "prompt");
  };
  if (room < 1) too_long("");
  if (request.max_tokens && *request.max_tokens > room)
    too_long(str(", and max_tokens is ", *request.max_tokens));

  const int64_t most = model_.max_tokens == 0 ? room : std::min(room, model_.max_tokens);
  if (request.max_tokens && *request.max_tokens > most) {
    throw ApiError(400, str("this server generates at most ", most, " tokens of a text"), "",
                   "max_tokens");
  }
  const int64_t otherwise = request.is_chat ? most : std::min(most, default_completion_tokens);
  return request.max_tokens.value_or(otherwise);
}

}  // namespace lathe
