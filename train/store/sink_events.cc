// Implements the sink events.jsonl, which records each start, resume and end of a run's process
// with its step, and the samples. A process that was killed has no end. Unlike metrics.jsonl,
// events.jsonl is not truncated on resume, because it also shows that the run was killed.
// read_events() drops the samples of steps that were trained again.
#include <fstream>

#include "core/io/json.h"
#include "train/store/run_folder.h"
#include "train/store/sinks.h"

namespace lathe {
namespace {

constexpr const char* name = "events.jsonl";

class Events final : public MetricsSink {
 public:
  explicit Events(const SinkOptions& o) : file_(own_file(o.run / name), OutputFile::Open::append) {
    if (const uint64_t size = file_.size(); size > 0) {
      const uint64_t whole = complete_lines_end(read_file(o.run / name, Exit::io));
      // A process that was killed may have left an incomplete last line.
      if (whole != size) truncate_file(o.run / name, whole);
    }
  }
  void add_start(int64_t step, const std::string& from) override {
    write({{"event", "start"}, {"step", step}, {"from", from}, {"time", unix_seconds()}});
  }
  void add_end(int64_t step, Exit code) override {
    write({{"event", "end"},
           {"step", step},
           {"exit", static_cast<int>(code)},
           {"time", unix_seconds()}});
  }
  void add_sample(int64_t step, const std::string& text) override {
    write({{"event", "sample"}, {"step", step}, {"text", text}, {"time", unix_seconds()}});
  }

 private:
  /// Returns `path`. If another program wrote a file there, renames that file.
  static fs::path own_file(const fs::path& path) {
    std::error_code none;
    if (!fs::is_regular_file(path, none)) return path;
    const std::string ours = "{\"event\"";
    std::string first(ours.size(), '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(first.data(), std::ssize(first));
    first.resize(static_cast<size_t>(file.gcount()));
    // A killed process may have written only the beginning of the first line.
    if (!ours.starts_with(first)) move_to_backup(path, path.string() + ".old");
    return path;
  }

  void write(const Json& json) { file_.write(json_text(json) + "\n"); }

  OutputFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> open_events(const SinkOptions& options) {
  return std::make_unique<Events>(options);
}

RunEvents read_events(const fs::path& run) {
  RunEvents events;
  const fs::path path = run / name;
  if (!fs::exists(path)) return events;
  const std::string text = read_file(path, Exit::io), where = path.string();
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const Json line =
        parse_json(std::string_view(text).substr(begin, end - begin), where, Exit::io);
    const int64_t step = json_integer(line, "step", 0, int64_t{1} << 53, where, Exit::io);
    const auto event = json_get<std::string>(line, "event", where, Exit::io);
    if (event == "end") continue;
    if (event == "sample") {
      std::erase_if(events.samples, [&](const RunEvents::Sample& s) { return s.step == step; });
      events.samples.push_back({step, json_get<std::string>(line, "text", where, Exit::io)});
    } else {
      std::erase_if(events.samples, [&](const RunEvents::Sample& s) { return s.step > step; });
      events.starts.push_back({.step = step,
                               .from = json_get<std::string>(line, "from", where, Exit::io),
                               .time = json_real(line, "time", where, Exit::io)});
    }
  }
  return events;
}

}  // namespace lathe
