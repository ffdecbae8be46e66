#include "nn/module.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "core/dtype.h"
#include "core/error.h"

namespace lathe {

int64_t count(const std::vector<NamedParameter>& parameters) {
  int64_t n = 0;
  for (const auto& p : parameters) n += p.parameter.numel();
  return n;
}

std::string parameter_table(const std::vector<NamedParameter>& parameters) {
  size_t width = 5;
  for (const auto& p : parameters) width = std::max(width, p.path.size());
  std::ostringstream out;
  const auto line = [&](const std::string& name, const std::string& shape, int64_t n) {
    out << name << std::string(width + 2 - name.size(), ' ') << shape
        << std::string(shape.size() < 16 ? 16 - shape.size() : 1, ' ') << n << "\n";
  };
  for (const auto& p : parameters) line(p.path, describe(p.parameter.sizes()), p.parameter.numel());
  line("total", "", count(parameters));
  return out.str();
}

void check_shape(const char* layer, const at::Tensor& x, std::string_view spec, std::initializer_list<Bound> bound) {
  std::map<char, int64_t> sizes;
  for (const auto& b : bound) sizes[b.name] = b.size;
  size_t dim = 0;
  bool fits = true;
  for (char c : spec) {
    if (c == ' ') continue;
    if (dim >= static_cast<size_t>(x.dim())) {
      fits = false;
      break;
    }
    const int64_t size = x.size(static_cast<int64_t>(dim++));
    fits = fits && sizes.emplace(c, size).first->second == size;
  }
  if (fits && dim == static_cast<size_t>(x.dim())) return;
  std::string wanted;
  for (char c : spec) {
    if (c == ' ') continue;
    wanted += wanted.empty() ? "" : ",";
    wanted += c;
    for (const auto& b : bound) {
      if (b.name == c) wanted += "=" + std::to_string(b.size);
    }
  }
  fail(Exit::internal, layer, ": expected an input of shape [", wanted, "], got ", describe(x));
}

}  // namespace lathe
