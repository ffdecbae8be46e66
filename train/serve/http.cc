// Implements the HTTP server of `lathe serve`. Only this file includes cpp-httplib's header.
//
// httplib parses requests and writes answers. It reads and writes through a Connection, because
// httplib's own handling of sockets does not detect that a client has closed the connection while
// its request is computed, and does not limit the time that a request takes to arrive.
#include "train/serve/http.h"

#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/timing.h"
#include "train/serve/access.h"
#include "train/serve/connection.h"
#include "train/serve/page.h"

namespace lathe {
namespace {

using namespace std::chrono_literals;

constexpr auto poll_time = 100ms;

/// Gives httplib access to an accepted socket through a Connection.
class Stream final : public httplib::Stream {
 public:
  explicit Stream(Connection& connection) : connection_(connection) {}

  bool is_readable() const override { return connection_.is_readable(); }
  bool is_writable() const override { return connection_.is_writable(); }
  ssize_t read(char* to, size_t size) override { return connection_.read(to, size); }
  ssize_t write(const char* from, size_t size) override { return connection_.write(from, size); }
  // httplib's interface requires these two functions, but nothing uses the addresses.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  int socket() const override { return connection_.socket(); }

 private:
  Connection& connection_;
};

/// The connection that this thread serves.
thread_local const Connection* current = nullptr;

/// Runs a thread for each connection. At the limit, accepts no further connection until one ends.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t most) : most_(most) {}

  void enqueue(std::function<void()> serve) override {
    {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait(lock, [this] { return state_->threads < most_; });
      ++state_->threads;
    }
    const auto run = [state = state_, serve = std::move(serve)] {
      serve();
      const std::lock_guard lock(state->mutex);
      --state->threads;
      state->changed.notify_all();
    };
    try {
      std::thread(run).detach();
    } catch (const std::exception&) {
      run();  // no thread can be started, so serve the connection on this thread
    }
  }
  void shutdown() override {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->threads == 0; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    size_t threads = 0;
  };

  size_t most_;
  std::shared_ptr<State> state_ = std::make_shared<State>();  // threads may briefly outlive the
                                                              // queue
};

void set_json(httplib::Response& response, int status, const std::string& body) {
  response.status = status;
  response.set_content(body, "application/json");
}

void set_error(httplib::Response& response, const ApiError& error) {
  if (error.status() == 401) response.set_header("WWW-Authenticate", "Bearer");
  if (error.status() == 429 || error.status() == 503) response.set_header("Retry-After", "1");
  set_json(response, error.status(), error.body());
}

/// Calls `action`. If `action` throws an error, answers with that error.
template <class F>
void answer_errors(httplib::Response& response, F&& action) {
  try {
    action();
  } catch (const ApiError& e) {
    set_error(response, e);
  } catch (const std::exception& e) {
    log_warn("a request failed: ", e.what());
    set_error(response, ApiError(500, "the server failed", "internal_error"));
  }
}

/// Returns the error for a request that httplib refused.
ApiError error_of_status(int status) {
  switch (status) {
    case 413: return {413, "the request body is too long", "request_too_large"};
    case 414: return {414, "the request's URL is too long", "url_too_long"};
    case 416: return {416, "lathe serve does not support byte ranges", "no_ranges"};
    case 500: return {500, "the server failed", "internal_error"};
    default: return {status, "the request is not valid HTTP", "invalid_http"};
  }
}

/// Returns the methods that a path supports, in the form of the header Allow; "" for an unknown
/// path.
std::string methods_of(const std::string& path) {
  static const std::map<std::string, std::string> methods{{"/", "GET, HEAD"},
                                                          {"/health", "GET, HEAD"},
                                                          {"/v1/models", "GET, HEAD"},
                                                          {"/v1/completions", "POST"},
                                                          {"/v1/chat/completions", "POST"}};
  if (path.starts_with("/v1/models/")) return "GET, HEAD";
  const auto found = methods.find(path);
  return found == methods.end() ? "" : found->second;
}

}  // namespace

