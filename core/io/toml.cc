#include "core/io/toml.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

// toml++ 3.3 aborts on some malformed input ("[="); a failed assertion is a parse error like any other.
#define TOML_ASSERT(expr)                                    \
  do {                                                       \
    if (!(expr)) throw std::runtime_error("malformed TOML"); \
  } while (false)
#include <toml++/toml.h>

#include "core/error.h"
#include "core/io/file.h"

namespace lathe {
namespace {

std::string place(const std::string& name, const toml::source_region& source) {
  return str(name, ":", source.begin.line, ":", source.begin.column);
}

/// Refuses what toml++ would follow down by recursion: keys of many parts, lists in lists. A config has two levels.
void check_depth(std::string_view text, const std::string& name) {
  constexpr int max_depth = 8;
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
  int nested = 0, dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {  // to the end of the string
      const bool several_lines = at(i + 1) == c && at(i + 2) == c;
      i += several_lines ? 3 : 1;
      for (bool open = true; open && i < text.size(); ++i) {
        if (text[i] == '\\' && c == '"')
          ++i;
        else if (!several_lines)
          open = text[i] != c && text[i] != '\n';
        else if (text[i] == c && at(i + 1) == c && at(i + 2) == c) {
          i += 2;
          for (int own = 0; own < 2 && at(i + 1) == c; ++own) ++i;  // quotes that belong to the string
          open = false;
        }
      }
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '[' || c == '{') ++nested;
    if ((c == ']' || c == '}') && nested > 0) --nested;
    if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) dots = 0;
    if (c == '.') ++dots;
    if (nested > max_depth || dots > max_depth) {
      const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i), '\n');
      fail(Exit::usage, name, ":", line, ":1: deeper than ", max_depth, " levels; a config has sections and keys");
    }
    ++i;
  }
}

toml::table parse(std::string_view text, const std::string& name) {
  const auto bad = std::find_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f;
  });
  if (bad != text.end()) {
    const auto line = 1 + std::count(text.begin(), bad, '\n');
    fail(Exit::usage, name, ":", line, ":1: a control byte; a config file is plain text");
  }
  if (text.find("\xEF\xBB\xBF", 1) != std::string_view::npos) fail(Exit::usage, name, ": a stray byte-order mark");
  check_depth(text, name);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    fail(Exit::usage, place(name, e.source()), ": ", e.description());
  } catch (const std::runtime_error& e) {
    fail(Exit::usage, name, ": ", e.what());
  }
}

template <class Node>
bool scalar(const Node& node, ConfigValue& out) {
  if (const auto* b = node.as_boolean())
    out = b->get();
  else if (const auto* i = node.as_integer())
    out = i->get();
  else if (const auto* f = node.as_floating_point())
    out = f->get();
  else if (const auto* s = node.as_string())
    out = s->get();
  else
    return false;
  return true;
}

}  // namespace

std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& name) {
  const toml::table root = parse(text, name);
  std::vector<TomlEntry> entries;
  for (const auto& [section, node] : root) {
    const auto* table = node.as_table();
    if (table == nullptr) {
      fail(Exit::usage, place(name, section.source()), ": \"", section.str(),
           "\" stands outside a section; put it under one, such as [train]");
    }
    for (const auto& [key, value] : *table) {
      TomlEntry entry{str(section.str(), ".", key.str()), {}, place(name, key.source())};
      if (!scalar(value, entry.value)) {
        fail(Exit::usage, entry.where, ": ", entry.key, " must be a number, a string or true/false");
      }
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

std::vector<TomlEntry> read_toml(const std::string& path) {
  return parse_toml(read_file(path, Exit::usage, uint64_t{1} << 20), path);
}

ConfigValue parse_value(std::string_view text) {
  ConfigValue value = std::string(text);
  if (text.find('\n') != std::string_view::npos) return value;
  try {
    const toml::table root = parse(str("v = ", text), "value");
    if (root.size() != 1 || !scalar(*root.get("v"), value)) return std::string(text);
  } catch (const Error&) {
    return std::string(text);
  }
  return value;
}

std::string toml_text(const ConfigValue& value) {
  struct Visitor {
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return std::to_string(i); }
    std::string operator()(double d) const {
      if (!std::isfinite(d)) return std::isnan(d) ? "nan" : d > 0 ? "inf" : "-inf";
      char text[40];
      for (int digits : {6, 15, 17}) {  // the shortest of these that reads back as the same number
        std::snprintf(text, sizeof text, "%.*g", digits, d);
        if (std::strtod(text, nullptr) == d) break;
      }
      std::string out = text;
      return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
    }
    std::string operator()(const std::string& s) const {
      std::string out = "\"";
      for (char c : s) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          char escape[8];
          std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
          out += escape;
        } else {
          out += c;
        }
      }
      return out + "\"";
    }
  };
  return std::visit(Visitor{}, value);
}

}  // namespace lathe
