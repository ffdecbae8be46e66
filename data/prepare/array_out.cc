#include "data/prepare/array_out.h"

#include <type_traits>
#include <utility>

#include "core/error.h"
#include "data/prepare/out_folder.h"

namespace lathe {
namespace {

/// Appends numbers to `out` as elements of `type`. Rounds the numbers only if `type` is float32;
/// any other type must represent each number exactly.
void append(ArrayType type, std::span<const double> numbers, std::vector<std::byte>& out) {
  const auto put = [&]<class T>(T) {
    for (const double x : numbers) {
      const T value = static_cast<T>(x);
      if (!std::is_same_v<T, float> && static_cast<double>(value) != x) fail_changed_input();
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      out.insert(out.end(), bytes, bytes + sizeof value);
    }
  };
  switch (type) {
    case ArrayType::f64: return put(double{});
    case ArrayType::i8: return put(int8_t{});
    case ArrayType::i16: return put(int16_t{});
    case ArrayType::i32: return put(int32_t{});
    case ArrayType::i64: return put(int64_t{});
    case ArrayType::u8: return put(uint8_t{});
    case ArrayType::u16: return put(uint16_t{});
    case ArrayType::u32: return put(uint32_t{});
    default: return put(float{});
  }
}

std::vector<int64_t> with_first(std::vector<int64_t> sizes, int64_t examples) {
  sizes.insert(sizes.begin(), examples);
  return sizes;
}

}  // namespace

void fail_changed_input() {
  fail(Exit::data, "the input changed while it was being read; run the same command again");
}

ArrayType storage_type(ArrayType type) {
  if (type == ArrayType::boolean) return ArrayType::u8;
  return type == ArrayType::f16 || type == ArrayType::bf16 ? ArrayType::f32 : type;
}

ArrayOut::ArrayOut(const fs::path& out, const std::string& file, ArrayType type,
                   std::vector<int64_t> sizes, int64_t examples)
    : info{file, "", type, ""},
      writer_(OutFolder::unfinished(out, file), type, with_first(std::move(sizes), examples)) {}

void ArrayOut::add(std::span<const double> numbers) {
  append(info.type, numbers, waiting_);
  if (waiting_.size() >= size_t{1} << 20) flush();
}

void ArrayOut::flush() {
  writer_.write(waiting_.data(), waiting_.size());
  waiting_.clear();
}

ArrayInfo ArrayOut::finish() {
  flush();
  info.xxh3 = writer_.finish();
  return info;
}

}  // namespace lathe
