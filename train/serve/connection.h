// Declares an accepted socket with limits on the time that its client takes. Includes no LibTorch
// header.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "core/timing.h"

namespace lathe {

/// A connection that takes one request. The request must arrive within 30 s, a write must make
/// progress within 30 s, and the client must have read the answer within Limits::seconds.
class Connection {
 public:
  struct Limits {
    size_t bytes;    ///< largest size of a request, including its head and the framing of its body
    double seconds;  ///< longest time from the construction of this object to the end of the answer
  };

  /// When `is_stopping` becomes true, the wait for a request ends. The caller still owns the
  /// socket, and closes it.
  Connection(int socket, const std::atomic<bool>& is_stopping, const Limits& limits)
      : socket_(socket), is_stopping_(is_stopping), limits_(limits) {}

  int socket() const { return socket_; }
  /// Returns whether the client has closed its end of the connection.
  bool is_gone() const;
  /// Returns whether a read would not block.
  bool is_readable() const;
  /// Returns whether a write would not block.
  bool is_writable() const;
  /// Reads at most `size` bytes, as recv() does. Returns -1 if the request is too long or takes too
  /// long.
  ssize_t read(char* to, size_t size);
  /// Writes at most `size` bytes, as send() does. Returns -1 if the client reads nothing for 30 s,
  /// or has not read the complete answer in time.
  ssize_t write(const char* from, size_t size);
  /// Ends the answer. Then reads, for up to 2 s, data that the client still sends, because closing
  /// a connection with unread data may lose the answer.
  void finish();

 private:
  int socket_;
  const std::atomic<bool>& is_stopping_;
  const Limits limits_;
  size_t received_ = 0;  // number of bytes that were read from the socket
  Clock::time_point begun_ = Clock::now();
  std::array<char, 4096> buffer_{};
  size_t begin_ = 0, end_ = 0;  // the range of bytes in buffer_ that were not read yet
};

}  // namespace lathe
