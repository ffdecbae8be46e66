#include "data/manifest.h"

#include "core/io/json.h"

namespace lathe {
namespace {

Json shards_json(const std::vector<ShardInfo>& shards) {
  Json out = Json::array();
  for (const auto& s : shards) out.push_back({{"file", s.file}, {"tokens", s.tokens}, {"xxh3", s.xxh3}});
  return out;
}

std::vector<ShardInfo> read_shards(const Json& json, const char* key, const std::string& where) {
  std::vector<ShardInfo> out;
  for (const auto& s : json_get<Json>(json, key, where, Exit::data)) {
    ShardInfo info{json_get<std::string>(s, "file", where, Exit::data),
                   json_get<int64_t>(s, "tokens", where, Exit::data),
                   json_get<std::string>(s, "xxh3", where, Exit::data)};
    if (info.file.find('/') != std::string::npos || info.tokens < 0)
      fail(Exit::data, where, ": a shard with a bad name or size");
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace

void write_manifest(const fs::path& folder, const DataManifest& m) {
  Json json{{"format", "lathe-data-1"},   {"tokenizer", m.tokenizer.kind()},
            {"vocab_size", m.vocab_size}, {"largest_id", m.largest_id},
            {"dtype", m.dtype},           {"train", shards_json(m.train)},
            {"val", shards_json(m.val)}};
  if (m.tokenizer.kind() == "char") json["vocabulary"] = m.tokenizer.vocabulary();
  write_file_durably(folder / "manifest.json", json.dump(1) + "\n");
}

std::optional<DataManifest> read_manifest(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  if (!fs::exists(path)) return std::nullopt;
  const std::string where = path.string();
  const Json json = parse_json(read_file(path, Exit::data), where, Exit::data);
  if (json_get<std::string>(json, "format", where, Exit::data) != "lathe-data-1") {
    fail(Exit::data, where, ": a format that this build does not know; make the data again with `lathe prepare`");
  }
  DataManifest m;
  std::vector<std::string> vocabulary;
  const auto kind = json_get<std::string>(json, "tokenizer", where, Exit::data);
  if (kind == "char") vocabulary = json_get<std::vector<std::string>>(json, "vocabulary", where, Exit::data);
  m.tokenizer = Tokenizer::from(kind, vocabulary);
  m.vocab_size = json_get<int64_t>(json, "vocab_size", where, Exit::data);
  m.largest_id = json_get<int64_t>(json, "largest_id", where, Exit::data);
  m.dtype = json_get<std::string>(json, "dtype", where, Exit::data);
  if (m.dtype != "uint16" && m.dtype != "uint32")
    fail(Exit::data, where, ": dtype \"", m.dtype, "\" is not uint16 or uint32");
  if (m.vocab_size < 1 || m.largest_id >= m.vocab_size) {
    fail(Exit::data, where, ": vocab_size ", m.vocab_size, " does not cover the largest id ", m.largest_id);
  }
  m.train = read_shards(json, "train", where);
  m.val = read_shards(json, "val", where);
  return m;
}

}  // namespace lathe
