// Tests of parsing the requests to `lathe serve`: valid requests are read, and invalid ones are
// refused.
#include <random>

#include "core/io/json.h"
#include "core/io/text.h"
#include "tests/support/catch.h"
#include "train/serve/access.h"
#include "train/serve/request.h"

namespace {

using namespace lathe;

/// Returns the ApiError that parsing `body` throws. If parsing succeeds, the result's status is 0.
ApiError error_of_body(const std::string& body, bool is_chat) {
  try {
    is_chat ? parse_chat_request(body) : parse_completion_request(body);
  } catch (const ApiError& e) {
    return e;
  }
  return {0, ""};
}
Json error_json(const std::string& body, bool is_chat = false) {
  return parse_json(error_of_body(body, is_chat).body(), "", Exit::internal)["error"];
}

TEST_CASE("an error names an unknown field, whatever its characters", "[serve_request]") {
  for (const auto& [name, shown] : std::vector<std::pair<std::string, std::string>>{
           {R"(x)", "x "}, {R"(\u0000)", "\\x00 "}, {R"(a\u001b[2Jb\n)", "a\\x1b[2Jb\\x0a "}}) {
    const Json error = error_json("{\"prompt\": \"a\", \"" + name + "\": 1}");
    const auto message = error["message"].get<std::string>();
    CHECK(message.starts_with(shown));
    CHECK_THAT(message, ContainsSubstring("field"));
    CHECK(error["param"] == parse_json("\"" + name + "\"", "", Exit::internal));
  }
}

TEST_CASE("all fields of a completion request are read", "[serve_request]") {
  const GenerationRequest r = parse_completion_request(
      R"({"model": "m", "prompt": ["a", "b\u00e9"], "max_tokens": 0, "temperature": 0.5, "top_p": 0.9, "n": 3,
          "seed": -7, "stop": "x", "echo": true, "logprobs": 4, "stream": true, "best_of": 3,
          "stream_options": {"include_usage": true}, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2,
          "user": "me", "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "suffix": null})");
  CHECK(r.model == "m");
  REQUIRE(r.prompts.size() == 2);
  CHECK(r.prompts[1].text == "b\xC3\xA9");
  CHECK(r.prompts[1].is_text);
  CHECK(r.max_tokens == 0);
  CHECK(r.sampling.temperature == 0.5);
  CHECK(r.sampling.top_p == 0.9);
  CHECK(r.sampling.top_k == 5);
  CHECK(r.sampling.min_p == 0.1);
  CHECK(r.sampling.repetition_penalty == 1.2);
  CHECK(r.has_seed);
  CHECK(r.sampling.seed == static_cast<uint64_t>(-7));
  CHECK(r.n == 3);
  CHECK(r.stops == std::vector<std::string>{"x"});
  CHECK((r.echoes && r.streams && r.includes_usage && !r.is_chat));
  CHECK(r.top == 4);

  const GenerationRequest plain = parse_completion_request(R"({"prompt": "a", "stop": null})");
  CHECK(plain.sampling.temperature == 1);
  CHECK(!plain.has_seed);
  CHECK(!plain.max_tokens);
  CHECK(!plain.top);
  CHECK((plain.stops.empty() && !plain.streams));

  const auto ids = parse_completion_request(R"({"prompt": [[1, 2], [3]]})").prompts;
  REQUIRE(ids.size() == 2);
  CHECK(ids[0].ids == std::vector<int64_t>{1, 2});
  CHECK(!ids[0].is_text);
  CHECK(parse_completion_request(R"({"prompt": [7, 8]})").prompts[0].ids ==
        std::vector<int64_t>{7, 8});
}

TEST_CASE("all fields of a chat request are read", "[serve_request]") {
  const GenerationRequest r = parse_chat_request(
      R"({"messages": [{"role": "developer", "content": "rule"},
                       {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": "c", "refusal": null, "tool_calls": []}],
          "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2, "stop": ["x", "y"],
          "response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "store": false})");
  REQUIRE(r.messages.size() == 3);
  CHECK(r.messages[0].role == "system");
  CHECK(r.messages[1].text == "ab");
  CHECK(r.messages[2].text == "c");
  CHECK(r.is_chat);
  CHECK(r.max_tokens == 9);
  CHECK(r.top == 2);
  CHECK(r.stops == std::vector<std::string>{"x", "y"});
  const auto shorter = parse_chat_request(
      R"({"messages": [{"role": "user", "content": ""}], "max_tokens": 3, "logprobs": true})");
  CHECK(shorter.max_tokens == 3);
  CHECK(shorter.top == 0);
}

TEST_CASE("an error names the field of a request that is wrong", "[serve_request]") {
  struct Wrong {
    const char* fields;
    const char* parameter;
  };
  for (const auto& [fields, parameter] : std::vector<Wrong>{
           {R"("prompt": 3)", "prompt"},
           {R"("prompt": "a", "tools": [[[[[[[[[[1]]]]]]]]]])", "tools"},
           {R"("prompt": [])", "prompt"},
           {R"("prompt": ["a", 1])", "prompt"},
           {R"("prompt": [1, "a"])", "prompt"},
           {R"("prompt": [1, -1])", "prompt"},
           {R"("prompt": [1.5])", "prompt"},
           {R"("model": "m")", "prompt"},
           {R"("prompt": "a", "n": 0)", "n"},
           {R"("prompt": "a", "n": 1.5)", "n"},
           {R"("prompt": "a", "n": 129)", "n"},
           {R"("prompt": "a", "best_of": 2)", "best_of"},
           {R"("prompt": "a", "temperature": 2.1)", "temperature"},
           {R"("prompt": "a", "temperature": "1")", "temperature"},
           {R"("prompt": "a", "top_p": -0.1)", "top_p"},
           {R"("prompt": "a", "max_tokens": -1)", "max_tokens"},
           {R"("prompt": "a", "seed": 0.5)", "seed"},
           {R"("prompt": "a", "stop": "")", "stop"},
           {R"("prompt": "a", "stop": [3])", "stop"},
           {R"("prompt": "a", "logprobs": 21)", "logprobs"},
           {R"("prompt": "a", "logprobs": true)", "logprobs"},
           {R"("prompt": "a", "echo": 1)", "echo"},
           {R"("prompt": "a", "model": 1)", "model"},
           {R"("prompt": "a", "stream_options": {})", "stream_options"},
           {R"("prompt": "a", "stream": true, "stream_options": {"x": true})", "stream_options"},
           {R"("prompt": "a", "suffix": "b")", "suffix"},
           {R"("prompt": "a", "presence_penalty": 0.1)", "presence_penalty"},
           {R"("prompt": "a", "logit_bias": {"1": 2})", "logit_bias"},
           {R"("prompt": "a", "messages": [])", "messages"},
           {R"("prompt": "a", "typo": 1)", "typo"}}) {
    INFO(fields);
    const std::string body = std::string("{") + fields + "}";
    CHECK(error_of_body(body, false).status() == 400);
    const Json error = error_json(body);
    CHECK(error["param"] == parameter);
    CHECK(error["type"] == "invalid_request_error");
    CHECK(error["message"].get<std::string>().size() > 10);
  }

  const auto chat_with = [](const std::string& message, const std::string& more = "") {
    return error_json(R"({"messages": [)" + message + "]" + more + "}", true)["param"];
  };
  const std::string good = R"({"role": "user", "content": "a"})";
  CHECK(chat_with("") == "messages");
  CHECK(chat_with(good + ", 3") == "messages[1]");
  CHECK(chat_with(R"({"role": "tool", "content": "a"})") == "messages[0]");
  CHECK(chat_with(R"({"role": "user", "content": null})") == "messages[0]");
  CHECK(chat_with(R"({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})") ==
        "messages[0]");
  CHECK(chat_with(R"({"role": "user", "content": "a", "name": "b"})") == "messages[0].name");
  CHECK(chat_with(good, R"(, "tools": [{"type": "function"}])") == "tools");
  CHECK(chat_with(good, R"(, "response_format": {"type": "json_object"})") == "response_format");
  CHECK(chat_with(good, R"(, "top_logprobs": 1)") == "top_logprobs");
  CHECK(chat_with(good, R"(, "max_tokens": 1, "max_completion_tokens": 2)") == "max_tokens");
  CHECK(chat_with(good, R"(, "max_tokens": 0)") == "max_tokens");
  // A valid message causes no error.
  CHECK(error_of_body("{\"messages\": [" + good + "]}", true).status() == 0);

  for (const char* body :
       {"", "{", "[]", "3", "{\"prompt\": \"\\ud800\"}", "{\"prompt\": \"\xFF\"}",
        "{\"prompt\": 1e999}", "{} {}", "{\"n\": 1, \"n\": 1}"}) {
    INFO(body);
    CHECK(error_json(body)["code"] == "invalid_json");
    CHECK(error_of_body(body, true).status() == 400);
  }
  CHECK(error_json("{\"a\": " + std::string(100000, '[') + "}")["code"] == "invalid_json");
}

TEST_CASE("a damaged request is read or refused with status 400", "[serve_request]") {
  const std::vector<std::string> whole{
      R"({"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0.5, "n": 3, "seed": 1, "stop": ["x"]})",
      R"({"prompt": [[1, 2], [3]], "logprobs": 3, "echo": true, "stream": true, "stream_options": {"include_usage": true}})",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a\u00e9"}]}], "max_tokens": 5, "top_logprobs": 2, "logprobs": true})"};
  const std::string alphabet = "{}[]\",:0123456789.eE-+tfn\\u \xC3\xA9\x01";

