#include "data/prepare_documents.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <limits>
#include <mutex>
#include <span>
#include <unordered_set>

#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "data/manifest.h"
#include "data/out_folder.h"
#include "data/split_writer.h"

namespace lathe {
namespace {

/// What became of a document, or a part of one.
struct Made {
  bool begins, ends;
  uint64_t bytes, repaired;
  Digest digest;
  enum class Fate { kept, empty, too_short, too_long } fate;
  size_t ids_end;  ///< in the ids of its part
};
struct Encoded {
  std::vector<Made> documents;
  std::vector<int32_t> ids;
};

/// The token that ends a document.
int32_t end_token(const Tokenizer& tokenizer) {
  if (tokenizer.bpe() == nullptr) return '\n';
  for (const char* text : {"<|endoftext|>", "<|end_of_text|>"}) {
    if (const int32_t id = tokenizer.bpe()->id_of(text); id >= 0) return id;
  }
  return -1;
}

/// Encoders that tasks borrow, since each learns pieces.
class Encoders {
 public:
  explicit Encoders(const BPE* bpe) : bpe_(bpe) {}
  using Encoder = std::unique_ptr<BPE::Encoder>;
  Encoder borrow() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<BPE::Encoder>(*bpe_);
    Encoder one = std::move(free_.back());
    free_.pop_back();
    return one;
  }
  void give_back(Encoder one) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(one));
  }

 private:
  const BPE* bpe_;
  std::mutex mutex_;
  std::vector<Encoder> free_;
};

Encoded encode(const Part& part, const DocumentOptions& o, Encoders& encoders) {
  Encoded made;
  const BPE* bpe = o.tokenizer.bpe();
  Encoders::Encoder encoder = bpe != nullptr ? encoders.borrow() : nullptr;
  const int32_t end = end_token(o.tokenizer);
  std::string repaired;
  each_document(part, o.source, [&](std::string_view text) {
    Made d{made.documents.empty() ? part.begins : true, true, 0, 0, {}, Made::Fate::kept, 0};
    d.ends = part.ends;  // of a part that ends no document it is the only one
    if (!is_utf8(text)) {
      if (!o.repair) {
        const size_t at = utf8_end(text, 0);
        fail(Exit::data, part.file, ": a document in the mebibyte ", part.jsonl ? "from line " : "from byte ",
             part.place, " has a byte that is not UTF-8 (its byte ", at, "); convert it, or give --invalid repair");
      }
      repaired = text;
      d.repaired = repair_utf8(repaired);
      text = repaired;
    }
    d.bytes = text.size();
    if (d.begins && d.ends) {
      const bool empty = text.find_first_not_of(" \t\r\n") == std::string_view::npos;
      d.fate = empty                   ? Made::Fate::empty
               : d.bytes < o.min_bytes ? Made::Fate::too_short
               : d.bytes > o.max_bytes ? Made::Fate::too_long
                                       : Made::Fate::kept;
      d.digest = digest(text);
    }
    if (d.fate == Made::Fate::kept) {
      if (encoder) {
        encoder->encode(text, made.ids, SpecialText::text);
      } else {
        for (const char c : text) made.ids.push_back(static_cast<unsigned char>(c));
      }
      if (d.ends && end >= 0) made.ids.push_back(end);
    }
    d.ids_end = made.ids.size();
    made.documents.push_back(d);
  });
  if (encoder) encoders.give_back(std::move(encoder));
  return made;
}

struct DigestHash {
  size_t operator()(const Digest& d) const { return d.low; }
};

/// Takes documents in order: which are kept, and where they go.
class Sorter {
 public:
  Sorter(const DocumentOptions& o, SplitWriter& train, SplitWriter& val, DataManifest& manifest)
      : o_(o), train_(train), val_(val), manifest_(manifest) {}

  void take(const Encoded& part) {
    size_t begin = 0;
    for (const Made& d : part.documents) {
      const std::span ids = std::span(part.ids).subspan(begin, d.ids_end - begin);
      begin = d.ids_end;
      bytes_ += d.bytes;
      replaced_ += d.repaired;
      if (d.begins) ++read_, in_repaired_ = false;
      if (d.repaired > 0 && !in_repaired_) ++repaired_, in_repaired_ = true;
      if (d.fate != Made::Fate::kept) {
        ++(d.fate == Made::Fate::empty ? empty_ : d.fate == Made::Fate::too_short ? short_ : long_);
        continue;
      }
      if (o_.dedup && !seen_.insert(d.digest).second) {
        ++duplicates_;
        continue;
      }
      if (d.begins) ++kept_;
      // The digest's high half as a number from 0 to below 1.
      const bool to_val = o_.val_by_hash && static_cast<double>(d.digest.high >> 11) * 0x1p-53 < o_.val_share;
      if (to_val && d.begins) ++val_documents_;
      (to_val ? val_ : train_).write(ids);
      if (!ids.empty())
        manifest_.largest_id = std::max<int64_t>(manifest_.largest_id, *std::max_element(ids.begin(), ids.end()));
    }
  }

  Json counts() const {
    Json json{{"read", read_},
              {"bytes", bytes_},
              {"kept", kept_},
              {"duplicates", duplicates_},
              {"too_short", short_},
              {"too_long", long_},
              {"empty", empty_},
              {"repaired", repaired_},
              {"replaced_bytes", replaced_}};
    if (o_.val_by_hash) json["in_validation"] = val_documents_;
    return json;
  }

