// Tests of the replies of `lathe serve`: the text that is shown, streams, complete objects, and log
// probabilities.
#include <algorithm>

#include "core/io/text.h"
#include "tests/train/serve/served.h"
#include "train/serve/reply.h"

namespace {

using namespace lathe;
using lathe::test::events_of;
using lathe::test::served_tokenizer;

constexpr int64_t chatml_end = 257, document_end_id = 258;  // ids in served_tokenizer()

TEST_CASE("a text is shown in complete characters, without its stop", "[serve_reply]") {
  const auto parts = [](const std::vector<std::string>& pieces, std::vector<std::string> stops) {
    ShownText text(std::move(stops));
    std::vector<std::string> out;
    for (const std::string& piece : pieces) {
      if (!text.stopped()) out.push_back(text.add(piece));
    }
    out.push_back(text.rest());
    return out;
  };

  using Parts = std::vector<std::string>;
  CHECK(parts({"a", "b"}, {}) == Parts{"a", "b", ""});
  CHECK(parts({"\xF0", "\x9F\x98", "\x80!"}, {}) == Parts{"", "", "\xF0\x9F\x98\x80!", ""});
  CHECK(parts({"a\xC3", "b"}, {}) == Parts{"a",
                                           "\xEF\xBF\xBD"
                                           "b",
                                           ""});
  CHECK(parts({"\xFF", "\xE2\x82"}, {}) == Parts{"\xEF\xBF\xBD", "", "\xEF\xBF\xBD\xEF\xBF\xBD"});

  // Text that may be the beginning of a stop is held back until the next token decides.
  CHECK(parts({"xa", "bc", "d"}, {"bcd"}) == Parts{"xa", "", "", ""});
  CHECK(parts({"xa", "bc", "e"}, {"bcd"}) == Parts{"xa", "", "bce", ""});
  CHECK(parts({"xa", "bc"}, {"bcd"}) == Parts{"xa", "", "bc"});

  // A stop may be in the middle of a token, or its character may be split between two tokens.
  CHECK(parts({"one two three"}, {"two"}) == Parts{"one ", ""});
  CHECK(parts({"\xC3", "\xA9 stop"}, {"\xC3\xA9"}) == Parts{"", "", ""});
}

GenerationRequest completion_of(const std::string& more) {
  return parse_completion_request(R"({"prompt": "p")" + more + "}");
}
GenerationRequest chat_of(const std::string& more) {
  return parse_chat_request(R"({"messages": [{"role": "user", "content": "q"}])" + more + "}");
}

TokenScore score_of(int64_t id) {
  return {.id = id, .log_probability = -0.5, .top = {{id, -0.5}, {(id + 1) % 256, -1.5}}};
}

/// Passes the tokens to a reply with one choice, and ends the reply.
void fill(Reply& reply, const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) {
    if (!reply.on_token(0, score_of(id))) return reply.on_end(0, TextEnd::stop, "");
  }
  reply.on_end(0, TextEnd::length, "");
}

std::vector<EncodedPrompt> prompt_p() { return {{.text = "p", .ids = {'p'}, .max_tokens = 100}}; }

struct Joined {
  std::string text;
  std::vector<std::string> tokens;
  std::string finish;
  std::vector<size_t> offsets{};  // one per token of a completion
  bool operator==(const Joined&) const = default;
};

Json logprobs_of(const Json& choice) { return choice["logprobs"]; }

void add_tokens(Joined& joined, const Json& logprobs, bool is_chat) {
  if (logprobs.is_null()) return;
  for (const Json& token : logprobs[is_chat ? "content" : "tokens"])
    joined.tokens.push_back(is_chat ? token["token"].get<std::string>() : token.get<std::string>());
  for (const Json& offset : is_chat ? Json::array() : logprobs["text_offset"])
    joined.offsets.push_back(offset.get<size_t>());
}

/// Checks that the text has each token at the token's offset. Each token is one character or some
/// bytes of a character. Tokens with some bytes of a character are not compared.
void check_offsets(const Joined& joined) {
  std::vector<std::string> characters;
  for (const char byte : joined.text) {
    if ((byte & 0xC0) != 0x80) characters.emplace_back();
    characters.back() += byte;
  }
  REQUIRE(joined.offsets.size() == joined.tokens.size());
  for (size_t i = 0; i < joined.tokens.size(); ++i) {
    if (joined.tokens[i].starts_with("bytes:")) continue;
    REQUIRE(joined.offsets[i] < characters.size());
    CHECK(characters[joined.offsets[i]] == joined.tokens[i]);
  }
}

