// Implements state dicts, which map paths to a model's tensors.
#include "nn/state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/dtype.h"
#include "core/error.h"
#include "core/io/safetensors.h"
#include "core/mode.h"
#include "nn/module.h"

namespace lathe {
namespace {

/// A tensor of a model with all of its paths.
struct Place {
  std::vector<std::string> paths;
  at::Tensor tensor;
};

std::vector<Place> places_of(const ConstModuleRef& model) {
  std::vector<Place> out;
  std::map<const void*, size_t> known;
  std::set<std::string> paths;
  const auto add = [&](const std::string& path, const at::Tensor& t) {
    LATHE_CHECK(paths.insert(path).second, "two tensors of a model are called ", path,
                "; give one of them another name in its module's visit()");
    LATHE_CHECK(!t.is_meta(), path, " has no values here: it is quantized, or has only a shape");
    const auto [at, is_new] = known.emplace(t.unsafeGetTensorImpl(), out.size());
    if (is_new) out.push_back({{}, t});
    out[at->second].paths.push_back(path);
  };
  Visit visit(
      {.parameter = [&](const NamedParameter& p, Variable&) { add(p.path, p.parameter.data()); },
       .buffer = [&](const std::string& path, at::Tensor& t) { add(path, t); }});
  model.visit(visit);
  return out;
}

/// Returns a list of the first names, such as "a, b and 3 more".
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t most = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) text += (i ? ", " : "") + names[i];
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more"
                             : text;
}

}  // namespace

StateDict state_dict(const ConstModuleRef& model) {
  StateDict out;
  for (const Place& place : places_of(model)) out.emplace(place.paths[0], place.tensor);
  return out;
}

LoadedState load_state_dict(const ConstModuleRef& model, const StateDict& state, bool strict) {
  const NoGrad no_grad;
  const auto places = places_of(model);
  LoadedState result;

  std::vector<std::string> unfit;
  std::vector<std::pair<const Place*, at::Tensor>> found;
  size_t used = 0;
  std::set<std::string> known;

  for (const Place& place : places) {
    at::Tensor values;
    for (const auto& path : place.paths) {
      known.insert(path);
      const auto at = state.find(path);
      if (at == state.end()) continue;
      ++used;
      const at::Tensor& t = at->second;
      // Values are cast to the model's dtype when they are copied, but integers and floating point
      // do not mix.
      if (!t.defined() || t.sizes() != place.tensor.sizes() ||
          t.is_floating_point() != place.tensor.is_floating_point()) {
        unfit.push_back(path + " is " + (t.defined() ? describe(t) : "undefined") + " instead of " +
                        describe(place.tensor));
      } else if (values.defined() && !values.is_same(t) && !values.equal(t)) {
        unfit.push_back(path + " differs from " + place.paths[0] + ", to which the model ties it");
      } else {
        values = t;
      }
    }
    // A tensor that the model ties is missing only if it is missing under all of its paths.
    if (values.defined()) {
      found.emplace_back(&place, values);
    } else if (std::none_of(place.paths.begin(), place.paths.end(),
                            [&](auto& path) { return state.contains(path); })) {
      result.missing.push_back(place.paths[0]);
    }
  }

  if (used != state.size()) {
    for (const auto& [path, t] : state) {
      if (!known.contains(path)) result.unexpected.push_back(path);
    }
  }

  std::sort(result.missing.begin(), result.missing.end());

  std::string problems;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty())
      problems += (problems.empty() ? "" : "; ") + std::string(what) + listed(names);
  };

  add("", unfit);
  if (strict) {
    add("missing: ", result.missing);
    add("not in the model: ", result.unexpected);
  }

  LATHE_CHECK(problems.empty(), "load_state_dict: ", problems);

  // Write only after all checks, so that a state that does not fit leaves the model unchanged.
  for (const auto& [place, values] : found) place->tensor.copy_(values);
  return result;
}

TensorEntry make_entry(const std::string& name, const at::Tensor& t) {
  return {.name = name,
          .dtype = safetensors_dtype(t.scalar_type()),
          .shape = t.sizes().vec(),
          .bytes = {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()}};
}

TensorEntry make_entry(const std::string& name, at::ScalarType dtype, std::vector<int64_t> sizes,
                       std::function<at::Tensor()> make) {
  TensorEntry entry{
      .name = name, .dtype = safetensors_dtype(dtype), .shape = std::move(sizes), .bytes = {}};
  entry.stream = [name, make = std::move(make)](const auto& put) {
    const at::Tensor t = make().to(at::kCPU).contiguous();
    put(make_entry(name, t).bytes);
  };
  return entry;
}

void save_state_dict(const StateDict& state, const fs::path& path) {
  std::vector<at::Tensor> held;  // keeps the tensors until the bytes are written
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : state) {
    const at::Tensor& t = held.emplace_back(tensor.detach().cpu().contiguous());
    entries.push_back(make_entry(name, t));
  }

  const fs::path temporary = path.string() + ".unfinished";
  try {
    write_safetensors(temporary, entries, {{"format", "pt"}});
    rename_file(temporary, path);
  } catch (...) {
    std::error_code unknown;
    fs::remove(temporary, unknown);
    throw;
  }
  sync_folder(fs::absolute(path).parent_path());
}

StateDict read_state_dict(const fs::path& path) {
  StateDict state;
  const SafetensorsFile file(path);
  for (const TensorEntry& entry : file.tensors()) {
    const auto dtype = dtype_from_safetensors(entry.dtype);
    if (!dtype)
      fail(Exit::checkpoint, path.string(), ": tensor \"", entry.name, "\" has the dtype ",
           entry.dtype, ", which Lathe does not support");
    // Copy the bytes, which belong to the mapped file and may be unaligned.
    at::Tensor t = at::empty(entry.shape, *dtype);
    if (!entry.bytes.empty())
      std::memcpy(t.mutable_data_ptr(), entry.bytes.data(), entry.bytes.size());
    state.emplace(entry.name, std::move(t));
  }
  return state;
}

}  // namespace lathe
