// Implements prepare_documents(). A long text is cut at a line break between two characters that
// are not white space, where all known pre-tokenizer patterns end a piece. If a tokenizer has any
// other pattern, each document is encoded in one piece.
#include "data/prepare/prepare_documents.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <limits>
#include <memory>
#include <span>
#include <unordered_set>

#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/timing.h"
#include "data/folder.h"
#include "data/prepare/encode_documents.h"
#include "data/prepare/out_folder.h"
#include "data/prepare/progress.h"
#include "data/prepare/split_writer.h"
#include "data/tokenizers/mark.h"
#include "data/tokens/manifest.h"

namespace lathe {
namespace {

/// Takes documents in input order. Decides which are kept, and which split each is written to.
class DocumentFilter {
 public:
  DocumentFilter(const DocumentOptions& o, SplitWriter& train, SplitWriter& val,
                 DataManifest& manifest)
      : o_(o), train_(train), val_(val), manifest_(manifest) {}

  void take(const EncodedPart& part) {
    size_t begin = 0;
    for (const EncodedDocument& d : part.documents) {
      const std::span ids = std::span(part.ids).subspan(begin, d.ids_end - begin);
      begin = d.ids_end;
      bytes_ += d.bytes;
      replaced_ += d.repaired;

      // A document may extend over several parts. It is counted in the part in which it begins.
      if (d.begins) {
        ++read_;
        in_repaired_ = false;
      }
      if (d.repaired > 0 && !in_repaired_) {
        ++repaired_;
        in_repaired_ = true;
      }

      if (d.result != EncodedDocument::FilterResult::kept) {
        using enum EncodedDocument::FilterResult;
        switch (d.result) {
          case empty: ++empty_; break;
          case too_short: ++short_; break;
          case same_answers: ++same_answers_; break;
          default: ++long_;
        }
        continue;
      }
      // With o_.dedup, documents are not cut, so the digest covers a complete document.
      if (o_.dedup && !seen_.insert(d.digest).second) {
        ++duplicates_;
        continue;
      }

      if (d.begins) ++kept_;
      for (const int32_t id : ids) {
        learned_ += id >= 0;  // ids with token_mark are negative
        manifest_.largest_id =
            std::max<int64_t>(manifest_.largest_id, static_cast<uint32_t>(id) & ~token_bits);
      }
      // Convert the digest's high half to a number in [0, 1).
      const bool to_val =
          o_.val_by_hash && static_cast<double>(d.digest.high >> 11) * 0x1p-53 < o_.val_share;
      if (to_val && d.begins) ++val_documents_;
      (to_val ? val_ : train_).write(ids);
    }
  }
  /// Returns a reference to the number of tokens that count toward the loss.
  uint64_t& learned() { return learned_; }

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
    if (manifest_.marked) json["learned_tokens"] = learned_;
    if (manifest_.pairs) json["same_answers"] = same_answers_;
    return json;
  }

 private:
  const DocumentOptions& o_;
  SplitWriter &train_, &val_;
  DataManifest& manifest_;
  std::unordered_set<Digest, DigestHash> seen_;
  uint64_t read_ = 0, bytes_ = 0, kept_ = 0, duplicates_ = 0, short_ = 0, long_ = 0, empty_ = 0,
           repaired_ = 0, replaced_ = 0, val_documents_ = 0, learned_ = 0, same_answers_ = 0;
  bool in_repaired_ = false;
};

/// Returns a text with everything that must be unchanged for a preparation to resume: the format of
/// the record, and all options that influence the output.
std::string identity(const DocumentOptions& o) {
  Json json{{"format", 2},        {"val", o.val_share},     {"by_hash", o.val_by_hash},
            {"dedup", o.dedup},   {"lines", o.dedup_lines}, {"repair", o.repair},
            {"min", o.min_bytes}, {"max", o.max_bytes},     {"shard", o.shard_tokens}};
  o.tokenizer.add_to_json(json, "tokenizer");
  std::string all = json_text(json);
  for (const std::string& text : {o.source.format, o.source.field, o.source.separator})
    all += text + '\0';
  // Paths need not be UTF-8, so they are not in the JSON text.
  for (const std::string& file : o.source.files) all += file + '\0';
  return all;
}

/// The objects that a preparation in progress works with.
struct DocumentPreparation {
  const DocumentOptions& o;
  OutFolder& out;
  const Journal& journal;
  ProgressReporter& meter;
  SplitWriter &train, &val;  ///< the same object if the last tokens are split off afterwards
  DataManifest& manifest;

