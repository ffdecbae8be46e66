// Tests of the HTTP server of `lathe serve`: routes, errors, keys, streams, clients that leave,
// signals.
#include <netinet/tcp.h>

#include <csignal>
#include <cstdlib>

#include "core/io/text.h"
#include "data/tokenizers/chat_template.h"
#include "tests/support/process.h"
#include "tests/train/serve/served.h"

namespace {

using namespace lathe;
using lathe::test::answer_to;
using lathe::test::chat;
using lathe::test::Client;
using lathe::test::complete;
using lathe::test::events_of;
using lathe::test::generated;
using lathe::test::get_request;
using lathe::test::HttpAnswer;
using lathe::test::post_request;
using lathe::test::served_tokenizer;
using lathe::test::ServedHere;

/// Returns the text that the server shows for ids, up to `end` or another token that ends a text.
std::string shown(const std::vector<int64_t>& ids, int64_t end) {
  ShownText text({});
  std::string out;
  for (const int64_t id : ids) {
    if (id == end || served_tokenizer().ends_text(id)) break;
    out += text.add(served_tokenizer().piece(id));
  }
  return out + text.rest();
}

TEST_CASE("completions and chats have the text that generate produces for the prompts",
          "[serve_http]") {
  const ServedHere server;
  const std::vector<int64_t> prompt = served_tokenizer().encode("the ");
  const Sampling seeded{.temperature = 0.9, .top_p = 0.95, .seed = 11};
  const Json body{{"prompt", "the "}, {"max_tokens", 20}, {"temperature", 0.9},
                  {"top_p", 0.95},    {"seed", 11},       {"n", 2}};
  const HttpAnswer answer = complete(server.port(), body);
  INFO(answer.body);
  REQUIRE(answer.status == 200);
  const Json json = answer.json();
  const auto wanted = generated(prompt, seeded, 20, 2);
  REQUIRE(json["choices"].size() == 2);
  for (const size_t i : {0, 1}) {
    CHECK(json["choices"][i]["text"] == shown(wanted[i], -1));
    CHECK(json["choices"][i]["index"] == i);
  }
  CHECK(json["model"] == "small");
  CHECK(json["usage"]["prompt_tokens"] == 4);

  // A stream gives the same texts, as does a prompt of token ids.
  Json other = body;
  other["prompt"] = prompt;
  other["stream"] = true;
  std::vector<std::string> texts(2);
  for (const Json& event : events_of(complete(server.port(), other).body)) {
    for (const Json& choice : event["choices"])
      texts.at(choice["index"].get<size_t>()) += choice["text"].get<std::string>();
  }
  for (const size_t i : {0, 1}) CHECK(texts[i] == shown(wanted[i], -1));

  const ChatTemplate chatml(served_tokenizer(), "small", "");
  const auto asked = chatml.encode_prompt({{"user", "Hi"}});
  const Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  const HttpAnswer reply =
      chat(server.port(), {{"messages", messages}, {"temperature", 0}, {"max_tokens", 12}});
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  CHECK(reply.json()["choices"][0]["message"]["content"] ==
        shown(generated(asked, {.temperature = 0}, 12)[0], chatml.end()));
  CHECK(reply.json()["object"] == "chat.completion");
}

TEST_CASE("each route answers, and errors have OpenAI's format and the expected status",
          "[serve_http]") {
  const ServedHere server({.max_body = 2000});
  const int port = server.port();
  const HttpAnswer page = answer_to(port, get_request("/"));
  CHECK(page.status == 200);
  CHECK_THAT(page.body, ContainsSubstring("<!doctype html>"));
  CHECK_THAT(page.head, ContainsSubstring("Content-Security-Policy: default-src 'none'"));
  CHECK(answer_to(port, get_request("/health")).status == 200);
  CHECK(answer_to(port, get_request("/v1/models")).json()["data"][0]["id"] == "small");
  const Json model = answer_to(port, get_request("/v1/models/small")).json();
  CHECK(model["context_length"] == 48);
  CHECK(model["max_tokens"] == 48);

  const auto post = [](const std::string& body) { return post_request("/v1/completions", body); };
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string long_body = R"({"prompt": ")" + std::string(3000, 'a') + "\"}";
  struct Wrong {
    std::string request;
    int status;
    const char* code;
  };
  const std::vector<Wrong> all{
      {get_request("/nothing"), 404, "unknown_url"},
      {get_request("/v1/models/other"), 404, "model_not_found"},
      {get_request("/v1/models/"), 404, "model_not_found"},
      {post(R"({"prompt": "a", "model": "other"})"), 404, "model_not_found"},
      {get_request("/v1/completions"), 405, "method_not_allowed"},
      {"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"},
      {"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "forbidden_host"},
      {head + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415, "not_json"},
      {head + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2\r\n\r\n{}", 415,
       "not_json"},
      {head + "Content-Type: Application/JSON\t; charset=utf-8\r\nContent-Length: 1\r\n\r\n{", 400,
       "invalid_json"},
      {post("{"), 400, "invalid_json"},
      {post(long_body), 413, "request_too_large"},
      {head + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nfa0\r\n" +
           std::string(4000, 'a') + "\r\n0\r\n\r\n",
       413, "request_too_large"},
      // A request whose head is already invalid is refused before its body arrives.
      {head + "Content-Type: application/json\r\n\r\n", 411, "no_length"},
      {head + "Content-Type: application/json\r\nTransfer-Encoding: identity\r\n\r\n", 411,
       "no_length"},
      {head + "Content-Type: application/json\r\nContent-Length: -5\r\n\r\n", 400, "invalid_http"},
      {head + "Content-Type: application/json\r\nContent-Length: 99999999999999999999\r\n\r\n", 413,
       "request_too_large"},
      {head + "Content-Type: application/json\r\nContent-Length: 2001\r\n\r\n{", 413,
       "request_too_large"},
      {post(R"({"prompt": "a", "max_tokens": 49})"), 400, "context_length_exceeded"},
      {post(R"({"prompt": ")" + std::string(60, 'a') + "\"}"), 400, "context_length_exceeded"},
      {post(R"({"prompt": [1, 259]})"), 400, nullptr},
      {post(R"({"prompt": ""})"), 400, nullptr},
      {post(R"({"prompt": ["a", "b"], "n": 65})"), 400, nullptr},
      {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414,
       "url_too_long"},
      {"NONSENSE\r\n\r\n", 400, "invalid_http"}};
  for (const auto& [request, status, code] : all) {
    INFO(request.substr(0, 200));
    const HttpAnswer answer = answer_to(port, request);
    INFO(answer.head << answer.body);
    CHECK(answer.status == status);
    const Json error = answer.json()["error"];
    CHECK(error["code"] == (code == nullptr ? Json() : Json(code)));
    CHECK(error["message"].is_string());
  }
  CHECK_THAT(answer_to(port, get_request("/v1/completions")).head,
             ContainsSubstring("Allow: POST"));
  // The context of 48 positions holds the prompt and 47 new tokens. The 48th new token needs no
  // position.
  CHECK(answer_to(port, post(R"({"prompt": "a", "max_tokens": 48})")).status == 200);
  // The Range header is ignored, since a response of many ranges would be assembled in memory.
  CHECK(answer_to(port, get_request("/", "Range: bytes=0-0,0-0\r\n")).body == page.body);
}

