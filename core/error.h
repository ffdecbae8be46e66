// Errors that a user sees: one sentence (what, where, what to do) and an exit code. No LibTorch header here.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace lathe {

/// Exit codes of the binary, documented in README.md.
enum class Exit : int {
  done = 0,
  internal = 1,
  usage = 2,  ///< command line, config, or a device that is not there
  data = 3,
  checkpoint = 4,  ///< no usable checkpoint
  diverged = 5,
  io = 6,
  peer_lost = 7,
  busy = 8,  ///< run folder in use by another process
  memory = 9,
  stopped = 75,  ///< a signal or time limit, with a checkpoint written: run it again to go on
};

class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& what) : std::runtime_error(what), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

/// Concatenates its arguments as operator<< prints them.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// Throws Error with that exit code and its arguments put together as a sentence.
template <class... Args>
[[noreturn]] void fail(Exit code, const Args&... args) {
  throw Error(code, str(args...));
}

}  // namespace lathe

/// Throws lathe::Error(Exit::internal) with the message unless the condition holds.
#define LATHE_CHECK(condition, ...)                        \
  do {                                                     \
    if (!(condition)) [[unlikely]]                         \
      ::lathe::fail(::lathe::Exit::internal, __VA_ARGS__); \
  } while (false)
