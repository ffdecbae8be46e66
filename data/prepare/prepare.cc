#include "data/prepare/prepare.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string_view>

#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "data/prepare/file_type.h"
#include "data/prepare/out_folder.h"
#include "data/prepare/split_writer.h"
#include "data/tokens/manifest.h"

namespace lathe {

std::vector<fs::path> expand_inputs(const std::vector<std::string>& inputs, const fs::path& out) {
  std::vector<fs::path> files;
  for (const auto& in : inputs) {
    if (fs::is_directory(in)) {
      std::vector<fs::path> found;
      for (fs::recursive_directory_iterator entry(in); entry != fs::end(entry); ++entry) {
        std::error_code missing;
        if (entry->is_directory() && fs::equivalent(entry->path(), out, missing))
          entry.disable_recursion_pending();
        else if (entry->is_regular_file())
          found.push_back(entry->path());
      }
      std::sort(found.begin(), found.end());
      files.insert(files.end(), found.begin(), found.end());
    } else {
      files.emplace_back(in);
    }
  }
  return files;
}

namespace {

/// An input file. The first pass sets its size and `begin`.
struct Input {
  fs::path path;
  uint64_t bytes = 0;
  size_t begin = 0;  ///< position of the text, after a byte order mark if there is one
};

[[noreturn]] void changed(const fs::path& path) {
  fail(Exit::data, path.string(), " changed while it was being read; run the same command again");
}

/// Reads a file from `at` piece by piece. `f(text, at, end)` processes the tokens that begin in
/// [at, end) and returns the position after the last of these tokens. `text` is the complete file,
/// so f can read a token that extends beyond the piece. Releases the memory of processed pieces.
template <class F>
void for_each_piece(const MappedFile& file, size_t at, ProgressReporter& meter, F&& f) {
  const auto bytes = file.bytes();
  const std::string_view text = file.text();
  for (size_t released = 0; at < text.size();) {
    const size_t begin = at;
    at = f(text, at, std::min(begin + ProgressReporter::piece, text.size()));
    // Release only complete pieces: their ends are multiples of every page size.
    const size_t behind = at / ProgressReporter::piece * ProgressReporter::piece;
    file.release(bytes.subspan(released, behind - released));
    released = behind;
    meter.advance(at - begin);
  }
}

constexpr uint32_t code_points = 0x110000;

/// Returns the code point whose UTF-8 encoding is the `n` bytes at position `at`, which must be
/// valid.
uint32_t code_point(std::string_view text, size_t at, size_t n) {
  constexpr unsigned char lead[]{0, 0x7F, 0x1F, 0x0F, 0x07};
  uint32_t x = static_cast<unsigned char>(text[at]) & lead[n];
  for (size_t i = 1; i < n; ++i) x = x << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3F);
  return x;
}

std::string utf8(uint32_t x) {
  const auto tail = [x](int shift) { return static_cast<char>(0x80 | (x >> shift & 0x3F)); };
  if (x < 0x80) return {static_cast<char>(x)};
  if (x < 0x800) return {static_cast<char>(0xC0 | x >> 6), tail(0)};
  if (x < 0x10000) return {static_cast<char>(0xE0 | x >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | x >> 18), tail(12), tail(6), tail(0)};
}

/// The results of the first pass: the number of tokens, and the tokenizer.
struct TextSurvey {
  int64_t tokens = 0;
  Tokenizer tokenizer = Tokenizer::byte();
  std::vector<uint16_t> ids;  ///< "char": the id of each code point that was seen
  std::vector<bool> seen;
};

TextSurvey survey(std::vector<Input>& inputs, const PrepareOptions& options,
                  ProgressReporter& meter) {
  TextSurvey s;
  uint64_t bytes = 0;
  for (auto& input : inputs) {
    if (!fs::exists(input.path))
      fail(Exit::data, "there is no file ", input.path.string(),
           "; give text files or folders of them");
    const MappedFile file(input.path, Exit::data);
    input.bytes = file.bytes().size();
    const size_t length = without_byte_order_mark(file.text()).size();
    input.begin = options.binary ? 0 : input.bytes - length;
    bytes += input.bytes - input.begin;
  }

  if (bytes == 0) fail(Exit::data, "the input has no text");
  // Each byte of binary input is a token, so this pass need not read the input.
  const bool chars = options.tokenizer == "char";
  s.tokens = chars ? 0 : static_cast<int64_t>(bytes);
  if (options.binary) return s;

  if (chars) s.seen.resize(code_points);
  meter.begin("read", bytes);
  for (const auto& input : inputs) {
    const MappedFile file(input.path, Exit::data);
    if (file.bytes().size() != input.bytes) changed(input.path);
    for_each_piece(file, input.begin, meter, [&](std::string_view text, size_t at, size_t end) {
      check_is_text(input.path.string(), text.substr(at, end - at), at == input.begin,
                    "use --tokenizer byte --binary to make each of its bytes a token");
      if (!chars) return end;
      while (at < end) {
        const size_t n = code_point_length(text, at);
        if (n == 0) {
          fail(Exit::data, input.path.string(), " is not UTF-8 (byte ", at,
               "); convert it or use --tokenizer byte");
        }
        s.seen[code_point(text, at, n)] = true;
        ++s.tokens;
        at += n;
      }
      return at;
    });
  }

  if (!chars) return s;
  // Number the characters in the order of their code points, not of their first occurrence.
  std::vector<std::string> vocabulary;
  s.ids.resize(code_points);
  for (uint32_t x = 0; x < code_points; ++x) {
    if (!s.seen[x]) continue;
    s.ids[x] = static_cast<uint16_t>(vocabulary.size());
    vocabulary.push_back(utf8(x));
  }

  // Shards of characters are uint16.
  if (vocabulary.size() > 65536)
    fail(Exit::data, "the text has more than 65536 different characters; use --tokenizer byte");
  s.tokenizer = Tokenizer::from("char", vocabulary);
  return s;
}

/// Appends the ids of tokens that begin in [at, end); returns the position of the next token.
size_t take(const TextSurvey& s, const fs::path& path, std::string_view text, size_t at, size_t end,
            std::vector<int32_t>& ids) {
  while (at < end) {
    if (s.seen.empty()) {
      ids.push_back(static_cast<unsigned char>(text[at++]));
      continue;
    }
    const size_t n = code_point_length(text, at);
    const uint32_t x = n > 0 ? code_point(text, at, n) : 0;
    if (n == 0 || !s.seen[x]) changed(path);
    ids.push_back(s.ids[x]);
    at += n;
  }
  return at;
}

/// Returns a text with everything that must be unchanged for a preparation to resume.
std::string identity(const std::vector<Input>& inputs, const TextSurvey& s,
                     const PrepareOptions& o) {
  Json json{{"format", 2},
            {"text", true},
            {"val", o.val_share},
            {"shard", o.shard_tokens},
            {"tokens", s.tokens}};
  s.tokenizer.add_to_json(json, "tokenizer");
  std::string all = json_text(json);
  // Paths need not be UTF-8, so they are not in the JSON text.
  for (const Input& input : inputs) all += str(input.path.string(), '\0', input.bytes, '\0');
  return all;
}

/// The objects that are needed to write the shards of plain text.
struct TextShards {
  const std::vector<Input>& inputs;
  const TextSurvey& survey;
  const PrepareOptions& options;
  OutFolder& out;
  const Journal& journal;
  ProgressReporter& meter;
  SplitWriter &first, &second;

