// Implements `lathe find`, which finds a learning rate or a batch size.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <optional>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/free_memory.h"
#include "core/io/json.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "train/analysis/finders.h"
#include "train/analysis/fit.h"
#include "train/analysis/open.h"
#include "train/commands/braille.h"
#include "train/commands/commands.h"
#include "train/commands/plan_chart.h"
#include "train/config/check_config.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

Exit find_lr(const Arguments& a) {
  const double from = a.number("from", 1e-6, above(0, 1e6), false),
               to = a.number("to", 1, above(0, 1e6), false);
  const auto steps = static_cast<int64_t>(a.number("steps", 100, between(10, 1e6), true));
  if (to <= from)
    fail(Exit::usage, "command line: --to must be above --from, which is ", format("%g", from));

  const RunData data = open_for_benchmark(load_config_argument(a, 1));
  Session session = Session::make(data);
  const RangeTest test = lr_range_test(session, *data.data, from, to, steps);

  // Rates span several orders of magnitude, so plot the loss over their logarithm.
  BrailleCurve curve;
  for (size_t i = 0; i < test.lr.size(); ++i) {
    curve.x.push_back(std::log10(test.lr[i]));
    curve.y.push_back(test.loss[i]);
  }

  std::cout << "smoothed loss over log10 of the learning rate\n";
  for (const std::string& line : braille_plot({curve}, 72, 16, /*color=*/false))
    std::cout << line << "\n";

  if (test.steepest > 0)
    std::cout << "the loss falls fastest at " << short_number(test.steepest, 3)
              << ": --optim.lr=" << short_number(test.steepest, 2);
  else
    std::cout << "the loss does not fall anywhere between these rates";
  if (test.lowest > 0)
    std::cout << "; above " << short_number(test.lowest, 3) << " it rises";
  else
    std::cout << "; it does not rise up to the last rate, " << short_number(to, 3);
  if (test.diverged > 0) std::cout << ", and it diverges at " << short_number(test.diverged, 3);
  std::cout << "\n";

  // Programs that read the output parse the last line, which is JSON.
  std::cout << json_text(Json{{"lr", test.steepest},
                              {"lowest_at", test.lowest > 0 ? Json(test.lowest) : Json()},
                              {"diverges_at", test.diverged > 0 ? Json(test.diverged) : Json()},
                              {"steps", test.lr.size()}})
            << std::endl;
  return Exit::done;
}

/// A number of bytes that exceeds the memory of any GPU. Multiplied by the size of a micro-batch,
/// it still fits in int64.
constexpr int64_t too_much = int64_t{1} << 46;

/// Runs two steps with the config's micro-batch, and returns the peak bytes of tensors on the GPU,
/// or too_much if the steps don't fit. One step would not be enough, since no gradients exist yet
/// when it begins.
int64_t measure_on_gpu(const LoadedConfig& loaded, const RunData& data) try {
  cuda_api().reset_memory_peak();
  Session session = Session::make(loaded, *data.task, data.sizes);
  Loader loader(*data.data, batch_sizes(session.config), 1, 0, session.config.data, session.device);
  for (int64_t step = 0; step < 2; ++step) run_step(session, loader, step);
  synchronize("cuda");
  return cuda_api().memory_peak();
} catch (const c10::OutOfMemoryError&) {
  return too_much;
} catch (const Error& e) {  // an op reports that its tensors don't fit
  if (e.code() != Exit::memory) throw;
  return too_much;
}

/// Returns the config with `batch` samples per micro-batch and one micro-batch per step.
LoadedConfig with_batch(LoadedConfig loaded, int64_t batch) {
  loaded.config.train.grad_accum = 1;
  loaded.config.train.batch_size = batch;
  return loaded;
}

/// Returns the largest size of a micro-batch, up to `most`, that the config and the data accept.
/// For example, a task with pairs accepts only even sizes, and fp8 only multiples of 16 tokens.
/// Tries the 64 largest sizes, and returns 0 if none of them is accepted.
int64_t accepted_batch(const LoadedConfig& loaded, const RunData& data, int64_t most) {
  constexpr int64_t tries = 64;
  for (int64_t batch = most; batch > std::max<int64_t>(0, most - tries); --batch) {
    LoadedConfig changed = with_batch(loaded, batch);
    try {
      check_transforms(changed, /*has_model=*/true);
      data.task->fit(changed, *data.data);
      return batch;
    } catch (const Error& e) {
      if (e.code() != Exit::usage) throw;
    }
  }
  return 0;
}

