// The record of a preparation under way, from which the same command goes on. No LibTorch header.
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

/// How far a preparation is: parts of the input that were taken, what they were, and what was made
/// of them.
struct Progress {
  int64_t parts = 0;
  int64_t train = 0, val = 0;  ///< tokens
  int64_t largest_id = 0, learned = 0;
  std::string input{};                 ///< checksum of the parts' digests
  std::string train_sum{}, val_sum{};  ///< SplitWriter::checksum of what was written
};

/// A record but for its checksum (data/folder.h). `command` identifies what prepares.
Json progress_record(const Progress& progress, const std::string& command);
/// What a record says; nullopt where it is another command's. Exit::data where it is damaged;
/// `where` begins the sentence.
std::optional<Progress> read_progress(const Json& record, const std::string& command,
                                      const std::string& where);

}  // namespace lathe
