#include "data/tokenizers/jinja.h"

#include <algorithm>

#include "data/tokenizers/jinja_expression.h"

namespace lathe {
namespace {

/// A part of a template: text, the expression of {{ }}, or the words of {% %}.
struct JinjaPart {
  enum class Kind { text, output, statement } kind;
  std::string body;
};

constexpr const char* jinja_spaces = " \t\r\n\f\v";

/// Returns the position of the first `mark` at `from` or later. Skips string literals, unless
/// `mark` ends a comment (#}).
size_t tag_end(const std::string& text, size_t from, const std::string& mark) {
  char quote = 0;
  for (size_t i = from; i + 1 < text.size(); ++i) {
    if (quote != 0) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == quote)
        quote = 0;
    } else if (text.compare(i, 2, mark) == 0) {
      return i;
    } else if (mark != "#}" && (text[i] == '\'' || text[i] == '"')) {
      quote = text[i];
    }
  }
  throw JinjaError();
}

/// Removes white space at the end of `before`, the text before the tag at source[tag]. If `all` is
/// true, removes all white space there. Otherwise, if `block` is true and the tag is the first text
/// of its line, removes only the white space of that line (lstrip_blocks).
void strip_before(std::string& before, const std::string& source, size_t tag, bool all,
                  bool block) {
  if (all) {
    before.erase(before.find_last_not_of(jinja_spaces) + 1);
    return;
  }
  const size_t line = source.find_last_not_of(" \t", tag == 0 ? 0 : tag - 1);
  const bool first = tag == 0 || line == std::string::npos || source[line] == '\n';
  if (block && first) before.erase(before.find_last_not_of(" \t") + 1);
}

std::vector<JinjaPart> split_template(std::string source) {
  if (source.ends_with('\n')) source.pop_back();
  std::vector<JinjaPart> parts;
  for (size_t at = 0; at < source.size();) {
    size_t open = source.find('{', at);
    while (open != std::string::npos &&
           (open + 1 == source.size() ||
            std::string("{%#").find(source[open + 1]) == std::string::npos))
      open = source.find('{', open + 1);

    std::string before = source.substr(at, open == std::string::npos ? open : open - at);
    if (open == std::string::npos) {
      parts.push_back({JinjaPart::Kind::text, before});
      break;
    }

    const char kind = source[open + 1];
    size_t begin = open + 2;
    const size_t close = tag_end(source, begin, kind == '{' ? "}}" : kind == '%' ? "%}" : "#}");
    const bool has_mark = begin < close && (source[begin] == '-' || source[begin] == '+');
    const bool strips = has_mark && source[begin] == '-', keeps = has_mark && !strips;
    strip_before(before, source, open, strips, kind != '{' && !keeps);
    if (has_mark) ++begin;
    if (!before.empty()) parts.push_back({JinjaPart::Kind::text, before});

    // A closing mark with '-' removes all white space after it. Otherwise a block removes a line
    // break directly after it (trim_blocks).
    const bool strips_after = close > begin && source[close - 1] == '-';
    const std::string body = source.substr(begin, close - begin - (strips_after ? 1 : 0));
    if (kind == '{') parts.push_back({JinjaPart::Kind::output, body});
    if (kind == '%') parts.push_back({JinjaPart::Kind::statement, body});
    at = close + 2;
    if (strips_after)
      at = std::min(source.find_first_not_of(jinja_spaces, at), source.size());
    else if (kind != '{' && at < source.size() && source[at] == '\n')
      ++at;
  }
  return parts;
}

std::string first_word(const std::string& body) {
  const size_t begin = std::min(body.find_first_not_of(jinja_spaces), body.size());
  return body.substr(begin, body.find_first_of(jinja_spaces, begin) - begin);
}

/// Runs the parts of a template.
class JinjaRun {
 public:
  JinjaRun(std::vector<JinjaPart> parts, const Json& variables) : parts_(std::move(parts)) {
    scope_.push();
    for (const auto& [name, value] : variables.items()) scope_.set(name, value);
    for (const JinjaPart& p : parts_) {
      words_.push_back(p.kind == JinjaPart::Kind::statement ? first_word(p.body) : "");
      for (const char* name : {"previtem", "nextitem"})
        uses_neighbors_ = uses_neighbors_ || p.body.find(name) != std::string::npos;
    }
  }

  std::string text() {
    run(0, parts_.size());
    return std::move(out_);
  }

 private:
  /// Returns the index of the first statement, at part `at` or later, that begins with one of
  /// `names` and is not inside of another block.
  size_t find(size_t at, const std::vector<std::string>& names) {
    for (int depth = 0; at < parts_.size(); ++at) {
      scope_.spend();
      const std::string& word = words_[at];
      if (depth == 0 && std::find(names.begin(), names.end(), word) != names.end()) return at;
      if (word == "for" || word == "if") ++depth;
      if (word == "endfor" || word == "endif") --depth;
    }
    throw JinjaError();
  }

