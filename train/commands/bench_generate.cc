// Measures the speed of generation, separately for the prompt, which takes one forward pass, and
// for the tokens after it. Compares the rate at which generation reads the weights with the rate at
// which the CPU's threads can read memory.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <iostream>

#include "autograd/node.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "core/quantized.h"
#include "core/rng.h"
#include "core/timing.h"
#include "train/analysis/open.h"
#include "train/commands/bench.h"
#include "train/config/path_kind.h"
#include "train/tasks/generate.h"
#include "train/transforms/frozen.h"

namespace lathe {
namespace {

/// Returns the bytes per second that all threads together read from a tensor of 512 MiB: the best
/// of five measurements.
double read_rate() {
  const at::Tensor t = at::ones({int64_t{1} << 26}, at::kLong);
  const auto* p = reinterpret_cast<const uint64_t*>(t.const_data_ptr<int64_t>());
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    std::atomic<uint64_t> total{0};
    const auto begin = Clock::now();
    at::parallel_for(0, t.numel() / 8, 1, [&](int64_t first, int64_t last) {
      uint64_t sums[8] = {};
      for (; first < last; ++first) {
        for (int64_t j = 0; j < 8; ++j) sums[j] += p[first * 8 + j];
      }
      for (const uint64_t s : sums) total += s;
    });
    LATHE_CHECK(total == static_cast<uint64_t>(t.numel()), "read_rate: a wrong sum");
    best = std::max(best, static_cast<double>(t.nbytes()) / seconds_since(begin));
  }
  return best;
}

/// Returns the bytes of weights that the forward pass of a token reads. These are all weights
/// except embeddings, of which it reads only a few rows.
int64_t bytes_read(const Model& model) {
  int64_t bytes = 0;
  for (const auto& p : parameters(model)) {
    if (p.role == Role::embedding) continue;
    const Precision* kept = precision_of(p.parameter);
    if (kept != nullptr && kept->quantized)
      bytes += kept->quantized->nbytes();
    else if (kept != nullptr && kept->low.defined())
      bytes += static_cast<int64_t>(kept->low.nbytes());
    else
      bytes += static_cast<int64_t>(p.parameter.data().nbytes());
  }
  return bytes;
}

/// The model that is measured.
struct Writer {
  std::unique_ptr<Model> model;
  RunConfig config;
  Compute compute;
  at::Device device{at::kCPU};
  std::string dtype;
};

/// Returns the model of a config with its initial values. The weights are kept as `dtype`.
Writer of_config(const Arguments& arguments, int threads, const std::string& dtype) {
  for (const auto& [key, value] : key_arguments(arguments)) {
    if (!key.starts_with("model.") && !key.starts_with("data.") && key != "train.seed")
      fail(
          Exit::usage, "command line: --", key,
          " has no effect on `bench generate`; it takes keys of [model] and [data] and train.seed, "
          "and computes on the CPU with --threads and --load-dtype");
  }
  const bool double_quant = double_quant_argument(arguments, dtype);
  LoadedConfig loaded = load_config_argument(arguments, 1);
  const RunConfig& c = loaded.config;

  if (model_context(c) == 0)
    fail(Exit::usage, "model.kind = \"", c.model.kind,
         "\" is not a language model, so it can't generate text");
  // Opening the data sets model.vocab_size.
  if (batch_sizes(c).vocab_size == 0 && !c.data.dir.empty())
    loaded = open_for_benchmark(loaded).loaded;
  if (batch_sizes(c).vocab_size == 0)
    fail(Exit::usage,
         "model.vocab_size is 0, and without data there is nothing to take it from; set it, as in "
         "--model.vocab_size=50304");

  install_allocator();
  configure_backend("cpu", threads, /*tf32=*/false);
  const ModelKind& kind = *find_model_kind(c.model.kind);
  Writer w{.model = make_model(kind, c.model.own, {}, static_cast<uint64_t>(c.train.seed)),
           .config = c,
           .compute = {},
           .device = at::kCPU,
           .dtype = dtype};

  if (dtype == "fp32") return w;
  // int8 and nf4 weights are multiplied in bfloat16.
  w.compute.dtype = dtype == "fp16" ? at::kHalf : at::kBFloat16;
  const FrozenFormat keep{
      .dtype = dtype, .double_quant = double_quant, .other_dtype = w.compute.dtype};
  replace_parameters(*w.model, [&](const NamedParameter& found) {
    return keep_frozen(found, found.parameter.data(), keep, w.device);
  });

  return w;
}

Writer of_run(const Arguments& arguments) {
  Arguments own = arguments;
  own.positionals.erase(own.positionals.begin());
  if (const Overrides keys = key_arguments(own); !keys.empty())
    fail(Exit::usage, "command line: --", keys[0].first, " is a key of a config; ",
         own.positionals[0], " is a run");
  LoadedModel m = load_model_argument(own);
  text_tokenizer(own, m);
  return {.model = std::move(m.model),
          .config = m.config,
          .compute = m.compute,
          .device = m.device,
          .dtype = m.load_dtype};
}

/// Returns the number of tokens in the context before generation begins. By default, at least half
/// of the context is left for generated tokens.
int64_t prompt_length(const Arguments& arguments, int64_t context, int64_t tokens) {
  const auto prompt = static_cast<int64_t>(arguments.number(
      "context", static_cast<double>(std::max<int64_t>(1, std::min<int64_t>(512, context / 2))),
      between(1, static_cast<double>(context)), true));
  if (prompt + tokens > context) {
    fail(Exit::usage, "command line: --context ", prompt, " and --tokens ", tokens,
         " together exceed the context of ", context,
         ", beyond which the whole window is computed again for each token; lower one of them");
  }
  return prompt;
}

/// Returns random tokens [batch][prompt] from a fixed seed, so that every run of the benchmark has
/// the same prompts.
std::vector<std::vector<int64_t>> random_prompts(int64_t batch, int64_t prompt,
                                                 int64_t vocabulary) {
  std::vector<std::vector<int64_t>> texts(static_cast<size_t>(batch));
  const RngKey key = make_key(1, hash_name("bench generate"));
  for (size_t i = 0; i < texts.size(); ++i) {
    for (int64_t j = 0; j < prompt; ++j)
      texts[i].push_back(philox(counter(static_cast<uint64_t>(j), i), key)[0] %
                         static_cast<uint64_t>(vocabulary));
  }
  return texts;
}

/// Returns times in seconds. The first is the time for the prompts and the first token of each
/// text. The others, in ascending order, are the times for one further token of each text.
std::vector<double> time_steps(const Writer& w, const std::vector<std::vector<int64_t>>& texts,
                               int64_t tokens) {
  // Decode greedily. With initial weights all tokens are about equally likely, so sampling would
  // sort half of the vocabulary.
  GenerateOptions writing{.context = model_context(w.config),
                          .tokens = 4,
                          .sampling = {.temperature = 0},
                          .compute = w.compute,
                          .device = w.device};
  generate(*w.model, texts, writing);  // touches the memory, so that page faults are not timed

  writing.tokens = tokens;
  std::vector<double> steps;
  auto begin = Clock::now();
  generate(*w.model, texts, writing, [&](const GeneratedToken& t) {
    // A step ends with the token of the last text in the batch.
    if (t.text + 1 == std::ssize(texts)) {
      steps.push_back(seconds_since(begin));
      begin = Clock::now();
    }
    return true;
  });
  std::sort(steps.begin() + 1, steps.end());
  return steps;
}

}  // namespace

