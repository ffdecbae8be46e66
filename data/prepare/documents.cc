#include "data/prepare/documents.h"

#include <algorithm>

#include "core/io/file.h"
#include "core/io/text.h"
#include "data/prepare/file_type.h"
#include "data/prepare/json_lines.h"

namespace lathe {
namespace {

/// Returns whether a byte may belong to white space. Returns true for all bytes of non-ASCII
/// characters, since Unicode has non-ASCII white space.
bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || static_cast<unsigned char>(c) >= 0x80;
}

/// Returns where to cut the text: after the last line break in its second half that has no white
/// space on either side. Returns 0 if there is no such line break.
size_t cut_position(std::string_view text) {
  for (size_t at = text.empty() ? 0 : text.size() - 1; at > std::max<size_t>(1, text.size() / 2);
       --at) {
    if (text[at - 1] == '\n' && !is_space(text[at]) && !is_space(text[at - 2])) return at;
  }
  return 0;
}

/// Returns the position of the last separator in a text that begins with a document, or npos.
/// Searches from the left, as readers of documents do, since separators such as "\n\n" may overlap.
size_t last_separator(std::string_view text, std::string_view separator) {
  size_t last = std::string_view::npos;
  if (separator.empty()) return last;
  for (size_t at = text.find(separator); at != std::string_view::npos;
       at = text.find(separator, at + separator.size()))
    last = at;
  return last;
}

}  // namespace

bool has_compressed_name(const fs::path& file) {
  const std::string extension = lower_extension(file);
  return extension == ".gz" || extension == ".zst";
}

bool is_jsonl(const DocumentSource& source, const std::string& file) {
  if (source.format != "auto") return source.format != "text";
  const fs::path path = file;
  const std::string extension = lower_extension(has_compressed_name(path) ? path.stem() : path);
  return extension == ".jsonl" || extension == ".ndjson";
}

PartReader::PartReader(const DocumentSource& source, bool whole, size_t part_bytes,
                       size_t most_whole)
    : source_(source), whole_(whole), part_bytes_(part_bytes), max_document_bytes_(most_whole) {}

/// Reads until the buffer has exactly `bytes` bytes or the file ends, so that parts do not depend
/// on the chunks in which a pipe delivers the file. Returns whether the buffer has grown.
bool PartReader::read_to(size_t bytes) {
  const size_t had = buffer_.size();
  while (!ended_ && buffer_.size() < bytes) {
    const size_t before = buffer_.size();
    ended_ = !stream_->read(buffer_, bytes - before);
    // JSON Lines are not checked here: the JSON parser reports a line that is not JSON.
    if (!jsonl_)
      check_is_text(name_, std::string_view(buffer_).substr(before), begins_,
                    "give only text files");
    begins_ = false;
  }
  return buffer_.size() > had;
}

bool PartReader::next(Part& part) {
  for (;;) {
    if (!stream_) {
      if (file_ == source_.files.size()) return false;
      const std::string& file = source_.files[file_++];
      stream_ = std::make_unique<InputStream>(file);
      name_ = file == "-" ? "standard input" : file;
      jsonl_ = is_jsonl(source_, file);
      ended_ = within_ = false;
      begins_ = true;
      place_ = jsonl_ ? 1 : 0;
      searched_ = 0;
      buffer_.clear();
    }
    part = {.file = name_, .jsonl = jsonl_, .text = {}, .place = place_};
    if (jsonl_ ? next_lines(part) : next_text(part)) return true;
    before_ += stream_->consumed();
    stream_.reset();
  }
}

bool PartReader::next_lines(Part& part) {
  for (;;) {
    const size_t end = buffer_.rfind('\n');
    if (end != std::string::npos && end >= searched_ && (buffer_.size() >= part_bytes_ || ended_)) {
      part.text.assign(buffer_, 0, end + 1);
      break;
    }

    if (buffer_.size() > max_document_bytes_)
      fail(Exit::data, name_, ":", place_, ": a line has more than ", max_document_bytes_ >> 20,
           " MiB; check that the file is JSON Lines");

    if (end == std::string::npos) searched_ = buffer_.size();
    if (read_to(buffer_.size() + part_bytes_)) continue;
    part.text = buffer_;  // the last line has no line break
    break;
  }

  buffer_.erase(0, part.text.size());
  searched_ = 0;
  place_ += static_cast<uint64_t>(std::count(part.text.begin(), part.text.end(), '\n'));
  return !part.text.empty();
}

