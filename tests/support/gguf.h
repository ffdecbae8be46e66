// Creates GGUF files without Lathe's code, as ggml's docs/gguf.md describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lathe::test {

/// Returns the bytes of a number or struct as they are in memory.
template <class T>
std::string raw(T x) {
  return {reinterpret_cast<const char*>(&x), sizeof x};
}
/// Returns the bytes of a string in a GGUF file.
inline std::string gguf_text(const std::string& s) { return raw(uint64_t{s.size()}) + s; }
/// Returns the bytes of a metadata value, preceded by the number of its type.
inline std::string gguf_value(const std::string& s) { return raw(uint32_t{8}) + gguf_text(s); }
inline std::string gguf_value(const char* s) { return gguf_value(std::string(s)); }
inline std::string gguf_value(uint32_t x) { return raw(uint32_t{4}) + raw(x); }
inline std::string gguf_value(float x) { return raw(uint32_t{6}) + raw(x); }
inline std::string gguf_value(bool x) { return raw(uint32_t{7}) + raw(uint8_t{x}); }
/// Returns the bytes of a list whose elements have the type number `type`. `bytes` returns the
/// bytes of one element.
template <class T, class F>
std::string gguf_list(uint32_t type, const std::vector<T>& list, F&& bytes) {
  std::string made = raw(uint32_t{9}) + raw(type) + raw(uint64_t{list.size()});
  for (const T& x : list) made += bytes(x);
  return made;
}
inline std::string gguf_value(const std::vector<std::string>& list) {
  return gguf_list(8, list, gguf_text);
}
inline std::string gguf_value(const std::vector<int32_t>& list) {
  return gguf_list(5, list, raw<int32_t>);
}
inline std::string gguf_value(const std::vector<float>& list) {
  return gguf_list(6, list, raw<float>);
}

/// The parts of a GGUF file. A test can change one part so that it contradicts the other parts.
struct GGUFBytes {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> sizes;  ///< the innermost dimension comes first
    uint32_t type = 0;
    std::string bytes;
    std::optional<uint64_t> offset{};  ///< written instead of the correct offset
  };
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> values;
  std::vector<Tensor> tensors;
  std::optional<uint64_t> tensor_count{}, key_count{};  ///< written instead of the correct counts
  uint64_t alignment = 32;
  bool padded_end = true;

  /// Returns a reference to the value of a key. Adds the key if it is missing.
  std::string& value(const std::string& key) {
    for (auto& [name, value] : values) {
      if (name == key) return value;
    }
    return values.emplace_back(key, "").second;
  }
  /// Returns a reference to a tensor. Adds it if it is missing.
  Tensor& tensor(const std::string& name) {
    for (Tensor& t : tensors) {
      if (t.name == name) return t;
    }
    return tensors.emplace_back(Tensor{.name = name, .sizes = {}, .bytes = {}});
  }
  void remove_value(const std::string& key) {
    std::erase_if(values, [&](const auto& value) { return value.first == key; });
  }
  void remove_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
  }

  std::string bytes() const {
    std::string made = magic + raw(version) + raw(tensor_count.value_or(tensors.size())) +
                       raw(key_count.value_or(values.size()));
    for (const auto& [key, value] : values) made += gguf_text(key) + value;
    uint64_t offset = 0;
    for (const Tensor& t : tensors) {
      made += gguf_text(t.name) + raw(static_cast<uint32_t>(t.sizes.size()));
      for (const uint64_t size : t.sizes) made += raw(size);
      made += raw(t.type) + raw(t.offset.value_or(offset));
      offset += aligned(t.bytes.size());
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      made.resize(aligned(made.size()), '\0');
      made += tensors[i].bytes;
    }
    if (padded_end) made.resize(aligned(made.size()), '\0');
    return made;
  }

 private:
  uint64_t aligned(uint64_t n) const { return (n + alignment - 1) / alignment * alignment; }
};

}  // namespace lathe::test