/// Returns a function that maps the size of a micro-batch to the memory of a step. On a CPU, the
/// function makes a dry run. On a GPU, it extrapolates linearly from measurements of two sizes, n
/// and 2 n. n starts at `least` and is doubled as long as 4 n is predicted to fit in `bytes`.
std::function<int64_t(int64_t)> memory_of_batch(const LoadedConfig& loaded, const RunData& data,
                                                bool is_gpu, int64_t least, int64_t bytes) {
  const auto with = [loaded](int64_t batch) { return with_batch(loaded, batch); };

  if (!is_gpu) {
    const int64_t program = process_overhead_bytes();
    return [=, &data](int64_t batch) { return dry_step(with(batch), data).resident() + program; };
  }

  int64_t size = 2 * least, small = measure_on_gpu(with(least), data),
          large = measure_on_gpu(with(size), data);
  // Returns the linear function through the measurements of size / 2 and size.
  const auto line = [&] {
    return
        [=](int64_t batch) { return large + (large - small) * (batch - size) / (size - size / 2); };
  };

  // Measure larger sizes as long as they fit, so that the function extrapolates less.
  while (size < 65536 && line()(2 * size) <= bytes) {
    size *= 2;
    small = std::exchange(large, measure_on_gpu(with(size), data));
  }

  return line();
}

/// Returns the size of the smallest micro-batch that the config and the data accept. On a CPU, also
/// makes a dry run with this size, and returns twice the size if the dry run fails, because batch
/// norm may need two examples.
int64_t smallest_batch(const LoadedConfig& loaded, const RunData& data, bool is_gpu) {
  int64_t batch = 1;
  while (batch < 64 && accepted_batch(loaded, data, batch) != batch) ++batch;
  if (is_gpu) return batch;
  try {
    dry_step(with_batch(loaded, batch), data);
    return batch;
  } catch (const Error& e) {
    if (e.code() != Exit::usage) throw;
    return 2 * batch;
  }
}

constexpr int64_t most_batch = 65536;

/// Returns the largest accepted micro-batch between `least` and most_batch that takes no more than
/// `bytes`. Returns 0 if even `least` takes more. `accepted(n)` returns the largest accepted size
/// up to n, as accepted_batch() does.
int64_t largest_batch(const std::function<int64_t(int64_t)>& memory,
                      const std::function<int64_t(int64_t)>& accepted, int64_t least,
                      int64_t bytes) {
  int64_t best = 0;
  // Returns whether the largest accepted size up to `most` fits. If it fits, it becomes `best`.
  // Sizes up to `best` are known to fit.
  const auto fits = [&](int64_t most) {
    const int64_t batch = accepted(most);
    if (batch <= best && best > 0) return true;
    if (memory(batch) > bytes) return false;
    best = batch;
    return true;
  };
  if (!fits(least)) return 0;
  int64_t low = least, high = 2 * least;
  while (high <= most_batch && fits(high)) {
    low = high;
    high *= 2;
  }
  high = std::min(high, most_batch + 1);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  // The buffers of kernels do not always grow with the micro-batch, so a larger micro-batch may fit
  // although a smaller one does not. Try sizes that are up to 12% larger.
  for (int64_t percent = 12; percent > 0; --percent) {
    const int64_t larger = std::min(low + low * percent / 100, most_batch);
    if (larger > low && fits(larger)) break;
  }
  return best;
}

/// Formats bytes as text. Amounts from 1 GB have two decimals, so that an amount slightly above a
/// limit does not look equal to the limit.
std::string amount(int64_t bytes) {
  const auto n = static_cast<double>(bytes);
  return n < 1e9 ? human_bytes(n) : format("%.2f GB", n / 1e9);
}

/// Measures the memory of steps by running them. This is the peak memory of tensors on a GPU, and
/// the peak memory of the process on a CPU.
class MeasuredSteps {
 public:
  MeasuredSteps(LoadedConfig loaded, const RunData& data, bool is_gpu)
      : loaded_(std::move(loaded)), data_(data), is_gpu_(is_gpu) {}

  /// Returns the bytes of a step with a micro-batch of this size.
  int64_t bytes_of(int64_t batch) {
    const LoadedConfig loaded = with_batch(loaded_, batch);
    if (is_gpu_) return measure_on_gpu(loaded, data_);

    // Libraries keep buffers of an earlier, larger micro-batch. Subtract these buffers, since a run
    // would not have them.
    reset_peak_rss();
    const int64_t now = peak_rss_bytes();
    // If the system does not allow the process to reset the peak, `now` is still the peak of the
    // last measurement.
    const bool is_reset = now != last_peak_;
    const int64_t kept = is_reset ? std::max<int64_t>(0, now - at_first_.value_or(now)) : 0;
    at_first_ = at_first_.value_or(now);

    Session session = Session::make(loaded, *data_.task, data_.sizes);
    Loader loader(*data_.data, batch_sizes(session.config), 1, 0, session.config.data,
                  session.device);
    run_step(session, loader, 0);
    last_peak_ = peak_rss_bytes();
    return *last_peak_ - kept;
  }

 private:
  LoadedConfig loaded_;
  const RunData& data_;
  bool is_gpu_;
  std::optional<int64_t> at_first_, last_peak_;
};

