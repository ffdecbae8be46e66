#include "core/error.h"

#include <sstream>

namespace lathe {

void detail::Printable::print_text(std::ostream& out, const void* text) {
  out << static_cast<const char*>(text);
}

std::string detail::joined(std::initializer_list<Printable> parts) {
  std::ostringstream out;
  for (const Printable& part : parts) part.print(out);
  return out.str();
}

namespace {

std::string without_nul(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (c == '\0')
      shown += "\\x00";
    else
      shown += c;
  }
  return shown;
}

}  // namespace

Error::Error(Exit code, const std::string& what)
    : std::runtime_error(without_nul(what)), code_(code) {}

void detail::fail_joined(Exit code, std::initializer_list<Printable> parts) {
  throw Error(code, joined(parts));
}

}  // namespace lathe
