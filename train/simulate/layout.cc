#include "train/simulate/layout.h"

#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/io/text.h"

namespace lathe {

std::string recompute_name(Recompute mode) {
  switch (mode) {
    case Recompute::none: return "none";
    case Recompute::selective: return "selective";
    case Recompute::full: return "full";
  }
  return "";
}

std::string ParallelLayout::text() const {
  return str("data=", data, ",shard=", shard, ",tensor=", tensor, ",context=", context,
             ",pipeline=", pipeline, ",virtual=", virtual_stages, ",micro=", micro_batch,
             ",recompute=", recompute_name(recompute));
}

bool LayoutRequest::admits(const ParallelLayout& layout) const {
  const auto same = [](const auto& wanted, const auto& value) {
    return !wanted || *wanted == value;
  };
  return same(data, layout.data) && same(shard, layout.shard) && same(tensor, layout.tensor) &&
         same(context, layout.context) && same(pipeline, layout.pipeline) &&
         same(virtual_stages, layout.virtual_stages) && same(micro_batch, layout.micro_batch) &&
         same(recompute, layout.recompute);
}

LayoutRequest parse_layout(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    fail(Exit::usage, "command line: --layout ", printable_line(text), ": ", why,
         "; write it as data=8,shard=3,tensor=8 with the keys data, shard, tensor, context, "
         "pipeline, virtual, micro and recompute");
  };
  LayoutRequest request;
  std::set<std::string> seen;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (!seen.insert(key).second) refuse(printable_line(key) + " is given twice");

    if (key == "recompute") {
      for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
        if (value == recompute_name(mode)) request.recompute = mode;
      }
      if (!request.recompute) refuse("recompute must be none, selective or full");
      continue;
    }

    const std::map<std::string, std::optional<int64_t>*> degrees{
        {"data", &request.data},         {"shard", &request.shard},
        {"tensor", &request.tensor},     {"context", &request.context},
        {"pipeline", &request.pipeline}, {"virtual", &request.virtual_stages},
        {"micro", &request.micro_batch}};
    const auto found = degrees.find(key);
    if (found == degrees.end()) refuse("\"" + printable_line(part) + "\" is not a key of --layout");
    std::optional<int64_t>* const degree = found->second;
    const bool is_stage = key == "shard";
    const auto number = integer_between(value, is_stage ? 0 : 1, is_stage ? 3 : 1000000);
    if (!number)
      refuse(key + (is_stage ? " must be a stage of ZeRO from 0 to 3"
                             : " must be a whole number from 1 to 1000000"));
    *degree = *number;
  }
  if (seen.empty()) refuse("the layout is empty");
  return request;
}

void complete_degrees(LayoutRequest& request, int64_t gpus) {
  for (auto* degree : {&request.tensor, &request.context, &request.pipeline})
    *degree = degree->value_or(1);
  const int64_t others = *request.tensor * *request.context * *request.pipeline;
  if (!request.data && others <= gpus && gpus % others == 0) request.data = gpus / others;

  // Compare by division: the product of large degrees may not fit in 64 bits.
  const int64_t data = request.data.value_or(1);
  if (others > gpus || gpus % others != 0 || gpus / others != data) {
    fail(Exit::usage, "command line: --layout with ",
         request.data ? str("data=", data, ",") : std::string(), "tensor=", *request.tensor,
         ",context=", *request.context, ",pipeline=", *request.pipeline, " is for ",
         request.data ? str(static_cast<double>(data) * static_cast<double>(others))
                      : str("a multiple of ", others),
         " GPUs, but the cluster has ", gpus, "; change a degree, --nodes or --gpus");
  }
}

