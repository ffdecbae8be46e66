// Questions with several endings to choose from, as `lathe eval --choices` takes them. No LibTorch
// header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

/// A question with several endings, of which one is right.
struct Choice {
  std::string context;
  std::vector<std::string> endings;
  int64_t label = 0;  ///< of the right one, from 0
};
/// Reads {"context": "...", "endings": ["...", ...], "label": 0} line by line. Exit::data with file
/// and line.
std::vector<Choice> read_choices(const std::string& file);

}  // namespace lathe
