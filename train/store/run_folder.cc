#include "train/store/run_folder.h"

#include "core/io/log.h"

namespace lathe {
namespace {

constexpr const char* written_by_lathe =
    "# Written by lathe: what this run is trained with. Edits are lost.\n";

bool is_ours(const fs::path& config) {
  return read_file(config, Exit::io, uint64_t{16} << 20).starts_with(written_by_lathe);
}

}  // namespace

fs::path move_to_backup(const fs::path& path, const fs::path& to) {
  fs::path free = to;
  for (int n = 2; fs::exists(free); ++n) free = to.string() + "." + std::to_string(n);
  rename_file(path, free);
  log_info("renamed ", path.string(), " to ", free.filename().string());
  return free;
}

void check_config_record(const fs::path& run) {
  const fs::path path = run / "config.toml";
  if (fs::exists(path) && !is_ours(path)) {
    fail(Exit::usage, path.string(),
         " is not a file that lathe wrote, and the run would write its own config there; give ",
         "another --train.out_dir, or rename the file");
  }
}

void write_config_record(const fs::path& run, const RunConfig& config,
                         const std::vector<ConfigChange>& changes) {
  const fs::path path = run / "config.toml";
  if (fs::exists(path) && !is_ours(path)) move_to_backup(path, run / "config.toml.old");
  std::string text = written_by_lathe + config.schema().to_toml(&config, /*comments=*/true);
  if (!changes.empty()) text += "\n# Keys that changed on a resume:\n";
  for (const auto& c : changes)
    text += str("#   after step ", c.step, ": ", c.key, " ", c.was, " -> ", c.is, "\n");
  write_file_durably(path, text);
}

std::string project_path(const fs::path& path) {
  const fs::path whole = fs::weakly_canonical(path),
                 relative = whole.lexically_relative(fs::current_path());
  const bool inside = !relative.empty() && *relative.begin() != "..";
  return (inside ? relative : whole).string();
}

}  // namespace lathe
