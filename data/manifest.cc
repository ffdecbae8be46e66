#include "data/manifest.h"

#include <string_view>

#include "core/io/checksum.h"
#include "core/io/json.h"

namespace lathe {
namespace {

Json shards_json(const std::vector<ShardInfo>& shards) {
  Json out = Json::array();
  for (const auto& s : shards) out.push_back({{"file", s.file}, {"tokens", s.tokens}, {"xxh3", s.xxh3}});
  return out;
}

std::vector<ShardInfo> read_shards(const Json& json, const char* key, const std::string& where) {
  constexpr int64_t most = int64_t{1} << 60;  // tokens of a split, so that sums and bytes can be counted
  std::vector<ShardInfo> out;
  const auto list = json_get<Json>(json, key, where, Exit::data);
  if (!list.is_array()) fail(Exit::data, where, ": \"", key, "\" must be a list of shards");
  int64_t left = most;
  for (const auto& s : list) {
    ShardInfo info{json_get<std::string>(s, "file", where, Exit::data),
                   json_whole(s, "tokens", 0, left, where, Exit::data),
                   json_get<std::string>(s, "xxh3", where, Exit::data)};
    if (info.file.empty() || info.file.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
      fail(Exit::data, where, ": a shard with a bad name");
    left -= info.tokens;
    out.push_back(std::move(info));
  }
  return out;
}

/// Of all that the manifest holds beside it.
std::string own_checksum(Json json) {
  json.erase("checksum");
  const std::string text = json.dump();
  Checksum sum;
  sum.update(text.data(), text.size());
  return sum.hex();
}

}  // namespace

void write_manifest(const fs::path& folder, const DataManifest& m, const std::string& name) {
  Json json{{"format", "lathe-data-1"},   {"tokenizer", m.tokenizer.kind()},
            {"vocab_size", m.vocab_size}, {"largest_id", m.largest_id},
            {"dtype", m.dtype},           {"train", shards_json(m.train)},
            {"val", shards_json(m.val)}};
  if (m.tokenizer.kind() == "char") json["vocabulary"] = m.tokenizer.vocabulary();
  json["checksum"] = own_checksum(json);
  write_file_durably(folder / name, json.dump(1) + "\n");
}

std::optional<DataManifest> read_manifest(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  if (!fs::exists(path)) return std::nullopt;
  const std::string where = path.string();
  const Json json = parse_json(read_file(path, Exit::data, uint64_t{64} << 20), where, Exit::data);
  if (json_get<std::string>(json, "format", where, Exit::data) != "lathe-data-1") {
    fail(Exit::data, where, ": a format that this build does not know; make the data again with `lathe prepare`");
  }
  DataManifest m;
  std::vector<std::string> vocabulary;
  const auto kind = json_get<std::string>(json, "tokenizer", where, Exit::data);
  if (kind == "char") vocabulary = json_get<std::vector<std::string>>(json, "vocabulary", where, Exit::data);
  try {
    m.tokenizer = Tokenizer::from(kind, vocabulary);
  } catch (const Error& e) {
    fail(Exit::data, where, ": ", e.what());
  }
  m.vocab_size = json_whole(json, "vocab_size", 1, max_vocab_size, where, Exit::data);
  m.largest_id = json_whole(json, "largest_id", 0, max_vocab_size, where, Exit::data);
  m.dtype = json_get<std::string>(json, "dtype", where, Exit::data);
  if (m.dtype != "uint16" && m.dtype != "uint32")
    fail(Exit::data, where, ": dtype \"", m.dtype, "\" is not uint16 or uint32");
  if (m.largest_id >= m.vocab_size) {
    fail(Exit::data, where, ": vocab_size ", m.vocab_size, " does not cover the largest id ", m.largest_id);
  }
  if (m.tokenizer.size() > m.vocab_size) {
    fail(Exit::data, where, ": vocab_size ", m.vocab_size, " is less than the tokenizer's ", m.tokenizer.size());
  }
  m.train = read_shards(json, "train", where);
  m.val = read_shards(json, "val", where);
  // Absent in manifests of earlier builds.
  if (json.contains("checksum") && json_get<std::string>(json, "checksum", where, Exit::data) != own_checksum(json)) {
    fail(Exit::data, where,
         " is not what was written: its own checksum differs; restore it, or make the data again with `lathe prepare`");
  }
  return m;
}

}  // namespace lathe