 private:
  const DocumentOptions& o_;
  SplitWriter &train_, &val_;
  DataManifest& manifest_;
  std::unordered_set<Digest, DigestHash> seen_;
  uint64_t read_ = 0, bytes_ = 0, kept_ = 0, duplicates_ = 0, short_ = 0, long_ = 0, empty_ = 0, repaired_ = 0,
           replaced_ = 0, val_documents_ = 0;
  bool in_repaired_ = false;
};

/// Reads, encodes on several threads and sorts, in the order of the input.
void go_through(const DocumentOptions& o, bool whole, Meter& meter, Sorter& sorter) {
  PartReader reader(o.source, whole);
  Encoders encoders(o.tokenizer.bpe());
  std::deque<std::future<Encoded>> under_way;
  uint64_t shown = 0;
  const auto take_first = [&] {
    const Encoded first = under_way.front().get();
    under_way.pop_front();
    sorter.take(first);
  };
  for (Part part; reader.next(part);) {
    under_way.push_back(
        std::async(std::launch::async, [&o, &encoders, mine = std::move(part)] { return encode(mine, o, encoders); }));
    meter.advance(reader.consumed() - shown);
    shown = reader.consumed();
    if (under_way.size() > static_cast<size_t>(o.workers)) take_first();
  }
  while (!under_way.empty()) take_first();
}

constexpr const char* spool_name = "train_all.bin";

/// Distributes what was written for one split over both, the last tokens for validation.
void split_tail(const DocumentOptions& o, const fs::path& spool, bool wide, SplitWriter& train, SplitWriter& val,
                int64_t head) {
  const MappedFile file(spool, Exit::io);
  const size_t width = wide ? 4 : 2;
  std::vector<int32_t> ids;
  for (size_t at = 0; at < file.bytes().size();) {
    const auto bytes = file.bytes().subspan(at, std::min(size_t{4} << 20, file.bytes().size() - at));
    ids.resize(bytes.size() / width);
    for (size_t i = 0; i < ids.size(); ++i) {
      uint32_t id = 0;
      std::memcpy(&id, bytes.data() + i * width, width);
      ids[i] = static_cast<int32_t>(id);
    }
    const auto done = static_cast<int64_t>(at / width);
    const auto here = static_cast<size_t>(std::clamp<int64_t>(head - done, 0, std::ssize(ids)));
    train.write(std::span(ids).first(here));
    val.write(std::span(ids).subspan(here));
    file.release(bytes);
    at += bytes.size();
    if (o.stop && o.stop()) fail(Exit::stopped, "stopped; run the same command again to begin anew");
  }
}

}  // namespace

void prepare_documents(const DocumentOptions& o) {
  OutFolder::check(o.out);
  uint64_t bytes = 0;
  for (const std::string& file : o.source.files) {
    if (file != "-" && !fs::exists(file))
      fail(Exit::data, "there is no file ", file, "; give files, folders of them, or - for standard input");
    if (file != "-" && fs::is_regular_file(file)) bytes += fs::file_size(file);
    if (file == "-" && o.source.files.size() > 1) bytes = 0;
  }
  const bool whole = o.dedup || o.val_by_hash || o.min_bytes > 0 || o.max_bytes != ~uint64_t{0};
  Meter meter(o.out, o.stop);
  meter.begin("read", bytes);

  OutFolder out(o.out);
  out.clear();
  DataManifest manifest;
  manifest.tokenizer = o.tokenizer;
  manifest.vocab_size = o.tokenizer.size();
  const bool wide = o.tokenizer.size() > 65536, tail = !o.val_by_hash && o.val_share > 0;
  manifest.dtype = wide ? "uint32" : "uint16";
  SplitWriter train(o.out, o.shard_tokens, "train", std::nullopt, wide),
      val(o.out, o.shard_tokens, "val", std::nullopt, wide);
  if (tail) {
    const fs::path path = OutFolder::unfinished(o.out, spool_name);
    SplitWriter spool(o.out, std::numeric_limits<int64_t>::max(), "train_all", 0, wide);
    Sorter sorter(o, spool, spool, manifest);
    go_through(o, whole, meter, sorter);
    manifest.documents = sorter.counts();
    const auto all = spool.tokens();
    spool.finish();
    if (all > 0)
      split_tail(o, path, wide, train, val, all - static_cast<int64_t>(o.val_share * static_cast<double>(all)));
    remove_tree(path);
  } else {
    Sorter sorter(o, train, val, manifest);
    go_through(o, whole, meter, sorter);
    manifest.documents = sorter.counts();
  }
  if (train.tokens() < 2)
    fail(Exit::data, "the input has ", train.tokens() + val.tokens(), " tokens, too few to train on");
  manifest.train = train.finish();
  manifest.val = val.finish();
  std::vector<MadeFile> files;
  for (const auto* shards : {&manifest.train, &manifest.val}) {
    for (const auto& shard : *shards) files.push_back({shard.file, shard.xxh3});
  }
  out.publish(files, [&](const std::string& name) { write_manifest(o.out, manifest, name); });
  std::string counted;
  for (const auto& [name, count] : manifest.documents.items()) {
    if (count.get<uint64_t>() > 0 && name != "bytes") counted += str(", ", count.get<uint64_t>(), " ", name);
  }
  log_info(o.out.string(), ": ", train.tokens(), " training and ", val.tokens(), " validation tokens, vocabulary of ",
           manifest.vocab_size, " (", manifest.tokenizer.kind(), "); documents: ", counted.substr(2));
}

}  // namespace lathe
