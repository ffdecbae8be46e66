#include "data/examples/npy.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace lathe {
namespace {

static_assert(std::endian::native == std::endian::little);

struct TypeNames {
  ArrayType type;
  const char *name, *npy;  // npy: NumPy's code without the byte order
  int64_t bytes;
};
// Columns: type, name, npy, bytes
constexpr std::array<TypeNames, 12> types{{{ArrayType::f16, "float16", "f2", 2},
                                           {ArrayType::f32, "float32", "f4", 4},
                                           {ArrayType::f64, "float64", "f8", 8},
                                           {ArrayType::bf16, "bfloat16", nullptr, 2},
                                           {ArrayType::i8, "int8", "i1", 1},
                                           {ArrayType::i16, "int16", "i2", 2},
                                           {ArrayType::i32, "int32", "i4", 4},
                                           {ArrayType::i64, "int64", "i8", 8},
                                           {ArrayType::u8, "uint8", "u1", 1},
                                           {ArrayType::u16, "uint16", "u2", 2},
                                           {ArrayType::u32, "uint32", "u4", 4},
                                           {ArrayType::boolean, "bool", "b1", 1}}};

const TypeNames& names_of(ArrayType type) { return types[static_cast<size_t>(type)]; }

constexpr std::string_view magic = "\x93NUMPY";
constexpr size_t max_header = 1 << 16, max_dims = 32;

/// Parses the header: a Python dictionary with the keys descr, fortran_order and shape, in any
/// order.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void parse() {
    take('{');
    while (!next_is('}')) {
      const std::string key = string();
      take(':');
      if (key == "descr" && !descr) {
        if (next_is('['))
          fail(Exit::data, file_, " holds records of several fields; save each field as an array");
        descr = string();
      } else if (key == "fortran_order" && !fortran) {
        fortran = word("True");
        if (!*fortran && !word("False")) malformed("fortran_order is neither True nor False");
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        malformed("a key that is unknown or occurs twice");
      }
      if (!next_is('}')) take(',');
    }
    take('}');
    blanks();
    if (at_ != text_.size()) malformed("text after its end");
    if (!descr || !fortran || !shape) malformed("descr, fortran_order or shape is missing");
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<int64_t>> shape;

  [[noreturn]] void malformed(const char* what) const {
    fail(Exit::data, file_, ": its .npy header is malformed at byte ", at_, " (", what,
         "); save the array again");
  }

 private:
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool next_is(char c) {
    blanks();
    return at_ < text_.size() && text_[at_] == c;
  }
  void take(char c) {
    if (!next_is(c)) malformed("another character was expected");
    ++at_;
  }
  bool word(std::string_view w) {
    blanks();
    if (!text_.substr(at_).starts_with(w)) return false;
    at_ += w.size();
    return true;
  }
  std::string string() {
    const char quote = next_is('"') ? '"' : '\'';
    take(quote);
    const size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) malformed("a string without an end");
    const std::string found(text_.substr(at_, end - at_));
    at_ = end + 1;
    return found;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> sizes;
    take('(');
    while (!next_is(')')) {
      blanks();
      int64_t n = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
      if (error != std::errc() || n < 0) malformed("a size that is not a whole number");
      at_ = static_cast<size_t>(end - text_.data());
      word("L");  // Python 2 writes sizes as 3L
      sizes.push_back(n);
      if (sizes.size() > max_dims) malformed("more than 32 dimensions");
      if (!next_is(')')) take(',');
    }
    take(')');
    return sizes;
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
};

ArrayType type_of(const std::string& descr, const std::string& file) {
  const char order = descr.empty() ? ' ' : descr[0];
  const std::string_view kind =
      descr.empty() ? std::string_view() : std::string_view(descr).substr(1);
  for (const auto& t : types) {
    if (t.npy == nullptr || kind != t.npy) continue;
    if (order == '>' && t.bytes > 1) {
      fail(Exit::data, file, " holds big-endian numbers (", descr,
           "); save it with a.astype(a.dtype.newbyteorder('<'))");
    }
    if (order == '<' || order == '|' || order == '=' || order == '>') return t.type;
  }
  fail(Exit::data, file, " has elements of type \"", descr.substr(0, 100),
       "\", which this build does not read; it reads f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 and b1, "
       "little-endian");
}

}  // namespace

