// The record of a preparation in progress, from which the same command resumes. No LibTorch header.
//
// On resume the finished part of the input is read, parsed and hashed again, but not encoded.
// That restores all counts and digests, keeps the record small and detects changed input.
// Shards are truncated to the recorded length, since the bytes after it may be torn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/io/json.h"

namespace lathe {

/// The progress of a preparation: the finished parts of the input, and what was made of them.
struct Progress {
  int64_t parts = 0;
  int64_t train = 0, val = 0;  ///< tokens
  int64_t largest_id = 0, learned = 0;
  std::string input{};                 ///< checksum of the parts' digests
  std::string train_sum{}, val_sum{};  ///< SplitWriter::checksum of what was written
};

/// Returns a record without its checksum (data/folder.h). `command` identifies the preparation.
Json progress_record(const Progress& progress, const std::string& command);
/// Returns a record's contents; nullopt where it belongs to another command. Throws Exit::data
/// where it is damaged; `where` begins the message.
std::optional<Progress> read_progress(const Json& record, const std::string& command,
                                      const std::string& where);

}  // namespace lathe