/// Returns the combined content of a stream's events, each of which must be UTF-8.
Joined joined_stream(GenerationRequest request, const std::vector<int64_t>& ids) {
  request.streams = true;
  const bool is_chat = request.is_chat;
  Reply reply(request, prompt_p(), served_tokenizer(), is_chat ? chatml_end : -1, "m");
  std::string body;
  for (const int64_t id : ids) {
    const bool continues = reply.on_token(0, score_of(id));
    body += reply.take_events();
    if (continues) continue;
    reply.on_end(0, TextEnd::stop, "");
    break;
  }
  if (ids.empty() || body.find("finish_reason\":\"") == std::string::npos) {
    // No stop has ended the stream.
    if (!reply.wait_for(std::chrono::milliseconds(0))) reply.on_end(0, TextEnd::length, "");
  }
  body += reply.take_events();
  CHECK(reply.is_over());
  CHECK(is_utf8(body));

  Joined joined;
  for (const Json& event : events_of(body)) {
    CHECK(event["object"] == (is_chat ? "chat.completion.chunk" : "text_completion"));
    for (const Json& choice : event["choices"]) {
      joined.text += is_chat ? choice["delta"].value("content", "") : choice.value("text", "");
      add_tokens(joined, logprobs_of(choice), is_chat);
      if (choice["finish_reason"].is_string()) {
        CHECK(joined.finish.empty());
        joined.finish = choice["finish_reason"];
      }
    }
  }
  return joined;
}

Joined joined_whole(GenerationRequest request, const std::vector<int64_t>& ids) {
  const bool is_chat = request.is_chat;
  Reply reply(request, prompt_p(), served_tokenizer(), is_chat ? chatml_end : -1, "m");
  CHECK(!reply.whole());
  fill(reply, ids);
  const Json choice = Json::parse(*reply.whole())["choices"][0];
  Joined joined{.text = is_chat ? choice["message"]["content"] : choice["text"],
                .tokens = {},
                .finish = choice["finish_reason"]};
  add_tokens(joined, logprobs_of(choice), is_chat);
  return joined;
}

TEST_CASE("a stream and a complete reply have the same text, tokens and end", "[serve_reply]") {
  const std::vector<int64_t> emoji{0xF0, 0x9F, 0x98, 0x80};
  const std::vector<std::vector<int64_t>> all{{},
                                              {'a', 'b', 'c', 'd', 'e'},
                                              {'a', 0xC3, 0xA9, 'b', 0xC3},
                                              {0xFF, 'a', 0xE2, 0x82, 'b'},
                                              {0xA3, 'a', 0xE2, 'b', 'c'},
                                              {'a', emoji[0], emoji[1], emoji[2], emoji[3], 'c'},
                                              {'a', 'b', document_end_id},
                                              {'a', 'b', chatml_end},
                                              {'a', 'x', 'y', 'z', 'b'}};
  for (const auto& ids : all) {
    for (const std::string options :
         {"", R"(, "logprobs": 2)", R"(, "stop": ["xyz", "cd"], "logprobs": 1)",
          R"(, "echo": true, "logprobs": 0)", R"(, "echo": true)"}) {
      const GenerationRequest request = completion_of(options);
      INFO(options << " of " << ids.size() << " tokens");
      const Joined whole = joined_whole(request, ids);
      CHECK(joined_stream(request, ids) == whole);
      if (request.top) check_offsets(whole);
    }
    for (const std::string options :
         {"", R"(, "logprobs": true, "top_logprobs": 2, "stop": "xyz")"})
      CHECK(joined_stream(chat_of(options), ids) == joined_whole(chat_of(options), ids));
  }

  // Compare some replies with the values that they must have.
  CHECK(joined_whole(completion_of(R"(, "stop": "xyz", "logprobs": 1)"), all[8]) ==
        Joined{"a", {"a"}, "stop", {0}});
  CHECK(joined_whole(completion_of(R"(, "logprobs": 1)"), all[6]) ==
        Joined{"ab", {"a", "b"}, "stop", {0, 1}});
  CHECK(joined_whole(completion_of(R"(, "logprobs": 1, "echo": true)"), all[2]) ==
        Joined{"pa\xC3\xA9"
               "b\xEF\xBF\xBD",
               {"p", "a", "bytes:\\xc3", "bytes:\\xa9", "b", "bytes:\\xc3"},
               "length",
               {0, 1, 2, 2, 3, 4}});
  CHECK(joined_whole(chat_of(""), all[7]) == Joined{"ab", {}, "stop"});
}

