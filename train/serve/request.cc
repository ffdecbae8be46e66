#include "train/serve/request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "core/io/json.h"
#include "core/io/text.h"

namespace lathe {
namespace {

constexpr int64_t max_texts_per_prompt = 128, max_top_logprobs = 20;
constexpr size_t max_stop_texts = 16;

/// OpenAI's fields that do not change the answer, for example fields for accounts and servers.
constexpr std::array ignored_fields{"user",         "metadata",           "store",
                                    "service_tier", "safety_identifier",  "prompt_cache_key",
                                    "prediction",   "parallel_tool_calls"};

/// An unsupported field, and the values with which the field has no effect.
struct Unsupported {
  const char* name;
  std::vector<Json> neutral;
};

const std::vector<Unsupported>& unsupported_fields() {
  static const std::vector<Unsupported> fields{{"suffix", {""}},
                                               {"presence_penalty", {0}},
                                               {"frequency_penalty", {0}},
                                               {"logit_bias", {Json::object()}},
                                               {"tools", {Json::array()}},
                                               {"tool_choice", {"none", "auto"}},
                                               {"functions", {Json::array()}},
                                               {"function_call", {"none", "auto"}},
                                               {"response_format", {Json{{"type", "text"}}}},
                                               {"modalities", {Json::array({"text"})}},
                                               {"audio", {}},
                                               {"reasoning_effort", {"none"}},
                                               {"verbosity", {"medium"}},
                                               {"web_search_options", {}}};
  return fields;
}

[[noreturn]] void refuse(const std::string& field, const std::string& what) {
  // The client chooses the name of the field, which may contain control characters.
  throw ApiError(400, printable_line(field) + " " + what, "", field);
}

/// Reads the fields of a request. A null field counts as absent. Each read marks the field as
/// known.
class Fields {
 public:
  explicit Fields(std::string_view body) {
    try {
      // Fields that are refused by name, such as tools, may be deeply nested, so parse to a large
      // depth.
      json_ = parse_json(body, "the request body", Exit::usage, /*depth=*/64);
    } catch (const Error& e) {
      throw ApiError(400, e.what(), "invalid_json");
    }
    if (!json_.is_object())
      throw ApiError(400, "the request body must be a JSON object", "invalid_json");
  }

  /// Returns a field's value, or a null pointer if the field is absent.
  const Json* find(const char* name) {
    known_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  /// Returns a number from `least` to `most`, or `otherwise` if the field is absent. This function
  /// and the following ones throw ApiError for any other value.
  double number(const char* name, double otherwise, double least, double most) {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    const double x = value->is_number() ? value->get<double>() : least - 1;
    if (!(x >= least && x <= most))
      refuse(name, str("must be a number from ", least, " to ", most));
    return x;
  }
  /// Returns an integer from `least` to `most`, or nullopt if the field is absent.
  std::optional<int64_t> whole(const char* name, int64_t least, int64_t most) {
    if (find(name) == nullptr) return std::nullopt;
    try {
      return json_integer(json_, name, least, most, "the request", Exit::usage);
    } catch (const Error&) {
      refuse(name, str("must be a whole number from ", least, " to ", most));
    }
  }
  /// Returns a boolean, or false if the field is absent.
  bool flag(const char* name) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_boolean()) refuse(name, "must be true or false");
    return value != nullptr && value->get<bool>();
  }
  /// Returns a string, or "" if the field is absent.
  std::string text(const char* name) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_string()) refuse(name, "must be a string");
    return value == nullptr ? "" : value->get<std::string>();
  }

  /// Throws ApiError if the functions above did not read a field, unless the field has no effect.
  void refuse_unread_fields() const {
    for (const auto& item : json_.items()) {
      const std::string& name = item.key();
      const bool is_ignored =
          std::find(ignored_fields.begin(), ignored_fields.end(), name) != ignored_fields.end();
      if (known_.contains(name) || item.value().is_null() || is_ignored) continue;

      const auto& all = unsupported_fields();
      const auto field = std::find_if(all.begin(), all.end(),
                                      [&](const Unsupported& u) { return u.name == name; });
      if (field == all.end())
        refuse(name, "is not a field that lathe serve knows in this request; leave it out");
      const auto& neutral = field->neutral;
      if (std::find(neutral.begin(), neutral.end(), item.value()) == neutral.end())
        refuse(name, "is not supported by lathe serve; leave it out");
    }
  }

 private:
  Json json_;
  std::set<std::string> known_;
};

std::vector<std::string> stops_of(Fields& fields) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<std::string> stops;
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() ||
        stops.size() == max_stop_texts) {
      refuse("stop", str("must be a string or a list of at most ", max_stop_texts,
                         " strings, none of them empty"));
    }
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

