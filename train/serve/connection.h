// An accepted socket, with limits on the time that its client takes. No LibTorch header.
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
    size_t bytes;    ///< of the request, its head and the framing of its body included
    double seconds;  ///< from the construction of this object to the end of the answer
  };

  /// `is_stopping` ends the wait for a request. The socket stays the caller's.
  Connection(int socket, const std::atomic<bool>& is_stopping, const Limits& limits)
      : socket_(socket), is_stopping_(is_stopping), limits_(limits) {}

  int socket() const { return socket_; }
  /// Returns whether the client has closed its end, so that nobody waits for the answer.
  bool is_gone() const;
  /// Returns whether a read would not block.
  bool is_readable() const;
  /// Returns whether a write would not block.
  bool is_writable() const;
  /// Reads at most `size` bytes, as recv() does; -1 where the request is too long or takes too
  /// long.
  ssize_t read(char* to, size_t size);
  /// Writes at most `size` bytes, as send() does; -1 where the client takes nothing,
  /// or not all of the answer in time.
  ssize_t write(const char* from, size_t size);
  /// Ends the answer, and for up to 2 s reads what the client still sends: a connection that is
  /// closed with unread data may lose the answer.
  void finish();

 private:
  int socket_;
  const std::atomic<bool>& is_stopping_;
  const Limits limits_;
  size_t received_ = 0;  // bytes
  Clock::time_point begun_ = Clock::now();
  std::array<char, 4096> buffer_{};
  size_t begin_ = 0, end_ = 0;  // of what was received and not read
};

}  // namespace lathe
