#include "core/io/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/io/text.h"

namespace lathe {
namespace {

constexpr std::string_view magic = "GGUF";
// The header of an untrusted file can claim any number of entries. These limits bound the memory
// that the parsed header takes.
constexpr size_t most_header = size_t{1} << 30;
constexpr uint64_t most_values = uint64_t{1} << 25, most_dimensions = 4;
constexpr int most_depth = 4;  // the largest depth of nested lists
constexpr auto most_bytes = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

/// Reads the header sequentially. Each read is checked against the end of the file.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> bytes, std::string file)
      : bytes_(bytes.first(std::min(bytes.size(), most_header))), file_(std::move(file)) {}

  size_t at() const { return at_; }
  const std::string& file() const { return file_; }

  template <class T>
  T number() {
    T x;
    std::memcpy(&x, take(sizeof x).data(), sizeof x);
    return x;
  }
  std::string text() {
    const auto taken = take(number<uint64_t>());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  /// Reads the metadata value of `key`. `type` is the number that denotes the value's type in the
  /// file; `depth` is the number of lists that contain the value.
  Json value(uint32_t type, const std::string& key, int depth = 0);
  /// Registers `count` entries that the header claims to have. Each takes at least `bytes` bytes.
  /// Fails if the header is too short for these entries, or has too many values.
  void expect(uint64_t count, uint64_t bytes) {
    values_ += std::min(count, most_values);
    if (count > (bytes_.size() - at_) / bytes) cut();
    if (values_ > most_values)
      fail(Exit::checkpoint, file_, ": the header has more than ", most_values, " values");
  }

 private:
  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size() - at_) cut();
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  [[noreturn]] void cut() const {
    fail(Exit::checkpoint, file_, ": the header's data at byte ", at_, " continues beyond byte ",
         bytes_.size(), "; the file is cut short or damaged");
  }

  std::span<const std::byte> bytes_;
  std::string file_;
  size_t at_ = 0;
  uint64_t values_ = 0;
};

Json HeaderReader::value(uint32_t type, const std::string& key, int depth) {
  const auto as_list = [&] {
    const auto of = number<uint32_t>();
    const auto count = number<uint64_t>();
    expect(count, 1);
    if (depth == most_depth)
      fail(Exit::checkpoint, file_, ": ", key, " has lists nested more than ", most_depth, " deep");
    Json list = Json::array();
    for (uint64_t i = 0; i < count; ++i) list.push_back(value(of, key, depth + 1));
    return list;
  };

  switch (type) {
    case 0: return number<uint8_t>();
    case 1: return number<int8_t>();
    case 2: return number<uint16_t>();
    case 3: return number<int16_t>();
    case 4: return number<uint32_t>();
    case 5: return number<int32_t>();
    case 6: return decimal_value(number<float>());
    case 7: return number<uint8_t>() != 0;
    case 8: return text();
    case 9: return as_list();
    case 10: return number<uint64_t>();
    case 11: return number<int64_t>();
    case 12: return number<double>();
    default:
      fail(Exit::checkpoint, file_, ": ", key, " has a value of type ", type,
           ", but the format has only types 0 to 12");
  }
}

/// Reads the version and checks it.
void check_version(HeaderReader& in) {
  const std::string& file = in.file();
  const auto version = in.number<uint32_t>();
  // In a big-endian file of version 3, the version is in the highest byte of the number.
  if (version != 0 && (version & 0xFFFF) == 0)
    fail(Exit::checkpoint, file, " is in big-endian order; this build reads little-endian files");
  if (version != 2 && version != 3)
    fail(Exit::checkpoint, file, " has GGUF version ", version,
         ", but this build reads only versions 2 and 3; convert it with llama.cpp");
}

/// Reads a tensor's description. Returns an entry that does not have its bytes yet, and the offset
/// of these bytes.
std::pair<TensorEntry, uint64_t> read_info(HeaderReader& in) {
  TensorEntry entry{.name = in.text(), .dtype = {}, .shape = {}, .bytes = {}};
  const std::string where = str(in.file(), ": tensor \"", entry.name, "\"");

  const auto dimensions = in.number<uint32_t>();
  if (dimensions > most_dimensions)
    fail(Exit::checkpoint, where, " has ", dimensions, " dimensions, but the format allows only ",
         most_dimensions);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = in.number<uint64_t>();
    // With at most 2^60 elements, the number of bytes can't overflow. Sizes of 0 are skipped, so
    // that the product of the other sizes can't overflow either.
    if (size > most_bytes / 8 || (size != 0 && elements > most_bytes / 8 / size))
      fail(Exit::checkpoint, where, ": its shape is too large");
    elements *= std::max<uint64_t>(size, 1);
    // The file lists the innermost size first.
    entry.shape.insert(entry.shape.begin(), static_cast<int64_t>(size));
  }

