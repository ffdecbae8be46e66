// Reads and writes TOML as Lathe's configs use it. A section contains scalars, and lists of tables
// of scalars ([[section.key]]). The text is parsed with toml++. Each entry has its position in the
// file, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lathe {

/// A scalar value that a config may have.
using ConfigScalar = std::variant<bool, int64_t, double, std::string>;
/// A list of tables. The keys of a table are in the order of the file.
using ConfigTables = std::vector<std::vector<std::pair<std::string, ConfigScalar>>>;
/// The value of a config key.
using ConfigValue = std::variant<bool, int64_t, double, std::string, ConfigTables>;

/// A key of a config file, with the value and the position of the key.
struct TomlEntry {
  std::string key;  ///< "section.name"
  ConfigValue value;
  std::string where;  ///< "file:line:column"
};

/// Reads every value of a config file. Throws Exit::usage with file:line:column for a syntax error,
/// a repeated key, a key outside of all sections, a value that is neither a scalar nor a list of
/// tables of scalars, control characters, or more than 8 levels. Throws Exit::usage if the file is
/// larger than 1 MiB.
std::vector<TomlEntry> read_toml(const std::string& path);
/// Does the same for `text`. Error messages contain `name` instead of the name of a file.
std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& name);
/// Parses a value from a command line by TOML's rules. Returns text that is not a TOML value
/// unchanged, as a string.
ConfigValue parse_value(std::string_view text);
/// Returns a value as TOML text. Reading the text back gives the same value, except that bytes that
/// are not UTF-8 become U+FFFD.
std::string toml_text(const ConfigValue& value);

}  // namespace lathe
