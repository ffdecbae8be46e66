#include "data/tokens/manifest.h"

#include <utility>

#include "core/io/json.h"
#include "data/folder.h"

namespace lathe {
namespace {

Json shards_json(const std::vector<ShardInfo>& shards) {
  Json out = Json::array();
  for (const auto& s : shards)
    out.push_back({{"file", s.file}, {"tokens", s.tokens}, {"xxh3", s.xxh3}});
  return out;
}

std::vector<ShardInfo> read_shards(const Json& json, const char* key, const std::string& where) {
  // Limit the tokens of a split, so that sums and byte counts fit in int64.
  constexpr int64_t most = int64_t{1} << 60;
  std::vector<ShardInfo> out;
  const auto list = json_get<Json>(json, key, where, Exit::data);
  if (!list.is_array()) fail(Exit::data, where, ": \"", key, "\" must be a list of shards");

  int64_t left = most;
  for (const auto& s : list) {
    ShardInfo info{.file = manifest_file(s, "file", where),
                   .tokens = json_integer(s, "tokens", 0, left, where, Exit::data),
                   .xxh3 = json_get<std::string>(s, "xxh3", where, Exit::data)};
    left -= info.tokens;
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace

void write_manifest(const fs::path& folder, const DataManifest& m, const std::string& name) {
  Json json{{"format", "lathe-data-1"},   {"tokenizer", m.tokenizer.kind()},
            {"vocab_size", m.vocab_size}, {"largest_id", m.largest_id},
            {"dtype", m.dtype},           {"train", shards_json(m.train)},
            {"val", shards_json(m.val)}};
  m.tokenizer.add_to_json(json, "tokenizer");
  if (!m.documents.is_null()) json["documents"] = m.documents;
  if (m.marked) json["marked"] = true;
  if (m.pairs) json["kind"] = "preferences";
  write_manifest_json(folder, std::move(json), name);
}

std::optional<DataManifest> read_manifest(const fs::path& folder, const std::string& name) {
  const auto found = read_manifest_json(folder, name);
  if (!found) return std::nullopt;
  const Json& json = *found;
  const std::string where = (folder / name).string();

  check_data_format(json, "lathe-data-1", where);

  DataManifest m;
  m.tokenizer = Tokenizer::from_json(json, "tokenizer", where);
  m.vocab_size = json_integer(json, "vocab_size", 1, max_vocab_size, where, Exit::data);
  m.largest_id = json_integer(json, "largest_id", 0, max_vocab_size, where, Exit::data);
  m.dtype = json_get<std::string>(json, "dtype", where, Exit::data);
  if (m.dtype != "uint16" && m.dtype != "uint32")
    fail(Exit::data, where, ": dtype \"", m.dtype, "\" is not uint16 or uint32");

  // The model has embeddings for ids below vocab_size only.
  if (m.largest_id >= m.vocab_size) {
    fail(Exit::data, where, ": vocab_size ", m.vocab_size, " does not cover the largest id ",
         m.largest_id);
  }
  if (m.tokenizer.size() > m.vocab_size) {
    fail(Exit::data, where, ": vocab_size ", m.vocab_size, " is less than the tokenizer's ",
         m.tokenizer.size());
  }

  m.train = read_shards(json, "train", where);
  if (json.contains("documents")) m.documents = json["documents"];
  m.val = read_shards(json, "val", where);
  if (json.contains("marked")) m.marked = json_get<bool>(json, "marked", where, Exit::data);
  m.pairs = json.contains("kind") &&
            json_get<std::string>(json, "kind", where, Exit::data) == "preferences";
  if (m.pairs && !m.marked)
    fail(Exit::data, where, ": preference data must have marked tokens (\"marked\": true)");
  // token_mark is bit 31, which uint16 does not have.
  if (m.marked && m.dtype != "uint32")
    fail(Exit::data, where, ": marked tokens must be uint32, not ", m.dtype);

  check_manifest_checksum(json, where);
  return m;
}

}  // namespace lathe