std::string layout_fault(const ParallelLayout& l, const StepWorkload& step) {
  const TransformerShape& s = step.shape;
  if (s.heads % l.tensor != 0)
    return str("tensor=", l.tensor, " does not divide the model's ", s.heads, " heads");
  if (s.hidden % l.tensor != 0) {
    return str("tensor=", l.tensor, " does not divide the ", s.hidden,
               " units of the feed-forward part");
  }
  if (s.sequence % (l.context == 1 ? 1 : 2 * l.context) != 0) {
    return str("context=", l.context, " needs a sequence length that is a multiple of ",
               2 * l.context, ", not ", s.sequence, " tokens");
  }
  if (l.pipeline * l.virtual_stages > s.layers + 2) {
    return str("pipeline=", l.pipeline, " with virtual=", l.virtual_stages, " needs ",
               l.pipeline * l.virtual_stages, " parts; the model has ", s.layers, " layers");
  }
  if (l.virtual_stages > 1 && l.pipeline == 1)
    return str("virtual=", l.virtual_stages, " needs a pipeline of at least 2 stages");
  if (step.global_batch % (l.data * l.micro_batch) != 0) {
    return str("data=", l.data, " times micro=", l.micro_batch, " does not divide the batch of ",
               step.global_batch, " sequences");
  }
  return "";
}

std::vector<std::string> layout_advice(const ParallelLayout& l, const StepWorkload& step,
                                       int64_t gpus_per_node) {
  std::vector<std::string> advice;
  if (l.tensor > gpus_per_node) {
    advice.push_back(str("tensor=", l.tensor, " exceeds the ", gpus_per_node,
                         " GPUs of a node, so its exchanges use the links between nodes"));
  }
  const int64_t parts = l.pipeline * l.virtual_stages;
  if (step.shape.layers % parts != 0 && (step.shape.layers + 2) % parts != 0) {
    advice.push_back(str("the ", step.shape.layers, " layers do not divide into ", parts,
                         " parts, so the largest stage delays the others"));
  }
  if (l.tensor > step.shape.kv_heads) {
    advice.push_back(str("tensor=", l.tensor, " exceeds the ", step.shape.kv_heads,
                         " heads of keys and values, which are then copied"));
  }
  const int64_t m = l.micro_batches(step.global_batch);
  if (l.virtual_stages > 1 && m % l.pipeline != 0) {
    advice.push_back(str("pipeline=", l.pipeline, " does not divide the ", m,
                         " micro-batches; the bubble of virtual=", l.virtual_stages,
                         " is short only if pipeline divides them"));
  }
  if (l.pipeline > 1 && m < l.pipeline) {
    advice.push_back(str("there are fewer micro-batches (", m, ") than stages (", l.pipeline,
                         "), so the stages are idle for a large part of the step"));
  }
  return advice;
}

std::string lathe_fault(const ParallelLayout& l, const StepWorkload& step, bool sequence_parallel) {
  const StepWorkload::AxisFaults& faults = step.faults;
  for (const auto& [degree, fault] : {std::pair(l.data, &faults.data),
                                      {l.tensor, &faults.tensor},
                                      {l.context, &faults.context},
                                      {l.pipeline, &faults.pipeline},
                                      {l.virtual_stages, &faults.virtual_stages}}) {
    if (degree > 1 && !fault->empty()) return *fault;
  }
  if (step.updates_in_backward && (l.shard > 0 || l.micro_batches(step.global_batch) != 1))
    return "memory.update_in_backward needs dist.shard = \"none\" and one micro-batch per process";
  if (l.pipeline * l.virtual_stages > step.shape.layers)
    return str("the ", step.shape.layers, " blocks are fewer than the parts of the pipeline");
  if (l.virtual_stages > 1 && l.shard > 1)
    return "dist.virtual_stages above 1 needs dist.shard = \"none\" or \"optimizer\"";
  if (l.virtual_stages > 1 && l.micro_batches(step.global_batch) % l.pipeline != 0)
    return "dist.virtual_stages above 1 needs a number of micro-batches that dist.pipeline divides";
  if (l.shard == 3 && l.recompute == Recompute::none)
    return "dist.shard = \"parameters\" needs memory.recompute = \"blocks\" or \"selective\"";
  if (l.tensor == 1) return "";

  if (sequence_parallel && step.shape.sequence % (l.tensor * l.context) != 0) {
    return str("dist.sequence_parallel cuts each row into ", l.tensor * l.context,
               " equal parts, which is not possible for ", step.shape.sequence, " positions");
  }
  for (const auto& [units, name] : step.tensor_units) {
    if (units % l.tensor != 0)
      return str("dist.tensor = ", l.tensor, " does not divide the ", units, " ", name);
  }
  return "";
}

}  // namespace lathe
