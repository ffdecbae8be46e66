// Calls of PyTorch's functions as calls of Lathe's.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "core/io/json.h"

namespace lathe::test {

/// A call that Lathe has no form for.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The arguments of a call. Each getter takes the place or the name of an argument; what no getter
/// asked for is found by all_used().
class Call {
 public:
  using Load = std::function<at::Tensor(const std::string&)>;
  Call(const Json& args, const Json& kwargs, const Load& load);

  bool has(size_t place, const char* name) const;
  /// A tensor, or a number as one; undefined where it is None or not there.
  Variable v(size_t place, const char* name = "");
  at::Tensor t(size_t place, const char* name = "") { return v(place, name).data(); }
  std::vector<Variable> list(size_t place, const char* name = "");
  double number(size_t place, const char* name, double otherwise);
  int64_t whole(size_t place, const char* name, int64_t otherwise);
  bool flag(size_t place, const char* name, bool otherwise);
  std::string text(size_t place, const char* name, const char* otherwise);
  /// A number, or several.
  std::vector<int64_t> wholes(size_t place, const char* name, std::vector<int64_t> otherwise = {});
  /// Whether it is a number, and no tensor or list.
  bool is_number(size_t place, const char* name = "") const;
  bool is_list(size_t place, const char* name = "") const;
  /// Those from a place on are the list.
  std::vector<int64_t> rest(size_t place);

  size_t size() const { return args_.size(); }
  /// The tensors that want a gradient, in PyTorch's order.
  const std::vector<Variable>& leaves() const { return leaves_; }
  /// Throws Unsupported for an argument that nobody asked for.
  void all_used() const;

 private:
  const Json* find(size_t place, const char* name);
  const Json* look(size_t place, const char* name) const;
  Variable made(const Json& value);
  void load(const Json& value, const Load& load);

  const Json& args_;
  const Json& kwargs_;
  std::map<std::string, Variable> tensors_;
  std::vector<Variable> leaves_;
  std::set<std::string> used_;
};

using Results = std::vector<Variable>;
using Function = std::function<Results(Call&)>;
using Functions = std::map<std::string, Function>;
/// By PyTorch's names.
Functions elementwise_functions();
Functions reduction_functions();
Functions shape_functions();
Functions layer_functions();

/// Lathe's results for PyTorch's function of that name.
std::vector<Variable> call_ours(const std::string& op, Call& call);

/// Why Lathe's result differs from PyTorch's by intent, or "".
std::string known_difference(const std::string& op, const Json& record, const std::string& problem);

}  // namespace lathe::test
