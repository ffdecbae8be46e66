// Runs a server in the test's process with a small model, and implements a client for it.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/io/json.h"
#include "nn/init.h"
#include "nn/models/llama.h"
#include "tests/support/catch.h"
#include "tests/support/tokenizers.h"
#include "train/serve/http.h"
#include "train/tasks/generate.h"

namespace lathe::test {

inline constexpr int64_t served_context = 48;

/// Returns a tokenizer of the 256 bytes, ChatML's tokens and the token <|endoftext|>.
inline const Tokenizer& served_tokenizer() {
  static const Tokenizer tokenizer =
      byte_tokenizer_with({"<|im_start|>", "<|im_end|>", "<|endoftext|>"});
  return tokenizer;
}

/// Returns a small Llama model whose weights are so large that the generated tokens depend on the
/// context.
inline const Model& served_model() {
  static const std::unique_ptr<Model> model = [] {
    LlamaConfig config;
    config.n_layer = 2;
    config.n_head = 4;
    config.n_kv_head = 2;
    config.n_embd = 32;
    config.block_size = served_context;
    config.vocab_size = served_tokenizer().size();
    Llama llama(config);
    initialize(llama, Init::gpt2, /*seed=*/3, config.n_layer);
    for (const auto& p : parameters(llama)) p.parameter.data().mul_(6);
    return std::make_unique<lathe::detail::ModelOf<Llama>>(std::move(llama));
  }();
  return *model;
}

inline SchedulerOptions scheduler_options(int64_t texts, size_t queue) {
  return {.batch = {.texts = texts, .capacity = served_context, .context = served_context},
          .queue = queue};
}

/// Returns the tokens that `generate` produces for `n` texts that have the same prompt.
inline std::vector<std::vector<int64_t>> generated(const std::vector<int64_t>& ids,
                                                   const Sampling& sampling, int64_t tokens,
                                                   int64_t n = 1) {
  GenerateOptions options{.context = served_context, .tokens = tokens, .sampling = sampling};
  return generate(served_model(), {static_cast<size_t>(n), ids}, options);
}

/// A server in this process, on a free port. If `runs` is false, the server generates no text until
/// run() is called. `max_time`: the number of seconds that a request may take. `tokenizer` must
/// have as many tokens as served_tokenizer().
class ServedHere {
 public:
  explicit ServedHere(HttpOptions http = {}, size_t queue = 64, bool runs = true,
                      double max_time = 600, const Tokenizer& tokenizer = served_tokenizer())
      : scheduler_(served_model(), scheduler_options(4, queue)),
        service_({.name = "small",
                  .tokenizer = tokenizer,
                  .context = served_context,
                  .max_time = max_time},
                 scheduler_) {
    http.port = 0;
    server_ = std::make_unique<HttpServer>(service_, http);
    server_->start();
    if (runs) run();
  }
  ~ServedHere() {
    stops_ = true;
    if (!runs_.joinable()) run();
    runs_.join();
    server_->stop(5);
  }

  /// Starts the scheduler, which answers requests.
  void run() {
    runs_ = std::thread([this] { scheduler_.run([this] { return stops_.load(); }, 10); });
  }
  int port() const { return server_->port(); }

 private:
  Scheduler scheduler_;
  Service service_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<bool> stops_{false};
  std::thread runs_;
};

/// A connection to a port of this machine, closed on destruction.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // the server has closed the connection
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  /// Closes the sending side of this connection.
  void shut_down() const { ::shutdown(socket_, SHUT_WR); }
  /// Waits for data and returns it. Returns "" if the server has closed the connection.
  std::string receive() const {
    std::string part(4096, '\0');
    const ssize_t n = ::recv(socket_, part.data(), part.size(), 0);
    part.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return part;
  }
  /// Does the same as receive(), but also returns "" if nothing arrives within `most`.
  std::string receive_within(timeval most) const {
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    return receive();
  }

 private:
  int socket_;
};

/// The answer to an HTTP request. `body` is the complete body, even if the server sent it in
/// chunks. `status` is 0 if there was no answer.
struct HttpAnswer {
  int status = 0;
  std::string head, body;
  Json json() const { return parse_json(body, "the answer", Exit::internal); }
};

/// Sends a request, and returns the answer once the server has closed the connection.
inline HttpAnswer answer_to(int port, const std::string& request) {
  const Client client(port);
  client.send(request);
  std::string all;
  for (std::string part; !(part = client.receive()).empty();) all += part;

  HttpAnswer answer;
  const size_t end = all.find("\r\n\r\n");
  if (end == std::string::npos) return answer;
  answer.head = all.substr(0, end + 2);
  answer.status = std::stoi(answer.head.substr(9, 3));
  answer.body = all.substr(end + 4);
  if (answer.head.find("Transfer-Encoding: chunked") == std::string::npos) return answer;

  std::string joined;
  for (size_t at = 0; at < answer.body.size();) {
    const size_t line = answer.body.find("\r\n", at);
    const size_t size = std::stoul(answer.body.substr(at, line - at), nullptr, 16);
    joined += answer.body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  answer.body = joined;
  return answer;
}

inline std::string get_request(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}
inline std::string post_request(const std::string& path, const std::string& body,
                                const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
inline HttpAnswer complete(int port, const Json& body) {
  return answer_to(port, post_request("/v1/completions", json_text(body)));
}
inline HttpAnswer chat(int port, const Json& body) {
  return answer_to(port, post_request("/v1/chat/completions", json_text(body)));
}

/// Returns the events of a stream without the event [DONE]. [DONE] must be the last event.
inline std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  std::string rest = body;
  for (size_t end = 0; (end = rest.find("\n\n")) != std::string::npos; rest.erase(0, end + 2)) {
    REQUIRE(rest.starts_with("data: "));
    const std::string data = rest.substr(6, end - 6);
    if (data == "[DONE]") {
      CHECK(rest.size() == end + 2);
      return events;
    }
    events.push_back(Json::parse(data));  // Lathe's own parser would refuse so many nested levels
  }
  events.emplace_back("no [DONE]");
  return events;
}

}  // namespace lathe::test
