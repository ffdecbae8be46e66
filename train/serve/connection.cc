#include "train/serve/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "core/io/file.h"

namespace lathe {
namespace {

constexpr double arrival_s = 30, linger_s = 2;
constexpr int poll_ms = 100, write_ms = 30'000;

bool is_ready(int socket, short events, int most_ms) {
  pollfd p{.fd = socket, .events = events, .revents = 0};
  return ::poll(&p, 1, most_ms) > 0;
}

}  // namespace

bool Connection::is_gone() const { return is_ready(socket_, POLLRDHUP, 0); }

bool Connection::is_readable() const { return begin_ < end_ || is_ready(socket_, POLLIN, 0); }

bool Connection::is_writable() const { return is_ready(socket_, POLLOUT, 0); }

ssize_t Connection::read(char* to, size_t size) {
  if (begin_ == end_) {
    while (!is_ready(socket_, POLLIN, poll_ms)) {
      if (is_stopping_ || seconds_since(begun_) > arrival_s) return -1;
    }
    const ssize_t n =
        retry_interrupted([&] { return ::recv(socket_, buffer_.data(), buffer_.size(), 0); });
    if (n <= 0) return n;
    received_ += static_cast<size_t>(n);
    if (seconds_since(begun_) > arrival_s || received_ > limits_.bytes) return -1;
    begin_ = 0;
    end_ = static_cast<size_t>(n);
  }
  const size_t n = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, n);
  begin_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t Connection::write(const char* from, size_t size) {
  if (seconds_since(begun_) > limits_.seconds || !is_ready(socket_, POLLOUT, write_ms)) return -1;
  return retry_interrupted([&] { return ::send(socket_, from, size, MSG_NOSIGNAL); });
}

void Connection::finish() {
  ::shutdown(socket_, SHUT_WR);
  const auto begin = Clock::now();
  while (seconds_since(begin) < linger_s && !is_stopping_) {
    const bool is_ended = is_ready(socket_, POLLIN, poll_ms) &&
                          ::recv(socket_, buffer_.data(), buffer_.size(), 0) <= 0;
    if (is_ended) return;
  }
}

}  // namespace lathe