TEST_CASE("log probabilities of a completion have OpenAI's form", "[serve_reply]") {
  Reply reply(completion_of(R"(, "echo": true, "logprobs": 1)"),
              {{.text = "p\xC3\xA9", .ids = {'p', 0xC3, 0xA9}, .max_tokens = 1}},
              served_tokenizer(), -1, "m");
  const auto texts = reply.texts();
  REQUIRE(texts.size() == 1);
  CHECK((texts[0].scores && texts[0].scores_prompt && texts[0].top == 1));
  reply.on_prompt(0, 1, score_of(0xC3));
  reply.on_prompt(0, 2, score_of(0xA9));
  fill(reply, {'a'});
  const Json json = Json::parse(*reply.whole());
  const Json& logprobs = json["choices"][0]["logprobs"];
  CHECK(json["choices"][0]["text"] ==
        "p\xC3\xA9"
        "a");
  CHECK(logprobs["tokens"] == Json::array({"p", "bytes:\\xc3", "bytes:\\xa9", "a"}));
  CHECK(logprobs["token_logprobs"] == Json::array({nullptr, -0.5, -0.5, -0.5}));
  CHECK(logprobs["text_offset"] == Json::array({0, 1, 1, 2}));
  CHECK(logprobs["top_logprobs"][0].is_null());
  CHECK(logprobs["top_logprobs"][3] == Json({{"a", -0.5}, {"b", -1.5}}));
  CHECK(json["usage"]["prompt_tokens"] == 3);
  CHECK(json["usage"]["completion_tokens"] == 1);
}

TEST_CASE("offsets leave out the space that SentencePiece puts before a prompt", "[serve_reply]") {
  for (const SpaceBefore rule : {SpaceBefore::each, SpaceBefore::none}) {
    Json definition{{"kind", "bpe"}};
    definition["bpe"] = bpe_to_json(lathe::test::sentencepiece(rule));
    const Tokenizer tokenizer = Tokenizer::from_json(definition, "kind", "test");
    const std::vector<int64_t> ids = tokenizer.encode("abc ab");
    Reply reply(completion_of(R"(, "echo": true, "logprobs": 0)"),
                {{.text = "abc ab", .ids = ids, .max_tokens = 1}}, tokenizer, -1, "m");
    for (size_t i = 1; i < ids.size(); ++i)
      reply.on_prompt(0, i, {.id = ids[i], .log_probability = -0.5});
    fill(reply, {tokenizer.encode("c").back()});

    const Json choice = Json::parse(*reply.whole())["choices"][0];
    const auto text = choice["text"].get<std::string>();
    CHECK(text == "abc abc");
    const Json& tokens = choice["logprobs"]["tokens"];
    REQUIRE(tokens.size() == ids.size() + 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto token = tokens[i].get<std::string>();
      CHECK(text.substr(choice["logprobs"]["text_offset"][i].get<size_t>(), token.size()) == token);
    }
  }
}

TEST_CASE("a text that fails ends its request with an error, and cancels the request's other texts",
          "[serve_reply]") {
  struct Failure {
    TextEnd end;
    int status;
  };
  for (const auto& [end, status] : std::vector<Failure>{
           {TextEnd::late, 504}, {TextEnd::failed, 500}, {TextEnd::shutdown, 503}}) {
    Reply reply(completion_of(R"(, "n": 2)"), prompt_p(), served_tokenizer(), -1, "m");
    reply.on_token(1, score_of('a'));
    CHECK(!reply.is_cancelled());

    reply.on_end(0, end, "why");
    CHECK(reply.is_cancelled());
    CHECK(reply.wait_for(std::chrono::milliseconds(0)));

    int found = 0;
    try {
      reply.whole();
    } catch (const ApiError& e) {
      found = e.status();
    }
    CHECK(found == status);

    const std::string events = reply.take_events();
    CHECK_THAT(events, ContainsSubstring("data: {\"error\""));
    CHECK(events.find("[DONE]") == std::string::npos);
    CHECK(reply.is_over());
  }
}

}  // namespace
