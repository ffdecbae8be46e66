#include "data/tokens/tokens.h"

#include <algorithm>
#include <cstring>

#include "core/io/checksum.h"
#include "data/folder.h"
#include "data/tokenizers/mark.h"

namespace lathe {
namespace {

constexpr size_t llmc_header_bytes = 256 * sizeof(int32_t);

/// Returns the shards of a split that has no manifest, in name order. Throws Exit::data if they
/// belong to more than one data set.
std::vector<fs::path> find_shards(const fs::path& folder, const std::string& split) {
  if (fs::exists(folder / (split + ".bin"))) return {folder / (split + ".bin")};
  std::vector<fs::path> found;

  // Finds the split's name among the words of a file name, which underscores separate.
  const auto place_of = [&](const fs::path& path) {
    return ("_" + path.stem().string() + "_").find("_" + split + "_");
  };
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".bin" && place_of(entry.path()) != std::string::npos)
      found.push_back(entry.path());
  }

  // The part of a file name before the split's name is the name of the data set.
  std::sort(found.begin(), found.end());
  const auto set_of = [&](const fs::path& path) {
    return path.stem().string().substr(0, place_of(path));
  };
  for (const auto& path : found) {
    if (set_of(path) == set_of(found[0])) continue;
    fail(Exit::data, folder.string(), " holds shards of more than one data set (",
         found[0].filename().string(), ", ", path.filename().string(),
         "); put each data set into a separate folder");
  }
  return found;
}

}  // namespace

bool has_split(const fs::path& folder, const std::string& split,
               const std::optional<DataManifest>& manifest) {
  if (manifest) return !(split == "train" ? manifest->train : manifest->val).empty();
  return !find_shards(folder, split).empty();
}

TokenFile::TokenFile(const fs::path& folder, const std::string& split,
                     const std::optional<DataManifest>& manifest) {
  if (!fs::is_directory(folder)) {
    fail(Exit::data, "there is no data folder ", folder.string(),
         "; make it with `lathe prepare TEXT --out ", folder.string(), "` or set data.dir");
  }
  if (manifest) {
    marked_ = manifest->marked;
    for (const auto& s : split == "train" ? manifest->train : manifest->val) {
      add(folder / s.file, manifest->dtype == "uint16" ? 2 : 4, &s);
    }
  } else {
    for (const auto& path : find_shards(folder, split)) add(path, 2, nullptr);
  }
  if (total_ == 0) {
    fail(Exit::data, folder.string(), " has no ", split, " tokens: there is no ", split, ".bin, ",
         split, "_*.bin or *_", split, "_*.bin that is not empty; make them with `lathe prepare`");
  }
}

void TokenFile::add(const fs::path& path, int raw_width, const ShardInfo* expected) {
  Shard shard{.file = MappedFile(path, Exit::data),
              .data = nullptr,
              .begin = total_,
              .tokens = 0,
              .width = raw_width,
              .xxh3 = expected ? expected->xxh3 : ""};

  const auto bytes = shard.file.bytes();
  size_t header = 0;
  int32_t words[3]{};
  // A raw shard may be shorter than llm.c's header; in that case, `words` stay 0.
  if (bytes.size() >= llmc_header_bytes) std::memcpy(words, bytes.data(), sizeof words);
  const bool llmc16 = words[0] == 20240520 && words[1] == 1,
             llmc32 = words[0] == 20240801 && words[1] == 7;

  if (llmc16 || llmc32) {
    header = llmc_header_bytes;
    shard.width = llmc16 ? 2 : 4;
  }
  // Refuse a header of an unknown version, which would otherwise be read as raw tokens.
  if (header == 0 && (words[0] == 20240520 || words[0] == 20240801)) {
    fail(Exit::data, path.string(), " is an llm.c shard of version ", words[1],
         ", which this build can't read; it reads version 1 (16-bit tokens) and version 7 (32-bit "
         "tokens)");
  }

  const size_t body = bytes.size() - header;
  if (body % static_cast<size_t>(shard.width) != 0) {
    fail(Exit::data, path.string(), " has ", bytes.size(),
         " bytes, which is not a whole number of ", 8 * shard.width,
         "-bit tokens; the file is truncated or is not a token shard (for text, use `lathe "
         "prepare`)");
  }
  shard.tokens = static_cast<int64_t>(body) / shard.width;

  // The third word of llm.c's header is the number of tokens.
  if (header != 0 && shard.tokens != words[2]) {
    fail(Exit::data, path.string(), ": its header claims ", words[2], " tokens, but it has ",
         shard.tokens, "; it is truncated or was replaced, so prepare or download it again");
  }

  if (expected != nullptr && shard.tokens != expected->tokens) {
    fail(Exit::data, path.string(), ": manifest.json claims ", expected->tokens,
         " tokens and the file has ", shard.tokens,
         "; it is truncated or was replaced, so prepare the data again");
  }

  if (shard.tokens == 0) return;
  shard.data = bytes.data() + header;
  total_ += shard.tokens;
  shards_.push_back(std::move(shard));
}