TEST_CASE("text that the tokenizer can't encode is answered with status 400", "[serve_http]") {
  // Give the token of the byte 0xF0 another text.
  Json json;
  served_tokenizer().add_to_json(json, "kind");
  BPEDefinition definition = bpe_from_json(json["bpe"], "test");
  definition.tokens[0xF0] = "zz";
  json["bpe"] = bpe_to_json(definition);
  const Tokenizer tokenizer = Tokenizer::from_json(json, "kind", "test");
  const ServedHere server({}, 64, true, 600, tokenizer);

  const std::string text = "\xF0\x9F\x98\x80";
  for (const HttpAnswer& answer :
       {complete(server.port(), {{"prompt", text}}),
        chat(server.port(), {{"messages", {{{"role", "user"}, {"content", text}}}}})}) {
    INFO(answer.body);
    CHECK(answer.status == 400);
    CHECK_THAT(answer.body, ContainsSubstring("240"));
  }
}

TEST_CASE("with a key, requests without it are refused", "[serve_http]") {
  const ServedHere server({.key = "secret"});
  const auto status = [&](const std::string& path, const std::string& header) {
    return answer_to(server.port(), get_request(path, header)).status;
  };
  CHECK(status("/v1/models", "") == 401);
  CHECK(status("/v1/models", "Authorization: Bearer secre\r\n") == 401);
  CHECK(status("/v1/models", "Authorization: Bearer secrets\r\n") == 401);
  CHECK(status("/v1/models", "Authorization: secret\r\n") == 401);
  CHECK(status("/v1/models", "Authorization: Bearer secret\r\n") == 200);
  CHECK(status("/", "") == 200);
  CHECK(status("/health", "") == 200);
  const HttpAnswer refused = answer_to(server.port(), post_request("/v1/completions", "{}"));
  CHECK(refused.status == 401);
  CHECK(refused.json()["error"]["code"] == "invalid_api_key");
  CHECK_THAT(refused.head, ContainsSubstring("WWW-Authenticate: Bearer"));
  // With a key, the Host header may have any name.
  CHECK(answer_to(server.port(),
                  "GET /v1/models HTTP/1.1\r\nHost: gpu.example\r\nAuthorization: "
                  "Bearer secret\r\n\r\n")
            .status == 200);
}

TEST_CASE("a full queue is answered with status 429, and a request that takes too long with 504",
          "[serve_http]") {
  ServedHere server({}, /*queue=*/1, /*runs=*/false, /*max_time=*/0.3);
  const std::string request =
      post_request("/v1/completions", R"({"prompt": "a", "max_tokens": 3})");
  // The queue has room for one of the two requests, and either may arrive first.
  const Client first(server.port()), second(server.port());
  first.send(request);
  second.send(request);
  const timeval most{.tv_sec = 0, .tv_usec = 50000};
  const Client* waits = nullptr;
  std::string refused;
  for (int trial = 0; trial < 100 && refused.empty(); ++trial) {
    waits = trial % 2 == 0 ? &second : &first;
    refused = (trial % 2 == 0 ? first : second).receive_within(most);
  }
  CHECK_THAT(refused, ContainsSubstring("HTTP/1.1 429"));
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  server.run();
  CHECK_THAT(waits->receive_within({.tv_sec = 20, .tv_usec = 0}),
             ContainsSubstring("HTTP/1.1 504"));
  CHECK(answer_to(server.port(), request).status == 200);
}

