#include "data/prepare/split_writer.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/io/log.h"

namespace lathe {

void SplitWriter::write(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    if (!file_.is_open()) open();
    const size_t here =
        std::min(ids.size(), static_cast<size_t>(shard_tokens_ - shards_.back().tokens));
    uint16_ids_.assign(ids.begin(), ids.begin() + static_cast<int64_t>(wide_ ? 0 : here));
    const void* data = wide_ ? static_cast<const void*>(ids.data()) : uint16_ids_.data();
    const size_t bytes = (wide_ ? 4 : 2) * here;

    file_.write(data, bytes);
    sum_.update(data, bytes);

    tokens_ += static_cast<int64_t>(here);
    shards_.back().tokens += static_cast<int64_t>(here);
    ids = ids.subspan(here);
    if (shards_.back().tokens == shard_tokens_) close();
  }
}

std::vector<ShardInfo> SplitWriter::finish() {
  if (file_.is_open()) close();
  if (!most_tokens_ && shards_.size() == 1) {  // a single file has no number
    const std::string name = split_ + ".bin";
    rename_file(OutFolder::unfinished(out_, shards_[0].file), OutFolder::unfinished(out_, name));
    shards_[0].file = name;
  }
  return shards_;
}

bool SplitWriter::resume(int64_t tokens, const std::string& checksum) {
  const size_t width = wide_ ? 4 : 2;
  std::vector<std::pair<fs::path, uint64_t>> found;  // each file, and its recorded size in bytes
  for (int64_t done = 0; done < tokens; done += shard_tokens_) {
    const auto bytes = static_cast<uint64_t>(std::min(shard_tokens_, tokens - done)) * width;
    found.emplace_back(OutFolder::unfinished(out_, name_of(found.size())), bytes);
    std::error_code error;
    if (!fs::is_regular_file(found.back().first, error) ||
        fs::file_size(found.back().first) < bytes)
      return false;
  }

  // Compare all files with the record before changing any file.
  std::vector<Checksum> sums;
  Checksum all;
  for (const auto& [path, bytes] : found) {
    const MappedFile file(path, Exit::io);
    sums.emplace_back().update(file.bytes().data(), bytes);
    const std::string sum = sums.back().hex();
    all.update(sum.data(), sum.size());
  }
  if (all.hex() != checksum) {
    log_warn(out_.string(), ": the unfinished files of ", split_,
             " have changed since this command was interrupted; starting over");
    return false;
  }

  for (const auto& [path, bytes] : found) {
    fs::resize_file(path, bytes);
    sum_ = std::move(sums[shards_.size()]);
    shards_.push_back({.file = name_of(shards_.size()),
                       .tokens = static_cast<int64_t>(bytes / width),
                       .xxh3 = ""});
    tokens_ += shards_.back().tokens;
    file_ = OutputFile(path, OutputFile::Open::append);
    if (shards_.back().tokens == shard_tokens_) close();
  }
  return true;
}

void SplitWriter::sync() {
  if (file_.is_open()) file_.sync();
}

std::string SplitWriter::checksum() const {
  Checksum all;
  for (const ShardInfo& shard : shards_) {
    // The last file may still be open; then its checksum is not in shards_ yet.
    const std::string sum = shard.xxh3.empty() ? sum_.hex() : shard.xxh3;
    all.update(sum.data(), sum.size());
  }
  return all.hex();
}

std::vector<std::string> SplitWriter::files() const {
  std::vector<std::string> names;
  for (const ShardInfo& shard : shards_) names.push_back(shard.file);
  return names;
}

std::string SplitWriter::name_of(size_t shard) const {
  char number[24];
  std::snprintf(number, sizeof number, "_%06zu", shard);
  const bool several = !most_tokens_ || *most_tokens_ > shard_tokens_;
  return split_ + (several ? number : "") + ".bin";
}

void SplitWriter::open() {
  shards_.push_back({.file = name_of(shards_.size()), .tokens = 0, .xxh3 = ""});
  file_ = OutputFile(OutFolder::unfinished(out_, shards_.back().file), OutputFile::Open::create);
  sum_ = Checksum();
}

void SplitWriter::close() {
  file_.sync();
  file_.close();
  file_ = OutputFile();
  shards_.back().xxh3 = sum_.hex();
}

void record(const Journal& journal, Progress progress, SplitWriter& train, SplitWriter& val) {
  train.sync();
  val.sync();
  progress.train = train.tokens();
  progress.val = val.tokens();
  progress.train_sum = train.checksum();
  progress.val_sum = val.checksum();
  journal.write(progress);
}

std::vector<std::string> resumable_files(std::initializer_list<const SplitWriter*> splits) {
  std::vector<std::string> names{Journal::name};
  for (const SplitWriter* split : splits) {
    for (const std::string& file : split->files()) names.push_back(file);
  }
  return names;
}

}  // namespace lathe
