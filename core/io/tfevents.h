// Encodes TensorBoard's event files: TFRecords that contain Event protobufs. The few fields that a
// training run writes are encoded without the protobuf library. The messages are defined in
// tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto. The format of a
// record is defined in tensorflow/core/lib/io/record_writer.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// Returns the CRC-32C checksum (Castagnoli, RFC 3720), which TFRecords contain in masked form.
uint32_t crc32c(std::string_view bytes);

/// Returns a record that contains `data`: the length, a masked checksum of the length, the data,
/// and a masked checksum of the data.
std::string tf_record(std::string_view data);
/// Returns the position in a file's bytes at which the last complete record ends. The bytes after
/// it are an incomplete record, or not a record.
uint64_t complete_tf_records_end(std::string_view file);

/// A histogram. counts[i] is the number of values from limits[i - 1] to limits[i], and counts[0] is
/// the number of values from `min` to limits[0].
struct Histogram {
  std::string name;
  double min = 0, max = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits{}, counts{};
};

// The following three functions return an encoded value for tf_event().
std::string tf_scalar(const std::string& tag, double value);
/// Returns an encoded text value. `text` must be UTF-8. TensorBoard shows it as Markdown.
std::string tf_text(const std::string& tag, const std::string& text);
std::string tf_histogram(const std::string& tag, const Histogram& histogram);

/// Returns a record that contains an event with the encoded values. `time` is in seconds since
/// 1970.
std::string tf_event(double time, int64_t step, const std::vector<std::string>& values);
/// Returns the record with which an event file must begin.
std::string tf_first_event(double time);

}  // namespace lathe