TEST_CASE("clients that disconnect cancel their requests, and malformed requests harm no others",
          "[serve_http]") {
  ServedHere server({}, /*queue=*/4, /*runs=*/false);
  const std::string body = R"({"prompt": "a", "max_tokens": 40, "stream": )";
  // Requests of clients that have disconnected fill the queue of four. A later request must not
  // wait for them.
  for (int i = 0; i < 4; ++i) {
    const Client leaves(server.port());
    leaves.send(post_request("/v1/completions", body + (i % 2 == 0 ? "true}" : "false}")));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server.run();
  const std::vector<std::string> odd{
      "",
      "\r\n",
      "POST",
      "GET / HTTP/9.9\r\n\r\n",
      std::string(5000, '\0'),
      post_request("/v1/completions", body).substr(0, 120),
      "GET / HTTP/1.1\r\n" + std::string(9000, 'h') + ": x\r\n\r\n",
      std::string("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n") +
          "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
  for (const std::string& bytes : odd) Client(server.port()).send(bytes);

  // For a listening socket, Linux reports the maximum length of the accept queue in tcpi_sacked.
  int places = 0;
  for (const fs::path& entry : list_folder("/proc/self/fd")) {
    const int fd = std::atoi(entry.filename().c_str());
    sockaddr_in name{};
    socklen_t length = sizeof name;
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
        ntohs(name.sin_port) == server.port() &&
        ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_LISTEN)
      places = static_cast<int>(info.tcpi_sacked);
  }
  CHECK(places > 100);

  // A client that closes only its sending side must not get status 200 without text.
  const Client half(server.port());
  half.send(post_request("/v1/completions", R"({"prompt": "a", "max_tokens": 40})"));
  half.shut_down();
  const std::string reply = half.receive();
  CHECK((reply.find("200 OK") == std::string::npos || reply.find("choices") != std::string::npos));

  // The server closes the connection of a head without an end long before the 30 s in which a
  // request must arrive.
  const Client endless(server.port());
  endless.send("GET / HTTP/1.1\r\nX: " + std::string(8 << 20, 'h'));
  CHECK(endless.receive_within({.tv_sec = 5, .tv_usec = 0}).find("200") == std::string::npos);
  const auto begin = Clock::now();
  endless.send(std::string(1 << 20, 'h'));
  CHECK(seconds_since(begin) < 5);

  HttpAnswer answer;
  for (int trial = 0; trial < 50 && answer.status != 200; ++trial)
    answer = answer_to(server.port(), post_request("/v1/completions", body + "false}"));
  CHECK(answer.status == 200);
}

TEST_CASE("the command serves until a signal, and refuses what it can't serve", "[serve_http]") {
  const test::TempFolder f(test::fast_folder());
  test::make_tiny_run(f.path());
  REQUIRE(
      test::lathe_in(f, {"train", "tiny.toml", "--train.steps=2", "--train.out_dir=run"}).code ==
      0);
  for (const int signal : {SIGINT, SIGTERM}) {
    const test::Finished done = test::run({.binary = "lathe",
                                           .args = {"serve", "run", "--port", "0"},
                                           .folder = f.path(),
                                           .environment = {},
                                           .signal = signal,
                                           .signal_after = "serving   http://127.0.0.1:"});
    INFO(done.out << done.err);
    CHECK(done.code == 0);
    CHECK_THAT(done.err, ContainsSubstring("answers"));
  }
  const auto refused = [&](std::vector<std::string> args,
                           std::map<std::string, std::string> environment = {}) {
    args.insert(args.begin(), {"serve", "run"});
    return test::run(
        {.binary = "lathe", .args = args, .folder = f.path(), .environment = environment});
  };
  const test::Finished open = refused({"--host", "0.0.0.0", "--port", "0"});
  CHECK(open.code == 2);
  CHECK_THAT(open.err, ContainsSubstring("LATHE_API_KEY"));
  CHECK(refused({"--port", "70000"}).code == 2);
  CHECK(refused({"--batch", "0"}).code == 2);

  for (const char* key : {"two words", "key\n", " key", "schl\u00fcssel"}) {
    const test::Finished unusable = refused({"--port", "0"}, {{"LATHE_API_KEY", key}});
    INFO(key);
    CHECK(unusable.code == 2);
    CHECK_THAT(unusable.err, ContainsSubstring("LATHE_API_KEY"));
  }

  const ServedHere taken;
  const test::Finished busy = refused({"--port", std::to_string(taken.port())});
  CHECK(busy.code == 2);
  CHECK_THAT(busy.err, ContainsSubstring(str("127.0.0.1 port ", taken.port())));
}

}  // namespace
