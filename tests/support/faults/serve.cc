#include "tests/support/faults/serve.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

extern char** environ;

namespace lathe::test {
namespace {

struct Request {
  std::string text;
  std::array<int, 3> fds{-1, -1, -1};  // standard output, standard error, answer
};

/// Receives the next request. Returns false once the other end is closed.
bool receive(int socket, Request& request) {
  request.text.resize(size_t{1} << 20);
  iovec part{request.text.data(), request.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof request.fds)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(socket, &message, 0);
  if (n <= 0 || CMSG_FIRSTHDR(&message) == nullptr) return false;
  request.text.resize(static_cast<size_t>(n));
  std::memcpy(request.fds.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof request.fds);
  return true;
}

[[noreturn]] void run_here(Request& request, int (*run)(int, char**)) {
  std::vector<char*> fields;
  for (size_t at = 0; at < request.text.size(); at = request.text.find('\0', at) + 1) {
    fields.push_back(request.text.data() + at);
  }
  if (fields[0][0] != 0 && ::chdir(fields[0]) != 0) ::_exit(127);
  ::dup2(request.fds[0], STDOUT_FILENO);
  ::dup2(request.fds[1], STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  const auto n = std::atoi(fields[1]);
  std::vector<char*> words(fields.begin() + 2, fields.begin() + 2 + n),
      settings(fields.begin() + 2 + n, fields.end());
  words.push_back(nullptr);
  settings.push_back(nullptr);
  environ = settings.data();
  const int code = run(n, words.data());
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

void serve(int socket, int (*run)(int, char**)) {
  for (Request request; receive(socket, request);) {
    // The first child waits for the command's process, so that this loop can serve other requests.
    if (::fork() == 0) {
      ::close(socket);
      const pid_t pid = ::fork();
      if (pid == 0) run_here(request, run);
      ::close(request.fds[0]);
      ::close(request.fds[1]);
      int answer[2]{pid, 0};
      (void)!::write(request.fds[2], &answer[0], sizeof answer[0]);
      ::waitpid(pid, &answer[1], 0);
      (void)!::write(request.fds[2], &answer[1], sizeof answer[1]);
      ::_exit(0);
    }
    for (const int fd : request.fds) ::close(fd);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  while (::wait(nullptr) > 0) {
  }
}

}  // namespace lathe::test
