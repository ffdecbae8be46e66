#include "train/inspect.h"

#include <sstream>

#include "core/dtype.h"
#include "core/io/checksum.h"
#include "core/io/safetensors.h"
#include "data/manifest.h"
#include "train/checkpoint.h"

namespace lathe {
namespace {

enum class Kind { run, checkpoint, data, safetensors };

Kind kind_of(const fs::path& path) {
  if (fs::is_regular_file(path) && path.extension() == ".safetensors") return Kind::safetensors;
  if (fs::is_directory(path)) {
    if (path.filename().string().starts_with("step-") || fs::exists(path / "model.safetensors"))
      return Kind::checkpoint;
    if (fs::is_directory(path / "checkpoints")) return Kind::run;
    if (fs::exists(path / "manifest.json")) return Kind::data;
  }
  fail(Exit::usage, path.string(), fs::exists(path) ? " is" : " does not exist: expected",
       fs::exists(path) ? " no run, checkpoint, data folder or .safetensors file"
                        : " a run, checkpoint, data folder or .safetensors file");
}

void list_tensors(std::ostringstream& out, const SafetensorsFile& file) {
  int64_t total = 0;
  for (const auto& t : file.tensors()) {
    out << "  " << t.name << "  " << t.dtype << " " << describe(at::IntArrayRef(t.shape)) << "\n";
    total += t.numel();
  }
  out << "  " << file.tensors().size() << " tensors, " << total << " elements\n";
}

void list_state(std::ostringstream& out, const fs::path& checkpoint) {
  const RunState s = read_state(checkpoint);
  out << checkpoint.string() << "\n  step " << s.step << ", updates " << s.updates << ", tokens " << s.tokens;
  if (s.val_loss) out << ", validation loss " << *s.val_loss << " (best " << *s.best_val_loss << ")";
  if (s.scaler) out << ", loss scale " << s.scaler->scale << " (" << s.scaler->skipped << " steps skipped)";
  out << "\n  made on " << s.device_model << ", " << s.isa << ", " << s.threads << " threads; data " << s.data_hash
      << "\n";
}

}  // namespace

std::string inspect(const fs::path& path_) {
  const fs::path path = without_trailing_slash(path_);
  std::ostringstream out;
  switch (kind_of(path)) {
    case Kind::safetensors: {
      const SafetensorsFile file(path);
      out << path.string() << "\n";
      for (const auto& [key, value] : file.metadata()) out << "  " << key << " = " << value << "\n";
      list_tensors(out, file);
      break;
    }
    case Kind::checkpoint: {
      list_state(out, path);
      list_tensors(out, SafetensorsFile(path / "model.safetensors"));
      out << "\n" << read_state(path).config;
      break;
    }
    case Kind::run: {
      const auto all = list_checkpoints(path);
      if (all.empty()) out << path.string() << " holds no checkpoint yet\n";
      for (const auto& checkpoint : all) list_state(out, checkpoint);
      break;
    }
    case Kind::data: {
      const auto m = read_manifest(path);
      out << path.string() << "\n  tokenizer " << m->tokenizer.kind() << ", vocabulary " << m->vocab_size << ", "
          << m->dtype << ", largest id " << m->largest_id << "\n";
      for (const auto* split : {&m->train, &m->val}) {
        for (const auto& s : *split) out << "  " << s.file << "  " << s.tokens << " tokens  " << s.xxh3 << "\n";
      }
    }
  }
  return out.str();
}

std::string verify(const fs::path& path_) {
  const fs::path path = without_trailing_slash(path_);
  std::ostringstream out;
  switch (kind_of(path)) {
    case Kind::safetensors:
      SafetensorsFile{path};
      out << path.string() << ": well formed\n";
      break;
    case Kind::checkpoint:
      verify_checkpoint(path);
      SafetensorsFile{path / "model.safetensors"};
      SafetensorsFile{path / "optimizer.safetensors"};
      out << path.string() << ": all files are what was written\n";
      break;
    case Kind::run: {
      const auto all = list_checkpoints(path);
      if (all.empty()) fail(Exit::checkpoint, path.string(), " holds no checkpoint");
      for (const auto& checkpoint : all) out << verify(checkpoint);
      break;
    }
    case Kind::data: {
      const auto m = read_manifest(path);
      for (const auto* split : {&m->train, &m->val}) {
        for (const auto& s : *split) {
          const fs::path file = path / s.file;
          if (!fs::exists(file)) fail(Exit::data, file.string(), " is missing");
          if (file_checksum(file) != s.xxh3)
            fail(Exit::data, file.string(), " is not what was written: its checksum differs");
        }
      }
      out << path.string() << ": all shards are what was written\n";
    }
  }
  return out.str();
}

}  // namespace lathe
