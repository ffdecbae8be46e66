// Reads and writes the record of a preparation's progress, from which the same command resumes.
// Includes no LibTorch header.
//
// When a preparation resumes, the finished part of the input is read, parsed and hashed again, but
// not encoded. Reading that part again restores all counts and digests, and detects changed input.
// The record therefore stays small. Shards are truncated to the recorded length, since the bytes
// after that length may be incomplete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/io/json.h"

namespace lathe {

/// The progress of a preparation: the finished parts of the input, and the tokens written for them.
struct Progress {
  int64_t parts = 0;                    ///< number of finished parts
  int64_t train = 0, val = 0;           ///< number of tokens written to each split
  int64_t largest_id = 0, learned = 0;  ///< largest id; number of tokens that count toward the loss
  std::string input{};                  ///< checksum of the input of the finished parts
  std::string train_sum{}, val_sum{};   ///< SplitWriter::checksum() of each split
};

/// Returns a record as JSON; write_manifest_json (data/folder.h) adds its checksum. `command`
/// identifies the preparation.
Json progress_record(const Progress& progress, const std::string& command);
/// Returns a record's contents; nullopt if it belongs to another command. Throws Exit::data if the
/// record is damaged; the message begins with `where`.
std::optional<Progress> read_progress(const Json& record, const std::string& command,
                                      const std::string& where);

}  // namespace lathe
