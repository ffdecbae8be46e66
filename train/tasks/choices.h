// Questions with several endings to choose from, as read by `lathe eval --choices`. No LibTorch
// header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

/// A question with several endings, of which one is right.
struct MultipleChoice {
  std::string context;
  std::vector<std::string> endings;
  int64_t label = 0;  ///< index of the right ending, from 0
};
/// Reads {"context": "...", "endings": ["...", ...], "label": 0} line by line. Throws Exit::data
/// with file and line.
std::vector<MultipleChoice> read_choices(const std::string& file);

}  // namespace lathe
