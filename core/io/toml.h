// TOML as Lathe's configs use it: sections of scalars, and lists of tables of scalars
// ([[section.key]]). Read with toml++, with the file's own places kept for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lathe {

/// A value of TOML's four kinds.
using ConfigScalar = std::variant<bool, int64_t, double, std::string>;
/// A list of tables, each its keys in the file's order.
using ConfigTables = std::vector<std::vector<std::pair<std::string, ConfigScalar>>>;
/// A value that a key of the config has.
using ConfigValue = std::variant<bool, int64_t, double, std::string, ConfigTables>;

struct TomlEntry {
  std::string key;  ///< "section.name"
  ConfigValue value;
  std::string where;  ///< "file:line:column"
};

/// Every value of a config file, in the file's order. Errors are Exit::usage with file:line:column:
/// syntax, a key twice, a key outside a section, a value that is neither a scalar nor a list of
/// tables of them, more than 8 levels, a file over 1 MiB or with control bytes.
std::vector<TomlEntry> read_toml(const std::string& path);
/// The same for text; `name` stands in messages.
std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& name);
/// A value as typed on a command line: TOML's rules, and what is no TOML value is a string as it
/// stands.
ConfigValue parse_value(std::string_view text);
/// A value as TOML text; reading it back gives the same value.
std::string toml_text(const ConfigValue& value);

}  // namespace lathe
