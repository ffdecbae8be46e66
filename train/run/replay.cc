#include "train/run/replay.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "autograd/op.h"
#include "core/dtype.h"
#include "core/io/safetensors.h"
#include "core/io/text.h"
#include "train/run/stepper.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// Of a floating-point tensor: how many elements are not finite.
int64_t bad_elements(const at::Tensor& t) {
  if (!t.defined() || !t.is_floating_point() || t.numel() == 0) return 0;
  return t.numel() - at::isfinite(t).sum().item<int64_t>();
}

std::string range_text(const at::Tensor& t) {
  std::string text = describe(t);
  if (!t.is_floating_point() || t.numel() == 0) return text;
  if (const int64_t bad = bad_elements(t); bad > 0) return str(text, " with ", bad, " elements not finite");
  return text + format(" from %.4g to %.4g", t.min().item<double>(), t.max().item<double>());
}

/// Watches one forward and backward pass, and keeps the first thing that is not finite.
class Watch {
 public:
  explicit Watch(const std::vector<NamedParameter>& parameters) {
    for (const auto& p : parameters) paths_[p.parameter.edge().node.get()] = p.path;
  }

  std::string first;  ///< a sentence, or empty

  const std::function<void(const OpResult&)> on_result = [this](const OpResult& r) {
    std::string path;
    for (const Variable& v : r.inputs) {
      if (path.empty()) path = parameter_of(v);
    }
    const std::string what = str(r.name, !path.empty() ? " at " + path : after_.empty() ? "" : " after " + after_);
    if (!path.empty()) after_ = path;
    if (r.node != nullptr) results_[r.node] = what;
    // A mask writes infinities on purpose.
    if (!first.empty() || std::string(r.name) == "masked_fill") return;
    for (const at::Tensor& y : r.outputs) {
      if (bad_elements(y) == 0) continue;
      first = str("forward: the result of ", what, ", ", range_text(y), "; its inputs:");
      for (const Variable& v : r.inputs) first += "\n  " + range_text(v.data());
      return;
    }
  };
  const std::function<void(const Node&, const at::Tensor&)> on_gradient = [this](const Node& node,
                                                                                 const at::Tensor& dy) {
    if (!first.empty() || bad_elements(dy) == 0) return;
    const auto parameter = paths_.find(&node);
    const auto result = results_.find(&node);
    first = str("backward: the gradient of ",
                parameter != paths_.end()  ? "the parameter " + parameter->second
                : result != results_.end() ? "the result of " + result->second
                                           : node.name(),
                ", ", range_text(dy));
  };

 private:
  /// The path of the parameter that a Variable is, or is a cast of; "" for others.
  std::string parameter_of(const Variable& v) const {
    const Edge& edge = v.edge();
    if (!edge) return "";
    const bool is_cast = edge.node->name() == "cast" && !edge.node->next.empty();
    const auto found = paths_.find(is_cast ? edge.node->next[0].node.get() : edge.node.get());
    return found == paths_.end() ? "" : found->second;
  }

  std::string after_;  // the last parameter that an op had
  std::unordered_map<const Node*, std::string> paths_, results_;
};

fs::path find_bundle(const fs::path& path) {
  if (fs::exists(path / "batches.safetensors")) return path;
  for (const fs::path& found : list_folder(path / "diverged")) {
    if (fs::exists(found / "batches.safetensors")) return found;
  }
  fail(Exit::usage, path.string(), " holds no step to replay; a run that diverges leaves one in its folder diverged/");
}

}  // namespace

std::vector<Batch> batches_of_step(const Session& session, const Data& data, int64_t step) {
  const TrainConfig& c = session.config.train;
  return draw_batches(data, batch_sizes(session.config), static_cast<uint64_t>(c.seed), step * c.grad_accum,
                      c.grad_accum, at::kCPU);
}

void write_batches(const fs::path& file, const std::vector<Batch>& batches) {
  std::vector<at::Tensor> inputs, targets, starts;
  for (const Batch& b : batches) {
    inputs.push_back(b.inputs), targets.push_back(b.targets);
    if (b.starts.defined()) starts.push_back(b.starts);
  }
  const at::Tensor all_inputs = at::stack(inputs), all_targets = at::stack(targets);
  const at::Tensor all_starts = starts.empty() ? at::Tensor() : at::stack(starts);
  std::vector<TensorEntry> entries{make_entry("inputs", all_inputs), make_entry("targets", all_targets)};
  if (all_starts.defined()) entries.push_back(make_entry("starts", all_starts));
  make_folders(file.parent_path());
  write_safetensors(file, entries);
}

fs::path write_replay_bundle(const fs::path& run, RunState state, const Session& session, const Data& data,
                             int64_t step) {
  const fs::path parent = run / "diverged";
  state.step = step;
  if (session.scaler) state.scaler = session.scaler->state();
  remove_tree(parent);
  const fs::path folder = parent / checkpoint_name(step);
  write_checkpoint(folder, state, view_state(session.saved, session.optimizer, std::nullopt));
  write_batches(folder / "batches.safetensors", batches_of_step(session, data, step));
  sync_folder(folder);
  return folder;
}

std::string replay(const fs::path& path) {
  const fs::path bundle = find_bundle(path);
  verify_checkpoint(bundle);
  const RunState state = read_state(bundle);
  LoadedConfig loaded;
  loaded.config = saved_config(state, bundle);
  loaded.config.train.threads = state.threads;
  adopt_base(loaded);
  Session session = Session::make(loaded, task_of(loaded, {.task = state.task}), state.sizes);
  session.load(bundle, state);
  const SafetensorsFile batches(bundle / "batches.safetensors");
  const auto read = [&](const char* name) {
    const TensorEntry& entry = batches.at(name);
    return entry_tensor(entry, entry.shape, bundle / "batches.safetensors").clone().to(session.device);
  };
  const at::Tensor inputs = read("inputs"), targets = read("targets");
  const at::Tensor starts = batches.find("starts") != nullptr ? read("starts") : at::Tensor();
  const auto batch_of = [&](int64_t micro) {
    return Batch{inputs[micro], targets[micro], starts.defined() ? starts[micro] : at::Tensor()};
  };
  int64_t learned = 0;
  for (int64_t micro = 0; micro < inputs.size(0); ++micro) learned += count_targets(batch_of(micro));
  const auto divisor = static_cast<double>(std::max<int64_t>(learned, 1));
  std::string text = str("step ", state.step + 1, " of ", bundle.string(), "\n");
  for (const auto& p : session.params) {
    if (bad_elements(p.parameter.data()) > 0)
      return text + str("before the step: the parameter ", p.path, ", ", range_text(p.parameter.data()), "\n");
  }
  const TrainConfig& c = session.config.train;
  zero_grad(*session.model);
  for (int64_t micro = 0; micro < inputs.size(0); ++micro) {
    Watch watch(session.params);
    const ModeGuard guard;
    mode().observe_result = &watch.on_result;
    mode().observe_gradient = &watch.on_gradient;
    const at::Tensor loss =
        run_micro_batch(session, batch_of(micro), divisor, random_of(session.config, state.step, micro));
    text += format("micro-batch %lld of %lld: its share of the loss is %.6g\n", static_cast<long long>(micro + 1),
                   static_cast<long long>(c.grad_accum), loss.item<double>());
    if (!watch.first.empty()) return text + "what is first not finite, in the " + watch.first + "\n";
  }
  return text + "everything was finite this time: the step can't be told to have gone wrong from its state and data\n";
}

}  // namespace lathe