bool PartReader::next_text(Part& part) {
  const std::string& separator = source_.separator;
  for (size_t enough = part_bytes_;;) {
    read_to(enough);
    size_t take = buffer_.size();
    part.ends = true;

    if (!ended_) {
      // Take complete documents if there are any, otherwise cut the incomplete document.
      const size_t last = last_separator(buffer_, separator);
      if (last != std::string::npos) {
        take = last + separator.size();
      } else {
        part.ends = false;
        // The last bytes may be the beginning of a separator.
        const size_t known = buffer_.size() - std::min(buffer_.size(), separator.size());
        take = whole_ ? 0 : cut_position(std::string_view(buffer_).substr(0, known));
        if (take == 0 && buffer_.size() <= max_document_bytes_) {
          // Double the size, so that a long document is searched only a few times.
          enough = 2 * buffer_.size();
          continue;
        }
        if (take == 0 && whole_) {
          fail(Exit::data, name_, ": a document of more than ", max_document_bytes_ >> 20,
               " MiB at byte ", place_,
               " is too large for --dedup, --val-by hash, limits of length and a tokenizer with "
               "its own pattern, which need complete documents; split it with --separator");
        }
        if (take == 0) {
          // There is no good position within the limit: cut between any two UTF-8 characters.
          take = part_bytes_;
          while (take > 1 && take + 4 > part_bytes_ &&
                 (static_cast<unsigned char>(buffer_[take]) & 0xC0) == 0x80)
            --take;
        }
      }
    }

    // An empty part is needed only to end a document that began in an earlier part.
    if (take == 0 && !(ended_ && within_)) return false;
    part.text.assign(buffer_, 0, take);
    buffer_.erase(0, take);
    part.begins = !within_;
    within_ = !part.ends;

    place_ += take;
    return true;
  }
}

namespace {

/// Returns the text without the byte order mark that a file may begin with.
std::string_view text_of(const Part& part) {
  const bool begins_file = part.place <= (part.jsonl ? 1U : 0U);
  return begins_file ? without_byte_order_mark(part.text) : part.text;
}

}  // namespace

void each_line(const Part& part,
               const std::function<void(uint64_t line, std::string_view text)>& f) {
  std::string_view text = text_of(part);
  for (uint64_t line = part.place; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (one.find_first_not_of(" \t\r") != std::string_view::npos) f(line, one);
  }
}

void each_document(const Part& part, const DocumentSource& source,
                   const std::function<void(std::string_view)>& f) {
  if (part.documents) {
    for (const std::string& document : *part.documents) f(document);
    return;
  }

  if (!part.jsonl) {
    std::string_view text = text_of(part);
    if (source.separator.empty() || text.empty()) return f(text);
    while (!text.empty()) {
      const size_t end = std::min(text.find(source.separator), text.size());
      f(text.substr(0, end));
      text.remove_prefix(std::min(text.size(), end + source.separator.size()));
    }
    return;
  }

  const std::string what =
      str("has no text in the field \"", source.field, "\"; name it with --field");
  each_object(part, what, [&](uint64_t line, const simdjson::dom::object& json) {
    std::string_view found;
    if (json[source.field].get(found) != simdjson::SUCCESS)
      fail(Exit::data, part.file, ":", line, " ", what);
    f(found);
  });
}

void LineFilter::filter(Part& part, const DocumentSource& source) {
  std::vector<std::string> kept;
  each_document(part, source, [&](std::string_view text) {
    std::string& out = kept.emplace_back();
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end);
      std::string_view words = line.substr(0, line.find_last_not_of(" \t\r\n") + 1);
      words.remove_prefix(std::min(words.size(), words.find_first_not_of(" \t")));
      if (!words.empty() && !seen_.insert(digest(words)).second) {
        ++dropped_;
        continue;
      }
      out += line;
    }
  });
  part.documents = std::move(kept);
}

uint64_t repair_utf8(std::string& text) {
  std::string out;
  uint64_t bad = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = utf8_end(text, at);
    out.append(text, at, end - at);
    at = end;
    if (at == text.size()) break;
    out += "\xEF\xBF\xBD";
    ++bad;
    ++at;
  }
  if (bad > 0) text = std::move(out);
  return bad;
}

}  // namespace lathe