  std::mt19937 random(1);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };

  int refused = 0, read = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    std::string body = whole[below(whole.size())];
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const size_t at = below(body.size());
      switch (below(4)) {
        case 0: body[at] = alphabet[below(alphabet.size())]; break;
        case 1: body.erase(at, 1 + below(8)); break;
        case 2: body.insert(at, 1, alphabet[below(alphabet.size())]); break;
        default: body.insert(at, whole[below(whole.size())].substr(below(40), below(40)));
      }
      if (body.empty()) body = " ";
    }

    for (const bool is_chat : {false, true}) {
      const ApiError error = error_of_body(body, is_chat);
      ++(error.status() == 0 ? read : refused);
      const bool is_expected = error.status() == 0 || error.status() == 400;
      if (!is_expected || !is_utf8(error.body())) FAIL("status " << error.status() << ": " << body);
    }
  }

  CHECK(refused > 6000);
  CHECK(read > 50);
}

TEST_CASE("loopback addresses, Host headers and keys are recognized", "[serve_request]") {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) CHECK(is_loopback(host));
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost.evil.example",
                           "example.org", "", "127.0.0.1.evil.example"})
    CHECK(!is_loopback(host));
  CHECK(host_without_port("localhost:80") == "localhost");
  CHECK(host_without_port("localhost") == "localhost");
  CHECK(host_without_port("LocalHost:80") == "localhost");
  CHECK(host_without_port("[::1]:80") == "::1");
  CHECK(host_without_port("[::1]") == "::1");
  CHECK(host_without_port("").empty());
  CHECK(host_without_port("[").empty());
  CHECK(equals_key("abc", "abc"));
  for (const char* given : {"", "a", "ab", "abcabc", "abd", "bbc", "abcd"})
    CHECK(!equals_key(given, "abc"));
}

}  // namespace
