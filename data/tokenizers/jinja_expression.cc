#include "data/tokenizers/jinja_expression.h"

#include <cctype>
#include <cstdlib>

namespace lathe {

namespace {

/// Returns `value`, after counting it as a copy in `scope`.
Json counted(Json value, JinjaScope& scope) {
  scope.spend_copy(value);
  return value;
}

std::vector<Json> jinja_values(const std::vector<JinjaExpression>& all, JinjaScope& scope) {
  std::vector<Json> values;
  for (const JinjaExpression& one : all) values.push_back(one(scope));
  return values;
}

}  // namespace

void JinjaScope::set(const std::string& name, Json value) {
  spend_copy(value);
  levels_.back()[name] = std::move(value);
}

void JinjaScope::set_member(const std::string& name, const std::string& member, Json value) {
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    const auto found = level->find(name);
    if (found == level->end()) continue;
    // Refuse nested structures, since each statement could double their size.
    if (!found->second.is_object() || value.is_structured()) throw JinjaError();
    spend_copy(value);
    found->second[member] = std::move(value);
    return;
  }
  throw JinjaError();
}

Json JinjaScope::get(const std::string& name) {
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    const auto found = level->find(name);
    if (found == level->end()) continue;
    spend_copy(found->second);
    return found->second;
  }
  return jinja::undefined();
}

JinjaParser::JinjaParser(const std::string& text) {
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };

  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    size_t end = i + 1;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      i = end;
    } else if (c == '\'' || c == '"') {
      std::string value;
      for (; end < text.size() && text[end] != c; ++end) {
        if (text[end] != '\\' || end + 1 == text.size()) {
          value += text[end];
          continue;
        }
        const char escape = text[++end];
        value += escape == 'n' ? '\n' : escape == 't' ? '\t' : escape == 'r' ? '\r' : escape;
        if (std::string("nrt\\'\"").find(escape) == std::string::npos) throw JinjaError();
      }
      if (end == text.size()) throw JinjaError();
      tokens_.push_back({Token::Kind::string, value});
      i = end + 1;
    } else if (is_name(c)) {
      while (end < text.size() && is_name(text[end])) ++end;
      const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
      tokens_.push_back(
          {number ? Token::Kind::number : Token::Kind::name, text.substr(i, end - i)});
      i = end;
    } else {
      const std::string two = text.substr(i, 2);
      if (two == "==" || two == "!=" || two == "<=" || two == ">=") ++end;
      tokens_.push_back({Token::Kind::mark, text.substr(i, end - i)});
      i = end;
    }
  }

  // The recursion depth of an evaluation grows with the length of the expression, so limit it.
  if (tokens_.size() > 1000) throw JinjaError();
}

bool JinjaParser::next_is(const std::string& token, size_t ahead) const {
  const size_t i = at_ + ahead;
  return i < tokens_.size() && tokens_[i].kind != Token::Kind::string && tokens_[i].text == token;
}

bool JinjaParser::take(const std::string& token) {
  if (!next_is(token)) return false;
  ++at_;
  return true;
}

void JinjaParser::expect(const std::string& token) {
  if (!take(token)) throw JinjaError();
}

void JinjaParser::finish() const {
  if (at_ != tokens_.size()) throw JinjaError();
}

std::string JinjaParser::word() {
  if (at_ == tokens_.size() || tokens_[at_].kind != Token::Kind::name) throw JinjaError();
  return tokens_[at_++].text;
}

JinjaExpression JinjaParser::expression() {
  if (++depth_ > 50) throw JinjaError();
  JinjaExpression made = binary(0);
  if (take("if")) {
    const JinjaExpression condition = binary(0);
    const JinjaExpression otherwise =
        take("else") ? expression() : [](JinjaScope&) { return jinja::undefined(); };
    made = [made, condition, otherwise](JinjaScope& s) {
      return jinja::truth(condition(s)) ? made(s) : otherwise(s);
    };
  }
  --depth_;
  return made;
}

/// Parses the binary operators of a level and of all levels that bind more tightly. Level 0 is
/// `or`, which binds least. The second operand of `or` and `and` is evaluated only if the first
/// operand does not decide the result.
JinjaExpression JinjaParser::binary(size_t level) {
  static const std::vector<std::vector<std::string>> marks{
      {"or"}, {"and"}, {"+", "-"}, {"~"}, {"*", "%"}};
  if (level == marks.size()) return filtered();
  const auto operand = [&] { return level == 1 ? negation() : binary(level + 1); };

  JinjaExpression made = operand();
  for (;;) {
    std::string mark;
    for (const std::string& one : marks[level]) {
      if (mark.empty() && take(one)) mark = one;
    }
    if (mark.empty()) return made;
    const JinjaExpression right = operand();
    made = [mark, left = made, right](JinjaScope& s) {
      s.spend();
      const Json a = left(s);
      if (mark == "or") return jinja::truth(a) ? a : right(s);
      if (mark == "and") return jinja::truth(a) ? right(s) : a;
      const Json b = right(s);
      s.spend_copy(jinja::bytes(a) + jinja::bytes(b));
      return jinja::operation(mark, a, b);
    };
  }
}

JinjaExpression JinjaParser::negation() {
  if (!take("not")) return comparison();
  if (++depth_ > 50) throw JinjaError();
  const JinjaExpression x = negation();
  --depth_;
  return [x](JinjaScope& s) -> Json { return !jinja::truth(x(s)); };
}

