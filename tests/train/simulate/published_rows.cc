#include "tests/train/simulate/published_rows.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <sstream>

#include "core/error.h"
#include "core/io/file.h"

namespace lathe::test {
namespace {

using Cells = std::map<std::string, std::string>;

/// Splits a line of a CSV file at the commas outside of quotes.
std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

/// Returns the integer at the beginning of a cell, for example 1 for "1?" and "1-like
/// (DistMuonAdamW)". Returns nullopt if the cell has no such integer.
std::optional<int64_t> whole(const Cells& row, const std::string& key) {
  const auto found = row.find(key);
  if (found == row.end() || found->second.empty()) return std::nullopt;
  char* end = nullptr;
  const long long value = std::strtoll(found->second.c_str(), &end, 10);
  return end == found->second.c_str() ? std::nullopt : std::optional<int64_t>(value);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return lower(text).find(part) != std::string::npos;
}

/// Returns the name that the hardware table uses for a GPU such as "A100-80GB", "a100_40gb" or
/// "H100-80GB".
std::string gpu_name(const std::string& text) {
  const std::string name = lower(text);
  if (contains(name, "a100")) return contains(name, "40") ? "a100-40" : "a100-80";
  for (const char* known : {"h200", "b200", "l40s", "h100", "4090", "3090", "v100"}) {
    if (contains(name, known))
      return std::isdigit(static_cast<unsigned char>(known[0])) != 0 ? str("rtx", known) : known;
  }
  return name;
}

/// Returns the program that the run of a row used. The name follows from the row's source and id.
std::string software_of(const Cells& row) {
  const std::string& source = row.at("source");
  const std::string& id = row.at("id");
  if (contains(id, "meg21")) return "megatron-2021";
  if (contains(source, "megatron") || contains(source, "nemo")) return "megatron";
  if (contains(source, "llm-foundry")) return "eager";
  if (contains(source, "llm.c") || contains(source, "nanogpt") || contains(source, "nanochat"))
    return "fused";
  return "compiled";
}

TransformerShape shape_of(const Cells& row) {
  const bool is_llama = contains(row.at("model"), "llama") ||
                        contains(row.at("model"), "mistral") || contains(row.at("model"), "qwen");
  TransformerShape s;
  s.layers = whole(row, "layers").value();
  s.width = whole(row, "width").value();
  s.heads = whole(row, "heads").value();
  s.kv_heads = whole(row, "kv_heads").value_or(s.heads);
  s.head_width = s.width / s.heads;
  s.hidden = whole(row, "ffn").value_or(4 * s.width);
  s.vocab = whole(row, "vocab").value();
  s.sequence = whole(row, "seq").value();
  s.gated = is_llama;
  s.tied = !is_llama && !contains(row.at("model"), "nanochat");
  s.positions = is_llama ? 0 : s.sequence;
  s.bias = !is_llama;
  return s;
}

PublishedRow row_of(const Cells& row, const HardwareTable& table) {
  PublishedRow out;
  out.id = row.at("id");
  out.model = row.at("model");
  out.source = row.at("source");
  out.gpu = gpu_name(row.at("gpu"));
  const int64_t gpus = whole(row, "n_gpu").value();
  int64_t per_node = std::min<int64_t>(gpus, 8);
  while (gpus % per_node != 0) --per_node;

  out.cluster = {.gpu = table.gpu(out.gpu),
                 .link = table.link(out.gpu.starts_with("a100") ? "200G" : "400G"),
                 .software = table.program(software_of(row)),
                 .constants = table.constants,
                 .nodes = gpus / per_node,
                 .gpus_per_node = per_node};
  out.step.shape = shape_of(row);
  out.step.global_batch = whole(row, "global_bs_seqs").value();
  out.step.dtype = contains(row.at("precision"), "fp8") ? MatmulDtype::fp8 : MatmulDtype::bf16;

  out.request.tensor = whole(row, "tp").value_or(1);
  out.request.pipeline = whole(row, "pp").value_or(1);
  out.request.context = whole(row, "cp").value_or(1);
  out.request.virtual_stages = whole(row, "vp");
  out.request.shard = whole(row, "zero").value_or(contains(row.at("zero"), "fsdp") ? 3 : 0);
  out.request.micro_batch = whole(row, "micro_bs");
  const std::string& recompute = row.at("recompute");
  if (recompute == "full") out.request.recompute = Recompute::full;
  if (recompute == "selective") out.request.recompute = Recompute::selective;
  if (recompute == "none") out.request.recompute = Recompute::none;
  complete_degrees(out.request, gpus);

  const double tokens = std::strtod(row.at("tok_s_gpu").c_str(), nullptr);
  out.step_seconds = std::strtod(row.at("step_s").c_str(), nullptr);
  if (out.step_seconds <= 0 && tokens > 0)
    out.step_seconds = out.step.tokens() / tokens / static_cast<double>(gpus);
  return out;
}

}  // namespace

std::vector<PublishedRow> read_published_rows(const std::string& path, const HardwareTable& table) {
  std::istringstream lines(read_file(path, Exit::data, uint64_t{1} << 20));
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = csv_cells(line);

  std::vector<PublishedRow> rows;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    const std::vector<std::string> cells = csv_cells(line);
    if (cells.size() != names.size())
      fail(Exit::data, path, ": ", cells.size(), " cells where the header has ", names.size());
    Cells row;
    for (size_t i = 0; i < names.size(); ++i) row[names[i]] = cells[i];
    rows.push_back(row_of(row, table));
  }
  return rows;
}

}  // namespace lathe::test
