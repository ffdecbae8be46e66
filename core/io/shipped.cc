#include "core/io/shipped.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace lathe {

namespace fs = std::filesystem;

std::string shipped_file(const std::string& name) {
  std::error_code error;
  if (fs::exists(name, error)) return name;

  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&shipped_file), &self) == 0) return name;
  const std::string place =
      name.starts_with("docs/") ? "doc/lathe/" + name.substr(5) : "lathe/" + name;

  // The library is in PREFIX/lib, or in PREFIX/lib/x86_64-linux-gnu.
  const fs::path folder = fs::canonical(self.dli_fname, error).parent_path();
  for (const fs::path& prefix : {folder.parent_path(), folder.parent_path().parent_path()}) {
    const fs::path found = prefix / "share" / place;
    if (fs::exists(found, error)) return found.string();
  }
  return name;
}

std::string with_shipped_files(const std::string& text) {
  std::string out;
  size_t done = 0;
  for (size_t at = 0; (at = text.find("configs/", done)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    out += text.substr(done, at - done) + shipped_file(text.substr(at, end - at));
    done = end;
  }
  return out + text.substr(done);
}

}  // namespace lathe
