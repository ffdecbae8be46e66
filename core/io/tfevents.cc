#include "core/io/tfevents.h"

#include <array>
#include <bit>
#include <numeric>

namespace lathe {
namespace {

constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit)
      c = (c >> 1) ^ ((c & 1) != 0 ? 0x82f63b78u : 0);  // the polynomial of CRC-32C with its bits
                                                        // in reverse order
    table[i] = c;
  }
  return table;
}();

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/// Returns the little-endian bytes of a number.
template <class T>
std::string bytes_of(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class T>
T number_at(std::string_view bytes) {
  T value;
  bytes.copy(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

// In protobuf's wire format, a field consists of its number and type, followed by its value.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>((value & 127) | 128);
  return out + static_cast<char>(value);
}
std::string whole(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}
std::string real(int field, double value) {
  return varint(static_cast<uint64_t>(field) << 3 | 1) + bytes_of(value);
}
std::string real32(int field, float value) {
  return varint(static_cast<uint64_t>(field) << 3 | 5) + bytes_of(value);
}
std::string part(int field, std::string_view bytes) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}
std::string reals(int field, const std::vector<double>& values) {
  return part(field,
              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
}

constexpr size_t header = 12, footer = 4;  // number of bytes before and after the data of a record

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t c = ~0u;
  for (const char b : bytes) c = crc_table[(c ^ static_cast<unsigned char>(b)) & 255] ^ (c >> 8);
  return ~c;
}

std::string tf_record(std::string_view data) {
  const std::string length = bytes_of(static_cast<uint64_t>(data.size()));
  return length + bytes_of(masked_crc(length)) + std::string(data) + bytes_of(masked_crc(data));
}

uint64_t complete_tf_records_end(std::string_view file) {
  uint64_t end = 0;
  while (file.size() - end >= header + footer) {
    const std::string_view rest = file.substr(end);
    const auto length = number_at<uint64_t>(rest);
    if (number_at<uint32_t>(rest.substr(8)) != masked_crc(rest.substr(0, 8))) break;
    if (length > rest.size() - header - footer) break;
    if (number_at<uint32_t>(rest.substr(header + length)) !=
        masked_crc(rest.substr(header, length)))
      break;
    end += header + length + footer;
  }
  return end;
}

// The following functions write these fields of the message Summary.Value: 1 tag, 2 simple_value,
// 5 histo, 8 tensor, 9 metadata.
std::string tf_scalar(const std::string& tag, double value) {
  return part(1, tag) + real32(2, static_cast<float>(value));
}

std::string tf_text(const std::string& tag, const std::string& text) {
  // This function writes these fields of TensorProto: 1 dtype, 2 shape (here without dims), 8
  // string_val. It writes these fields of SummaryMetadata: 1 plugin_data, 4 data_class.
  const std::string tensor = whole(1, /*DT_STRING*/ 7) + part(2, "") + part(8, text);
  return part(1, tag) + part(8, tensor) +
         part(9, part(1, part(1, "text")) + whole(4, /*DATA_CLASS_TENSOR*/ 2));
}

std::string tf_histogram(const std::string& tag, const Histogram& h) {
  const double number = std::accumulate(h.counts.begin(), h.counts.end(), 0.0);
  return part(1, tag) +
         part(5, real(1, h.min) + real(2, h.max) + real(3, number) + real(4, h.sum) +
                     real(5, h.sum_squares) + reals(6, h.limits) + reals(7, h.counts));
}

// The following functions write these fields of the message Event: 1 wall_time, 2 step,
// 3 file_version, 5 summary.
std::string tf_event(double time, int64_t step, const std::vector<std::string>& values) {
  std::string summary;
  for (const std::string& value : values) summary += part(1, value);
  return tf_record(real(1, time) + whole(2, static_cast<uint64_t>(step)) + part(5, summary));
}

std::string tf_first_event(double time) {
  return tf_record(real(1, time) + part(3, "brain.Event:2"));
}

}  // namespace lathe
