#include "train/simulate/hardware.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/io/text.h"

namespace lathe {
namespace {

template <class Entry>
Entry* find_entry(std::vector<Entry>& entries, const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) {
    return lowercase(e.name) == lowercase(name);
  });
  return found == entries.end() ? nullptr : &*found;
}

template <class Entry>
std::string names_of(const std::vector<Entry>& entries) {
  std::string names;
  for (const Entry& e : entries) names += (names.empty() ? "" : ", ") + printable_line(e.name);
  return names;
}

/// Returns the built-in GPUs. The rates of V100, A100 (2021), A10, L4, L40S, H100 (2023), H200 and
/// DGX B200 are from NVIDIA's data sheets. The rates of RTX 3090 and 4090 are from the architecture
/// white papers (GA102, AD102), with accumulation in fp32. matmul_share of the A100, and both
/// shares of the H100, are fitted to published training runs (docs/reference/simulator.md). The
/// shares of other GPUs are estimates. portable_share is below 1 on Hopper, because kernels with
/// mma.sync reach only about 0.6 of wgmma's rate there (Shah et al. 2024, on FlashAttention-2).
std::vector<GpuModel> gpu_table() {
  const auto gpu = [](const char* name, double memory, double memory_rate, double bf16, double fp8,
                      double tf32, double fp32, double multiprocessors, double link,
                      double matmul_share, double portable_share) {
    GpuModel g;
    g.name = name;
    g.memory_gb = memory;
    g.memory_gb_per_second = memory_rate;
    g.bf16_tflops = bf16;
    g.fp8_tflops = fp8;
    g.tf32_tflops = tf32;
    g.fp32_tflops = fp32;
    g.multiprocessors = multiprocessors;
    g.link_gb_per_second = link;
    g.matmul_share = matmul_share;
    g.portable_share = portable_share;
    return g;
  };

  // clang-format off
  return {
      //               GB   GB/s   bf16  fp8   TF32  fp32  SMs  link  shares
      gpu("v100",      34.1,  900,  125,    0,    0, 15.7,  80, 150, 0.75, 1.00),
      gpu("a100-40",   42.5, 1555,  312,    0,  156, 19.5, 108, 300, 0.79, 1.00),
      gpu("a100-80",   85.5, 2039,  312,    0,  156, 19.5, 108, 300, 0.79, 1.00),
      gpu("h100",      85.5, 3350,  989, 1979,  494, 67.0, 132, 450, 0.65, 0.57),
      gpu("h100-pcie", 85.5, 2000,  756, 1513,  378, 51.0, 114,  64, 0.60, 0.57),
      gpu("h200",     150.7, 4800,  989, 1979,  494, 67.0, 132, 450, 0.65, 0.57),
      gpu("b200",     192.2, 8000, 2250, 4500, 1125, 75.0, 148, 900, 0.70, 0.35),
      gpu("l4",        24.1,  300,  121,  242,   60, 30.3,  58,  32, 0.55, 1.00),
      gpu("l40s",      48.3,  864,  362,  733,  183, 91.6, 142,  32, 0.62, 1.00),
      gpu("a10",       24.1,  600,  125,    0,   62, 31.2,  72,  32, 0.60, 1.00),
      gpu("rtx3090",   25.7,  936,   71,    0,   35, 35.6,  82,  32, 0.80, 1.00),
      gpu("rtx4090",   25.7, 1008,  165,  330,   82, 82.6, 128,  32, 0.85, 1.00),
  };
  // clang-format on
}

/// Returns the built-in links. Each GPU has one network adapter, whose rate in Gbit/s is the name
/// of the link. All links have the default latency: the latency of a hop between nodes in NCCL's
/// ring algorithm with the Simple protocol, according to NCCL's tuning model (src/graph/tuning.cc).
std::vector<LinkModel> link_table() {
  std::vector<LinkModel> links;
  for (const int rate : {100, 200, 400, 800}) {
    LinkModel& l = links.emplace_back();
    l.name = str(rate, "G");
    l.gb_per_second = rate / 8.0;
  }
  return links;
}

SoftwareModel software(const char* name, const char* attention, double passes, double logit_bytes,
                       double logit_memory_bytes) {
  SoftwareModel s;
  s.name = name;
  s.attention = attention;
  s.elementwise_passes = passes;
  s.logit_bytes = logit_bytes;
  s.logit_memory_bytes = logit_memory_bytes;
  return s;
}

std::vector<SoftwareModel> software_table() {
  // All kernels are fused: torch.compile with SDPA and FSDP.
  SoftwareModel compiled = software("compiled", "flash2", 1.0, 20, 8);
  compiled.shards_masters = true;
  compiled.selective = "half";

  // PyTorch runs op by op under autocast with FSDP, the Triton kernel of FlashAttention 1, and a
  // fused loss (llm-foundry).
  SoftwareModel eager = software("eager", "flash1", 1.9, 12, 4);
  eager.shards_masters = true;
  eager.selective = "half";

  // Kernels are fused, with an attention kernel for Hopper: llm.c (hand-written CUDA, cuDNN's
  // attention) and nanochat (PyTorch, FlashAttention 3).
  SoftwareModel fused = software("fused", "flash3", 1.0, 10, 4);
  fused.exchange_bytes = 2;

  // Megatron-LM of Narayanan et al. 2021 has no flash attention and no sequence parallelism, and
  // exchanges gradients after the backward pass.
  SoftwareModel megatron21 = software("megatron-2021", "unfused", 1.3, 28, 10);
  megatron21.gradient_overlap = false;
  megatron21.sequence_parallel = false;
  megatron21.dropout = true;
  megatron21.exchange_bytes = megatron21.gradient_bytes = 2;

  // Megatron-Core with Transformer Engine has cuDNN attention, and overlaps all exchanges.
  SoftwareModel megatron = software("megatron", "flash3", 1.3, 20, 10);
  megatron.tensor_overlap = 0.7;

  return {compiled, eager, fused, megatron21, megatron};
}

