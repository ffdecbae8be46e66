#include "train/store/checkpoint_tensors.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "core/dtype.h"
#include "core/io/json.h"
#include "core/memory.h"
#include "nn/state.h"

namespace lathe {
namespace {

/// Reads a list of sizes. Throws Exit::checkpoint if a size is below 0 or the product of the sizes
/// does not fit in 64 bits.
std::vector<int64_t> sizes_in(const Json& json, const char* key, const std::string& where) {
  int64_t numel = 1;
  std::vector<int64_t> sizes;
  for (const Json& size : json_get<Json>(json, key, where, Exit::checkpoint)) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > std::numeric_limits<int64_t>::max())
      fail(Exit::checkpoint, where, ": \"", key, "\" must be a list of sizes");
    sizes.push_back(size.get<int64_t>());
    if (__builtin_mul_overflow(numel, std::max<int64_t>(sizes.back(), 1), &numel))
      fail(Exit::checkpoint, where, ": \"", key, "\" has sizes that are too large");
  }
  return sizes;
}

bool has_same_cut(const TensorPart& a, const TensorPart& b) {
  if (a.cut.has_value() != b.cut.has_value()) return false;
  return !a.cut || (a.cut->dim == b.cut->dim && a.cut->sections == b.cut->sections &&
                    a.cut->parts == b.cut->parts);
}

/// Returns the index of the tensor rank's part that has the elements; 0 if the tensor is not cut.
int64_t index_of(const TensorPart& part) { return part.cut ? part.cut->part : 0; }

}  // namespace

int64_t TensorPart::numel() const {
  return c10::multiply_integers(cut ? cut->part_sizes(sizes, cut->part) : sizes);
}

std::string TensorPart::note() const {
  Json json{{"sizes", sizes}, {"begin", range.begin}, {"end", range.end}};
  if (cut) {
    json["dim"] = cut->dim;
    json["sections"] = cut->sections;
    json["part"] = cut->part;
    json["parts"] = cut->parts;
  }
  return json_text(json);
}

TensorPart TensorPart::from(const TensorEntry& entry, const std::string& where_) {
  if (entry.note.empty())
    return {.sizes = entry.shape, .cut = std::nullopt, .range = {0, entry.numel()}};

  const std::string where = where_ + ": the part of \"" + entry.name + "\"";
  const Json json = parse_json(entry.note, where, Exit::checkpoint);
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const auto integer = [&](const char* key, int64_t min, int64_t max) {
    return json_integer(json, key, min, max, where, Exit::checkpoint);
  };

  TensorPart part{.sizes = sizes_in(json, "sizes", where), .cut = std::nullopt, .range = {}};
  if (json.contains("parts")) {
    TensorCut cut;
    cut.dim = integer("dim", 0, std::ssize(part.sizes) - 1);
    cut.sections = sizes_in(json, "sections", where);
    cut.parts = integer("parts", 1, 1 << 20);
    cut.part = integer("part", 0, cut.parts - 1);
    constexpr int64_t most_rows = int64_t{1} << 40;  // most_rows * parts fits in 64 bits
    if (std::ranges::any_of(cut.sections, [](int64_t rows) { return rows > most_rows; }) ||
        cut.full_sizes(part.sizes) != part.sizes)
      fail(Exit::checkpoint, where, ": the sections do not add up to the tensor's size");
    part.cut = std::move(cut);
  }
  part.range.begin = integer("begin", 0, part.numel());
  part.range.end = integer("end", part.range.begin, most);
  if (part.range.end > part.numel() || entry.numel() != part.range.size())
    fail(Exit::checkpoint, where, ": the file has ", entry.numel(), " elements, not elements ",
         part.range.begin, " to ", part.range.end, " of ", part.numel());
  return part;
}

CheckpointTensors::CheckpointTensors(const fs::path& checkpoint, CheckpointPart which)
    : path_(checkpoint) {
  const std::vector<std::string> names = tensor_file_names(checkpoint, which);
  for (const std::string& name : names)
    files_.push_back(std::make_unique<SafetensorsFile>(checkpoint / name));
  if (!is_divided()) {
    path_ /= names[0];
    tensors_ = files_[0]->tensors();
    return;
  }

  std::map<std::string, std::vector<Piece>> by_name;
  for (size_t f = 0; f < files_.size(); ++f) {
    for (const TensorEntry& entry : files_[f]->tensors()) {
      by_name[entry.name].push_back(
          {.file = files_[f].get(),
           .entry = &entry,
           .part = TensorPart::from(entry, (checkpoint / names[f]).string())});
    }
  }
  for (auto& [name, pieces] : by_name) {
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      const auto key = [](const Piece& p) {
        return std::tuple(index_of(p.part), p.part.range.begin, p.part.range.end);
      };
      return key(a) < key(b);
    });
    add(pieces);
  }
  memory_.resize(tensors_.size());
}

