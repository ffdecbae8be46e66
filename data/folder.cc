#include "data/folder.h"

#include <algorithm>
#include <string_view>

#include "core/io/checksum.h"
#include "core/io/text.h"

namespace lathe {
namespace {

constexpr uint64_t most_manifest_bytes = uint64_t{1} << 30;

std::string own_checksum(Json json) {
  json.erase("checksum");
  const std::string text = json_text(json);
  Checksum sum;
  sum.update(text.data(), text.size());
  return sum.hex();
}

}  // namespace

void write_manifest_json(const fs::path& folder, Json json, const std::string& name) {
  json["checksum"] = own_checksum(json);
  const std::string text = json_text(json, 1) + "\n";
  if (text.size() > most_manifest_bytes) {
    fail(Exit::usage, (folder / name).string(), " would have ", text.size(),
         " bytes, and the limit is ", most_manifest_bytes,
         "; for arrays of large examples, --shape with three sizes gives one mean for each channel "
         "instead of one for each element");
  }
  write_file_durably(folder / name, text);
}

std::optional<Json> read_manifest_json(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  if (!fs::exists(path)) return std::nullopt;
  Json json =
      parse_json(read_file(path, Exit::data, most_manifest_bytes), path.string(), Exit::data);
  if (!json.is_object())
    fail(Exit::data, path.string(), " holds no JSON object; make the data again");
  return json;
}

void check_data_format(const Json& json, const char* known, const std::string& where) {
  const auto format = json.find("format");
  if (format != json.end() && *format == known) return;
  fail(Exit::data, where, ": the format is ",
       format == json.end() ? "missing" : printable_line(format->dump().substr(0, 100)),
       ", and this build reads \"", known, "\"; make the data again with `lathe prepare`");
}

void check_manifest_checksum(const Json& json, const std::string& where) {
  if (json.contains("checksum") &&
      json_get<std::string>(json, "checksum", where, Exit::data) != own_checksum(json)) {
    fail(Exit::data, where,
         " is damaged: its own checksum differs; restore it, or make the data again "
         "with `lathe prepare`");
  }
}

std::string kind_of_data(const fs::path& folder) {
  const auto manifest = read_manifest_json(folder);
  if (!manifest || !manifest->contains("kind")) return "tokens";
  return json_get<std::string>(*manifest, "kind", (folder / "manifest.json").string(), Exit::data);
}

std::string manifest_file(const Json& json, const char* key, const std::string& where) {
  const auto name = json_get<std::string>(json, key, where, Exit::data);
  if (name.empty() || name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
    fail(Exit::data, where, ": \"", key, "\" is not the name of a file in the same folder");
  return name;
}

std::string sampled_checksum(std::span<const std::byte> bytes, size_t pieces) {
  constexpr size_t piece = 1 << 20;
  LATHE_CHECK(pieces >= 2, "a sampled checksum takes the first and the last piece");
  Checksum sum;
  if (bytes.size() <= piece * pieces) {
    sum.update(bytes.data(), bytes.size());
  } else {
    for (size_t i = 0; i < pieces; ++i)
      sum.update(bytes.data() + i * ((bytes.size() - piece) / (pieces - 1)), piece);
  }
  return sum.hex();
}

void verify_file(const MappedFile& file, const std::string& xxh3,
                 const std::function<bool()>& stop) {
  constexpr size_t part = size_t{16} << 20;
  const std::string name = file.path().string();
  if (xxh3.empty())
    fail(Exit::data, name, " can't be verified: there is no manifest.json with its checksum");
  Checksum sum;
  for (size_t at = 0; at < file.bytes().size(); at += part) {
    if (stop && stop()) fail(Exit::stopped, "stopped while ", name, " was being verified");
    const auto bytes = file.bytes().subspan(at, std::min(part, file.bytes().size() - at));
    sum.update(bytes.data(), bytes.size());
    file.release(bytes);
  }
  if (sum.hex() != xxh3) {
    fail(Exit::data, name, " is damaged: its checksum is ", sum.hex(), ", manifest.json has ", xxh3,
         "; restore it, or make the data again with `lathe prepare`");
  }
}

}  // namespace lathe