class HttpServer::Impl final : public httplib::Server {
 public:
  Impl(const Service& service, const HttpOptions& options) : service_(service), options_(options) {
    new_task_queue = [most = options.connections] { return new ConnectionThreads(most); };
    set_tcp_nodelay(true);
    // Two servers on one port would be a mistake, so SO_REUSEPORT, httplib's default, is not set.
    set_socket_options([](int socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_payload_max_length(options.max_body);
    set_routes();

    errno = 0;
    if (options.port == 0)
      port_ = bind_to_any_port(options.host);
    else
      port_ = bind_to_port(options.host, options.port) ? options.port : -1;
    if (port_ < 0) {
      fail(Exit::usage, "command line: can't listen on ", options.host, " port ", options.port,
           " (", errno != 0 ? std::strerror(errno) : "unknown host",
           "); give another --host or --port, such as --port 0 for any free port");
    }
    // By default, httplib lets only 5 connections wait to be accepted. A second call of listen()
    // raises this limit.
    constexpr int waiting_connections = 1024;
    if (::listen(svr_sock_, waiting_connections) != 0)
      log_warn("only a few connections can wait to be accepted: ", std::strerror(errno));
  }

  int port() const { return port_; }
  void start() {
    accepting_ = std::thread([this] {
      listen_after_bind();
      has_ended_ = true;
      if (!is_stopping_)
        log_warn("the server can't accept connections any more; stop it and start it again");
    });
  }
  void stop(double grace_s) {
    if (!accepting_.joinable()) return;
    is_stopping_ = true;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::duration<double>(grace_s),
                        [this] { return busy_ == 0; });
      for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
    }
    // httplib's stop() has no effect before the thread accepts connections. The thread may also
    // have ended with an error.
    while (!is_running() && !has_ended_) std::this_thread::sleep_for(1ms);
    httplib::Server::stop();
    accepting_.join();
  }

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  bool process_and_close_socket(int socket) override {
    {
      const std::lock_guard lock(mutex_);
      sockets_.insert(socket);
    }
    // Allow for the head of the request, which is short, and for the framing of a chunked body,
    // which takes at most 5 bytes for each byte of the body.
    Connection connection(
        socket, is_stopping_,
        {.bytes = (64 << 10) + 6 * options_.max_body, .seconds = options_.max_answer_seconds});
    current = &connection;
    Stream stream(connection);
    bool is_busy = false, is_closed = false, done = false;
    try {
      done = process_request(stream, /*close_connection=*/true, is_closed, [&](Request& r) {
        // Ignore ranges: httplib would copy each range that a request names, even repeated ones.
        r.ranges.clear();
        r.headers.erase("Range");
        is_busy = true;
        const std::lock_guard lock(mutex_);
        ++busy_;
      });
    } catch (const std::exception& e) {
      log_warn("a connection failed: ", e.what());
    }
    current = nullptr;

    {
      const std::lock_guard lock(mutex_);
      if (is_busy) --busy_;
      changed_.notify_all();
    }
    connection.finish();
    const std::lock_guard lock(mutex_);
    sockets_.erase(socket);
    ::close(socket);
    return done;
  }

  void set_routes() {
    set_pre_routing_handler([this](const Request& request, Response& response) {
      auto handled = HandlerResponse::Handled;
      answer_errors(response, [&] {
        if (route(request, response)) return;
        handled = HandlerResponse::Unhandled;  // the handlers below read the body
      });
      return handled;
    });
    for (const bool is_chat : {false, true}) {
      Post(is_chat ? "/v1/chat/completions" : "/v1/completions",
           [this, is_chat](const Request& request, Response& response,
                           const httplib::ContentReader& read) {
             answer_errors(response, [&] {
               check_length(request);
               generate(response, read, is_chat);
             });
           });
    }

    set_error_handler([](const Request&, Response& response) {
      if (response.body.empty()) set_error(response, error_of_status(response.status));
    });
    set_exception_handler([](const Request&, Response& response, const std::exception_ptr&) {
      set_error(response, error_of_status(500));
    });
  }

  /// Answers a request without a body and returns true, or checks the headers of a request with a
  /// body and returns false. Throws ApiError for a request that is not allowed.
  bool route(const Request& request, Response& response) const {
    check_host(request);
    const std::string& path = request.path;
    const std::string methods = methods_of(path);
    if (methods.empty())
      throw ApiError(404, "there is no " + path + " here; see docs/guide/serving.md",
                     "unknown_url");
    if (path.starts_with("/v1/")) check_key(request);
    const bool has_body = methods == "POST";
    if (has_body ? request.method != "POST" : request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", methods);
      throw ApiError(405, path + " has no method " + request.method + ", only " + methods,
                     "method_not_allowed");
    }
    if (has_body) {
      check_content_type(request);
      return false;
    }

    if (path == "/") {
      set_page(response);
    } else if (path == "/health") {
      set_json(response, 200, R"({"status":"ok"})");
    } else if (path == "/v1/models") {
      set_json(response, 200, service_.models());
    } else {
      set_json(response, 200, service_.model(path.substr(std::strlen("/v1/models/"))));
    }
    return true;
  }