  /// Writes the tokens of both splits: the first `train` tokens to `first`, the remaining tokens to
  /// `second`. The parts that `before` records as finished are read again but not written. Returns
  /// the largest id.
  int64_t write(int64_t train, const std::optional<Progress>& before);
};

int64_t TextShards::write(int64_t train, const std::optional<Progress>& before) {
  std::vector<int32_t> ids;
  ids.reserve(ProgressReporter::piece);
  Checksum read;
  Progress now;
  int64_t taken = 0;
  auto saved = Clock::now();

  // Once progress has been recorded, the unfinished files stay after an error or a stop.
  const auto keep = [&] {
    out.keep();
    meter.resumable();
    saved = Clock::now();
  };
  if (before) keep();

  uint64_t bytes = 0;
  for (const auto& input : inputs) bytes += input.bytes - input.begin;
  meter.begin("written", bytes);
  for (const auto& input : inputs) {
    const MappedFile file(input.path, Exit::data);
    if (file.bytes().size() != input.bytes) changed(input.path);
    for_each_piece(file, input.begin, meter, [&](std::string_view text, size_t at, size_t end) {
      ids.clear();
      const size_t next = take(survey, input.path, text, at, end, ids);
      // The sizes of the splits come from the survey, so this pass must not find more tokens.
      if (std::ssize(ids) > survey.tokens - taken) changed(input.path);
      now.largest_id = std::max<int64_t>(now.largest_id, *std::max_element(ids.begin(), ids.end()));
      read.update(text.data() + at, next - at);

      const auto head = static_cast<size_t>(std::clamp<int64_t>(train - taken, 0, std::ssize(ids)));
      taken += std::ssize(ids);
      // The parts that a previous call wrote are only hashed, to recognize changed input.
      if (++now.parts > (before ? before->parts : 0)) {
        first.write(std::span(ids).first(head));
        second.write(std::span(ids).subspan(head));
        if (seconds_since(saved) >= options.progress_seconds) {
          now.input = read.hex();
          record(journal, now, first, second);
          keep();
        }
      } else if (now.parts == before->parts && read.hex() != before->input) {
        journal.fail_input_changed();
      }
      return next;
    });
  }

  if (taken != survey.tokens)
    fail(Exit::data, "the input changed while it was being read; run the same command again");
  return now.largest_id;
}

/// Shows the sizes of the splits, and warns if no token is left for validation.
void log_result(const PrepareOptions& options, const DataManifest& manifest, int64_t train,
                int64_t val) {
  log_info(options.out.string(), ": ", train, " training and ", val,
           " validation tokens, vocabulary of ", manifest.vocab_size, " (",
           manifest.tokenizer.kind(), ")");
  if (options.val_share > 0 && val == 0) {
    log_warn("the validation split is empty, because the text is too short for a share of ",
             options.val_share, "; raise --val");
  }
}

}  // namespace