  /// Keeps unfinished files from now on, so that recorded progress survives an interruption.
  void keep() {
    out.keep();
    meter.resumable();
  }
  /// Reads the input, encodes it on several threads, and filters it in input order. Parts that
  /// `before` records as finished are read and counted again, but not encoded. `whole` is passed to
  /// PartReader.
  void process(bool whole, const std::optional<Progress>& before);
};

void DocumentPreparation::process(bool whole, const std::optional<Progress>& before) {
  PartReader reader(o.source, whole);
  Encoders encoders(o.tokenizer.bpe());
  DocumentFilter sorter(o, train, val, manifest);
  LineFilter lines;
  std::deque<std::future<EncodedPart>> in_progress;
  Checksum input;
  Progress now;

  const int64_t done = before ? before->parts : 0;
  if (before) keep();
  auto saved = Clock::now();
  const auto save = [&] {
    now.largest_id = manifest.largest_id;
    now.learned = static_cast<int64_t>(sorter.learned());
    now.input = input.hex();
    record(journal, now, train, val);
    keep();
    saved = Clock::now();
  };

  const auto take_first = [&] {
    const EncodedPart first = in_progress.front().get();
    in_progress.pop_front();
    input.update(&first.input, sizeof first.input);
    sorter.take(first);
    ++now.parts;
    // The recorded shards are valid only for the input that they were made from.
    if (before && now.parts == done) {
      if (input.hex() != before->input) journal.fail_input_changed();
      manifest.largest_id = before->largest_id;
      sorter.learned() = static_cast<uint64_t>(before->learned);
    }
    if (now.parts > done && seconds_since(saved) >= o.progress_seconds) save();
  };

  uint64_t shown = 0;
  int64_t read = 0;
  for (Part part; reader.next(part);) {
    if (o.dedup_lines) lines.filter(part, o.source);
    // Recorded parts are hashed and counted again, but not encoded.
    const bool with_ids = read++ >= done;
    in_progress.push_back(
        std::async(std::launch::async, [this, with_ids, &encoders, mine = std::move(part)] {
          return encode(mine, o, encoders, with_ids);
        }));
    meter.advance(reader.consumed() - shown);
    shown = reader.consumed();
    // Limit the number of parts in memory. The oldest part comes first, so the order is kept.
    if (in_progress.size() > static_cast<size_t>(o.workers)) take_first();
  }
  while (!in_progress.empty()) take_first();

  if (now.parts < done)
    fail(Exit::data, "the input is shorter than when this command was interrupted; remove ",
         o.out.string(), " to start over");

  // Record the end, so that after an interruption of the following steps nothing is encoded again.
  if (out.kept()) save();
  manifest.documents = sorter.counts();
  if (o.dedup_lines) manifest.documents["dropped_lines"] = lines.dropped();
}

/// Finds the first conversation or pair that begins at token `from` or later in `spool`, a file of
/// uint32 ids. `rows`: how many rows, which begin with token_begin, belong together: 1 for
/// conversations and 2 for pairs. Returns the position, or the number of tokens if none begins
/// there.
int64_t next_begin(const fs::path& spool, int64_t from, int rows) {
  const MappedFile file(spool, Exit::io);
  const int64_t all = std::ssize(file.bytes()) / 4;
  int row = 0;
  for (int64_t at = 0; at < all; ++at) {
    uint32_t id = 0;
    std::memcpy(&id, file.bytes().data() + 4 * at, sizeof id);
    if ((id & token_begin) == 0) continue;
    if (row == 0 && at >= from) return at;
    row = (row + 1) % rows;
  }
  return all;
}

/// Writes the first `head` tokens of a file to the training split, and the remaining tokens to the
/// validation split. Clears token_begin unless the tokens are pairs.
void split_tail(const fs::path& spool, const DataManifest& manifest, SplitWriter& train,
                SplitWriter& val, int64_t head, ProgressReporter& meter) {
  const MappedFile file(spool, Exit::io);
  const size_t width = manifest.dtype == "uint32" ? 4 : 2;
  const uint32_t kept = manifest.marked && !manifest.pairs ? ~token_begin : ~uint32_t{0};
  std::vector<int32_t> ids;
  for (size_t at = 0; at < file.bytes().size();) {
    const auto bytes =
        file.bytes().subspan(at, std::min(size_t{4} << 20, file.bytes().size() - at));
    ids.resize(bytes.size() / width);
    for (size_t i = 0; i < ids.size(); ++i) {
      uint32_t id = 0;
      std::memcpy(&id, bytes.data() + i * width, width);
      ids[i] = static_cast<int32_t>(id & kept);
    }

    const auto done = static_cast<int64_t>(at / width);
    const auto here = static_cast<size_t>(std::clamp<int64_t>(head - done, 0, std::ssize(ids)));
    train.write(std::span(ids).first(here));
    val.write(std::span(ids).subspan(here));
    file.release(bytes);
    at += bytes.size();
    meter.advance(0);  // only to check for a stop
  }
}

/// Returns whether PartReader may cut a text without changing its tokens.
bool pieces_end_at_lines(const Tokenizer& tokenizer) {
  return tokenizer.bpe() == nullptr || tokenizer.bpe()->ends_at_lines();
}

}  // namespace

