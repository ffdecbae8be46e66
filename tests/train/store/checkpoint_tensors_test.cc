// Tests of tensors whose elements are divided among the files of several processes.
#include "train/store/checkpoint_tensors.h"

#include <torch/types.h>

#include <string>
#include <vector>

#include "core/io/json.h"
#include "nn/state.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using lathe::test::TempFolder;
using lathe::test::write_file;

/// A part of a tensor in a file: the tensor's name, the elements of the part, and the note that
/// describes which part it is.
struct Piece {
  std::string name;
  at::Tensor elements;
  std::string note{};
};

/// Writes a checkpoint with one model file per rank; `of_ranks` has the parts in each file.
void write_divided(const fs::path& folder, const std::vector<std::vector<Piece>>& of_ranks) {
  Json files = Json::object();
  const auto ranks = static_cast<int>(of_ranks.size());
  for (int r = 0; r < ranks; ++r) {
    std::vector<TensorEntry> entries;
    for (const Piece& piece : of_ranks[static_cast<size_t>(r)]) {
      entries.push_back(make_entry(piece.name, piece.elements));
      entries.back().note = piece.note;
    }
    const std::string name = tensor_file_name(CheckpointPart::model, r, ranks);
    files[name] = {{"xxh3", write_safetensors(folder / name, entries)}};
  }
  const Json manifest{{"format", divided_checkpoint_format}, {"files", files}};
  write_file(folder / "manifest.json", json_text(manifest));
}

std::string flat_note(std::vector<int64_t> sizes, int64_t begin, int64_t end) {
  return TensorPart{.sizes = std::move(sizes), .cut = std::nullopt, .range = {begin, end}}.note();
}

/// Returns the message of the error that opening the model of the checkpoint throws.
std::string error_of_model(const fs::path& folder) {
  return error_of([&] { CheckpointTensors(folder, CheckpointPart::model); });
}

at::Tensor values_of(const CheckpointTensors& file, const std::string& name) {
  const TensorEntry& entry = file.at(name);
  return entry_tensor(entry, entry.shape, "").clone();
}

TEST_CASE("flat parts of a tensor are joined in the order of their elements",
          "[checkpoint_tensors]") {
  const TempFolder f;
  const at::Tensor whole = torch::randn({5, 3}), flat = whole.view({-1});
  const at::Tensor bias = torch::randn({4}).to(at::kBFloat16);
  write_divided(f.path(), {{{"a", flat.narrow(0, 9, 6), flat_note({5, 3}, 9, 15)}, {"b", bias}},
                           {{"a", flat.narrow(0, 0, 2), flat_note({5, 3}, 0, 2)}},
                           {{"a", flat.narrow(0, 2, 7), flat_note({5, 3}, 2, 9)}}});

  const CheckpointTensors file(f.path(), CheckpointPart::model);
  CHECK(file.is_divided());
  REQUIRE(file.tensors().size() == 2);
  CHECK(file.tensors()[0].shape == std::vector<int64_t>{5, 3});
  CHECK(values_of(file, "a").equal(whole));
  CHECK(values_of(file, "b").equal(bias));
  CHECK(file.find("c") == nullptr);

  // After a release, the bytes are read from the file again.
  file.release(file.at("a"));
  CHECK(file.tensors()[0].bytes.data() == nullptr);
  CHECK(values_of(file, "a").equal(whole));
}

TEST_CASE("parts that were cut along a dimension for tensor parallelism are joined",
          "[checkpoint_tensors]") {
  const TempFolder f;
  const at::Tensor whole = torch::randn({4, 9});
  // The tensor has sections like packed queries, keys and values. The size of the first section is
  // not divisible by the number of parts.
  TensorCut cut{.dim = 1, .sections = {5, 2, 2}, .part = 0, .parts = 2};
  std::vector<std::vector<Piece>> ranks;
  for (cut.part = 0; cut.part < 2; ++cut.part) {
    const at::Tensor part = cut.part_of(whole).reshape({-1});
    // Each part is divided again between two data ranks.
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 7}, {7, part.numel()}}) {
      const TensorPart described{.sizes = {4, 9}, .cut = cut, .range = {begin, end}};
      ranks.push_back({{"a", part.narrow(0, begin, end - begin).clone(), described.note()}});
    }
  }
  std::swap(ranks[0], ranks[3]);
  write_divided(f.path(), ranks);
  CHECK(values_of(CheckpointTensors(f.path(), CheckpointPart::model), "a").equal(whole));
}

