#include "train/loop/replay.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>

#include "autograd/op.h"
#include "core/dtype.h"
#include "core/io/safetensors.h"
#include "core/io/text.h"
#include "dist/world.h"
#include "train/session/passes.h"
#include "train/step/stepper.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// Returns how many elements of a floating-point tensor are not finite; 0 for other tensors.
int64_t bad_elements(const at::Tensor& t) {
  if (!t.defined() || !t.is_floating_point() || t.numel() == 0) return 0;
  return t.numel() - at::isfinite(t).sum().item<int64_t>();
}

std::string range_text(const at::Tensor& t) {
  std::string text = describe(t);
  if (!t.is_floating_point() || t.numel() == 0) return text;
  if (const int64_t bad = bad_elements(t); bad > 0)
    return str(text, " with ", bad, " elements not finite");
  return text + format(" from %.4g to %.4g", t.min().item<double>(), t.max().item<double>());
}

/// Observes one forward and backward pass, and describes the first value that is not finite.
class Watch {
 public:
  explicit Watch(const std::vector<NamedParameter>& parameters) {
    for (const auto& p : parameters) paths_[p.parameter.edge().node.get()] = p.path;
  }

  std::string first;  ///< description of the first value that is not finite; empty if all values
                      ///< were finite

  void check_result(const OpResult& r) {
    std::string path;
    for (const Variable& v : r.inputs) {
      if (path.empty()) path = parameter_of(v);
    }
    const std::string place = !path.empty()    ? " at " + path
                              : after_.empty() ? ""
                                               : " after " + after_;
    const std::string what = str(r.name, place);
    if (!path.empty()) after_ = path;
    if (r.node != nullptr) results_[r.node] = what;
    // masked_fill writes infinities on purpose.
    if (!first.empty() || std::string(r.name) == "masked_fill") return;
    for (const at::Tensor& y : r.outputs) {
      if (bad_elements(y) == 0) continue;
      first = str("forward pass: the result of ", what, ", ", range_text(y), "; its inputs:");
      for (const Variable& v : r.inputs) first += "\n  " + range_text(v.data());
      return;
    }
  }
  void check_gradient(const Node& node, const at::Tensor& dy) {
    if (!first.empty() || bad_elements(dy) == 0) return;
    const auto parameter = paths_.find(&node);
    const auto result = results_.find(&node);
    first = str("backward pass: the gradient of ",
                parameter != paths_.end()  ? "the parameter " + parameter->second
                : result != results_.end() ? "the result of " + result->second
                                           : node.name(),
                ", ", range_text(dy));
  }

 private:
  /// If `v` is a parameter or a cast of a parameter, returns the parameter's path, otherwise "".
  std::string parameter_of(const Variable& v) const {
    const Edge& edge = v.edge();
    if (!edge) return "";
    const bool is_cast = edge.node->name() == "cast" && !edge.node->next.empty();
    const auto found = paths_.find(is_cast ? edge.node->next[0].node.get() : edge.node.get());
    return found == paths_.end() ? "" : found->second;
  }

  std::string after_;  // path of the last parameter that an op read
  std::unordered_map<const Node*, std::string> paths_, results_;
};

fs::path find_bundle(const fs::path& path) {
  if (fs::exists(path / "batches.safetensors")) return path;
  for (const fs::path& found : list_folder(path / "diverged")) {
    const bool is_bundle =
        found.filename().string().starts_with("step-") && fs::exists(found / "batches.safetensors");
    if (is_bundle) return found;
  }
  fail(Exit::usage, path.string(),
       " holds no step to replay; a run that diverges leaves one in its folder diverged/, unless "
       "it updates parameters in the backward pass (memory.update_in_backward), or "
       "train.detect_anomaly ends one of several processes");
}

/// Stacks the tensors of micro-batches into entries of a file.
struct StackedBatches {
  std::vector<at::Tensor> held;
  std::vector<TensorEntry> entries;  ///< entries whose bytes are in `held`

