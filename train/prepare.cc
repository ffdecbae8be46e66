#include "train/prepare.h"

#include <algorithm>
#include <cstdio>

#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "data/manifest.h"
#include "data/tokens.h"

namespace lathe {
namespace {

/// The files behind the inputs; a folder gives its regular files, however deep, in name order.
std::vector<fs::path> expand(const std::vector<std::string>& inputs) {
  std::vector<fs::path> files;
  for (const auto& in : inputs) {
    if (fs::is_directory(in)) {
      std::vector<fs::path> found;
      for (const auto& entry : fs::recursive_directory_iterator(in)) {
        if (entry.is_regular_file()) found.push_back(entry.path());
      }
      std::sort(found.begin(), found.end());
      files.insert(files.end(), found.begin(), found.end());
    } else {
      files.emplace_back(in);
    }
  }
  return files;
}

std::string bar(double share) {
  const int filled = static_cast<int>(30 * share);
  char percent[16];
  std::snprintf(percent, sizeof percent, " %3.0f%%", 100 * share);
  return "[" + std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(30 - filled), '.') +
         "]" + percent;
}

constexpr const char* unfinished = ".unfinished-";

/// Writes the shards of a split under names that nothing reads, so that an interrupted preparation can be repeated.
class SplitWriter {
 public:
  SplitWriter(const PrepareOptions& options, std::string split, int64_t tokens)
      : options_(options), split_(std::move(split)), several_(tokens > options.shard_tokens) {}

  void write(const std::vector<int64_t>& ids, size_t begin, size_t end) {
    std::vector<uint16_t> packed;
    while (begin < end) {
      if (!file_.is_open()) open();
      const size_t n = std::min(end - begin, static_cast<size_t>(options_.shard_tokens - shards_.back().tokens));
      packed.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                    ids.begin() + static_cast<std::ptrdiff_t>(begin + n));
      file_.write(packed.data(), 2 * n);
      sum_.update(packed.data(), 2 * n);
      shards_.back().tokens += static_cast<int64_t>(n);
      begin += n;
      if (shards_.back().tokens == options_.shard_tokens) close();
    }
  }
  std::vector<ShardInfo> finish() {
    if (file_.is_open()) close();
    return shards_;
  }

 private:
  void open() {
    char number[24];
    std::snprintf(number, sizeof number, "_%06zu", shards_.size());
    shards_.push_back({split_ + (several_ ? number : "") + ".bin", 0, ""});
    file_ = OutputFile(options_.out / (unfinished + shards_.back().file), OutputFile::Open::create);
    sum_ = Checksum();
  }
  void close() {
    file_.sync();
    file_.close();
    file_ = OutputFile();
    shards_.back().xxh3 = sum_.hex();
  }

  const PrepareOptions& options_;
  std::string split_;
  bool several_;
  OutputFile file_;
  Checksum sum_;
  std::vector<ShardInfo> shards_;
};

}  // namespace

void prepare(const PrepareOptions& options) {
  std::string text;
  for (const auto& path : expand(options.inputs)) {
    if (!fs::exists(path)) fail(Exit::data, "there is no file ", path.string(), "; give text files or folders of them");
    const std::string own = read_file(path, Exit::data, uint64_t{16} << 30);
    if (options.tokenizer == "char" && !is_utf8(own)) {
      fail(Exit::data, path.string(), " is not UTF-8; convert it or use --tokenizer byte");
    }
    text += own;
  }
  if (text.empty()) fail(Exit::data, "the input has no text");
  if (fs::exists(options.out / "manifest.json") || has_split(options.out, "train", std::nullopt) ||
      has_split(options.out, "val", std::nullopt)) {
    fail(Exit::usage, options.out.string(), " already holds token data; remove it or give another --out");
  }
  const Tokenizer tokenizer = options.tokenizer == "char" ? Tokenizer::characters(text) : Tokenizer::byte();
  if (tokenizer.size() > 65536)
    fail(Exit::data, "the text has more than 65536 different characters; use --tokenizer byte");
  const std::vector<int64_t> ids = tokenizer.encode(text);
  const auto n = static_cast<int64_t>(ids.size());
  const auto train = n - static_cast<int64_t>(options.val_share * static_cast<double>(n));
  if (train < 2) fail(Exit::data, "the input has ", n, " tokens, too few to train on");

  make_folders(options.out);
  DataManifest manifest;
  manifest.tokenizer = tokenizer;
  manifest.vocab_size = tokenizer.size();
  manifest.largest_id = *std::max_element(ids.begin(), ids.end());
  const auto write = [&](const char* split, int64_t begin, int64_t end) {
    SplitWriter writer(options, split, end - begin);
    constexpr int64_t chunk = 1 << 20;
    for (int64_t at = begin; at < end; at += chunk) {
      const int64_t to = std::min(at + chunk, end);
      writer.write(ids, static_cast<size_t>(at), static_cast<size_t>(to));
      progress(bar(static_cast<double>(to) / static_cast<double>(n)) + " " + std::to_string(to) + " tokens");
    }
    return writer.finish();
  };
  manifest.train = write("train", 0, train);
  manifest.val = write("val", train, n);
  for (const auto* split : {&manifest.train, &manifest.val}) {
    for (const auto& shard : *split) rename_file(options.out / (unfinished + shard.file), options.out / shard.file);
  }
  sync_folder(options.out);
  write_manifest(options.out, manifest);
  log_info(options.out.string(), ": ", train, " training and ", n - train, " validation tokens, vocabulary of ",
           manifest.vocab_size, " (", tokenizer.kind(), ")");
}

}  // namespace lathe
