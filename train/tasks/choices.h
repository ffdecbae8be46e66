// Declares multiple-choice questions, which `lathe eval --choices` reads. Includes no LibTorch
// header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

/// Holds a context with several endings, of which one is right.
struct MultipleChoice {
  std::string context;
  std::vector<std::string> endings;
  int64_t label = 0;  ///< index of the right ending, counted from 0
};
/// Reads a file with a JSON object in each line: {"context": "...", "endings": ["...", ...],
/// "label": 0}. Throws Exit::data, with the file and the line, if a line is not valid.
std::vector<MultipleChoice> read_choices(const std::string& file);

}  // namespace lathe