  explicit StackedBatches(const std::vector<Batch>& batches) {
    const auto add = [&](const char* name, auto&& of) {
      std::vector<at::Tensor> parts;
      for (const Batch& b : batches) {
        if (of(b).defined()) parts.push_back(of(b));
      }
      if (parts.empty()) return;

      held.push_back(at::stack(parts));
      entries.push_back(make_entry(name, held.back()));
    };
    add("inputs", [](const Batch& b) { return b.inputs; });
    add("targets", [](const Batch& b) { return b.targets; });
    add("starts", [](const Batch& b) { return b.starts; });
  }
};

/// Reads a bundle's micro-batches. Throws Exit::checkpoint if their sizes, dtypes or ids do not fit
/// the run's task. If a program has added the task to Lathe, and the task is not on tokens, checks
/// only the number of micro-batches.
class BundleBatches {
 public:
  BundleBatches(const fs::path& path, const Session& s)
      : path_(path), file_(path), sizes_(batch_sizes(s.config)), count_(s.config.train.grad_accum) {
    const std::string task = s.task.name();
    if (s.task.unit() == "tokens")
      read_tokens();
    else if (task == "classification" || task == "regression")
      read_examples(s.sizes, task == "classification");
    else
      read_any();

    for (int64_t i = 0; i < count_; ++i) {
      batches.push_back({.inputs = inputs_[i].to(s.device),
                         .targets = targets_[i].to(s.device),
                         .starts = starts_.defined() ? starts_[i].to(s.device) : at::Tensor()});
    }
  }

  std::vector<Batch> batches;

 private:
  at::Tensor read(const char* name, at::ScalarType dtype, const std::vector<int64_t>& sizes) const {
    const TensorEntry& entry = file_.at(name);
    if (dtype_from_safetensors(entry.dtype) != dtype) {
      fail(Exit::checkpoint, path_.string(), ": tensor \"", name, "\" is ", entry.dtype,
           "; it must be ", safetensors_dtype(dtype));
    }
    return entry_tensor(entry, sizes, path_).clone();
  }

  /// Throws unless every flag of `is_allowed` is true.
  void check_values(const char* name, const at::Tensor& is_allowed) const {
    if (!is_allowed.all().item<bool>())
      fail(Exit::checkpoint, path_.string(), ": tensor \"", name,
           "\" has a value that the run can't have");
  }

  void read_tokens() {
    const std::vector<int64_t> sizes{count_, sizes_.batch_size, sizes_.block_size};
    inputs_ = read("inputs", at::kLong, sizes);
    check_values("inputs", inputs_.ge(0).logical_and(inputs_.lt(sizes_.vocab_size)));
    read_targets(sizes, sizes_.vocab_size);

    if (file_.find("starts") == nullptr) return;
    starts_ = read("starts", at::kLong, sizes);
    check_values("starts", starts_.ge(0).logical_and(starts_.le(at::arange(sizes_.block_size))));
  }

  void read_examples(const ModelSizes& model, bool classifies) {
    std::vector<int64_t> sizes{count_, sizes_.batch_size};
    const std::vector<int64_t> rows = sizes;
    sizes.insert(sizes.end(), model.input.begin(), model.input.end());
    inputs_ = read("inputs", at::kFloat, sizes);

    if (classifies)
      read_targets(rows, model.outputs);
    else
      targets_ = read("targets", at::kFloat, {count_, sizes_.batch_size, model.outputs});
  }

  /// Reads targets, which must be ids below `end`, or -100 for a target that is not learned.
  void read_targets(const std::vector<int64_t>& sizes, int64_t end) {
    targets_ = read("targets", at::kLong, sizes);
    check_values("targets",
                 targets_.ge(0).logical_and(targets_.lt(end)).logical_or(targets_.eq(-100)));
  }

  void read_any() {
    const auto read_as_it_is = [&](const char* name) {
      const TensorEntry& entry = file_.at(name);
      if (entry.shape.empty() || entry.shape[0] != count_) {
        fail(Exit::checkpoint, path_.string(), ": tensor \"", name, "\" does not hold the run's ",
             count_, " micro-batches");
      }
      return entry_tensor(entry, entry.shape, path_).clone();
    };
    inputs_ = read_as_it_is("inputs");
    targets_ = read_as_it_is("targets");
    if (file_.find("starts") != nullptr) starts_ = read_as_it_is("starts");
  }

  fs::path path_;
  SafetensorsFile file_;
  BatchSizes sizes_;
  int64_t count_;
  at::Tensor inputs_, targets_, starts_;
};

}  // namespace