template <class F>
void TokenFile::each(int64_t begin, int64_t n, F&& f) const {
  if (begin < 0 || n < 0 || begin + n > total_) {
    fail(Exit::internal, "tokens ", begin, " to ", begin + n, " are outside the split's ", total_);
  }
  auto shard = std::upper_bound(shards_.begin(), shards_.end(), begin,
                                [](int64_t at, const Shard& s) { return at < s.begin; }) -
               1;
  while (n > 0) {
    const int64_t offset = begin - shard->begin, here = std::min(n, shard->tokens - offset);
    const std::byte* data = shard->data + offset * shard->width;
    for (int64_t i = 0; i < here; ++i) {
      uint32_t id = 0;
      std::memcpy(&id, data + i * shard->width, static_cast<size_t>(shard->width));
      f(*shard, offset + i, id);
    }
    begin += here;
    n -= here;
    ++shard;
  }
}

void TokenFile::read(int64_t begin, int64_t n, int64_t vocab, int64_t* out) const {
  const uint32_t bits = marked_ ? ~token_bits : ~uint32_t{0};
  each(begin, n, [&](const Shard& shard, int64_t at, uint32_t id) {
    id &= bits;
    if (id >= static_cast<uint64_t>(vocab)) refuse(shard, at, id, vocab);
    *out++ = id;
  });
}

void TokenFile::read_targets(int64_t begin, int64_t n, int64_t* out) const {
  const uint32_t mark = marked_ ? token_mark : 0, bits = marked_ ? ~token_bits : ~uint32_t{0};
  each(begin, n, [&](const Shard&, int64_t, uint32_t id) {
    *out++ = (id & mark) != 0 ? -100 : int64_t{id & bits};
  });
}

std::vector<int64_t> TokenFile::begins() const {
  std::vector<int64_t> found;
  if (!marked_) return found;
  each(0, total_, [&](const Shard& shard, int64_t at, uint32_t id) {
    if ((id & token_begin) != 0) found.push_back(shard.begin + at);
  });
  return found;
}

int64_t TokenFile::count_unmarked(int64_t begin, int64_t n) const {
  const uint32_t mark = marked_ ? token_mark : 0;
  int64_t learned = 0;
  each(begin, n, [&](const Shard&, int64_t, uint32_t id) { learned += (id & mark) == 0; });
  return learned;
}

std::vector<int64_t> TokenFile::positions_of(int64_t wanted) const {
  std::vector<int64_t> found;
  const uint32_t bits = marked_ ? ~token_bits : ~uint32_t{0};
  each(0, total_, [&](const Shard& shard, int64_t at, uint32_t id) {
    if ((id & bits) == wanted) found.push_back(shard.begin + at);
  });
  return found;
}

void TokenFile::refuse(const Shard& shard, int64_t at, uint32_t id, int64_t vocab) {
  fail(Exit::data, shard.file.path().string(), ": token ", at, " is ", id,
       ", beyond the vocabulary of ", vocab,
       "; raise model.vocab_size, or check that the file is a token shard");
}

std::string TokenFile::table() const {
  std::string text;
  for (const auto& s : shards_) {
    text +=
        str("  ", s.file.path().filename().string(), "  ", s.tokens, " tokens  uint", 8 * s.width,
            s.data == s.file.bytes().data() ? ", no header" : ", llm.c's header", "\n");
  }
  return text;
}

uint32_t TokenFile::largest_id() const {
  uint32_t largest = 0;
  const uint32_t bits = marked_ ? ~token_bits : ~uint32_t{0};
  const auto look = [&](const auto* ids, int64_t n) {
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, ids[i] & bits);
  };
  for (const auto& s : shards_) {
    s.width == 2 ? look(reinterpret_cast<const uint16_t*>(s.data), s.tokens)
                 : look(reinterpret_cast<const uint32_t*>(s.data), s.tokens);
  }
  return largest;
}

void TokenFile::check_ids(int64_t vocab, int64_t limit) const {
  const uint32_t bits = marked_ ? ~token_bits : ~uint32_t{0};
  const auto check = [&](const Shard& shard, const auto* ids) {
    for (int64_t i = 0; i < shard.tokens; ++i) {
      if ((ids[i] & bits) >= static_cast<uint64_t>(vocab)) refuse(shard, i, ids[i] & bits, vocab);
    }
  };
  for (const auto& shard : shards_) {
    limit -= shard.tokens * shard.width;
    if (limit < 0) return;
    shard.width == 2 ? check(shard, reinterpret_cast<const uint16_t*>(shard.data))
                     : check(shard, reinterpret_cast<const uint32_t*>(shard.data));
  }
}

std::string TokenFile::identity(bool trust_manifest) const {
  constexpr size_t samples = 128;
  Checksum all;
  for (const auto& s : shards_) {
    std::string sum = str(s.tokens, " ", s.xxh3);
    if (s.xxh3.empty())
      sum += sampled_checksum(s.file.bytes(), samples);
    else if (!trust_manifest)
      sum += " " + sampled_checksum(s.file.bytes(), std::max<size_t>(2, samples / shards_.size()));
    all.update(sum.data(), sum.size());
  }
  return all.hex();
}

std::string TokenFile::fingerprint() const { return identity(/*trust_manifest=*/false); }

bool TokenFile::matches(const std::string& saved) const {
  return saved == identity(/*trust_manifest=*/true) || saved == fingerprint();
}

void TokenFile::verify(const std::function<bool()>& stop) const {
  for (const auto& s : shards_) verify_file(s.file, s.xxh3, stop);
}

}  // namespace lathe
