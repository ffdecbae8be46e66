#include "train/commands/inspect.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>
#include <sstream>

#include "core/dtype.h"
#include "core/io/gguf_file.h"
#include "core/io/safetensors.h"
#include "core/io/text.h"
#include "data/data.h"
#include "data/tokens/tokens.h"
#include "train/commands/commands.h"
#include "train/config/path_kind.h"
#include "train/loop/console.h"
#include "train/store/checkpoint.h"
#include "train/store/checkpoint_tensors.h"

namespace lathe {
namespace {

[[noreturn]] void refuse(const fs::path& path) {
  constexpr const char* wanted = "a run, checkpoint, data folder, .safetensors or .gguf file";
  if (!fs::exists(path)) fail(Exit::usage, path.string(), " does not exist; give ", wanted);
  if (is_hugging_face(path))
    fail(Exit::usage, path.string(),
         " is a Hugging Face folder; make a run of it with `lathe import`");
  fail(Exit::usage, path.string(), " is not a ", wanted + 2);
}

/// Reads the header of a .safetensors file. Throws an error if the header is not valid.
void check_safetensors(const fs::path& path) { const SafetensorsFile file(path); }

void list_tensors(std::ostringstream& out, const std::vector<TensorEntry>& tensors) {
  int64_t total = 0;
  for (const TensorEntry& t : tensors) {
    out << "  " << printable_line(t.name) << "  " << t.dtype << " "
        << describe(at::IntArrayRef(t.shape)) << "\n";
    total += t.numel();
  }
  out << "  " << tensors.size() << " tensors, " << total << " elements\n";
}

/// Writes a line for each entry of a GGUF file's metadata. Shows a list as its length and its first
/// values.
void list_metadata(std::ostringstream& out, const GGUFFile& file) {
  constexpr size_t most_shown = 3, most_characters = 200;
  for (const auto& [key, value] : file.metadata().items()) {
    std::string shown;
    if (value.is_array()) {
      shown = quantity(std::ssize(value), "value") + ":";
      for (size_t i = 0; i < std::min(value.size(), most_shown); ++i)
        shown += " " + json_text(value[i]);
      if (value.size() > most_shown) shown += " ...";
    } else {
      shown = value.is_string() ? value.get<std::string>() : json_text(value);
    }
    if (shown.size() > most_characters) shown = shown.substr(0, most_characters) + "...";
    out << "  " << printable_line(key) << " = " << printable_line(shown) << "\n";
  }
}

/// Throws Exit::checkpoint if a tensor of a GGUF file has elements that are not finite.
void check_values(const GGUFFile& file) {
  std::vector<float> values;
  for (const TensorEntry& t : file.tensors()) {
    const GGUFType& type = *find_gguf_type(t.dtype);
    const size_t most = type.bytes << 12;
    values.resize(static_cast<size_t>(type.elements) << 12);
    for (size_t at = 0; at < t.bytes.size(); at += most) {
      const auto part = t.bytes.subspan(at, std::min(most, t.bytes.size() - at));
      read_blocks(type, part, values.data());
      const auto end = values.begin() + static_cast<std::ptrdiff_t>(part.size() / type.bytes) *
                                            static_cast<std::ptrdiff_t>(type.elements);
      if (!std::all_of(values.begin(), end, [](float x) { return std::isfinite(x); }))
        fail(Exit::checkpoint, file.path().string(), ": tensor \"", t.name,
             "\" has elements that are not finite");
    }
    file.release(t);
  }
}

void list_state(std::ostringstream& out, const fs::path& checkpoint) {
  const RunState s = read_state(checkpoint);
  out << checkpoint.string() << "\n  step " << s.step << ", updates " << s.updates
      << (s.sizes.outputs == 0 ? ", tokens " : ", samples ") << s.tokens;
  if (s.val_loss) {
    out << ", validation loss " << *s.val_loss << " (best " << *s.best_val_loss;
    if (s.best_step >= 0) out << " after step " << s.best_step;
    out << ")";
  }
  if (s.scaler)
    out << ", loss scale " << s.scaler->scale << " (" << s.scaler->skipped << " steps skipped)";
  out << "\n  made on " << s.device_model << ", " << s.isa << ", " << quantity(s.threads, "thread")
      << "; data " << s.data_hash << "\n";
  if (s.imported_from.empty()) return;
  out << "  imported from " << printable_line(s.imported_from);
  for (size_t i = 0; i < s.ignored_keys.size(); ++i)
    out << (i == 0 ? "; ignored keys: " : ", ") << printable_line(s.ignored_keys[i]);
  out << "\n";
}

/// Opens the splits of a data folder that has no manifest.json.
std::vector<TokenFile> open_splits(const fs::path& folder) {
  std::vector<TokenFile> splits;
  for (const char* split : {"train", "val"}) {
    if (has_split(folder, split, std::nullopt)) splits.emplace_back(folder, split, std::nullopt);
  }
  return splits;
}

}  // namespace

std::string inspect(const fs::path& path_) {
  const fs::path path = without_trailing_slash(path_);
  std::ostringstream out;

  switch (kind_of(path)) {
    case PathKind::safetensors: {
      const SafetensorsFile file(path);
      out << path.string() << "\n";
      for (const auto& [key, value] : file.metadata())
        out << "  " << printable_line(key) << " = " << printable_line(value) << "\n";
      list_tensors(out, file.tensors());
      break;
    }
    case PathKind::gguf: {
      const GGUFFile file(path);
      out << path.string() << "\n";
      list_metadata(out, file);
      list_tensors(out, file.tensors());
      break;
    }
    case PathKind::checkpoint: {
      list_state(out, path);
      list_tensors(out, CheckpointTensors(path, CheckpointPart::model).tensors());
      out << "\n" << read_state(path).config;
      break;
    }
    case PathKind::run: {
      const auto all = list_checkpoints(path);
      // Here, a run without checkpoints is not an error, unlike in verify().
      if (all.empty()) out << path.string() << " holds no checkpoint yet\n";
      for (const auto& checkpoint : all) {
        try {
          list_state(out, checkpoint);
        } catch (const Error& e) {  // continue with the other checkpoints
          out << checkpoint.filename().string() << ": " << e.what() << "\n";
        }
      }
      break;
    }
    case PathKind::data: {
      DataConfig data;
      data.dir = path.string();
      out << path.string() << "\n" << open_data(data)->table();
      break;
    }
    case PathKind::missing:
    case PathKind::file:
    case PathKind::hugging_face:
    case PathKind::folder: refuse(path);
  }

  return out.str();
}

namespace {

/// Verifies the checkpoints of a run. If some are damaged, throws the error of the first damaged
/// checkpoint. The message also names the other damaged checkpoints and the intact ones.
void verify_all(const std::vector<fs::path>& checkpoints, std::ostream& out) {
  std::optional<Error> first;
  std::string intact, damaged;
  for (const fs::path& checkpoint : checkpoints) {
    try {
      out << verify(checkpoint);
      intact += (intact.empty() ? "" : ", ") + checkpoint.filename().string();
    } catch (const Error& e) {
      if (first) damaged += (damaged.empty() ? "" : ", ") + checkpoint.filename().string();
      if (!first) first = e;
    }
  }
  if (!first) return;
  fail(first->code(), first->what(), damaged.empty() ? "" : "; also damaged: " + damaged,
       intact.empty() ? "; no checkpoint of the run is intact" : "; intact: " + intact);
}

}  // namespace

std::string verify(const fs::path& path_) {
  const fs::path path = without_trailing_slash(path_);
  std::ostringstream out;

  switch (kind_of(path)) {
    case PathKind::safetensors:
      check_safetensors(path);
      out << path.string() << ": well formed\n";
      break;
    case PathKind::gguf:
      check_values(GGUFFile(path));
      out << path.string() << ": well formed, and all values are finite\n";
      break;
    case PathKind::checkpoint:
      verify_checkpoint(path);
      // Checksums only show that the bytes are unchanged since they were written, so also read the
      // headers.
      for (const auto which : {CheckpointPart::model, CheckpointPart::optimizer})
        CheckpointTensors(path, which);
      out << path.string() << ": all checksums match\n";
      break;
    case PathKind::run: {
      const auto all = list_checkpoints(path);
      if (all.empty()) fail(Exit::checkpoint, path.string(), " holds no checkpoint");
      verify_all(all, out);
      break;
    }
    case PathKind::data: {
      if (!fs::exists(path / "manifest.json")) {
        // If there are no checksums, damage shows only in sizes, headers and token ids.
        uint32_t largest = 0;
        for (const TokenFile& split : open_splits(path))
          largest = std::max(largest, split.largest_id());
        out << path.string() << ": sizes and headers are right, and the largest token id is "
            << largest << "; without a manifest.json there are no checksums to compare with\n";
        break;
      }

      DataConfig data;
      data.dir = path.string();
      verify_with_progress(*open_data(data), path);
      out << path.string() << ": all checksums match\n";
      break;
    }
    case PathKind::missing:
    case PathKind::file:
    case PathKind::hugging_face:
    case PathKind::folder: refuse(path);
  }

  return out.str();
}

Command inspect_command() {
  return {
      .name = "inspect",
      .usage = "PATH",
      .doc = "Show what is in a run, a checkpoint, a data folder, or a .safetensors or .gguf file.",
      .examples = {"inspect runs/quickstart/checkpoints/step-00002000", "inspect data/quickstart"},
      .flags = {},
      .run = [](const Arguments& a) {
        std::cout << inspect(a.positionals[0]) << std::flush;
        return Exit::done;
      }};
}

Command verify_command() {
  return {
      .name = "verify",
      .usage = "PATH",
      .doc =
          "Check a run, a checkpoint or a data folder against its checksums, or a .safetensors or "
          ".gguf file.",
      .examples = {"verify runs/quickstart", "verify data/quickstart"},
      .flags = {},
      .run = [](const Arguments& a) {
        std::cout << verify(a.positionals[0]) << std::flush;
        return Exit::done;
      }};
}

}  // namespace lathe
