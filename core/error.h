// Defines the errors that users see. An error is a sentence (what happened, where, what to do) and
// an exit code. This header includes no LibTorch header.
#pragma once

#include <initializer_list>
#include <ostream>
#include <stdexcept>
#include <string>

namespace lathe {

/// Exit codes of the binary, documented in docs/reference/exit-codes.md.
enum class Exit : int {
  done = 0,
  internal = 1,
  usage = 2,  ///< wrong command line or config, or a missing device
  data = 3,
  checkpoint = 4,  ///< no usable checkpoint
  diverged = 5,
  io = 6,
  peer_lost = 7,
  busy = 8,  ///< the folder is in use by another process
  memory = 9,
  no_fit = 10,   ///< `lathe plan` found nothing that fits
  stopped = 75,  ///< a signal, train.max_time or train.pause_at stopped the command; a run has
                 ///< written a checkpoint, and resumes when it is started again
};

/// An error with the exit code of the process.
class Error : public std::runtime_error {
 public:
  /// Replaces NUL bytes in `what` by "\x00", since the string of what() would end at the first NUL
  /// byte.
  Error(Exit code, const std::string& what);
  Exit code() const { return code_; }

 private:
  Exit code_;
};

namespace detail {

/// An argument of str(). Only the function that prints the argument knows its type. str() is called
/// with thousands of combinations of types; if the compiler generated stream code for each
/// combination, a tenth of the binary's code would be stream code.
class Printable {
 public:
  Printable(const char* text) : value_(text), print_(&print_text) {}
  template <class T>
  Printable(const T& value)
      : value_(&value),
        print_([](std::ostream& out, const void* v) { out << *static_cast<const T*>(v); }) {}

  void print(std::ostream& out) const { print_(out, value_); }

 private:
  static void print_text(std::ostream& out, const void* text);

  const void* value_;
  void (*print_)(std::ostream&, const void*);
};

std::string joined(std::initializer_list<Printable> parts);
[[noreturn]] void fail_joined(Exit code, std::initializer_list<Printable> parts);

}  // namespace detail

/// Returns the concatenation of the arguments. Each argument is printed by operator<<.
template <class... Args>
std::string str(const Args&... args) {
  return detail::joined({detail::Printable(args)...});
}

/// Throws Error with the exit code `code`. The message is the concatenation of the arguments.
template <class... Args>
[[noreturn]] void fail(Exit code, const Args&... args) {
  detail::fail_joined(code, {detail::Printable(args)...});
}

}  // namespace lathe

/// Throws lathe::Error(Exit::internal) with the message unless the condition holds.
#define LATHE_CHECK(condition, ...)                        \
  do {                                                     \
    if (!(condition)) [[unlikely]]                         \
      ::lathe::fail(::lathe::Exit::internal, __VA_ARGS__); \
  } while (false)