/// Prints the result of find_batch(). `global` is the size of the config's global batch.
void print_batch(int64_t batch, int64_t limit, int64_t predicted, int64_t measured, double noise,
                 int64_t global) {
  std::cout << "the largest micro-batch within " << amount(limit) << " is " << batch << ": "
            << amount(predicted) << " predicted, " << amount(measured)
            << " in a step that was run\n";
  std::cout << "gradient noise scale at the initial weights: "
            << (std::isfinite(noise) ? "about " + short_number(noise, 2) + " samples"
                                     : std::string("unknown (raise --rounds)"))
            << "; a global batch (now " << global
            << ") far above the scale saves few steps, and the scale grows during training\n";
  std::cout << json_text(Json{{"batch_size", batch},
                              {"predicted_bytes", predicted},
                              {"measured_bytes", measured},
                              {"noise_scale", json_number(noise)}})
            << std::endl;
}

Exit find_batch(const Arguments& a) {
  const std::string limit = a.get("memory", "");
  const auto rounds = static_cast<int64_t>(a.number("rounds", 8, between(1, 1e5), true));

  const RunData data = open_for_benchmark(load_config_argument(a, 1));
  const LoadedConfig& loaded = data.loaded;
  const int64_t global = loaded.config.train.batch_size * loaded.config.train.grad_accum;
  const bool is_gpu = open_device(loaded.config.train.device) == "cuda";

  // The allocator of a GPU can't use the gaps between its blocks, so leave 5% of the memory free.
  const auto free = [&] { return is_gpu ? cuda_api().memory_free() / 20 * 19 : free_memory(); };
  const int64_t bytes = limit.empty() ? free() : parse_bytes(limit);
  const int64_t least = smallest_batch(loaded, data, is_gpu);
  const auto memory = memory_of_batch(loaded, data, is_gpu, least, bytes);
  const auto accepted = [&](int64_t most) { return accepted_batch(loaded, data, most); };
  const std::string remedy = "; `lathe plan CONFIG --fit` prints what else to change";
  int64_t largest = largest_batch(memory, accepted, least, bytes);
  if (largest == 0) {
    fail(Exit::memory, "not even a micro-batch of ", least, " fits in ", amount(bytes), remedy);
  }

  // Use a separate scope: the session's memory must be free before the largest micro-batch runs.
  double noise = 0;
  {
    Session session = Session::make(data);
    noise = measure_noise(session, *data.data, 4, rounds).batch();
  }

  // Libraries may allocate memory that a dry run does not count; ATen's convolutions do.
  MeasuredSteps steps(loaded, data, is_gpu);
  int64_t measured = steps.bytes_of(largest);
  while (measured > bytes && largest > least) {
    const double excess = static_cast<double>(measured) / static_cast<double>(memory(largest));
    const auto corrected = static_cast<int64_t>(0.99 * static_cast<double>(bytes) / excess);
    const int64_t smaller = largest_batch(memory, accepted, least, corrected);
    // Each attempt runs a step, so reduce the size by at least a sixteenth to need only a few
    // attempts.
    const int64_t most = std::min(smaller, largest - std::max<int64_t>(1, largest / 16));
    largest = std::max(least, accepted(std::max(least, most)));
    measured = steps.bytes_of(largest);
  }
  if (measured > bytes) {
    fail(Exit::memory, "a step with a micro-batch of ", largest, " took ", amount(measured),
         ", but the limit is ", amount(bytes), remedy);
  }

  print_batch(largest, bytes, memory(largest), measured, noise, global);
  return Exit::done;
}

Exit run_find(const Arguments& a) {
  const std::string& what = a.positionals[0];
  if (what == "lr") {
    check_flags(a, {"from", "to", "steps"}, true);
    return find_lr(a);
  }
  if (what == "batch") {
    check_flags(a, {"memory", "rounds"}, true);
    return find_batch(a);
  }
  fail(Exit::usage, "lathe find has no command ", what, "; it has `find lr` and `find batch`");
}

}  // namespace

Command finder_command() {
  return {.name = "find",
          .usage = "lr|batch CONFIG [--section.key=value ...]",
          .doc =
              "Find a learning rate by a range test, or the largest micro-batch that fits into "
              "memory; the last line of the output is JSON.",
          .examples = {"find lr configs/shakespeare_char_cpu.toml --from 1e-5 --to 0.3",
                       "find batch configs/quickstart.toml --memory 2GB"},
          .flags = {{"from", "For lr: start at this rate. Default: 1e-6."},
                    {"to", "For lr: end at this rate. Default: 1."},
                    {"steps", "For lr: train this many steps. Default: 100."},
                    {"memory",
                     "For batch: use at most this much memory, such as 8GB. Default: the free "
                     "memory of this machine, or of the GPU."},
                    {"rounds",
                     "For batch: estimate the gradient noise in this many rounds of four "
                     "micro-batches. Default: 8."}},
          .config_keys = true,
          .min_positionals = 2,
          .max_positionals = 2,
          .run = run_find,
          .subcommands = {"lr", "batch"}};
}

}  // namespace lathe
