#include "train/serve/reply.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "core/io/text.h"

namespace lathe {
namespace {

constexpr const char* replacement = "\xEF\xBF\xBD";  // U+FFFD

std::string random_id(const char* prefix) {
  std::random_device random;
  return prefix + format("%08x%08x%08x", random(), random(), random());
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Returns a token as a string: its text or, if that is not UTF-8, a name such as "bytes:\xe2\x80",
/// as in OpenAI's completions. Different tokens therefore have different names.
std::string token_name(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) name += format("\\x%02x", static_cast<unsigned char>(byte));
  return name;
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

}  // namespace

std::string ShownText::complete(const std::string& bytes, bool is_end) {
  bytes_ += bytes.size();
  held_ += bytes;
  // At the end and after a stop, no further bytes can complete a character, so hold no bytes back.
  const size_t kept = is_end || stopped() ? 0 : incomplete_bytes(held_);
  const std::string_view ready(held_.data(), held_.size() - kept);

  std::string shown;
  for (size_t at = 0; at < ready.size();) {
    const size_t end = utf8_end(ready, at);
    shown += ready.substr(at, end - at);
    at = end;
    if (at < ready.size()) {
      shown += replacement;
      ++at;
    }
  }
  held_.erase(0, ready.size());
  characters_ += count_characters(shown);
  return shown;
}

size_t ShownText::next_character(std::string_view bytes) const {
  const bool continues = !bytes.empty() && (bytes[0] & 0xC0) == 0x80;
  return characters_ + (continues ? 0 : held_.size());
}

Reply::Reply(GenerationRequest request, std::vector<EncodedPrompt> prompts,
             const Tokenizer& tokenizer, int64_t chat_end, std::string model)
    : request_(std::move(request)),
      prompts_(std::move(prompts)),
      tokenizer_(tokenizer),
      chat_end_(chat_end),
      model_(std::move(model)),
      id_(random_id(request_.is_chat ? "chatcmpl-" : "cmpl-")),
      created_(static_cast<int64_t>(std::time(nullptr))) {
  for (size_t i = 0; i < prompts_.size() * static_cast<size_t>(request_.n); ++i)
    choices_.push_back({.shown = ShownText(request_.stops)});

  if (!request_.echoes || !request_.top) return;
  // The first token of a prompt has no probability, unless a begin token was added before it.
  for (size_t i = 0; i < choices_.size(); ++i) {
    const EncodedPrompt& prompt = prompts_[i / static_cast<size_t>(request_.n)];
    std::string bytes;
    for (size_t at = prompt.has_begin ? 1 : 0; at < prompt.ids.size(); ++at)
      bytes += token_bytes(prompt.ids[at]);
    choices_[i].strips_leading_space = bytes == " " + prompt.text;
    if (!prompt.has_begin)
      append(choices_[i],
             {.bytes = token_bytes(prompt.ids[0]), .log_probability = std::nullopt, .top = {}});
  }
}

std::vector<ServedText> Reply::texts() const {
  std::vector<ServedText> texts;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const EncodedPrompt& prompt = prompts_[i / static_cast<size_t>(request_.n)];
    texts.push_back({.ids = prompt.ids,
                     .sampling = request_.sampling,
                     .index = i,
                     .max_tokens = prompt.max_tokens,
                     .scores = request_.top.has_value(),
                     .top = request_.top.value_or(0),
                     .scores_prompt = request_.top && request_.echoes});
  }
  return texts;
}

ReplyPart::Token Reply::scored(const TokenScore& score) const {
  ReplyPart::Token token{
      .bytes = token_bytes(score.id), .log_probability = score.log_probability, .top = {}};
  for (const auto& [id, log_probability] : score.top)
    token.top.emplace_back(token_bytes(id), log_probability);
  return token;
}

void Reply::append(Choice& choice, ReplyPart::Token token) {
  if (std::exchange(choice.strips_leading_space, false)) token.bytes.erase(0, 1);
  token.offset = choice.whole.next_character(token.bytes);
  choice.whole.add(token.bytes);
  choice.tokens.push_back(std::move(token));
}

void Reply::on_prompt(size_t text, size_t, const TokenScore& score) {
  const std::lock_guard lock(mutex_);
  append(choices_[text], scored(score));
}

bool Reply::on_token(size_t text, const TokenScore& score) {
  const std::lock_guard lock(mutex_);
  Choice& choice = choices_[text];
  ++tokens_;
  // With echo, publish the prompt and its tokens first, since they are not part of the generated
  // text.
  if (!choice.has_begun && request_.echoes) publish(text, "", "");
  if (score.id == chat_end_ || tokenizer_.ends_text(score.id)) return false;

  const std::string bytes = token_bytes(score.id);
  if (request_.top) append(choice, scored(score));
  choice.bytes += bytes.size();
  std::string shown = choice.shown.add(bytes);
  if (!shown.empty()) publish(text, std::move(shown), "");
  return !choice.shown.stopped();
}

void Reply::on_end(size_t text, TextEnd end, const std::string& why) {
  const std::lock_guard lock(mutex_);
  ++ended_;

  switch (end) {
    case TextEnd::stop:
    case TextEnd::length: {
      Choice& choice = choices_[text];
      if (!choice.has_begun && request_.echoes) publish(text, "", "");
      std::string rest = choice.shown.rest();
      publish(text, std::move(rest), end == TextEnd::stop ? "stop" : "length");
      break;
    }
    case TextEnd::cancelled: break;
    case TextEnd::late:
      error_.emplace(504, "the request took longer than this server allows (--max-time)",
                     "timeout");
      break;
    case TextEnd::failed: error_.emplace(500, "the model failed: " + why, "model_failed"); break;
    case TextEnd::shutdown:
      error_.emplace(503, "the server stopped before the text was complete", "server_stopping");
      break;
  }

  // If one text of a request fails, the other texts are not needed.
  if (error_) cancel();
  changed_.notify_one();
}

void Reply::publish(size_t index, std::string text, const std::string& finish) {
  Choice& choice = choices_[index];
  ReplyPart part{.choice = index, .text = std::move(text), .tokens = {}, .finish = finish};
  if (!choice.has_begun && request_.echoes) {
    part.text = prompts_[index / static_cast<size_t>(request_.n)].text + part.text;
    part.tokens = std::exchange(choice.tokens, {});
  }
  choice.has_begun = true;

  // A token belongs to this part if it begins within the text that is shown. The last part takes
  // all remaining tokens, unless a stop was found: tokens after a stop are dropped.
  const bool is_whole = !finish.empty() && !choice.shown.stopped();
  size_t taken = 0;
  for (; taken < choice.tokens.size(); ++taken) {
    if (!is_whole && choice.first >= choice.shown.bytes()) break;
    choice.first += choice.tokens[taken].bytes.size();
    part.tokens.push_back(std::move(choice.tokens[taken]));
  }
  choice.tokens.erase(choice.tokens.begin(),
                      choice.tokens.begin() + static_cast<std::ptrdiff_t>(taken));
  parts_.push_back(std::move(part));
  changed_.notify_one();
}

bool Reply::wait_for(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  const auto is_ready = [this] {
    return ended_ == choices_.size() || error_ || (request_.streams && !parts_.empty());
  };
  return changed_.wait_for(lock, most, is_ready);
}

bool Reply::is_over() {
  const std::lock_guard lock(mutex_);
  return is_over_;
}

std::string Reply::take_events() {
  const std::lock_guard lock(mutex_);
  std::string events;
  const auto send = [&](const Json& event) { events += "data: " + json_text(event) + "\n\n"; };
  for (const ReplyPart& part : std::exchange(parts_, {})) {
    Choice& choice = choices_[part.choice];
    Json event = head(/*is_chunk=*/true);
    if (request_.is_chat && !choice.is_written) {
      event["choices"] = Json::array({{{"index", part.choice},
                                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                                       {"logprobs", nullptr},
                                       {"finish_reason", nullptr}}});
      send(event);
    }
    // In a chat, the last event of a choice has no text.
    if (request_.is_chat && !part.finish.empty() && (!part.text.empty() || !part.tokens.empty())) {
      ReplyPart text = part;
      text.finish.clear();
      event["choices"] = Json::array({choice_json(choice, text, true)});
      send(event);
      event["choices"] = Json::array({choice_json(
          choice, {.choice = part.choice, .text = "", .tokens = {}, .finish = part.finish}, true)});
      send(event);
      continue;
    }
    event["choices"] = Json::array({choice_json(choice, part, true)});
    send(event);
  }

  if (is_over_ || (ended_ < choices_.size() && !error_)) return events;
  is_over_ = true;
  if (error_) return events + "data: " + error_->body() + "\n\n";
  if (request_.includes_usage) {
    Json event = head(/*is_chunk=*/true);
    event["choices"] = Json::array();
    event["usage"] = usage();
    send(event);
  }
  return events + "data: [DONE]\n\n";
}

std::optional<std::string> Reply::whole() {
  const std::lock_guard lock(mutex_);
  if (error_) throw ApiError(*error_);
  if (ended_ < choices_.size()) return std::nullopt;

  std::vector<ReplyPart> joined(choices_.size());
  for (ReplyPart& part : std::exchange(parts_, {})) {
    ReplyPart& all = joined[part.choice];
    all.choice = part.choice;
    all.text += part.text;
    std::move(part.tokens.begin(), part.tokens.end(), std::back_inserter(all.tokens));
    if (!part.finish.empty()) all.finish = part.finish;
  }

  Json answer = head(/*is_chunk=*/false);
  answer["choices"] = Json::array();
  for (const ReplyPart& part : joined)
    answer["choices"].push_back(choice_json(choices_[part.choice], part, /*is_chunk=*/false));
  answer["usage"] = usage();
  return json_text(answer);
}

Json Reply::head(bool is_chunk) const {
  const char* object = !request_.is_chat ? "text_completion"
                       : is_chunk        ? "chat.completion.chunk"
                                         : "chat.completion";
  Json json{{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
  json["choices"] = nullptr;
  if (is_chunk && request_.includes_usage) json["usage"] = nullptr;
  return json;
}

Json Reply::choice_json(Choice& choice, const ReplyPart& part, bool is_chunk) {
  Json logprobs;
  if (request_.top && !(is_chunk && part.tokens.empty())) {
    logprobs = request_.is_chat ? chat_logprobs(part.tokens) : completion_logprobs(part.tokens);
  }
  choice.is_written = true;

  Json json{{"index", part.choice}};
  if (!request_.is_chat) {
    json["text"] = part.text;
  } else if (!is_chunk) {
    json["message"] = {{"role", "assistant"}, {"content", part.text}, {"refusal", nullptr}};
  } else {
    json["delta"] = Json::object();
    if (part.finish.empty()) json["delta"]["content"] = part.text;
  }
  json["logprobs"] = std::move(logprobs);
  json["finish_reason"] = part.finish.empty() ? Json() : Json(part.finish);
  return json;
}

Json Reply::chat_logprobs(const std::vector<ReplyPart::Token>& tokens) const {
  Json list = Json::array();
  for (const ReplyPart::Token& token : tokens) {
    Json top = Json::array();
    for (const auto& [bytes, log_probability] : token.top) {
      top.push_back({{"token", token_name(bytes)},
                     {"logprob", log_probability},
                     {"bytes", bytes_json(bytes)}});
    }
    list.push_back({{"token", token_name(token.bytes)},
                    {"logprob", *token.log_probability},
                    {"bytes", bytes_json(token.bytes)},
                    {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(list)}, {"refusal", nullptr}};
}

Json Reply::completion_logprobs(const std::vector<ReplyPart::Token>& tokens) const {
  Json names = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const ReplyPart::Token& token : tokens) {
    names.push_back(token_name(token.bytes));
    values.push_back(token.log_probability ? Json(*token.log_probability) : Json());
    offsets.push_back(token.offset);

    Json top;
    if (token.log_probability && *request_.top > 0) {
      top = Json::object();
      for (const auto& [bytes, log_probability] : token.top)
        top[token_name(bytes)] = log_probability;
      top[token_name(token.bytes)] = *token.log_probability;
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", *request_.top > 0 ? std::move(tops) : Json()},
          {"text_offset", std::move(offsets)}};
}

Json Reply::usage() const {
  int64_t prompt_tokens = 0;
  for (const EncodedPrompt& prompt : prompts_) prompt_tokens += std::ssize(prompt.ids);
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", tokens_},
          {"total_tokens", prompt_tokens + tokens_}};
}

}  // namespace lathe
