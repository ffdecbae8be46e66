// The HTTP server of `lathe serve`, on cpp-httplib.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "train/serve/service.h"

namespace lathe {

/// The parameters of the server.
struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                  ///< 0: any free port
  std::string key{};                ///< key that requests to /v1/ must send; empty: none is needed
  size_t max_body = 1 << 20;        ///< largest request body, in bytes
  size_t connections = 256;         ///< largest number at a time; others wait to be accepted
  double max_answer_seconds = 690;  ///< limit from accepting a connection to the end of its answer
};

/// The server. Each connection has a thread and serves one request, so that a client cancels its
/// request by closing the connection.
class HttpServer {
 public:
  /// Binds the address. Throws Exit::usage if the address can't be bound. The service must outlive
  /// the server.
  HttpServer(const Service& service, const HttpOptions& options);
  /// Stops as stop() does.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Returns the port that the server is bound to.
  int port() const;
  /// Starts to accept requests on threads of its own, and returns. Call it once.
  void start();
  /// Waits up to `grace_s` seconds for answers that are being written, ends all connections and
  /// stops accepting. The scheduler must have ended all requests.
  void stop(double grace_s);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