const char* array_type_name(ArrayType type) { return names_of(type).name; }
int64_t array_type_bytes(ArrayType type) { return names_of(type).bytes; }

ArrayType array_type(const std::string& name, const std::string& where) {
  for (const auto& t : types) {
    if (name == t.name) return t.type;
  }
  fail(Exit::data, where, ": \"", name.substr(0, 100),
       "\" is not a type of elements that this build reads");
}

NpyFile::NpyFile(const fs::path& path) : file_(path, Exit::data) {
  const std::string name = path.string();
  const auto bytes = file_.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(magic) || text.size() < magic.size() + 2)
    fail(Exit::data, name, " is not a .npy file");

  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3)
    fail(Exit::data, name, " has .npy version ", version,
         ", which this build does not know; it reads 1 to 3");

  // The length of the header has 2 bytes in version 1, and 4 bytes in versions 2 and 3.
  const size_t width = version == 1 ? 2 : 4, begin = magic.size() + 2 + width;
  uint32_t length = 0;
  if (text.size() >= begin) std::memcpy(&length, text.data() + begin - width, width);
  if (text.size() < begin || length > text.size() - begin || length > max_header) {
    fail(Exit::data, name, " is cut short or is not a .npy file: its header claims ", length,
         " bytes; the file has ", text.size(), ", and a header may have at most ", max_header);
  }

  HeaderParser header(text.substr(begin, length), name);
  header.parse();
  type_ = type_of(*header.descr, name);
  sizes_ = *header.shape;
  // Examples must be contiguous. An array of one dimension is the same in C order and in Fortran
  // order.
  if (*header.fortran && sizes_.size() > 1)
    fail(Exit::data, name, " is in Fortran order; save it with numpy.ascontiguousarray(a)");

  // Check the product after each factor: with a malicious shape, it could overflow to exactly the
  // file's size.
  uint64_t needed = static_cast<uint64_t>(array_type_bytes(type_));
  for (const int64_t size : sizes_) {
    if (size > 0 && needed > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) /
                                 static_cast<uint64_t>(size))
      fail(Exit::data, name, ": its header claims a shape too large for any file");
    needed *= static_cast<uint64_t>(size);
  }

  bytes_ = bytes.subspan(begin + length);
  if (bytes_.size() != needed) {
    fail(Exit::data, name, ": its header claims ", needed, " bytes of elements and the file has ",
         bytes_.size(), "; it is cut short, or holds more than one array");
  }
}

NpyWriter::NpyWriter(const fs::path& path, ArrayType type, const std::vector<int64_t>& sizes)
    : name_(path.string()),
      file_(path, OutputFile::Open::create),
      left_(static_cast<uint64_t>(array_type_bytes(type))) {
  LATHE_CHECK(names_of(type).npy != nullptr, ".npy has no ", array_type_name(type));
  std::string shape;
  for (const int64_t size : sizes) {
    shape += str(size, ", ");
    left_ *= static_cast<uint64_t>(size);
  }
  // Python writes several sizes as (3, 4), but a single one as (3,).
  if (sizes.size() > 1) shape.resize(shape.size() - 2);
  if (sizes.size() == 1) shape.pop_back();

  std::string header =
      str("{'descr': '", array_type_bytes(type) == 1 ? "|" : "<", names_of(type).npy,
          "', 'fortran_order': False, 'shape': (", shape, "), }");

  // The format pads the header with spaces and ends it with a line break, so that the elements
  // begin at a multiple of 64 bytes.
  const size_t before = magic.size() + 4;
  header.append(63 - (before + header.size()) % 64, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string all(magic);
  all.append("\1\0", 2).append(reinterpret_cast<const char*>(&length), 2).append(header);
  file_.write(all);
  sum_.update(all.data(), all.size());
}

void NpyWriter::write(const void* data, size_t bytes) {
  LATHE_CHECK(bytes <= left_, name_, ": more elements were written than its sizes permit");
  file_.write(data, bytes);
  sum_.update(data, bytes);
  left_ -= bytes;
}

std::string NpyWriter::finish() {
  LATHE_CHECK(left_ == 0, name_, ": ", left_, " bytes of elements are missing");
  file_.sync();
  file_.close();
  return sum_.hex();
}

}  // namespace lathe
