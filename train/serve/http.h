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
  int port = 8000;            ///< 0: any that is free
  std::string key{};          ///< what requests to /v1/ must be authorized with; empty: nothing
  size_t max_body = 1 << 20;  ///< bytes
  size_t connections = 256;   ///< at a time; others wait to be accepted
  double most_seconds = 690;  ///< from a connection to the end of its answer
};

/// The server. Each connection has a thread and serves one request, so that a client cancels its
/// request by closing the connection.
class HttpServer {
 public:
  /// Binds the address. Throws Exit::usage if that is impossible. The service must outlive the
  /// server.
  HttpServer(const Service& service, const HttpOptions& options);
  /// Stops as stop() does.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Returns the port that it is bound to.
  int port() const;
  /// Accepts requests from now on, on threads of its own. Call it once.
  void start();
  /// Waits up to `grace_s` seconds for answers that are being written, ends all connections and
  /// stops accepting. The scheduler must have ended all requests.
  void stop(double grace_s);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
