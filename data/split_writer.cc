#include "data/split_writer.h"

#include <algorithm>
#include <cstdio>

#include "data/out_folder.h"

namespace lathe {

void SplitWriter::write(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    if (!file_.is_open()) open();
    const size_t here = std::min(ids.size(), static_cast<size_t>(shard_tokens_ - shards_.back().tokens));
    narrow_.assign(ids.begin(), ids.begin() + static_cast<int64_t>(wide_ ? 0 : here));
    const void* data = wide_ ? static_cast<const void*>(ids.data()) : narrow_.data();
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
  if (!most_tokens_ && shards_.size() == 1) {  // one is not numbered
    const std::string name = split_ + ".bin";
    rename_file(OutFolder::unfinished(out_, shards_[0].file), OutFolder::unfinished(out_, name));
    shards_[0].file = name;
  }
  return shards_;
}

void SplitWriter::open() {
  char number[24];
  std::snprintf(number, sizeof number, "_%06zu", shards_.size());
  const bool several = !most_tokens_ || *most_tokens_ > shard_tokens_;
  shards_.push_back({split_ + (several ? number : "") + ".bin", 0, ""});
  file_ = OutputFile(OutFolder::unfinished(out_, shards_.back().file), OutputFile::Open::create);
  sum_ = Checksum();
}

void SplitWriter::close() {
  file_.sync();
  file_.close();
  file_ = OutputFile();
  shards_.back().xxh3 = sum_.hex();
}

}  // namespace lathe
