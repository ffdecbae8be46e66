#include "train/commands/plan_cluster.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <sstream>

#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/text.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/module.h"
#include "optim/method.h"
#include "train/analysis/fit.h"
#include "train/commands/table.h"
#include "train/session/session.h"
#include "train/simulate/search.h"
#include "train/step/shares.h"
#include "train/tasks/task.h"
#include "train/transforms/adapters.h"
#include "train/transforms/tensor_parallel.h"

namespace lathe {
namespace {

// Show at most this many layouts that fit, and at most this many that don't.
constexpr size_t shown_layouts = 8;

/// The input and the result of a plan for a cluster.
struct ClusterPlan {
  ClusterModel cluster{};
  StepWorkload step{};
  DistConfig dist{};  ///< the keys of [dist] that the config has
  int64_t steps = 0;
  double price = 0;         ///< price of a GPU per hour; 0 if it is not given
  bool has_layout = false;  ///< whether --layout is given
  std::vector<std::string>
      left_out{};  ///< a sentence for each part of the config that is not simulated
  LayoutSearch found{};
  /// Returns why train() refuses the config with these keys; empty if it does not.
  std::function<std::string(const Overrides& keys)> config_fault{};

  double gpu_hours(const StepEstimate& e) const {
    return e.seconds * static_cast<double>(steps) * static_cast<double>(cluster.gpus()) / 3600;
  }
};

TransformerShape shape_of(const GPTConfig& c) {
  return {.layers = c.n_layer,
          .width = c.n_embd,
          .heads = c.n_head,
          .kv_heads = c.n_head,
          .head_width = c.n_embd / c.n_head,
          .hidden = 4 * c.n_embd,
          .vocab = c.vocab_size,
          .sequence = c.block_size,
          .gated = false,
          .tied = c.tie_weights,
          .positions = c.block_size,
          .bias = c.bias};
}

TransformerShape shape_of(const LlamaConfig& c) {
  double windowed = 0;
  for (int64_t i = 0; i < c.n_layer; ++i) windowed += c.has_window(i) ? 1 : 0;
  return {.layers = c.n_layer,
          .width = c.n_embd,
          .heads = c.n_head,
          .kv_heads = c.kv_heads(),
          .head_width = c.head_width(),
          .hidden = c.hidden(),
          .vocab = c.vocab_size,
          .sequence = c.block_size,
          .window = c.sliding_window,
          .windowed = windowed / static_cast<double>(c.n_layer),
          .gated = true,
          .tied = c.tie_weights,
          .bias = false};
}

MatmulDtype dtype_of(const AmpConfig& amp) {
  if (amp.dtype == "fp8") return MatmulDtype::fp8;
  if (amp.dtype == "fp32") return amp.tf32 ? MatmulDtype::tf32 : MatmulDtype::fp32;
  return MatmulDtype::bf16;
}

/// Sets step.state_bytes, the bytes of optimizer state per parameter. Computes them from the state
/// that the optimizer makes for a large matrix. Sets step.faults.tensor if the optimizer can't
/// update parts of a matrix.
void set_optimizer(StepWorkload& step, const OptimConfig& optim) {
  constexpr int64_t side = 4096;
  const MetaInit without_storage;
  const NamedParameter matrix{
      .path = "weight", .parameter = new_parameter({side, side}), .role = Role::weight};
  const MethodState state = make_method(optim)->state(matrix);

  double bytes = 0;
  for (const StateTensor& t : state.tensors) {
    double elements = 1;
    for (const int64_t size : t.sizes) elements *= static_cast<double>(size);
    bytes += elements * static_cast<double>(c10::elementSize(t.dtype));
  }
  step.state_bytes = bytes / (side * side);
  if (needs_whole_tensors(state, {side, side}, optim.kind))
    step.faults.tensor = "the optimizer needs complete tensors, which dist.tensor cuts";
}

/// Fills in `faults`. For each axis along which train() refuses to divide a run with this config,
/// adds the reason (train/step/shares.h, train/session/session.cc).
void add_axis_faults(StepWorkload::AxisFaults& faults, const RunConfig& c) {
  const auto add = [](std::string& fault, const std::string& why) {
    if (fault.empty()) fault = why;
  };

  const std::string& task = c.train.task;
  if (c.train.sum_order == "sequence") {
    for (std::string* fault : {&faults.data, &faults.context})
      add(*fault, "train.sum_order = \"sequence\" supports only one process");
  }

  if (c.memory.update_in_backward) {
    for (std::string* fault : {&faults.tensor, &faults.pipeline})
      add(*fault, "memory.update_in_backward is not supported with this parallelism");
  }

  if (c.memory.offloads("parameters")) {
    for (std::string* fault : {&faults.tensor, &faults.pipeline})
      add(*fault, "parameters on disk (memory.offload) are not supported with this parallelism");
  }
  if (c.memory.offloads("activations"))
    add(faults.pipeline,
        "activations on disk (memory.offload) are not supported with dist.pipeline");

  if (task != "auto" && task != "language")
    add(faults.context, "dist.context is not for the task " + task);
  if (task == "distill" || task == "dpo")
    add(faults.virtual_stages,
        "dist.virtual_stages above 1 would run the task's frozen model for each part");
}

StepWorkload step_of(LoadedConfig loaded) {
  const RunConfig& c = loaded.config;
  if (c.model.kind != "gpt" && c.model.kind != "llama") {
    fail(Exit::usage, origin_of(loaded, "model.kind"), ": model.kind = \"", c.model.kind,
         "\" can't be planned for a cluster; the simulator knows gpt and llama, and plan --for "
         "takes every kind");
  }
  if (batch_sizes(c).vocab_size == 0) {
    if (!fs::is_directory(c.data.dir)) {
      fail(Exit::usage, "model.vocab_size is 0 and there is no data in ", c.data.dir,
           " to take it from; set model.vocab_size or data.dir");
    }
    loaded = RunData::open(std::move(loaded)).loaded;
  }

  StepWorkload step;
  step.shape = c.model.kind == "gpt" ? shape_of(c.model.own.as<GPTConfig>())
                                     : shape_of(c.model.own.as<LlamaConfig>());
  step.shape.sequence = batch_sizes(c).block_size;
  step.global_batch = c.train.batch_size * c.train.grad_accum;
  step.dtype = dtype_of(c.amp);
  step.master = c.amp.master;
  set_optimizer(step, c.optim);
  add_axis_faults(step.faults, c);
  step.updates_in_backward = c.memory.update_in_backward;
  for (const LayerCut& rule : layer_cuts_of(c)) {
    if (rule.units > 0) step.tensor_units.emplace_back(rule.units, rule.unit);
  }
  return step;
}

/// Returns a sentence for each part of the config that the simulator leaves out.
std::vector<std::string> left_out_of(const RunConfig& c) {
  std::vector<std::string> notes;
  if (adapters_of(c).rank > 0) {
    notes.push_back(
        "adapters.rank is not simulated: the plan is for training all parameters, which takes more "
        "memory and time");
  }
  const Task* task = find_task(c.train.task);
  if (task != nullptr && !task->frozen_key(c).empty()) {
    notes.push_back(str("the frozen model of the task ", task->name(),
                        " is not simulated: the plan lacks its memory and its forward pass"));
  }
  return notes;
}

ClusterModel cluster_of(const Arguments& a) {
  const std::string file = a.get("cards", "");
  const HardwareTable table = file.empty() ? known_hardware() : read_hardware(file);
  const auto whole = [&](const char* name, double otherwise, double most) {
    return static_cast<int64_t>(a.number(name, otherwise, between(1, most), true));
  };

  if (a.get("card", "").empty())
    fail(Exit::usage, "command line: a plan for a cluster needs --card, such as --card h100");
  ClusterModel cluster;
  cluster.gpu = table.gpu(a.get("card", ""));
  cluster.link = table.link(a.get("interconnect", "400G"));
  cluster.software = table.program(a.get("software", "compiled"));
  cluster.constants = table.constants;
  cluster.nodes = whole("nodes", 1, 100000);
  cluster.gpus_per_node = whole("gpus", 8, 1024);
  return cluster;
}

std::string gigabytes(double bytes) { return format("%.1f GB", bytes / 1e9); }

/// Returns a text such as "12.3 GB sent by a GPU, 80.1 ms, of which 45.0 ms delay the step".
std::string exchange_text(const Exchange& e) {
  return gigabytes(e.bytes) + " sent by a GPU, " + human_time(e.seconds) + ", of which " +
         human_time(e.exposed) + " delay the step";
}

double exposed(const StepEstimate& e) {
  return e.data.exposed + e.tensor.exposed + e.context.exposed + e.pipeline.exposed;
}

/// Returns the keys with which Lathe trains with a layout.
Overrides keys_of(const ClusterPlan& p, const ParallelLayout& l) {
  const char* const shards[]{"none", "optimizer", "gradients", "parameters"};
  const char* const policies[]{"none", "selective", "blocks"};
  Overrides keys{{"train.batch_size", str(l.micro_batch)},
                 {"train.grad_accum", str(p.step.global_batch / l.micro_batch)},
                 {"memory.recompute", policies[static_cast<size_t>(l.recompute)]},
                 {"dist.shard", shards[l.shard]}};
  struct Degree {
    const char* key;
    int64_t wanted, given;
  };
  for (const Degree& d : {Degree{"dist.tensor", l.tensor, p.dist.tensor},
                          {"dist.context", l.context, p.dist.context},
                          {"dist.pipeline", l.pipeline, p.dist.pipeline},
                          {"dist.virtual_stages", l.virtual_stages, p.dist.virtual_stages}}) {
    if (d.wanted > 1 || d.given > 1) keys.emplace_back(d.key, str(d.wanted));
  }
  const bool divides_rows = l.tensor > 1 && p.cluster.software.sequence_parallel;
  if (divides_rows || p.dist.sequence_parallel)
    keys.emplace_back("dist.sequence_parallel", divides_rows ? "true" : "false");
  return keys;
}

/// Returns the reason why Lathe can't train with a layout, or an empty string if it can.
std::string lathe_fault(const ClusterPlan& p, const ParallelLayout& l) {
  const std::string fault = lathe_fault(l, p.step, p.cluster.software.sequence_parallel);
  return fault.empty() ? p.config_fault(keys_of(p, l)) : fault;
}

/// Returns the keys with which Lathe trains with a layout, or the reason why it can't.
std::string lathe_text(const ClusterPlan& p, const ParallelLayout& l) {
  const std::string fault = lathe_fault(p, l);
  if (!fault.empty()) return "can't train with this layout: " + fault;
  std::string text = "trains with this layout if given";
  for (const auto& [key, value] : keys_of(p, l)) text += " --" + key + "=" + value;
  return text;
}

std::string money_text(const ClusterPlan& p, const StepEstimate& e) {
  const double hours = p.gpu_hours(e);
  return human_time(e.seconds * static_cast<double>(p.steps)) + " for " + std::to_string(p.steps) +
         " steps, " + short_number(hours, 4) + " GPU hours" +
         (p.price > 0 ? format(", %.2f at %.2f per GPU hour", hours * p.price, p.price) : "");
}

std::string layout_text(const ClusterPlan& p, const RatedLayout& r) {
  const StepEstimate& e = r.estimate;
  std::ostringstream out;
  const auto line = [&](const std::string& name, const std::string& value) {
    out << name << std::string(name.size() < 26 ? 26 - name.size() : 1, ' ') << value << "\n";
  };
  const auto share = [&](const char* name, double seconds) {
    return seconds <= 0 ? "" : format(", %s %.1f%%", name, 100 * seconds / e.seconds);
  };

  line("layout", r.layout.text());
  line("memory of a GPU", gigabytes(e.memory.total()) + " of " + gigabytes(e.memory_bytes) +
                              (e.fits() ? ", fits" : ", does not fit"));
  line("", "weights " + gigabytes(e.memory.weights) + ", gradients " +
               gigabytes(e.memory.gradients) + ", optimizer " + gigabytes(e.memory.optimizer) +
               ", activations " + gigabytes(e.memory.activations));
  line("", "logits " + gigabytes(e.memory.logits) + ", gathered layers " +
               gigabytes(e.memory.gathered) + ", reserved " + gigabytes(e.memory.reserved));

  if (e.data.bytes > 0) line("exchange: data", exchange_text(e.data));
  if (e.tensor.bytes > 0) line("exchange: tensor", exchange_text(e.tensor));
  if (e.context.bytes > 0) line("exchange: context", exchange_text(e.context));
  if (e.pipeline.bytes > 0) line("exchange: pipeline", exchange_text(e.pipeline));

  line("time of a step",
       human_time(e.seconds) + format(" (%.0f tokens/s, %.0f of a GPU)", e.tokens_per_second,
                                      e.tokens_per_second / static_cast<double>(p.cluster.gpus())));
  line("", format("matmuls %.1f%%", 100 * e.matmul / e.seconds) + share("attention", e.attention) +
               share("other kernels", e.elementwise) + share("recomputation", e.recompute) +
               share("optimizer", e.optimizer) + share("bubble", e.bubble) +
               share("exchange", exposed(e)));
  line("mfu", format("%.1f%%", 100 * e.mfu));
  line("the run", money_text(p, e));
  line("lathe", lathe_text(p, r.layout));
  for (const std::string& advice : layout_advice(r.layout, p.step, p.cluster.gpus_per_node))
    line("note", advice);
  return out.str();
}

std::string head_text(const ClusterPlan& p) {
  const ClusterModel& c = p.cluster;
  std::string notes;
  for (const std::string& note : p.left_out) notes += "note: " + note + "\n";
  return str("on ", c.gpus(), " x ", printable_line(c.gpu.name), " (", quantity(c.nodes, "node"),
             " of ", c.gpus_per_node, ", ", printable_line(c.link.name),
             " for each GPU, software \"", printable_line(c.software.name),
             "\"), simulated; nothing was measured\n", count_text(p.step.shape.parameters()),
             " parameters, ", p.step.global_batch, " sequences of ", p.step.shape.sequence,
             " tokens in a step\n", notes);
}

std::string search_text(const ClusterPlan& p) {
  std::ostringstream out;
  out << p.found.tried << " layouts tried\n\n";

  if (!p.found.fastest.empty()) {
    std::vector<std::string> titles{"fastest that fit", "step",   "tokens/s", "mfu",
                                    "memory",           "bubble", "exchange", "in lathe"};
    if (p.price > 0) titles.push_back("price of the run");
    TextTable table(titles);
    for (const auto& [layout, e] : p.found.fastest) {
      std::vector<std::string> row{layout.text(),
                                   human_time(e.seconds),
                                   format("%.0f", e.tokens_per_second),
                                   format("%.1f%%", 100 * e.mfu),
                                   gigabytes(e.memory.total()),
                                   format("%.1f%%", 100 * e.bubble / e.seconds),
                                   format("%.1f%%", 100 * exposed(e) / e.seconds),
                                   lathe_fault(p, layout).empty() ? "yes" : "no"};
      if (p.price > 0) row.push_back(format("%.2f", p.gpu_hours(e) * p.price));
      table.add(row);
    }
    out << table.text() << "\n";
  }

  if (!p.found.too_large.empty()) {
    TextTable table({"do not fit, least memory", "needs", "of", "largest part"});
    for (const auto& [layout, e] : p.found.too_large) {
      const std::pair<double, const char*> parts[]{
          {e.memory.weights, "weights"},     {e.memory.gradients, "gradients"},
          {e.memory.optimizer, "optimizer"}, {e.memory.activations, "activations"},
          {e.memory.logits, "logits"},       {e.memory.gathered, "gathered layers"}};
      const auto& largest = *std::max_element(std::begin(parts), std::end(parts));
      table.add({layout.text(), gigabytes(e.memory.total()), gigabytes(e.memory_bytes),
                 str(largest.second, " ", gigabytes(largest.first))});
    }
    out << table.text() << "\n";
  }

  if (!p.found.refused.empty()) {
    TextTable table({"not possible", "layouts", "such as"});
    for (const RefusedLayouts& r : p.found.refused)
      table.add({r.reason, std::to_string(r.count), r.example});
    out << table.text() << "\n";
  }

  return out.str();
}

Json json_of(const ClusterPlan& p, const RatedLayout& r) {
  const StepEstimate& e = r.estimate;
  const auto exchange = [](const Exchange& x) {
    return Json{{"bytes", x.bytes}, {"s", x.seconds}, {"exposed_s", x.exposed}};
  };

  return {{"layout", r.layout.text()},
          {"fits", e.fits()},
          {"memory_bytes",
           {{"total", e.memory.total()},
            {"available", e.memory_bytes},
            {"weights", e.memory.weights},
            {"gradients", e.memory.gradients},
            {"optimizer", e.memory.optimizer},
            {"activations", e.memory.activations},
            {"logits", e.memory.logits},
            {"gathered", e.memory.gathered},
            {"reserved", e.memory.reserved}}},
          {"exchange",
           {{"data", exchange(e.data)},
            {"tensor", exchange(e.tensor)},
            {"context", exchange(e.context)},
            {"pipeline", exchange(e.pipeline)}}},
          {"step_s", e.seconds},
          {"bubble_s", e.bubble},
          {"tokens_per_s", e.tokens_per_second},
          {"mfu", e.mfu},
          {"gpu_hours", p.gpu_hours(e)},
          {"price", p.price > 0 ? Json(p.gpu_hours(e) * p.price) : Json()},
          {"lathe_has_it", lathe_fault(p, r.layout).empty()}};
}

Json json_of(const ClusterPlan& p) {
  Json json{{"gpus", p.cluster.gpus()},
            {"card", p.cluster.gpu.name},
            {"params", p.step.shape.parameters()},
            {"flops_per_token", p.step.shape.flops_per_token()},
            {"notes", p.left_out},
            {"tried", p.found.tried}};
  for (const auto& [name, list] :
       {std::pair{"fastest", &p.found.fastest}, std::pair{"too_large", &p.found.too_large}}) {
    json[name] = Json::array();
    for (const RatedLayout& r : *list) json[name].push_back(json_of(p, r));
  }
  json["refused"] = Json::array();
  for (const RefusedLayouts& r : p.found.refused)
    json["refused"].push_back({{"reason", r.reason}, {"layouts", r.count}, {"such_as", r.example}});
  return json;
}

}  // namespace

const Flags& cluster_flags() {
  static const Flags flags{
      {"card", "Simulate a cluster of this GPU, such as a100-80 or h100, instead of this machine."},
      {"nodes", "Simulate this many nodes. Default: 1."},
      {"gpus", "Simulate this many GPUs in a node. Default: 8."},
      {"interconnect",
       "Assume a link of this many Gbit/s from each GPU to other nodes. Default: 400G."},
      {"layout",
       "Divide the work among the GPUs in this way, such as data=8,shard=3,tensor=8; context, "
       "pipeline, virtual, micro and recompute can also be set. Default: search for the fastest "
       "layouts that fit; exit code 10 means that none fits."},
      {"software",
       "Simulate this software: compiled, eager, fused, megatron or megatron-2021. Default: "
       "compiled.",
       {"compiled", "eager", "fused", "megatron", "megatron-2021"}},
      {"cards", "Read more GPUs, links and software, or other constants, from this TOML file."},
      {"price", "Print the price of the run for this price of a GPU per hour."}};
  return flags;
}

bool asks_for_cluster(const Arguments& a) {
  return std::any_of(cluster_flags().begin(), cluster_flags().end(),
                     [&](const auto& flag) { return a.flags.contains(flag.name); });
}

Exit plan_cluster(const Arguments& a, const LoadedConfig& loaded) {
  ClusterPlan plan;
  plan.cluster = cluster_of(a);
  plan.price = a.number("price", 0, above(0, 1e9), false);
  plan.has_layout = a.flags.contains("layout");
  LayoutRequest request;
  if (plan.has_layout) {
    request = parse_layout(a.get("layout", ""));
    complete_degrees(request, plan.cluster.gpus());
  }
  plan.step = step_of(loaded);
  plan.steps = loaded.config.train.steps;
  plan.dist = loaded.config.dist;
  plan.config_fault = [&](const Overrides& keys) -> std::string {
    try {
      const LoadedConfig changed = load_with(loaded.path, key_arguments(a), keys);
      check_process_count(changed, plan.cluster.gpus());
      check_tensor_ranks(changed, plan.cluster.gpus());
      return "";
    } catch (const Error& e) {
      if (e.code() != Exit::usage) throw;
      return e.what();
    }
  };
  plan.left_out = left_out_of(loaded.config);

  if (plan.has_layout && !request.shard) {
    const std::string& shard = loaded.config.dist.shard;
    request.shard = shard == "parameters" ? 3 : shard == "gradients" ? 2 : shard == "optimizer";
  }
  plan.found =
      search_layouts(plan.cluster, plan.step, request, plan.has_layout ? 1 : shown_layouts);
  const bool fits = !plan.found.fastest.empty();
  if (plan.has_layout && !fits && plan.found.too_large.empty())
    fail(Exit::usage, "command line: --layout ", a.get("layout", ""), ": ",
         plan.found.refused.front().reason);

  if (a.is_true("json")) {
    std::cout << json_text(json_of(plan)) << std::endl;
  } else if (plan.has_layout) {
    std::cout << head_text(plan)
              << layout_text(plan, fits ? plan.found.fastest[0] : plan.found.too_large[0])
              << std::flush;
  } else {
    std::cout << head_text(plan) << search_text(plan) << std::flush;
  }
  return fits ? Exit::done : Exit::no_fit;
}

}  // namespace lathe
