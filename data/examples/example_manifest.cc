#include "data/examples/example_manifest.h"

#include <utility>

#include "core/error.h"
#include "data/folder.h"

namespace lathe {
namespace {

constexpr const char* format_name = "lathe-examples-1";
// The largest number of examples in a split. With this limit, the sum of both splits fits in int64.
constexpr int64_t most = int64_t{1} << 40;

Json array_json(const ArrayInfo& a) {
  Json json{{"file", a.file}, {"dtype", array_type_name(a.type)}, {"xxh3", a.xxh3}};
  if (!a.tensor.empty()) json["tensor"] = a.tensor;
  return json;
}
Json split_json(const ExampleSplit& s) {
  Json json{{"examples", s.examples}};
  if (s.examples > 0) {
    json["inputs"] = array_json(s.inputs);
    json["targets"] = array_json(s.targets);
  }
  return json;
}
ArrayInfo read_array(const Json& json, const char* key, const std::string& where) {
  const auto a = json_get<Json>(json, key, where, Exit::data);
  ArrayInfo info{.file = manifest_file(a, "file", where),
                 .tensor = "",
                 .type = array_type(json_get<std::string>(a, "dtype", where, Exit::data), where),
                 .xxh3 = json_get<std::string>(a, "xxh3", where, Exit::data)};
  if (a.contains("tensor")) info.tensor = json_get<std::string>(a, "tensor", where, Exit::data);
  return info;
}
ExampleSplit read_split(const Json& json, const char* key, const std::string& where) {
  const auto s = json_get<Json>(json, key, where, Exit::data);
  ExampleSplit split{.examples = json_integer(s, "examples", 0, most, where, Exit::data),
                     .inputs = {},
                     .targets = {}};
  if (split.examples > 0) {
    split.inputs = read_array(s, "inputs", where);
    split.targets = read_array(s, "targets", where);
  }
  return split;
}

}  // namespace

ExampleEncoding ExampleManifest::encoding() const {
  return {.input_sizes = input_sizes,
          .outputs = outputs,
          .labels = labels,
          .inputs = inputs,
          .targets = targets,
          .channels_last = channels_last,
          .table = table,
          .image_files = image_files};
}

bool is_example_manifest(const Json& json) {
  return json.is_object() && json.contains("kind") && json["kind"] == "examples";
}

void write_example_manifest(const fs::path& folder, const ExampleManifest& m,
                            const std::string& name) {
  Json json{{"format", format_name}, {"kind", "examples"}, {"task", m.task}};
  add_encoding(json, m.encoding());
  json["train"] = split_json(m.train);
  json["val"] = split_json(m.val);
  write_manifest_json(folder, std::move(json), name);
}

ExampleManifest read_example_manifest(const fs::path& folder, const std::string& name) {
  const std::string where = (folder / name).string();
  const auto found = read_manifest_json(folder, name);
  if (!found) fail(Exit::data, "there is no ", where, "; make example sets with `lathe prepare`");

  const Json& json = *found;
  if (!is_example_manifest(json))
    fail(Exit::data, where,
         " does not describe examples; make the data again with `lathe prepare`");
  check_data_format(json, format_name, where);

  ExampleManifest m;
  m.task = json_get<std::string>(json, "task", where, Exit::data);
  if (m.task != "classification" && m.task != "regression")
    fail(Exit::data, where, ": task \"", m.task.substr(0, 100),
         "\" is neither classification nor regression");

  ExampleEncoding e = read_encoding(json, m.task == "classification", where, Exit::data);
  m.input_sizes = std::move(e.input_sizes);
  m.outputs = e.outputs;
  m.labels = std::move(e.labels);
  m.inputs = std::move(e.inputs);
  m.targets = std::move(e.targets);
  m.channels_last = e.channels_last;
  m.table = std::move(e.table);
  m.image_files = e.image_files;
  m.train = read_split(json, "train", where);
  m.val = read_split(json, "val", where);

  // Compare the checksum last, because an error that names an invalid field helps more than an
  // error about the checksum.
  check_manifest_checksum(json, where);
  return m;
}

}  // namespace lathe