/// Reads the fields that completions and chats share.
void read_shared(Fields& fields, GenerationRequest& request) {
  request.model = fields.text("model");

  // top_k, min_p and repetition_penalty are extensions, with the names that other servers use.
  Sampling& s = request.sampling;
  s.temperature = fields.number("temperature", 1, 0, 2);
  s.top_p = fields.number("top_p", 1, 0, 1);
  s.min_p = fields.number("min_p", 0, 0, 1);
  s.repetition_penalty = fields.number("repetition_penalty", 1, 0.01, 100);
  s.top_k = fields.whole("top_k", 0, std::numeric_limits<int32_t>::max()).value_or(0);
  const auto seed = fields.whole("seed", std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max());
  request.has_seed = seed.has_value();
  s.seed = static_cast<uint64_t>(seed.value_or(0));

  request.n = fields.whole("n", 1, max_texts_per_prompt).value_or(1);
  request.stops = stops_of(fields);

  request.streams = fields.flag("stream");
  if (const Json* options = fields.find("stream_options")) {
    if (!request.streams) refuse("stream_options", "is allowed only with stream: true");
    if (!options->is_object()) refuse("stream_options", "must be an object");
    for (const auto& [name, value] : options->items()) {
      // include_obfuscation asks for padding against eavesdroppers, which is not supported.
      const bool is_known = name == "include_usage" || name == "include_obfuscation";
      if (!is_known || !value.is_boolean() || (name == "include_obfuscation" && value.get<bool>()))
        refuse("stream_options",
               "may contain only include_usage, which must be true or false, and "
               "include_obfuscation: false");
    }
    request.includes_usage = options->value("include_usage", false);
  }
}

Prompt prompt_of(const Json& value) {
  if (value.is_string()) return {.text = value.get<std::string>(), .ids = {}};
  Prompt prompt{.text = {}, .ids = {}, .is_text = false};
  for (const Json& id : value) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0)
      refuse("prompt", "must be a string, a list of token ids, or a list of such prompts");
    prompt.ids.push_back(id.get<int64_t>());
  }
  return prompt;
}

std::vector<Prompt> prompts_of(Fields& fields) {
  const Json* value = fields.find("prompt");
  if (value == nullptr) refuse("prompt", "is missing; give the text to continue");
  if (value->is_string()) return {prompt_of(*value)};
  if (!value->is_array() || value->empty())
    refuse("prompt", "must be a string or a non-empty list");
  if (value->front().is_number()) return {prompt_of(*value)};

  std::vector<Prompt> prompts;
  for (const Json& one : *value) {
    if (!one.is_string() && !one.is_array())
      refuse("prompt", "must be a string, a list of token ids, or a list of such prompts");
    prompts.push_back(prompt_of(one));
  }
  return prompts;
}

/// Returns the text of a message: the content if that is a string, otherwise the texts of the
/// content's parts.
std::string content_of(const Json& message, const std::string& field) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) return content->get<std::string>();
  if (content == message.end() || !content->is_array())
    refuse(field, "has no content; give it as a string or as a list of parts of type text");

  std::string text;
  for (const Json& part : *content) {
    const bool is_text = part.is_object() && part.size() == 2 && part.contains("type") &&
                         part["type"] == "text" && part.contains("text") &&
                         part["text"].is_string();
    if (!is_text)
      refuse(field,
             "has a part that is not {\"type\": \"text\", \"text\": ...}; this model reads "
             "text only");
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<ChatMessage> messages_of(Fields& fields) {
  const Json* list = fields.find("messages");
  if (list == nullptr || !list->is_array() || list->empty())
    refuse("messages", "must be a non-empty list of messages");

  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    const std::string field = str("messages[", i, "]");
    if (!message.is_object()) refuse(field, "must be an object with a role and content");

    const auto found = message.find("role");
    std::string role =
        found != message.end() && found->is_string() ? found->get<std::string>() : "";
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant")
      refuse(field, "must have the role system, developer, user or assistant");

    for (const auto& [name, value] : message.items()) {
      // A client may send back an earlier answer, including fields of the answer that are null or
      // [].
      const bool is_empty = value.is_null() || (value.is_array() && value.empty());
      if (name != "role" && name != "content" && !is_empty)
        refuse(field + "." + name, "is not supported by lathe serve; leave it out");
    }
    messages.push_back({role, content_of(message, field)});
  }
  return messages;
}

}  // namespace

std::string ApiError::body() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const char* type = status_ == 429   ? "rate_limit_error"
                     : status_ >= 500 ? "server_error"
                                      : "invalid_request_error";
  return json_text({{"error",
                     {{"message", what()},
                      {"type", type},
                      {"param", or_null(parameter_)},
                      {"code", or_null(code_)}}}});
}

GenerationRequest parse_completion_request(std::string_view body) {
  Fields fields(body);
  GenerationRequest request;
  request.prompts = prompts_of(fields);
  read_shared(fields, request);
  request.max_tokens = fields.whole("max_tokens", 0, std::numeric_limits<int32_t>::max());
  request.echoes = fields.flag("echo");
  request.top = fields.whole("logprobs", 0, max_top_logprobs);
  if (const auto best_of = fields.whole("best_of", 1, max_texts_per_prompt);
      best_of && *best_of != request.n)
    refuse("best_of", "must equal n: lathe serve returns every text that it generates");
  fields.refuse_unread_fields();
  return request;
}

GenerationRequest parse_chat_request(std::string_view body) {
  Fields fields(body);
  GenerationRequest request;
  request.is_chat = true;
  request.messages = messages_of(fields);
  read_shared(fields, request);
  request.max_tokens =
      fields.whole("max_completion_tokens", 1, std::numeric_limits<int32_t>::max());
  if (const auto older = fields.whole("max_tokens", 1, std::numeric_limits<int32_t>::max())) {
    if (request.max_tokens && request.max_tokens != older)
      refuse("max_tokens", "differs from max_completion_tokens; give only one of the two");
    request.max_tokens = older;
  }

  const bool scores = fields.flag("logprobs");
  const auto top = fields.whole("top_logprobs", 0, max_top_logprobs);
  if (top && !scores) refuse("top_logprobs", "is allowed only with logprobs: true");
  if (scores) request.top = top.value_or(0);
  fields.refuse_unread_fields();
  return request;
}

}  // namespace lathe