std::vector<Batch> batches_of_step(const Session& session, const Data& data, int64_t step) {
  const TrainConfig& c = session.config.train;
  return draw_batches(data, batch_sizes(session.config), static_cast<uint64_t>(c.seed),
                      step * c.grad_accum, c.grad_accum, at::kCPU);
}

void write_batches(const fs::path& file, const std::vector<Batch>& batches) {
  const StackedBatches stacked(batches);
  make_folders(file.parent_path());
  write_safetensors(file, stacked.entries);
}

fs::path write_replay_bundle(const fs::path& run, RunState state, const Session& session,
                             const Data& data, int64_t step) {
  const fs::path parent = run / "diverged";
  state.step = step;
  if (session.scaler) state.scaler = session.scaler->state();

  const fs::path folder = parent / checkpoint_name(step);
  const bool is_divided = divides_state(session.optimizer);
  std::optional<StackedBatches> batches;
  std::string fault;
  try {
    if (world().is_writer()) {
      remove_tree(parent);
      batches.emplace(batches_of_step(session, data, step));
    }
  } catch (const Error& e) {
    if (!is_divided) throw;
    fault = e.what();
  }
  // Either all ranks write their files, or none does.
  if (is_divided) {
    for (const std::string& one : world().gather_texts(fault)) {
      if (!one.empty()) fail(Exit::io, one);
    }
  }

  write_checkpoint(folder, state, view_state(session.saved, session.optimizer, std::nullopt),
                   batches ? batches->entries : std::vector<TensorEntry>());
  return folder;
}

std::string replay(const fs::path& path) {
  const fs::path bundle = find_bundle(path);
  verify_checkpoint(bundle);
  const RunState state = read_state(bundle);

  LoadedConfig saved;
  saved.config = saved_config(state, bundle);
  // Use the run's number of threads, since results may differ in bits with another number.
  saved.config.train.threads = state.threads;
  saved.config.train.detect_anomaly = false;  // the step must run to its end
  const Task& task = task_of(saved, {.task = state.task});
  const LoadedConfig loaded =
      resolve_frozen(resolve_adapter_base(saved), task, {.tokenizer = state.tokenizer});
  if (adapters_of(loaded.config).rank > 0) check_base(loaded.base, loaded.config, state.base_hash);
  Session session = Session::make(loaded, task, state.sizes);
  check_frozen(loaded.config, task, state, session.run_task.frozen_hash);
  session.load(bundle, state);

  // Count the targets of all micro-batches, as in training, so that the losses of the micro-batches
  // add up to the loss of the step.
  const std::vector<Batch> batches = BundleBatches(bundle / "batches.safetensors", session).batches;
  int64_t learned = 0;
  for (const Batch& batch : batches) learned += session.task.targets(batch);
  const auto divisor = static_cast<double>(std::max<int64_t>(learned, 1));

  std::string text = str("step ", state.step + 1, " of ", bundle.string(), "\n");
  // If a parameter is not finite before the step, that parameter is the cause, and the step need
  // not run.
  for (const auto& p : session.params) {
    if (bad_elements(p.parameter.data()) > 0)
      return text + str("before the step: the parameter ", p.path, ", ",
                        range_text(p.parameter.data()), "\n");
  }

  const TrainConfig& c = session.config.train;
  zero_grad(*session.model);
  for (int64_t micro = 0; micro < c.grad_accum; ++micro) {
    Watch watch(session.params);
    const ObserveOps observe(
        {.on_result = [&](const OpResult& r) { watch.check_result(r); },
         .on_gradient = [&](const Node& node,
                            const at::Tensor& dy) { watch.check_gradient(node, dy); }});

    const at::Tensor loss = run_micro_batch(session, batches[static_cast<size_t>(micro)], divisor,
                                            random_of(session.config, state.step, micro));
    text += format("micro-batch %lld of %lld: its share of the loss is %.6g\n",
                   static_cast<long long>(micro + 1), static_cast<long long>(c.grad_accum),
                   loss.item<double>());

    if (!watch.first.empty())
      return text + "the first value that is not finite, in the " + watch.first + "\n";
  }

  return text +
         "everything was finite this time: the state and the data of the step do not reproduce the "
         "error\n";
}

}  // namespace lathe
