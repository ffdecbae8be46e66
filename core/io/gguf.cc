#include "core/io/gguf.h"

#include <bit>

#include "core/io/gguf_types.h"

namespace lathe {
namespace {

constexpr uint64_t alignment = 32;
uint64_t aligned(uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// The numbers with which GGUF files denote the types of metadata values.
enum ValueType : uint32_t {
  type_u32 = 4,
  type_i32 = 5,
  type_f32 = 6,
  type_bool = 7,
  type_text = 8,
  type_list = 9
};

const GGUFType& type_of(const TensorEntry& tensor) {
  const GGUFType* type = find_gguf_type(tensor.dtype);
  LATHE_CHECK(type != nullptr, "GGUF: tensor \"", tensor.name, "\" has the dtype ", tensor.dtype,
              ", which is not a GGUF type");
  return *type;
}

/// Returns the number of bytes that a tensor takes in the file, without padding.
uint64_t bytes_of(const TensorEntry& tensor) {
  const GGUFType& type = type_of(tensor);
  return static_cast<uint64_t>(tensor.numel() / type.elements) * type.bytes;
}

/// Encodes the header of a GGUF file in memory.
class Writer {
 public:
  static_assert(std::endian::native == std::endian::little);
  template <class T>
  void number(T x) {
    text_.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  void text(const std::string& s) {
    number(uint64_t{s.size()});
    text_ += s;
  }
  void put(uint32_t x) {
    number<uint32_t>(type_u32);
    number(x);
  }
  void put(float x) {
    number<uint32_t>(type_f32);
    number(x);
  }
  void put(bool x) {
    number<uint32_t>(type_bool);
    number<uint8_t>(x ? 1 : 0);
  }
  void put(const std::string& x) {
    number<uint32_t>(type_text);
    text(x);
  }
  void put(const std::vector<std::string>& list) {
    begin_list(type_text, list.size());
    for (const auto& x : list) text(x);
  }
  void put(const std::vector<int32_t>& list) {
    begin_list(type_i32, list.size());
    for (const int32_t x : list) number(x);
  }
  void put(const std::vector<float>& list) {
    begin_list(type_f32, list.size());
    for (const float x : list) number(x);
  }
  void pad() { text_.resize(aligned(text_.size()), '\0'); }
  const std::string& bytes() const { return text_; }

 private:
  void begin_list(ValueType type, size_t size) {
    number<uint32_t>(type_list);
    number<uint32_t>(type);
    number(uint64_t{size});
  }
  std::string text_;
};

}  // namespace

void write_gguf(const fs::path& path, const GGUFMetadata& metadata,
                const std::vector<TensorEntry>& tensors) {
  Writer head;
  for (const char c : {'G', 'G', 'U', 'F'}) head.number(c);
  head.number(uint32_t{3});  // the format's version
  head.number(uint64_t{tensors.size()});
  head.number(uint64_t{metadata.size()});
  for (const auto& [key, value] : metadata) {
    head.text(key);
    std::visit([&](const auto& x) { head.put(x); }, value);
  }

  // The offsets of tensors count from the beginning of the data, and are multiples of the
  // alignment.
  uint64_t offset = 0;
  for (const TensorEntry& t : tensors) {
    head.text(t.name);
    head.number(static_cast<uint32_t>(t.shape.size()));
    // GGUF lists the sizes of a tensor in reverse, the innermost size first.
    for (auto size = t.shape.rbegin(); size != t.shape.rend(); ++size)
      head.number(static_cast<uint64_t>(*size));
    head.number(type_of(t).number);
    head.number(offset);
    offset += aligned(bytes_of(t));
  }
  head.pad();

  OutputFile file(path, OutputFile::Open::create);
  file.write(head.bytes());
  // The last tensor is padded too, as the format requires.
  const std::string zeros(alignment, '\0');
  for (const TensorEntry& t : tensors) {
    t.write([&](std::span<const std::byte> part) { file.write(part.data(), part.size()); });
    file.write(zeros.data(), aligned(bytes_of(t)) - bytes_of(t));
  }

  file.sync();
  file.close();
}

}  // namespace lathe
