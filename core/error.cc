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

void detail::fail_joined(Exit code, std::initializer_list<Printable> parts) {
  throw Error(code, joined(parts));
}

}  // namespace lathe