void prepare(const PrepareOptions& options) {
  LATHE_CHECK(options.tokenizer == "byte" || options.tokenizer == "char",
              "prepare() has no tokenizer ", options.tokenizer,
              "; prepare_documents() takes a BPE");
  LATHE_CHECK(!options.binary || options.tokenizer == "byte",
              "binary input needs the byte tokenizer");

  // Check the destination before the survey, which may read all input.
  OutFolder::check(options.out);
  std::vector<Input> inputs;
  for (auto& path : expand_inputs(options.inputs, options.out)) inputs.push_back({std::move(path)});
  ProgressReporter meter(options.out, options.stop);
  // If there is a record of a previous call, a stop during the survey loses nothing.
  if (fs::exists(OutFolder::unfinished(options.out, Journal::name))) meter.resumable();
  const TextSurvey found = survey(inputs, options, meter);
  const int64_t n = found.tokens,
                split = n - static_cast<int64_t>(options.val_share * static_cast<double>(n));
  if (split < 2) fail(Exit::data, "the input has ", n, " tokens, too few to train on");

  OutFolder out(options.out);
  const Journal journal(options.out, identity(inputs, found, options));

  const auto writer = [&](const char* name, int64_t tokens) {
    return SplitWriter(options.out, options.shard_tokens, name, tokens, /*wide=*/false);
  };
  SplitWriter train = writer("train", split), val = writer("val", n - split);

  std::optional<Progress> before = journal.read();
  // Both splits resume from the same record, or neither does.
  if (before && !(train.resume(before->train, before->train_sum) &&
                  val.resume(before->val, before->val_sum))) {
    before.reset();
    train = writer("train", split);
    val = writer("val", n - split);
  }

  std::vector<std::string> resumed_files;
  if (before) {
    resumed_files = resumable_files({&train, &val});
    log_info(options.out.string(), ": continuing after the ", before->train + before->val,
             " tokens that are already written");
  }
  out.clear(resumed_files);

  DataManifest manifest;
  manifest.tokenizer = found.tokenizer;
  manifest.vocab_size = found.tokenizer.size();
  manifest.largest_id = TextShards{.inputs = inputs,
                                   .survey = found,
                                   .options = options,
                                   .out = out,
                                   .journal = journal,
                                   .meter = meter,
                                   .first = train,
                                   .second = val}
                            .write(split, before);
  manifest.train = train.finish();
  manifest.val = val.finish();

  std::vector<FinishedFile> files;
  for (const auto* shards : {&manifest.train, &manifest.val}) {
    for (const auto& shard : *shards) files.push_back({shard.file, shard.xxh3});
  }
  out.publish(files, [&](const std::string& name) { write_manifest(options.out, manifest, name); });

  log_result(options, manifest, split, n - split);
}

}  // namespace lathe
