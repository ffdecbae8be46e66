// Declares the HTTP server of `lathe serve`, which uses cpp-httplib.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "train/serve/service.h"

namespace lathe {

/// The parameters of the server.
struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;            ///< port to listen on; 0: any free port
  std::string key{};          ///< key that requests to /v1/ must send; empty: no key is needed
  size_t max_body = 1 << 20;  ///< largest request body, in bytes
  size_t connections = 256;  ///< largest number of open connections; further connections wait to be
                             ///< accepted
  double max_answer_seconds = 690;  ///< longest time from accepting a connection to the end of its
                                    ///< answer
};

/// Serves requests over HTTP. Each connection has a thread and serves one request, so that a client
/// can cancel its request by closing the connection.
class HttpServer {
 public:
  /// Binds the address. Throws Exit::usage if the address can't be bound. The service must outlive
  /// the server.
  HttpServer(const Service& service, const HttpOptions& options);
  /// Calls stop() without a grace time.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Returns the port that the server is bound to.
  int port() const;
  /// Starts threads that accept and serve requests, and returns. Call it once.
  void start();
  /// Waits up to `grace_s` seconds for answers that are being written, ends all connections and
  /// stops accepting. Call it after the scheduler has ended all requests.
  void stop(double grace_s);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