  /// Throws if no key is required and the header Host does not name this machine. Without this
  /// check, any web page in the user's browser could use the server by DNS rebinding: a host name
  /// of the page's site would resolve to this machine.
  void check_host(const Request& request) const {
    const std::string host = host_without_port(request.get_header_value("Host"));
    if (!options_.key.empty() || host.empty() || is_loopback(host) ||
        host == lowercase(options_.host))
      return;
    throw ApiError(403,
                   "without LATHE_API_KEY, this server accepts only requests to the names of its "
                   "machine, such as localhost",
                   "forbidden_host");
  }
  void check_key(const Request& request) const {
    if (options_.key.empty()) return;
    const std::string header = request.get_header_value("Authorization");
    // The name of a scheme may have any case (RFC 9110, 11.1).
    const std::string scheme = "bearer ";
    const bool has_key = lowercase(header.substr(0, scheme.size())) == scheme &&
                         equals_key(header.substr(scheme.size()), options_.key);
    if (!has_key)
      throw ApiError(401, "the key is missing or wrong; send the header Authorization: Bearer KEY",
                     "invalid_api_key");
  }
  /// Throws unless the content type is JSON. Web pages of other sites can send requests with other
  /// content types without a CORS preflight.
  static void check_content_type(const Request& request) {
    // Media types may have any case (RFC 9110, 8.3.1).
    const std::string type = lowercase(request.get_header_value("Content-Type"));
    if (type.substr(0, type.find_first_of("; \t")) != "application/json")
      throw ApiError(415, "the body must be JSON; send the header Content-Type: application/json",
                     "not_json");
  }

  /// Throws if the headers show that the request has no body, or that the body is too long.
  void check_length(const Request& request) const {
    if (lowercase(request.get_header_value("Transfer-Encoding")) == "chunked") return;
    const std::string text = request.get_header_value("Content-Length");
    if (text.empty())
      throw ApiError(411, "the request needs the header Content-Length", "no_length");
    const bool is_number =
        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number)
      throw ApiError(400, "the header Content-Length is not a number", "invalid_http");
    if (text.size() > 18 || std::stoull(text) > options_.max_body) throw_too_long();
  }
  [[noreturn]] void throw_too_long() const {
    throw ApiError(413, str("the request body has more than ", options_.max_body, " bytes"),
                   "request_too_large");
  }

  static void set_page(Response& response) {
    response.status = 200;
    response.set_header(
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cache-Control", "no-cache");
    response.set_content(chat_page, "text/html; charset=utf-8");
  }

  void generate(Response& response, const httplib::ContentReader& read, bool is_chat) const {
    std::string body;
    bool is_too_long = false;
    const bool is_complete = read([&](const char* data, size_t size) {
      is_too_long = body.size() + size > options_.max_body;
      if (!is_too_long) body.append(data, size);
      return !is_too_long;
    });
    if (is_too_long || response.status == 413) throw_too_long();
    if (!is_complete) throw ApiError(400, "the request body is not complete", "invalid_http");

    const std::shared_ptr<Reply> reply = service_.start(body, is_chat);
    response.status = 200;
    if (reply->streams()) return stream(response, reply);
    while (!reply->wait_for(poll_time)) {
      if (current->is_gone()) break;
    }
    // If the client is gone, cancel() drops the request.
    const auto whole = current->is_gone() ? std::nullopt : reply->whole();
    reply->cancel();
    // A client that only closed its sending side can still read this answer.
    if (!whole)
      throw ApiError(499, "the client closed its side of the connection", "client_closed");
    response.set_content(*whole, "application/json");
  }

  static void stream(Response& response, const std::shared_ptr<Reply>& reply) {
    response.set_header("Cache-Control", "no-cache");
    response.set_header("X-Accel-Buffering", "no");  // otherwise nginx buffers the events
    response.set_chunked_content_provider(
        "text/event-stream",
        [reply](size_t, httplib::DataSink& sink) {
          if (current->is_gone()) return false;
          if (!reply->wait_for(poll_time)) return true;
          const std::string events = reply->take_events();
          if (!events.empty() && !sink.write(events.data(), events.size())) return false;
          if (reply->is_over()) sink.done();
          return true;
        },
        [reply](bool) { reply->cancel(); });
  }

  const Service& service_;
  const HttpOptions options_;
  int port_ = -1;
  std::thread accepting_;
  std::atomic<bool> is_stopping_{false}, has_ended_{false};

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::set<int> sockets_;  // open connections
  size_t busy_ = 0;        // number of requests that are being answered
};

HttpServer::HttpServer(const Service& service, const HttpOptions& options)
    : impl_(std::make_unique<Impl>(service, options)) {}
HttpServer::~HttpServer() { stop(0); }
int HttpServer::port() const { return impl_->port(); }
void HttpServer::start() { impl_->start(); }
void HttpServer::stop(double grace_s) { impl_->stop(grace_s); }

}  // namespace lathe