TEST_CASE("parts that do not add up to their tensor are refused", "[checkpoint_tensors]") {
  const at::Tensor x = torch::randn({8});
  const auto part = [&](int64_t begin, int64_t end) {
    return Piece{"a", x.narrow(0, begin, end - begin), flat_note({2, 4}, begin, end)};
  };
  const auto error = [&](const Piece& one, const Piece& other) {
    const TempFolder f;
    write_divided(f.path(), {{one}, {other}});
    return error_of_model(f.path());
  };
  CHECK(error(part(0, 4), part(4, 8)).empty());
  CHECK_THAT(error(part(0, 3), part(4, 8)), ContainsSubstring("\"a\"") && ContainsSubstring("3"));
  CHECK_THAT(error(part(0, 5), part(4, 8)), ContainsSubstring("\"a\"") && ContainsSubstring("5"));
  CHECK_THAT(error(part(0, 4), part(4, 7)), ContainsSubstring("\"a\"") && ContainsSubstring("7"));
  CHECK_THAT(error(part(0, 4), part(0, 4)), ContainsSubstring("\"a\"") && ContainsSubstring("4"));

  // The parts disagree about the tensor that they belong to.
  Piece other = part(4, 8);
  other.elements = other.elements.to(at::kHalf);
  CHECK_THAT(error(part(0, 4), other), ContainsSubstring("dtype"));
  other = part(4, 8);
  other.note = flat_note({4, 2}, 4, 8);
  CHECK_THAT(error(part(0, 4), other), ContainsSubstring("sizes"));
  other.note = flat_note({2, 4}, 4, 6);
  CHECK_THAT(error(part(0, 4), other), ContainsSubstring("4 to 6"));

  // One file has the complete tensor, and the other file has a part that is cut in a different way.
  const TensorPart fourth{.sizes = {8, 1},
                          .cut = TensorCut{.dim = 0, .sections = {8}, .part = 3, .parts = 4},
                          .range = {0, 2}};
  CHECK_THAT(error({"a", x}, {"a", x.narrow(0, 0, 2), fourth.note()}),
             ContainsSubstring("\"a\"") && ContainsSubstring("cut"));

  // There are two tensor ranks, but the part of only one of them is present.
  TensorCut cut{.dim = 0, .sections = {2}, .part = 0, .parts = 2};
  const TensorPart half{.sizes = {2, 4}, .cut = cut, .range = {0, 4}};
  const Piece first{"a", x.narrow(0, 0, 4), half.note()};
  CHECK_THAT(error(first, {"b", x}), ContainsSubstring("\"a\""));
}

TEST_CASE("a note that does not describe a part causes an error that names the file and the tensor",
          "[checkpoint_tensors]") {
  const std::string cut = R"("dim":0,"sections":[2],"part":0,"parts":2)";
  const std::vector<std::string> notes{
      "{",
      "7",
      R"({"sizes":[2,4],"begin":0})",
      R"({"sizes":[-2,4],"begin":0,"end":4})",
      R"({"sizes":"x","begin":0,"end":4})",
      R"({"sizes":[4611686018427387904,4],"begin":0,"end":4})",
      R"({"sizes":[2,4],"begin":-1,"end":3})",
      R"({"sizes":[2,4],"begin":6,"end":10})",
      R"({"sizes":[],"begin":0,"end":4,)" + cut + "}",
      R"({"sizes":[3,4],"begin":0,"end":4,)" + cut + "}",
      R"({"sizes":[2,4],"begin":2,"end":6,)" + cut + "}",
      R"({"sizes":[2,4],"begin":0,"end":4,"dim":2,"sections":[2],"part":0,"parts":2})",
      R"({"sizes":[2,4],"begin":0,"end":4,"dim":0,"sections":[2],"part":2,"parts":2})",
      R"({"sizes":[2199023255552,1],"begin":0,"end":4,"dim":0,"sections":[2199023255552],"part":0,"parts":2})",
  };
  for (const std::string& note : notes) {
    INFO(note);
    const TempFolder f;
    write_divided(f.path(), {{{"a", torch::zeros({4}), note}}, {{"b", torch::zeros({1})}}});
    CHECK_THAT(error_of_model(f.path()),
               ContainsSubstring("model-00001-of-00002.safetensors") && ContainsSubstring("\"a\""));
  }
}

TEST_CASE("the manifest shows how many processes wrote a checkpoint", "[checkpoint_tensors]") {
  const TempFolder f;
  const auto names_with = [&](const std::string& files) {
    write_file(f / "manifest.json", R"({"format":"lathe-checkpoint-2","files":{)" + files + "}}");
    return tensor_file_names(f.path(), CheckpointPart::optimizer);
  };
  using Names = std::vector<std::string>;
  CHECK(names_with(R"("model-00001-of-00002.safetensors":{})") ==
        Names{"optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"});
  // Names of any other form are ignored, so that no path leads out of the checkpoint.
  for (const char* other : {"model-00001-of-2.safetensors", "model-00001-of-00002",
                            "model-00001-of-00001.safetensors", "model-00001-of-100000.safetensors",
                            "model-00001-of-00002.safetensors/../x", "model.safetensors"}) {
    INFO(other);
    CHECK(names_with(str("\"", other, "\":{}")) == Names{"optimizer.safetensors"});
  }
}

}  // namespace