Exit bench_generate(const Arguments& arguments) {
  const std::string dtype = load_dtype_argument(arguments, "fp32");
  const int threads =
      static_cast<int>(arguments.number("threads", default_threads(), between(1, 4096), true));
  const auto batch = static_cast<int64_t>(arguments.number("batch", 1, between(1, 10000), true));
  const auto tokens = static_cast<int64_t>(arguments.number("tokens", 64, between(2, 1e6), true));

  const PathKind kind = kind_of(arguments.positionals[1]);
  const bool run = kind == PathKind::run || kind == PathKind::checkpoint;
  const Writer w = run ? of_run(arguments) : of_config(arguments, threads, dtype);

  const int64_t prompt = prompt_length(arguments, model_context(w.config), tokens);
  const std::vector<double> steps =
      time_steps(w, random_prompts(batch, prompt, batch_sizes(w.config).vocab_size), tokens);
  const double prefill = steps[0];
  const double decode = steps[1 + (steps.size() - 1) / 2];  // the median
  const double fastest = steps[1];  // the speed when no other process slows it down

  const auto bytes = static_cast<double>(bytes_read(*w.model));
  Json result{{"params", count(parameters(*w.model))},
              {"load_dtype", w.dtype},
              {"threads", at::get_num_threads()},
              {"batch", batch},
              {"prompt", prompt},
              {"tokens", tokens},
              {"prefill_tokens_per_s", static_cast<double>(batch * prompt) / prefill},
              {"decode_ms", 1e3 * decode},
              {"decode_ms_min", 1e3 * fastest},
              {"decode_tokens_per_s", static_cast<double>(batch) / decode},
              {"weight_bytes", bytes},
              {"weight_bytes_per_s", bytes / decode},
              {"peak_rss_mb", static_cast<double>(peak_rss_bytes()) / (1 << 20)}};
  // read_rate() measures the memory of CPUs.
  if (w.device.is_cpu()) {
    const double read = read_rate();
    result["read_bytes_per_s"] = read;
    result["share_of_read"] = bytes / decode / read;
    result["share_of_read_max"] = bytes / fastest / read;
  }
  std::cout << json_text(result) << std::endl;
  return Exit::done;
}

}  // namespace lathe
