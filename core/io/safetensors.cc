#include "core/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "core/io/checksum.h"
#include "core/io/json.h"

namespace lathe {
namespace {

constexpr std::array<std::pair<const char*, int64_t>, 12> dtypes{{{"F64", 8},
                                                                  {"F32", 4},
                                                                  {"F16", 2},
                                                                  {"BF16", 2},
                                                                  {"I64", 8},
                                                                  {"I32", 4},
                                                                  {"I16", 2},
                                                                  {"I8", 1},
                                                                  {"U8", 1},
                                                                  {"F8_E4M3", 1},
                                                                  {"F8_E5M2", 1},
                                                                  {"BOOL", 1}}};
constexpr uint64_t max_header = 100'000'000;  // the format's own limit

bool by_name(const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; }

/// Reads an entry of the header, and checks that its shape matches its offsets, and that the
/// offsets are within `buffer`.
TensorEntry read_entry(const std::string& file, const std::string& name, const Json& json,
                       std::span<const std::byte> buffer) {
  const std::string where = str(file, ": tensor \"", name, "\"");
  TensorEntry entry{.name = name,
                    .dtype = json_get<std::string>(json, "dtype", where, Exit::checkpoint),
                    .shape = {},
                    .bytes = {}};
  const int64_t item = safetensors_dtype_size(entry.dtype);
  if (item == 0) fail(Exit::checkpoint, where, ": unknown dtype \"", entry.dtype, "\"");
  uint64_t bytes = static_cast<uint64_t>(item);

  // An untrusted header can claim any shape. Refuse a shape whose number of bytes overflows.
  const auto shape = json_get<Json>(json, "shape", where, Exit::checkpoint);
  if (!shape.is_array()) fail(Exit::checkpoint, where, ": its shape is not a list");
  for (const auto& dim : shape) {
    if (!dim.is_number_unsigned())
      fail(Exit::checkpoint, where, ": a dimension is not a whole number");
    const auto d = dim.get<uint64_t>();
    if (d > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
        (d != 0 && bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / d)) {
      fail(Exit::checkpoint, where, ": its shape is too large");
    }
    bytes *= d;
    entry.shape.push_back(static_cast<int64_t>(d));
  }

  const auto offsets = json_get<Json>(json, "data_offsets", where, Exit::checkpoint);
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    fail(Exit::checkpoint, where, ": data_offsets must be two whole numbers");
  }

  const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end || end > buffer.size()) {
    fail(Exit::checkpoint, where, ": bytes ", begin, " to ", end,
         " are not within the data of the file, whose size is ", buffer.size());
  }
  if (end - begin != bytes) {
    fail(Exit::checkpoint, where, ": its shape needs ", bytes, " bytes, but it has ", end - begin);
  }
  entry.bytes = buffer.subspan(begin, end - begin);
  return entry;
}

}  // namespace

int64_t TensorEntry::numel() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

uint64_t TensorEntry::size() const {
  return static_cast<uint64_t>(numel() * safetensors_dtype_size(dtype));
}

void TensorEntry::write(const std::function<void(std::span<const std::byte>)>& put) const {
  if (stream)
    stream(put);
  else
    put(bytes);
}

int64_t safetensors_dtype_size(const std::string& dtype) {
  for (const auto& [name, size] : dtypes) {
    if (dtype == name) return size;
  }
  return 0;
}

std::string write_safetensors(const fs::path& path, std::vector<TensorEntry> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), by_name);
  Json header = Json::object();
  Json notes = metadata;
  for (const auto& t : tensors) {
    if (!t.note.empty()) notes.get_ref<Json::object_t&>().emplace_back(t.name, t.note);
  }
  if (!notes.empty()) header["__metadata__"] = notes;
  uint64_t offset = 0;
  for (const auto& t : tensors) {
    LATHE_CHECK(safetensors_dtype_size(t.dtype) > 0, "safetensors: the tensor ", t.name,
                " has the dtype ", t.dtype, ", whose size is not known");
    // Append the entry, since header[name] would search all previous names.
    header.get_ref<Json::object_t&>().emplace_back(
        t.name,
        Json{
            {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {offset, offset + t.size()}}});
    offset += t.size();
  }
  std::string text = json_text(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // the data must begin at a multiple of 8 bytes
  const uint64_t length = text.size();

  OutputFile file(path, OutputFile::Open::create);
  LargeWrites writes(file);
  Checksum sum;
  // A part fits into a core's cache, so that the checksum reads the part from there.
  constexpr size_t part = size_t{256} << 10;
  const auto put = [&](const void* data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += part) {
      const auto* const from = static_cast<const std::byte*>(data) + at;
      const size_t n = std::min(part, bytes - at);
      writes.add(from, n);
      sum.update(from, n);
    }
  };
  put(&length, sizeof length);
  put(text.data(), text.size());
  for (const auto& t : tensors)
    t.write([&](std::span<const std::byte> part) { put(part.data(), part.size()); });
  writes.finish();
  file.sync();
  file.close();
  return sum.hex();
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path, Exit::checkpoint) {
  const std::string name = path.string();
  const auto bytes = file_.bytes();
  uint64_t length = 0;
  if (bytes.size() < sizeof length)
    fail(Exit::checkpoint, name, " is too short to be a safetensors file");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > max_header || length > bytes.size() - sizeof length) {
    fail(Exit::checkpoint, name, " is not a safetensors file, or is cut short: its header claims ",
         length, " bytes");
  }

  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof length, length);
  const Json header = parse_json(text, name, Exit::checkpoint);
  if (!header.is_object()) fail(Exit::checkpoint, name, ": the header is not a JSON object");

  // Offsets count from the end of the header.
  const auto buffer = bytes.subspan(sizeof length + length);
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      if (!value.is_object()) fail(Exit::checkpoint, name, ": __metadata__ must hold strings");
      for (const auto& [k, v] : value.items()) {
        if (!v.is_string()) fail(Exit::checkpoint, name, ": __metadata__ must hold strings");
        metadata_[k] = v.get<std::string>();
      }
    } else {
      tensors_.push_back(read_entry(name, key, value, buffer));
    }
  }

  // Tensors must follow each other in the file without gaps or overlaps, so that every byte of the
  // file is checked. Sort them by the addresses of their bytes to check this. At the same address,
  // an empty tensor comes before a tensor with elements.
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  const std::byte* expected = buffer.data();
  for (const auto& t : tensors_) {
    if (t.bytes.data() != expected)
      fail(Exit::checkpoint, name, ": there is a gap or overlap before tensor \"", t.name, "\"");
    expected += t.bytes.size();
  }

  if (expected != buffer.data() + buffer.size())
    fail(Exit::checkpoint, name, ": there are bytes after the last tensor");

  for (auto& t : tensors_) {
    if (const auto note = metadata_.find(t.name); note != metadata_.end()) t.note = note->second;
  }

  // find() does a binary search by name.
  std::sort(tensors_.begin(), tensors_.end(), by_name);
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(),
                       TensorEntry{.name = name, .dtype = {}, .shape = {}, .bytes = {}}, by_name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

const TensorEntry& SafetensorsFile::at(const std::string& name) const {
  const TensorEntry* found = find(name);
  if (found == nullptr)
    fail(Exit::checkpoint, file_.path().string(), " has no tensor \"", name, "\"");
  return *found;
}

}  // namespace lathe