uint64_t input_bytes(const std::vector<std::string>& files) {
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    if (file != "-" && !fs::exists(file))
      fail(Exit::data, "there is no file ", file,
           "; give files, folders of them, or - for standard input");
    if (file != "-" && fs::is_regular_file(file)) bytes += fs::file_size(file);
  }

  // The size of standard input is unknown, and so is the total.
  return std::find(files.begin(), files.end(), "-") == files.end() ? bytes : 0;
}

namespace {

/// Returns the manifest of a data folder to which no tokens have been written yet.
DataManifest empty_manifest(const DocumentOptions& o) {
  DataManifest manifest;
  manifest.tokenizer = o.tokenizer;
  manifest.vocab_size = o.tokenizer.size();
  manifest.pairs = o.source.format == "preferences";
  manifest.marked = manifest.pairs || o.source.format == "instructions";
  // uint16 can hold neither ids above 65535 nor the bit token_mark.
  const bool is_wide = o.tokenizer.size() > 65536 || manifest.marked;
  manifest.dtype = is_wide ? "uint32" : "uint16";
  return manifest;
}

/// Returns the manifest's counts that are above 0, except the number of bytes: "20 read, 5
/// duplicates".
std::string counted_documents(const DataManifest& manifest) {
  std::string counted;
  for (const auto& [name, count] : manifest.documents.items()) {
    if (count.get<uint64_t>() > 0 && name != "bytes")
      counted += str(counted.empty() ? "" : ", ", count.get<uint64_t>(), " ", name);
  }
  return counted;
}

/// Throws Exit::data if there is too little to train on.
void check_enough(const DataManifest& manifest, int64_t train, int64_t val) {
  if (train >= 2) return;
  if (val > 1)
    fail(Exit::data,
         "all documents went to validation, so none is left to train on; use --val-by tail, or a "
         "smaller --val");
  const std::string counted = counted_documents(manifest);
  fail(Exit::data, "the data has ", train + val, " tokens, too few to train on",
       counted.empty() ? "" : "; documents: " + counted);
}

/// Logs the numbers of tokens and documents.
void log_result(const DocumentOptions& o, const DataManifest& manifest, int64_t train,
                int64_t val) {
  log_info(o.out.string(), ": ", train, " training and ", val, " validation tokens, vocabulary of ",
           manifest.vocab_size, " (", manifest.tokenizer.kind(),
           "); documents: ", counted_documents(manifest));
  if (o.val_share > 0 && val == 0) {
    log_warn("the validation split is empty, because there are too few documents for a share of ",
             o.val_share, "; raise --val");
  }
  const bool is_chats = o.source.format == "instructions" || o.source.format == "preferences";
  const bool has_several = !is_chats && manifest.documents.value("kept", int64_t{0}) > 1;
  if (has_several && manifest.tokenizer.bpe() != nullptr && manifest.tokenizer.document_end() < 0)
    log_warn(
        "the tokenizer has no token that ends documents, so nothing separates one document from "
        "the next");
}

}  // namespace

