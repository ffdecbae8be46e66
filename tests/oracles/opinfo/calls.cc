#include "tests/oracles/opinfo/calls.h"

#include <cmath>

#include "core/dtype.h"
#include "tests/support/catch.h"

namespace lathe::test {

Call::Call(const Json& args, const Json& kwargs, const Load& load_) : args_(args), kwargs_(kwargs) {
  load(args, load_);
  for (const auto& [key, value] : kwargs.items()) load(value, load_);
}
void Call::load(const Json& value, const Load& load_) {
  if (value.is_array()) {
    for (const Json& v : value) load(v, load_);
  } else if (value.is_object() && value.contains("t")) {
    const std::string name = value.at("t");
    const bool wanted = value.at("grad");
    tensors_[name] = wanted ? Variable::parameter(load_(name)) : Variable(load_(name));
    if (wanted) leaves_.push_back(tensors_[name]);
  }
}
const Json* Call::look(size_t place, const char* name) const {
  if (kwargs_.contains(name)) return &kwargs_.at(name);
  return place < args_.size() ? &args_.at(place) : nullptr;
}
const Json* Call::find(size_t place, const char* name) {
  used_.insert(kwargs_.contains(name) ? name : std::to_string(place));
  const Json* j = look(place, name);
  return j != nullptr && j->is_null() ? nullptr : j;
}
bool Call::has(size_t place, const char* name) const {
  const Json* j = look(place, name);
  return j != nullptr && !j->is_null();
}
bool Call::is_number(size_t place, const char* name) const {
  const Json* j = look(place, name);
  return j != nullptr && (j->is_number() || (j->is_object() && j->contains("float")));
}
bool Call::is_list(size_t place, const char* name) const {
  const Json* j = look(place, name);
  return j != nullptr && j->is_array();
}

namespace {

double real(const Json& j) {
  if (j.is_object() && j.contains("float")) return std::stod(j.at("float").get<std::string>());
  if (!j.is_number())
    throw Unsupported("an argument that is not a number: " + j.dump().substr(0, 40));
  return j.get<double>();
}
int64_t integer(const Json& j) {
  if (!j.is_number_integer())
    throw Unsupported("an argument that is not an integer: " + j.dump().substr(0, 40));
  return j.get<int64_t>();
}

}  // namespace

Variable Call::made(const Json& j) {
  if (j.is_object() && j.contains("t")) return tensors_.at(j.at("t"));
  const at::ScalarType dtype = tensors_.empty() ? at::kFloat : tensors_.begin()->second.dtype();
  if (j.is_boolean()) return Variable(torch::full({}, j.get<bool>(), at::kBool));
  return Variable(torch::full({}, real(j), dtype));
}
Variable Call::v(size_t place, const char* name) {
  const Json* j = find(place, name);
  return j == nullptr ? Variable() : made(*j);
}
std::vector<Variable> Call::list(size_t place, const char* name) {
  const Json* j = find(place, name);
  std::vector<Variable> out;
  if (j == nullptr || !j->is_array()) throw Unsupported("something other than a list of tensors");
  for (const Json& x : *j) out.push_back(made(x));
  return out;
}
double Call::number(size_t place, const char* name, double otherwise) {
  const Json* j = find(place, name);
  return j == nullptr ? otherwise : real(*j);
}
int64_t Call::whole(size_t place, const char* name, int64_t otherwise) {
  const Json* j = find(place, name);
  return j == nullptr ? otherwise : integer(*j);
}
bool Call::flag(size_t place, const char* name, bool otherwise) {
  const Json* j = find(place, name);
  if (j != nullptr && !j->is_boolean()) throw Unsupported(std::string(name) + " is not a flag");
  return j == nullptr ? otherwise : j->get<bool>();
}
std::string Call::text(size_t place, const char* name, const char* otherwise) {
  const Json* j = find(place, name);
  if (j != nullptr && !j->is_string()) throw Unsupported(std::string(name) + " is not a text");
  return j == nullptr ? otherwise : j->get<std::string>();
}
std::vector<int64_t> Call::wholes(size_t place, const char* name, std::vector<int64_t> otherwise) {
  const Json* j = find(place, name);
  if (j == nullptr) return otherwise;
  if (!j->is_array()) return {integer(*j)};
  std::vector<int64_t> out;
  for (const Json& x : *j) out.push_back(integer(x));
  return out;
}
std::vector<int64_t> Call::rest(size_t place) {
  if (is_list(place)) return wholes(place, "");
  std::vector<int64_t> out;
  for (size_t i = place; i < args_.size(); ++i) out.push_back(whole(i, "", 0));
  return out;
}
void Call::all_used() const {
  for (size_t i = 0; i < args_.size(); ++i) {
    if (!used_.contains(std::to_string(i)) && !args_.at(i).is_null())
      throw Unsupported(str("argument ", i));
  }
  for (const auto& [key, value] : kwargs_.items()) {
    if (!used_.contains(key) && !value.is_null() && value != false)
      throw Unsupported("argument " + key);
  }
}

std::vector<Variable> call_ours(const std::string& op, Call& call) {
  static const Functions all = [] {
    Functions f = elementwise_functions();
    f.merge(reduction_functions());
    f.merge(shape_functions());
    f.merge(layer_functions());
    return f;
  }();
  const auto it = all.find(op);
  if (it == all.end()) throw std::runtime_error(op + " is not mapped to a function of Lathe");
  return it->second(call);
}

std::string known_difference(const std::string& op, const Json& record,
                             const std::string& problem) {
  if (op == "batch_norm" && problem.find("x must be [B, C, ...]") != std::string::npos &&
      record.at("args").at(1).contains("t"))
    return "PyTorch accepts an x of one dimension";
  return "";
}

}  // namespace lathe::test