  void run(size_t at, size_t end) {
    if (++depth_ > 50) throw JinjaError();
    for (; at < end; ++at) {
      scope_.spend();
      const JinjaPart& part = parts_[at];
      if (part.kind == JinjaPart::Kind::text) {
        out_ += part.body;
      } else if (part.kind == JinjaPart::Kind::output) {
        JinjaParser parser = parser_of(part);
        const JinjaExpression value = parser.expression();
        parser.finish();
        out_ += jinja::text(value(scope_));
      } else {
        at = statement(at);
      }
      if (out_.size() > jinja::longest_text) throw JinjaError();
    }
    --depth_;
  }

  JinjaParser parser_of(const JinjaPart& part) {
    scope_.spend_copy(part.body.size());
    return JinjaParser(part.body);
  }

  /// Runs the statement at part `at`; returns the index of its last part.
  size_t statement(size_t at) {
    const std::string& word = words_[at];
    if (word == "set") return set(at), at;
    if (word == "for") return loop(at);
    if (word == "if") return branch(at);
    // These tags enclose text that counts toward the loss in training. They do not change the text.
    if (word == "generation" || word == "endgeneration") return at;
    throw JinjaError();
  }

  void set(size_t at) {
    JinjaParser parser = parser_of(parts_[at]);
    parser.word();
    const std::string name = parser.word();
    const std::string member = parser.take(".") ? parser.word() : "";
    parser.expect("=");
    const JinjaExpression value = parser.expression();
    parser.finish();
    member.empty() ? scope_.set(name, value(scope_))
                   : scope_.set_member(name, member, value(scope_));
  }

  size_t branch(size_t at) {
    const size_t end = find(at + 1, {"endif"});
    bool done = false;
    for (size_t i = at; i != end;) {
      const size_t next = find(i + 1, {"elif", "else", "endif"});
      bool holds = words_[i] == "else";
      if (!done && !holds) {
        JinjaParser parser = parser_of(parts_[i]);
        parser.word();
        const JinjaExpression condition = parser.expression();
        parser.finish();
        holds = jinja::truth(condition(scope_));
      }
      if (!done && holds) run(i + 1, next);
      done = done || holds;
      i = next;
    }
    return end;
  }

  /// Returns the items for which a loop's condition on the variable `name` holds.
  Json selected(const Json& items, const std::string& name, const JinjaExpression& condition) {
    Json kept = Json::array();
    for (const Json& item : items) {
      scope_.push();
      scope_.set(name, item);
      if (jinja::truth(condition(scope_))) kept.push_back(item);
      scope_.pop();
    }
    return kept;
  }

  size_t loop(size_t at) {
    const size_t end = find(at + 1, {"endfor"});
    if (find(at + 1, {"else", "endfor"}) != end) throw JinjaError();
    JinjaParser parser = parser_of(parts_[at]);
    parser.word();
    const std::string name = parser.word();
    parser.expect("in");
    const JinjaExpression list = parser.list_of_loop();
    const JinjaExpression condition = parser.take("if") ? parser.expression() : nullptr;
    parser.finish();

    Json items = list(scope_);
    if (!items.is_array()) throw JinjaError();
    if (condition) items = selected(items, name, condition);
    const auto n = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < n; ++i) {
      Json variables = {{"index", i + 1},      {"index0", i},       {"first", i == 0},
                        {"last", i + 1 == n},  {"revindex", n - i}, {"revindex0", n - i - 1},
                        {"depth", loops_ + 1}, {"depth0", loops_},  {"length", n}};
      // The neighbors are copies, which most templates don't need.
      if (uses_neighbors_ && i > 0) variables["previtem"] = items[static_cast<size_t>(i - 1)];
      if (uses_neighbors_ && i + 1 < n) variables["nextitem"] = items[static_cast<size_t>(i + 1)];

      scope_.push();
      scope_.set(name, items[static_cast<size_t>(i)]);
      scope_.set("loop", std::move(variables));
      ++loops_;
      run(at + 1, end);
      --loops_;
      scope_.pop();
    }
    return end;
  }

  std::vector<JinjaPart> parts_;
  std::vector<std::string> words_;  // for each part, the first word if it is a statement
  JinjaScope scope_;
  std::string out_;
  int depth_ = 0;
  int64_t loops_ = 0;            // number of loops around the current part
  bool uses_neighbors_ = false;  // whether a part names loop.previtem or loop.nextitem
};

}  // namespace

std::optional<std::string> render_jinja(const std::string& text, const Json& variables) {
  try {
    return JinjaRun(split_template(text), variables).text();
  } catch (const JinjaError&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace lathe