JinjaExpression JinjaParser::comparison() {
  JinjaExpression first = binary(2);
  std::vector<std::pair<std::string, JinjaExpression>> others;
  for (;;) {
    std::string mark;
    for (const char* one : {"==", "!=", "<=", ">=", "<", ">", "in"}) {
      if (mark.empty() && take(one)) mark = one;
    }
    if (mark.empty() && next_is("not") && next_is("in", 1)) {
      at_ += 2;
      mark = "not in";
    }
    if (mark.empty()) break;
    others.emplace_back(mark, binary(2));
  }
  if (others.empty()) return first;

  // As in Python, a < b < c is a < b and b < c.
  return [first, others](JinjaScope& s) {
    Json left = first(s), result;
    for (const auto& [mark, operand] : others) {
      s.spend();
      Json right = operand(s);
      // The time of a search can grow with the product of both sizes.
      if (mark.ends_with("in")) s.spend(jinja::bytes(left) * jinja::bytes(right) / 4096);
      result = jinja::operation(mark, left, right);
      if (!jinja::truth(result)) break;
      left = std::move(right);
    }
    return result;
  };
}

JinjaExpression JinjaParser::kind_test(const JinjaExpression& x) {
  const bool negated = take("not");
  const std::string name = word();
  return
      [x, name, negated](JinjaScope& s) -> Json { return jinja::is_kind(x(s), name) != negated; };
}

/// Parses filters and tests, which bind more tightly than all operators except the sign.
JinjaExpression JinjaParser::filtered() {
  const bool is_negative = take("-");
  JinjaExpression made = postfix();
  if (is_negative) made = [x = made](JinjaScope& s) { return jinja::operation("-", 0, x(s)); };

  for (;;) {
    if (take("is")) {
      made = kind_test(made);
      continue;
    }
    if (!take("|")) return made;
    const std::string name = word();
    const auto given = next_is("(") ? arguments() : std::vector<JinjaExpression>();
    made = [name, given, x = made](JinjaScope& s) {
      const Json value = counted(x(s), s);
      return jinja::filter(name, value, jinja_values(given, s));
    };
  }
}

JinjaExpression JinjaParser::postfix() {
  JinjaExpression made = primary();
  for (;;) {
    if (take(".")) {
      const std::string name = word();
      if (next_is("(")) {
        made = [x = made, name, given = arguments()](JinjaScope& s) {
          const Json value = counted(x(s), s);
          return jinja::method(value, name, jinja_values(given, s));
        };
      } else {
        made = [x = made, name](JinjaScope& s) { return jinja::member(x(s), name); };
      }
    } else if (take("[")) {
      made = subscript(made);
    } else {
      return made;
    }
  }
}

JinjaExpression JinjaParser::subscript(const JinjaExpression& x) {
  const JinjaExpression none = [](JinjaScope&) { return jinja::undefined(); };
  const JinjaExpression begin = next_is(":") ? none : expression();
  const bool is_slice = take(":");
  const JinjaExpression end = is_slice && !next_is("]") ? expression() : none;
  expect("]");
  return [x, begin, end, is_slice](JinjaScope& s) {
    return is_slice ? jinja::sliced(x(s), begin(s), end(s)) : jinja::member(x(s), begin(s));
  };
}

std::vector<JinjaExpression> JinjaParser::arguments() {
  expect("(");
  return expressions_until(")");
}

std::vector<JinjaExpression> JinjaParser::expressions_until(const std::string& close) {
  std::vector<JinjaExpression> all;
  while (!take(close)) {
    if (!all.empty()) expect(",");
    all.push_back(expression());
  }
  return all;
}

JinjaExpression JinjaParser::primary() {
  if (at_ == tokens_.size()) throw JinjaError();
  const Token token = tokens_[at_];
  if (token.kind == Token::Kind::name) return name_or_call();

  ++at_;
  if (token.kind == Token::Kind::string) {
    // Adjacent string literals are concatenated.
    std::string text = token.text;
    while (at_ < tokens_.size() && tokens_[at_].kind == Token::Kind::string)
      text += tokens_[at_++].text;
    return [text](JinjaScope& s) -> Json {
      s.spend_copy(text.size());
      return text;
    };
  }

  if (token.kind == Token::Kind::number) {
    if (token.text.size() > 8 || token.text.find_first_not_of("0123456789") != std::string::npos)
      throw JinjaError();
    return [n = std::atoll(token.text.c_str())](JinjaScope&) -> Json { return n; };
  }

  if (token.text == "[") {
    return [given = expressions_until("]")](JinjaScope& s) {
      Json list = Json::array();
      for (Json& value : jinja_values(given, s)) {
        // Refuse nested lists, since evaluating them repeatedly could make them arbitrarily deep.
        if (value.is_structured()) throw JinjaError();
        list.push_back(std::move(value));
      }
      return counted(std::move(list), s);
    };
  }

  if (token.text != "(") throw JinjaError();
  const JinjaExpression inner = expression();
  expect(")");
  return inner;
}

JinjaExpression JinjaParser::name_or_call() {
  const std::string name = word();
  if (name == "true" || name == "True") return [](JinjaScope&) -> Json { return true; };
  if (name == "false" || name == "False") return [](JinjaScope&) -> Json { return false; };
  if (name == "none" || name == "None") return [](JinjaScope&) { return Json(); };
  if (!next_is("(")) return [name](JinjaScope& s) { return s.get(name); };

  if (name != "namespace") {
    // Other functions, such as raise_exception and strftime_now, throw only if they are evaluated.
    arguments();
    return [](JinjaScope&) -> Json { throw JinjaError(); };
  }
  expect("(");
  std::vector<std::pair<std::string, JinjaExpression>> members;
  while (!take(")")) {
    if (!members.empty()) expect(",");
    const std::string key = word();
    expect("=");
    members.emplace_back(key, expression());
  }
  return [members](JinjaScope& s) {
    Json made = Json::object();
    for (const auto& [key, value] : members) {
      made[key] = value(s);
      if (made[key].is_structured()) throw JinjaError();
    }
    return made;
  };
}

}  // namespace lathe