/// Adds a tensor. `pieces` are sorted. Throws if they do not have every element exactly once.
void CheckpointTensors::add(const std::vector<Piece>& pieces) {
  const auto& [file, entry, first] = pieces[0];
  const auto check = [&](bool holds, const std::string& fault) {
    if (!holds)
      fail(Exit::checkpoint, path_.string(), ": the parts of tensor \"", entry->name, "\" ", fault);
  };

  size_t i = 0;
  for (int64_t part = 0; part < (first.cut ? first.cut->parts : 1); ++part) {
    int64_t end = 0, numel = 0;
    bool is_found = false;
    for (; i < pieces.size() && index_of(pieces[i].part) == part; ++i) {
      const Piece& piece = pieces[i];
      check(piece.entry->dtype == entry->dtype && piece.part.sizes == first.sizes &&
                has_same_cut(piece.part, first),
            "differ in dtype, sizes or how the tensor is cut");
      check(piece.part.range.begin == end, str("have a gap or overlap after element ", end));
      end = piece.part.range.end;
      numel = piece.part.numel();
      is_found = true;
    }
    check(is_found && end == numel, str("have no element after element ", end));
  }
  check(i == pieces.size(), "differ in how the tensor is cut");

  TensorEntry whole{.name = entry->name, .dtype = entry->dtype, .shape = first.sizes, .bytes = {}};
  if (pieces.size() == 1 && first.is_complete()) whole.bytes = entry->bytes;
  tensors_.push_back(std::move(whole));
  pieces_.push_back(pieces);
}

const TensorEntry* CheckpointTensors::find(const std::string& name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &TensorEntry::name);
  if (found == tensors_.end() || found->name != name) return nullptr;
  if (is_divided()) put_together(static_cast<size_t>(found - tensors_.begin()));
  return &*found;
}

const TensorEntry& CheckpointTensors::at(const std::string& name) const {
  const TensorEntry* found = find(name);
  if (found == nullptr) fail(Exit::checkpoint, path_.string(), " has no tensor \"", name, "\"");
  return *found;
}

/// Copies the pieces of tensor i into memory. Does nothing if they were already copied, or if one
/// file has the complete tensor.
void CheckpointTensors::put_together(size_t i) const {
  TensorEntry& entry = tensors_[i];
  if (entry.bytes.data() != nullptr || entry.numel() == 0) return;
  const auto dtype = dtype_from_safetensors(entry.dtype);
  if (!dtype)
    fail(Exit::checkpoint, path_.string(), ": tensor \"", entry.name, "\" has the dtype ",
         entry.dtype, ", which this build does not support");

  const MemoryScope memory(Memory::checkpoints);
  const TensorPart& first = pieces_[i][0].part;
  at::Tensor flat = at::empty({entry.numel()}, *dtype);
  auto* const bytes = static_cast<std::byte*>(flat.mutable_data_ptr());
  const auto size = static_cast<int64_t>(flat.element_size());
  const std::vector<int64_t> begins =
      first.cut ? first.cut->flat_part_offsets(first.sizes) : std::vector<int64_t>{0};
  for (const auto& [file, piece, part] : pieces_[i]) {
    const int64_t begin = begins[static_cast<size_t>(index_of(part))] + part.range.begin;
    std::memcpy(bytes + begin * size, piece->bytes.data(), piece->bytes.size());
    file->release(*piece);
  }

  memory_[i] = first.cut ? first.cut->join_flat(flat, first.sizes).contiguous() : flat;
  entry.bytes = make_entry(entry.name, memory_[i]).bytes;
}

void CheckpointTensors::release(const TensorEntry& entry) const {
  if (!is_divided()) return files_[0]->release(entry);
  const auto i = static_cast<size_t>(&entry - tensors_.data());
  if (!memory_[i].defined()) return pieces_[i][0].file->release(*pieces_[i][0].entry);
  memory_[i].reset();
  tensors_[i].bytes = {};
}

}  // namespace lathe
