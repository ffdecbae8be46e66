// Helpers that check error messages.
#pragma once

#include <exception>
#include <regex>
#include <string>

#include "core/error.h"

namespace lathe::test {

/// Returns the message of the exception that f throws, or "" if it throws nothing. If the exception
/// is not a lathe::Error, the message is preceded by "not an Error of ours: ".
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("not an Error of ours: ") + e.what();
  }
  return "";
}

/// Returns whether a message was written for users, rather than inside LibTorch.
inline bool is_sentence(const std::string& message) {
  static const std::regex raw(
      "not an Error of ours|INTERNAL ASSERT|report a bug|c10::|Exception raised|at::");
  return !message.empty() && !std::regex_search(message, raw);
}

}  // namespace lathe::test