  const auto number = in.number<uint32_t>();
  const GGUFType* type = find_gguf_type(number);
  if (type == nullptr) {
    std::string names;
    for (const GGUFType& known : gguf_types())
      names += (names.empty() ? "" : ", ") + str(known.name);
    fail(Exit::checkpoint, where, " has ggml's type ", number, ", but this build reads only ",
         names);
  }
  entry.dtype = type->name;
  const int64_t row = entry.shape.empty() ? 1 : entry.shape.back();
  if (row % type->elements != 0)
    fail(Exit::checkpoint, where, " has rows of ", row,
         " elements, which can't be divided into blocks of ", type->name, " with size ",
         type->elements);
  return {std::move(entry), in.number<uint64_t>()};
}

uint64_t stored_bytes(const TensorEntry& entry) {
  const GGUFType& type = *find_gguf_type(entry.dtype);
  return static_cast<uint64_t>(entry.numel() / type.elements) * type.bytes;
}

}  // namespace

GGUFFile::GGUFFile(const fs::path& path) : file_(path, Exit::checkpoint) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = file_.bytes();
  const std::string name = path.string();
  if (bytes.size() < magic.size() || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    fail(Exit::checkpoint, name, " is not a GGUF file: it does not begin with ", magic);

  HeaderReader in(bytes, name);
  in.number<uint32_t>();  // skip the magic number
  check_version(in);

  const auto tensor_count = in.number<uint64_t>(), key_count = in.number<uint64_t>();
  in.expect(key_count, 13);     // a key takes at least a length, a type and one byte
  in.expect(tensor_count, 24);  // at least a length, the number of dimensions, a type, an offset
  auto& entries = metadata_.get_ref<Json::object_t&>();
  entries.reserve(key_count);  // a vector of pairs, which would be copied when it grows
  for (uint64_t i = 0; i < key_count; ++i) {
    const std::string key = in.text();
    if (!keys_.emplace(key, entries.size()).second)
      fail(Exit::checkpoint, name, " has the key ", key, " twice");
    const auto type = in.number<uint32_t>();
    // Append the value, since metadata_[key] would search all previous keys.
    entries.emplace_back(key, in.value(type, key));
  }

  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    auto [entry, offset] = read_info(in);
    if (!names_.emplace(entry.name, tensors_.size()).second)
      fail(Exit::checkpoint, name, " has the tensor \"", entry.name, "\" twice");
    tensors_.push_back(std::move(entry));
    offsets.push_back(offset);
  }

  uint64_t alignment = 32;
  if (const Json* value = find_value("general.alignment"); value != nullptr) {
    alignment = value->is_number_unsigned() ? value->get<uint64_t>() : 0;
    if (!std::has_single_bit(alignment) || alignment > most_header)
      fail(Exit::checkpoint, name, ": general.alignment = ", json_text(*value),
           ", but it must be a power of two");
  }
  const auto aligned = [&](uint64_t at) { return (at + alignment - 1) / alignment * alignment; };

  // Offsets count from the first multiple of the alignment after the header.
  uint64_t begin = aligned(in.at()), end = in.at();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TensorEntry& entry = tensors_[i];
    const std::string where = str(name, ": tensor \"", entry.name, "\"");
    const uint64_t from = i == 0 ? begin : aligned(end), size = stored_bytes(entry);
    if (offsets[i] != from - begin)
      fail(Exit::checkpoint, where, " is at byte ", offsets[i], " of the data; it must be at byte ",
           from - begin);
    if (from > bytes.size() || size > bytes.size() - from)
      fail(Exit::checkpoint, where, " takes bytes ", from, " to ", from + size,
           ", but the file has only ", bytes.size(), " bytes and is cut short or damaged");
    entry.bytes = bytes.subspan(from, size);
    end = from + size;
  }
  if (bytes.size() > aligned(end))
    fail(Exit::checkpoint, name, ": there are bytes after the last tensor");
}

const Json* GGUFFile::find_value(const std::string& key) const {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return nullptr;
  return &(metadata_.get_ref<const Json::object_t&>().begin() +
           static_cast<std::ptrdiff_t>(found->second))
              ->second;
}

const TensorEntry* GGUFFile::find(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : &tensors_[found->second];
}

std::string decimal_text(float x) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr};
}

double decimal_value(float x) { return std::isfinite(x) ? std::stod(decimal_text(x)) : x; }

bool is_gguf(const fs::path& path) {
  if (!fs::is_regular_file(path)) return false;
  std::ifstream in(path, std::ios::binary);
  std::string head(magic.size(), '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  return in.gcount() == static_cast<std::streamsize>(magic.size()) && head == magic;
}

}  // namespace lathe
