#include "nn/module.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "autograd/tensor_cut.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/mapped_memory.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/storage.h"

namespace lathe {
namespace {

/// Returns an address that all handles of a tensor share, so that tied parameters are recognized.
const void* identity(const at::Tensor& t) { return t.unsafeGetTensorImpl(); }

}  // namespace

void Visit::operator()(std::string_view name, Variable& parameter, const Role& role) {
  if (visitor_.parameter && parameter.defined())
    visitor_.parameter(
        {.path = path_ + std::string(name), .parameter = parameter, .role = role, .block = block_},
        parameter);
}

void Visit::buffer(std::string_view name, at::Tensor& tensor) {
  if (visitor_.buffer && tensor.defined()) visitor_.buffer(path_ + std::string(name), tensor);
}

void Visit::stream(uint64_t& stream) {
  if (visitor_.stream)
    visitor_.stream(path_.empty() ? path_ : path_.substr(0, path_.size() - 1), stream);
}

std::vector<NamedParameter> parameters(const ConstModuleRef& model) {
  std::vector<NamedParameter> out;
  std::set<const void*> seen;
  std::set<std::string> paths;
  Visit visit({.parameter = [&](const NamedParameter& found, Variable&) {
    if (!seen.insert(identity(found.parameter.data())).second) return;
    LATHE_CHECK(paths.insert(found.path).second, "two parameters of a model are called ",
                found.path, "; give one of them another name in its module's visit()");
    out.push_back(found);
  }});
  model.visit(visit);
  return out;
}

std::vector<NamedParameter> trained_parameters(const ConstModuleRef& model) {
  auto all = parameters(model);
  std::erase_if(all, [](const NamedParameter& p) { return !is_trained(p.parameter); });
  return all;
}

std::vector<NamedBuffer> buffers(const ConstModuleRef& model) {
  std::vector<NamedBuffer> out;
  Visit visit({.buffer = [&](const std::string& path, at::Tensor& place) {
    out.push_back({path, place});
  }});
  model.visit(visit);
  return out;
}

void replace_parameters(const ModuleRef& model,
                        const std::function<Variable(const NamedParameter&)>& make) {
  struct Found {
    NamedParameter first;
    std::vector<Variable*> places;  // members that hold the parameter, several if it is tied
  };
  std::vector<Found> all;
  std::map<const void*, size_t> indices;
  Visit visit({.parameter = [&](const NamedParameter& found, Variable& place) {
    const auto [at, is_new] = indices.emplace(identity(found.parameter.data()), all.size());
    if (is_new) all.push_back({found, {}});
    all[at->second].places.push_back(&place);
  }});
  model.visit(visit);

  // Each old parameter is freed before the next new parameter is made, unless something else holds
  // it.
  for (Found& found : all) {
    const Variable made = make(found.first);
    for (Variable* place : found.places) *place = made;
    found.first = {};
  }
}

void replace_buffers(const ModuleRef& model,
                     const std::function<at::Tensor(const NamedBuffer&)>& make) {
  Visit visit(
      {.buffer = [&](const std::string& path, at::Tensor& place) { place = make({path, place}); }});
  model.visit(visit);
}

void move_to(const ModuleRef& model, at::Device device, at::ScalarType dtype) {
  const MemoryScope memory(Memory::parameters);
  const auto copy = [&](const at::Tensor& t) {
    const at::ScalarType to = t.is_floating_point() ? dtype : t.scalar_type();
    return t.to(device, to, /*non_blocking=*/false, /*copy=*/true);
  };
  replace_parameters(model, [&](const NamedParameter& p) {
    const Precision* kept = precision_of(p.parameter);
    if (kept != nullptr && kept->quantized) return p.parameter;
    at::Tensor moved = copy(p.parameter.data());
    if (kept == nullptr) return Variable(std::move(moved));

    const Variable made =
        Variable::parameter(std::move(moved), p.path).requires_grad_(p.parameter.requires_grad());
    const Leaf& from = p.parameter.leaf();
    made.leaf().cut = from.cut;
    made.leaf().is_saved = from.is_saved;
    return made;
  });
  replace_buffers(model, [&](const NamedBuffer& b) { return copy(b.tensor); });
}

void zero_grad(const ConstModuleRef& model) {
  Visit visit({.parameter = [](const NamedParameter& found, Variable&) {
    if (Leaf* leaf = found.parameter.as_leaf()) leaf->grad.reset();
  }});
  model.visit(visit);
}

int64_t freeze(const ConstModuleRef& model, std::string_view pattern, bool frozen) {
  int64_t n = 0;
  for (auto& p : parameters(model)) {
    if (!matches(pattern, p.path)) continue;
    ++n;
    if (p.parameter.as_leaf() == nullptr && frozen) continue;
    LATHE_CHECK(p.parameter.as_leaf() != nullptr, "freeze: ", p.path,
                " is a constant; it can't be trained");
    p.parameter.requires_grad_(!frozen);
  }
  LATHE_CHECK(n > 0, "freeze: no parameter is called ", pattern);
  return n;
}

void assign_random_streams(const ModuleRef& model) {
  Visit visit({.stream = [](const std::string& path, uint64_t& stream) {
    stream = hash_name("dropout/" + path);
  }});
  model.visit(visit);
}

namespace {

at::Device device_of_new() {
  return at::Device(mode().new_parameters == NewParameters::shapes ? at::kMeta : at::kCPU);
}

}  // namespace

Variable new_parameter(at::IntArrayRef sizes) {
  const bool is_shape = std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= 0; });
  LATHE_CHECK(is_shape, "a module's parameter of shape ", describe(sizes),
              ": sizes must not be negative");
  if (mode().new_parameters == NewParameters::without_memory)
    return Variable::parameter(tensor_without_memory(sizes, at::TensorOptions(at::kFloat)));
  const MemoryScope scope(Memory::parameters);
  const at::Device device = device_of_new();
  const at::Tensor zeros = at::zeros(sizes, at::TensorOptions(at::kFloat).device(device));
  release_pages(zeros);
  return Variable::parameter(zeros);
}

at::Tensor new_buffer(at::IntArrayRef sizes, double value, at::ScalarType dtype) {
  const MemoryScope scope(Memory::parameters);
  return at::full(sizes, value, at::TensorOptions(dtype).device(device_of_new()));
}

int64_t count(const std::vector<NamedParameter>& parameters) {
  int64_t n = 0;
  for (const auto& p : parameters) n += full_numel(p.parameter);
  return n;
}

std::string parameter_table(const std::vector<NamedParameter>& parameters) {
  size_t width = 5;
  for (const auto& p : parameters) width = std::max(width, p.path.size());
  std::ostringstream out;
  const auto line = [&](const std::string& name, const std::string& shape, int64_t n) {
    out << name << std::string(width + 2 - name.size(), ' ') << shape
        << std::string(shape.size() < 16 ? 16 - shape.size() : 1, ' ') << n << "\n";
  };
  for (const auto& p : parameters) line(p.path, describe(p.parameter.sizes()), p.parameter.numel());
  line("total", "", count(parameters));
  return out.str();
}

}  // namespace lathe