void prepare_documents(const DocumentOptions& o) {
  OutFolder::check(o.out);
  const uint64_t bytes = input_bytes(o.source.files);

  // These options need each document in one piece.
  const bool whole = o.dedup || o.val_by_hash || o.min_bytes > 0 || o.max_bytes != ~uint64_t{0} ||
                     !pieces_end_at_lines(o.tokenizer);
  ProgressReporter meter(o.out, o.stop);
  meter.begin("read", bytes);

  OutFolder out(o.out);
  DataManifest manifest = empty_manifest(o);
  const bool wide = manifest.dtype == "uint32", tail = o.has_val_tail();

  const auto writer = [&](const char* split) {
    return std::make_unique<SplitWriter>(o.out, o.shard_tokens, split, std::nullopt, wide);
  };
  // The size of the tail is known only at the end, so all tokens go to one file first.
  const auto spooler = [&] {
    return std::make_unique<SplitWriter>(o.out, std::numeric_limits<int64_t>::max(), "train_all", 0,
                                         wide);
  };
  auto train = writer("train"), val = writer("val"), spool = spooler();

  const Journal journal(o.out, identity(o));
  std::optional<Progress> before = journal.read();
  std::vector<std::string> resumed_files;
  if (before) {
    const bool all_there = tail ? spool->resume(before->train, before->train_sum)
                                : train->resume(before->train, before->train_sum) &&
                                      val->resume(before->val, before->val_sum);
    if (!all_there) {
      before.reset();
      train = writer("train");
      val = writer("val");
      spool = spooler();
    }
  }

  if (before) {
    resumed_files = resumable_files({train.get(), val.get(), spool.get()});
    log_info(o.out.string(), ": continuing after the ", before->parts,
             " parts that are already written");
  }

  out.clear(resumed_files);

  DocumentPreparation{.o = o,
                      .out = out,
                      .journal = journal,
                      .meter = meter,
                      .train = tail ? *spool : *train,
                      .val = tail ? *spool : *val,
                      .manifest = manifest}
      .process(whole, before);

  // The validation split is the last part of the tokens that remain after filtering.
  if (tail) {
    const auto all = spool->tokens();
    spool->finish();
    const fs::path path = OutFolder::unfinished(o.out, "train_all.bin");
    int64_t head = all - static_cast<int64_t>(o.val_share * static_cast<double>(all));
    // Never divide a conversation or a pair between the splits.
    if (all > 0 && manifest.marked) head = next_begin(path, head, manifest.pairs ? 2 : 1);
    if (all > 0) split_tail(path, manifest, *train, *val, head, meter);
    remove_tree(path);
  }

  check_enough(manifest, train->tokens(), val->tokens());
  manifest.train = train->finish();
  manifest.val = val->finish();
  std::vector<FinishedFile> files;
  for (const auto* shards : {&manifest.train, &manifest.val}) {
    for (const auto& shard : *shards) files.push_back({shard.file, shard.xxh3});
  }
  out.publish(files, [&](const std::string& name) { write_manifest(o.out, manifest, name); });
  log_result(o, manifest, train->tokens(), val->tokens());
}

}  // namespace lathe
