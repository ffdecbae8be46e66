#include "data/example_manifest.h"

#include <cmath>

#include "core/error.h"
#include "data/folder.h"

namespace lathe {
namespace {

constexpr const char* format_name = "lathe-examples-1";
// Limit on examples, and on the elements of one, so that sums and byte counts fit in int64.
constexpr int64_t most = int64_t{1} << 40;

Json array_json(const ArrayInfo& a) {
  Json json{{"file", a.file}, {"dtype", array_type_name(a.type)}, {"xxh3", a.xxh3}};
  if (!a.tensor.empty()) json["tensor"] = a.tensor;
  return json;
}
Json split_json(const ExampleSplit& s) {
  Json json{{"examples", s.examples}};
  if (s.examples > 0)
    json["inputs"] = array_json(s.inputs), json["targets"] = array_json(s.targets);
  return json;
}
Json normalisation_json(const Normalisation& n) { return {{"mean", n.mean}, {"scale", n.scale}}; }

ArrayInfo read_array(const Json& json, const char* key, const std::string& where) {
  const auto a = json_get<Json>(json, key, where, Exit::data);
  ArrayInfo info{manifest_file(a, "file", where), "",
                 array_type(json_get<std::string>(a, "dtype", where, Exit::data), where),
                 json_get<std::string>(a, "xxh3", where, Exit::data)};
  if (a.contains("tensor")) info.tensor = json_get<std::string>(a, "tensor", where, Exit::data);
  return info;
}
ExampleSplit read_split(const Json& json, const char* key, const std::string& where) {
  const auto s = json_get<Json>(json, key, where, Exit::data);
  ExampleSplit split{json_whole(s, "examples", 0, most, where, Exit::data), {}, {}};
  if (split.examples > 0)
    split.inputs = read_array(s, "inputs", where), split.targets = read_array(s, "targets", where);
  return split;
}

/// Reads `n` means and `n` scales; all must be finite, and scales above 0.
Normalisation read_normalisation(const Json& json, const char* key, int64_t n,
                                 const std::string& where) {
  const auto both = json_get<Json>(json, key, where, Exit::data);
  Normalisation r{json_get<std::vector<double>>(both, "mean", where, Exit::data),
                  json_get<std::vector<double>>(both, "scale", where, Exit::data)};
  if (std::ssize(r.mean) != n || std::ssize(r.scale) != n)
    fail(Exit::data, where, ": \"", key, "\" must have ", n, " means and as many scales");
  for (const double x : r.mean) {
    if (!std::isfinite(x)) fail(Exit::data, where, ": a mean of \"", key, "\" is not finite");
  }
  for (const double x : r.scale) {
    if (!std::isfinite(x) || x <= 0)
      fail(Exit::data, where, ": a scale of \"", key, "\" is not above 0");
  }
  return r;
}

}  // namespace

bool is_example_manifest(const Json& json) {
  return json.is_object() && json.contains("kind") && json["kind"] == "examples";
}

void write_example_manifest(const fs::path& folder, const ExampleManifest& m,
                            const std::string& name) {
  Json json{{"format", format_name}, {"kind", "examples"},
            {"task", m.task},        {"sizes", m.input_sizes},
            {"outputs", m.outputs},  {"inputs", normalisation_json(m.inputs)}};
  if (m.task == "regression") json["targets"] = normalisation_json(m.targets);
  if (!m.labels.empty()) json["labels"] = m.labels;
  json["train"] = split_json(m.train);
  json["val"] = split_json(m.val);
  write_manifest_json(folder, std::move(json), name);
}

ExampleManifest read_example_manifest(const fs::path& folder, const std::string& name) {
  const std::string where = (folder / name).string();
  const auto found = read_manifest_json(folder, name);
  if (!found) fail(Exit::data, "there is no ", where, "; make example sets with `lathe prepare`");

  const Json& json = *found;
  if (!is_example_manifest(json) ||
      json_get<std::string>(json, "format", where, Exit::data) != format_name)
    fail(Exit::data, where,
         ": a format that this build does not know; make the data again with `lathe prepare`");

  ExampleManifest m;
  m.task = json_get<std::string>(json, "task", where, Exit::data);
  if (m.task != "classification" && m.task != "regression")
    fail(Exit::data, where, ": task \"", m.task.substr(0, 100),
         "\" is neither classification nor regression");

  const auto sizes = json_get<Json>(json, "sizes", where, Exit::data);
  int64_t numel = 1;
  if (!sizes.is_array() || sizes.empty())
    fail(Exit::data, where, ": \"sizes\" must be a list of whole numbers above 0");

  // Dividing the limit by the product so far bounds the product of all sizes without overflow.
  for (const auto& size : sizes) {
    const Json named{{"sizes", size}};
    m.input_sizes.push_back(json_whole(named, "sizes", 1, most / numel, where, Exit::data));
    numel *= m.input_sizes.back();
  }

  const bool classes = m.task == "classification";
  m.outputs = json_whole(json, "outputs", 1, classes ? max_classes : most, where, Exit::data);
  if (json.contains("labels"))
    m.labels = json_get<std::vector<std::string>>(json, "labels", where, Exit::data);
  // Labels are optional, but each class must have one if any has.
  if (!m.labels.empty() && (!classes || std::ssize(m.labels) != m.outputs))
    fail(Exit::data, where, ": ", m.labels.size(), " labels for ", classes ? m.outputs : 0,
         " classes");

  m.inputs = read_normalisation(json, "inputs", groups_of(m.input_sizes).count, where);
  if (!classes) m.targets = read_normalisation(json, "targets", m.outputs, where);
  m.train = read_split(json, "train", where);
  m.val = read_split(json, "val", where);

  // The checksum comes last: where an edited field is invalid, its name helps more than a mismatch.
  check_manifest_checksum(json, where);
  return m;
}

}  // namespace lathe
