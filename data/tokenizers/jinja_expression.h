// Parses and evaluates the expressions of Jinja. Only jinja.cc may use this header.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/tokenizers/jinja_values.h"

namespace lathe {

/// Holds variables by name, in nested scopes, and limits the work and memory of a template.
class JinjaScope {
 public:
  /// Opens a scope within the innermost scope.
  void push() { levels_.emplace_back(); }
  /// Closes the innermost scope, which push() opened.
  void pop() { levels_.pop_back(); }
  /// Sets a variable of the innermost scope.
  void set(const std::string& name, Json value);
  /// Sets a member of the namespace `name`, which may be in an outer scope. Throws JinjaError if
  /// there is no such namespace, or if `value` is a list or an object.
  void set_member(const std::string& name, const std::string& member, Json value);
  /// Returns a variable; a discarded JSON value, which represents "undefined", if there is no such
  /// variable.
  Json get(const std::string& name);
  /// Counts units of work. Throws JinjaError once their number exceeds a limit.
  void spend(size_t units = 1) {
    spent_ += units;
    if (spent_ > 300000) throw JinjaError();
  }
  /// Counts a copy of `bytes` bytes. Throws JinjaError at the limit of spend().
  void spend_copy(size_t bytes) { spend(1 + bytes / 64); }
  /// Counts a copy of a value, by the bytes of its text.
  void spend_copy(const Json& value) { spend_copy(jinja::bytes(value)); }

 private:
  std::vector<std::map<std::string, Json>> levels_;
  size_t spent_ = 0;
};

/// A parsed expression, as a function that evaluates it.
using JinjaExpression = std::function<Json(JinjaScope&)>;

/// Parses the text of a tag. Throws JinjaError if the text is malformed or not supported.
class JinjaParser {
 public:
  explicit JinjaParser(const std::string& text);
  /// Consumes the next token, which must be a name, and returns it.
  std::string word();
  /// Consumes the next token and returns true if it is `token`. Otherwise returns false.
  bool take(const std::string& token);
  /// Consumes the next token. Throws JinjaError if it is not `token`.
  void expect(const std::string& token);
  /// Throws JinjaError unless all tokens are consumed.
  void finish() const;
  /// Parses the expression at the next token. Stops at the first token that does not belong to it.
  JinjaExpression expression();
  /// Parses an expression without `x if condition else y`. In `for`, an `if` after the list is a
  /// filter.
  JinjaExpression list_of_loop() { return binary(0); }

 private:
  struct Token {
    enum class Kind { name, number, string, mark } kind;
    std::string text;
  };
  bool next_is(const std::string& token, size_t ahead = 0) const;
  JinjaExpression binary(size_t level);
  JinjaExpression negation();
  JinjaExpression comparison();
  JinjaExpression kind_test(const JinjaExpression& x);
  JinjaExpression filtered();
  JinjaExpression postfix();
  JinjaExpression subscript(const JinjaExpression& x);
  JinjaExpression primary();
  JinjaExpression name_or_call();
  std::vector<JinjaExpression> arguments();
  std::vector<JinjaExpression> expressions_until(const std::string& close);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace lathe
