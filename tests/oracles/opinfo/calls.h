// Maps calls of PyTorch's functions to calls of Lathe's functions.
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

/// Thrown for a call of PyTorch that has no equivalent in Lathe.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the arguments of a recorded call. The JSON values given to the constructor must outlive
/// this object. Each getter takes an argument's position and its keyword. If the call has the
/// keyword argument, the getter reads it; otherwise it reads the position. Keyword-only arguments
/// have position 99. all_used() reports arguments that no getter read.
class Call {
 public:
  using Load = std::function<at::Tensor(const std::string&)>;
  Call(const Json& args, const Json& kwargs, const Load& load);

  bool has(size_t place, const char* name) const;
  /// Returns a tensor, or a number as a scalar tensor. The result is undefined if the argument is
  /// None or absent.
  Variable v(size_t place, const char* name = "");
  at::Tensor t(size_t place, const char* name = "") { return v(place, name).data(); }
  std::vector<Variable> list(size_t place, const char* name = "");
  double number(size_t place, const char* name, double otherwise);
  int64_t whole(size_t place, const char* name, int64_t otherwise);
  bool flag(size_t place, const char* name, bool otherwise);
  std::string text(size_t place, const char* name, const char* otherwise);
  /// Returns a list of integers. A single integer is returned as a list of one.
  std::vector<int64_t> wholes(size_t place, const char* name, std::vector<int64_t> otherwise = {});
  /// Returns whether the argument is a number, not a tensor or a list.
  bool is_number(size_t place, const char* name = "") const;
  bool is_list(size_t place, const char* name = "") const;
  /// Returns the integers from position `place` to the last argument, given as one list or as
  /// separate arguments.
  std::vector<int64_t> rest(size_t place);

  size_t size() const { return args_.size(); }
  /// Returns the tensors that require a gradient, in PyTorch's order.
  const std::vector<Variable>& leaves() const { return leaves_; }
  /// Throws Unsupported for an argument that no getter read, unless it is None or a false keyword.
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
/// Return functions that call Lathe's ops. The keys are PyTorch's names of the ops.
Functions elementwise_functions();
Functions reduction_functions();
Functions shape_functions();
Functions layer_functions();

/// Calls Lathe's counterpart of PyTorch's function `op` and returns its results. Throws if there is
/// none.
std::vector<Variable> call_ours(const std::string& op, Call& call);

/// Returns why Lathe's results differ by design from PyTorch's in this case, or "" if they must
/// agree.
std::string known_difference(const std::string& op, const Json& record, const std::string& problem);

}  // namespace lathe::test