/// Applies one table of the file to `entries`. The table's `name` selects an entry, or adds an
/// entry. If the table has `like`, the selected entry first becomes a copy of the entry that `like`
/// names. Then the other keys are set.
template <class Entry>
void apply_entry(std::vector<Entry>& entries,
                 const std::vector<std::pair<std::string, ConfigScalar>>& keys,
                 const std::string& kind, const std::string& where) {
  std::optional<std::string> name, like;
  for (const auto& [key, value] : keys) {
    if (key != "name" && key != "like") continue;
    const std::string* text = std::get_if<std::string>(&value);
    if (text == nullptr)
      fail(Exit::usage, where, ": ", key, " of a cluster.", kind, " must be a string");
    (key == "name" ? name : like) = *text;
  }
  if (!name || name->empty())
    fail(Exit::usage, where, ": a cluster.", kind, " has no name; add name = \"...\"");

  Entry* entry = find_entry(entries, *name);
  if (like || entry == nullptr) {
    const Entry* from = like ? find_entry(entries, *like) : nullptr;
    if (from == nullptr) {
      fail(Exit::usage, where, ": the cluster.", kind, " ", printable_line(*name),
           like ? " is like an entry that does not exist; " : " is not a known entry; ",
           "take the values of a known entry with like = \"NAME\": ", names_of(entries));
    }
    const Entry copy = *from;
    if (entry == nullptr) entry = &entries.emplace_back();
    *entry = copy;
    entry->name = *name;
  }

  for (const auto& [key, value] : keys) {
    if (key == "name" || key == "like") continue;
    const ConfigValue typed = std::visit([](const auto& v) { return ConfigValue(v); }, value);
    schema_of<Entry>().set(entry, key, typed, where);
  }
}

template <class Entry>
void apply_entries(std::vector<Entry>& entries, const TomlEntry& read, const std::string& kind) {
  const auto* tables = std::get_if<ConfigTables>(&read.value);
  if (tables == nullptr) {
    fail(Exit::usage, read.where, ": ", read.key, " must be a list of tables, [[", read.key, "]]");
  }
  for (const auto& keys : *tables) apply_entry(entries, keys, kind, read.where);
}

}  // namespace

const GpuModel& HardwareTable::gpu(const std::string& name) const {
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const GpuModel& g) {
    return lowercase(g.name) == lowercase(name);
  });
  if (found != gpus.end()) return *found;
  fail(Exit::usage, "command line: --card ", printable_line(name),
       " is not a known GPU; give one of ", names_of(gpus), ", or add it with --cards FILE");
}

LinkModel HardwareTable::link(const std::string& name) const {
  const auto found = std::find_if(links.begin(), links.end(), [&](const LinkModel& l) {
    return lowercase(l.name) == lowercase(name);
  });
  if (found != links.end()) return *found;

  // Accept any other rate, such as 25G, with the default latency.
  const bool has_unit = !name.empty() && (name.back() == 'G' || name.back() == 'g');
  const auto rate = integer_between(has_unit ? name.substr(0, name.size() - 1) : "", 1, 100000);
  if (!rate) {
    fail(Exit::usage, "command line: --interconnect ", printable_line(name),
         " is not a known link; give one of ", names_of(links),
         ", another number of Gbit/s for each GPU such as 25G, or a link of --cards FILE");
  }
  LinkModel other;
  other.name = name;
  other.gb_per_second = *rate / 8.0;
  return other;
}

const SoftwareModel& HardwareTable::program(const std::string& name) const {
  const auto found = std::find_if(software.begin(), software.end(), [&](const SoftwareModel& s) {
    return lowercase(s.name) == lowercase(name);
  });
  if (found != software.end()) return *found;
  fail(Exit::usage, "command line: --software ", printable_line(name),
       " is not known; give one of ", names_of(software), ", or add it with --cards FILE");
}

const HardwareTable& known_hardware() {
  static const HardwareTable table{
      .gpus = gpu_table(), .links = link_table(), .software = software_table(), .constants = {}};
  return table;
}

HardwareTable read_hardware(const std::string& path) {
  HardwareTable table = known_hardware();
  for (const TomlEntry& entry : read_toml(path)) {
    if (entry.key == "cluster.gpu") {
      apply_entries(table.gpus, entry, "gpu");
    } else if (entry.key == "cluster.link") {
      apply_entries(table.links, entry, "link");
    } else if (entry.key == "cluster.software") {
      apply_entries(table.software, entry, "software");
    } else if (entry.key.starts_with("constants.")) {
      schema_of<SimulatorConstants>().set(&table.constants, entry.key.substr(10), entry.value,
                                          entry.where);
    } else {
      fail(Exit::usage, entry.where, ": ", printable_line(entry.key),
           " is not a key of a --cards file, which has only [[cluster.gpu]], [[cluster.link]], "
           "[[cluster.software]] and [constants]");
    }
  }
  return table;
}

}  // namespace lathe
