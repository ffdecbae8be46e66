// Prints tables on a terminal.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/io/text.h"

namespace lathe {

/// A table of text. Each row must have as many cells as `head`. Each column is as wide as its
/// widest cell, and columns are separated by two spaces.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lathe
