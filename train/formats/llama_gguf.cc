#include "train/formats/llama_gguf.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/io/gguf_file.h"
#include "train/formats/llama_keys.h"

namespace lathe {
namespace {

/// The parameters of llama3's scaling of rotary angles (the model card of Llama 3.1).
struct Llama3Scaling {
  double theta;
  int64_t width;  ///< number of channels of a head
  double factor, low, high;
  int64_t context;  ///< rope_original_context
};

/// Returns the wavelength of each rotary pair of channels, in tokens.
std::vector<double> waves_of(double theta, int64_t width) {
  std::vector<double> waves;
  for (int64_t i = 0; i < width; i += 2)
    waves.push_back(2 * std::numbers::pi *
                    std::pow(theta, static_cast<double>(i) / static_cast<double>(width)));
  return waves;
}

/// Returns the divisor of each rotary pair's angle: 1 for short wavelengths, `factor` for long
/// wavelengths, and an interpolated value for wavelengths in between.
std::vector<float> divisors_of(const Llama3Scaling& s) {
  std::vector<float> divisors;
  for (const double wave : waves_of(s.theta, s.width)) {
    const double turns = static_cast<double>(s.context) / wave;
    const double smooth = (turns - s.low) / (s.high - s.low);
    const double divisor = turns > s.high  ? 1
                           : turns < s.low ? s.factor
                                           : 1 / ((1 - smooth) / s.factor + smooth);
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

/// Returns a scaling whose divisors equal `divisors` within a relative tolerance of 2e-5. Returns
/// nullopt if none is found. The divisors depend only on the ratios of context, low and high, so
/// low is set to 1, its value in all published models.
std::optional<Llama3Scaling> scaling_of(const std::vector<float>& divisors, double theta,
                                        double factor) {
  const std::vector<double> waves = waves_of(theta, 2 * std::ssize(divisors));
  const auto matches = [&](const Llama3Scaling& s) {
    if (!(s.high > s.low) || s.context < 1 || s.context > 1'000'000) return false;
    return std::ranges::equal(divisors_of(s), divisors, [](float a, float b) {
      return std::fabs(a - b) <= 2e-5F * std::fabs(b);
    });
  };

  // The divisor of an interpolated pair determines `smooth`, which is linear in 1 / wave.
  struct Point {
    double x, smooth;
  };
  std::vector<Point> points;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double smooth = (1 / divisors[i] - 1 / factor) / (1 - 1 / factor);
    if (smooth > 1e-6 && smooth < 1 - 1e-6) points.push_back({1 / waves[i], smooth});
  }

  Llama3Scaling s{.theta = theta,
                  .width = 2 * std::ssize(divisors),
                  .factor = factor,
                  .low = 1,
                  .high = 4,
                  .context = 8192};
  if (!points.empty()) {
    const Point p = points.back();
    s.context = std::llround((p.smooth * (s.high - s.low) + s.low) / p.x);
  }
  if (matches(s)) return s;

  if (points.size() < 2) return std::nullopt;
  const Point a = points.front(), b = points.back();
  const double slope = (a.smooth - b.smooth) / (a.x - b.x), at_zero = a.smooth - slope * a.x;
  s.high = std::round((1 - 1 / at_zero) * 1000) / 1000;
  s.context = std::llround(slope * (s.high - 1));
  return matches(s) ? std::optional(s) : std::nullopt;
}

/// Returns the number by which llama.cpp multiplies the attention factor that a file holds. The
/// file therefore holds YaRN's attention factor divided by this number.
float yarn_magnitude(float factor) { return 0.1F * std::log(factor) + 1; }

/// Returns a model.rope_attention_factor that an export writes as `value`. If several adjacent
/// floats are written as `value`, returns the float with the shortest decimal form.
double attention_factor_of(float value, float factor) {
  const float magnitude = yarn_magnitude(factor);
  float candidate = value * magnitude;
  for (int i = 0; i < 4; ++i) candidate = std::nextafter(candidate, 0.0F);
  std::string best;
  for (int i = 0; i < 9; ++i, candidate = std::nextafter(candidate, INFINITY)) {
    const std::string shown = decimal_text(candidate);
    if (candidate / magnitude == value && (best.empty() || shown.size() < best.size()))
      best = shown;
  }
  return best.empty() ? value * magnitude : std::stod(best);
}

/// Sets the keys of rotary positions in `model` from the metadata and from rope_freqs.weight.
void read_rope_keys(ConfigKeys& c, const GGUFFacts& facts, int64_t width, ModelKeys& model) {
  const auto key = [&](const char* name) { return facts.architecture + ".rope." + name; };
  const double theta = c.real(key("freq_base"), 10000.0);
  model["rope_theta"] = theta;
  c.only(key("dimension_count"), {width});
  c.only(key("scale_linear"), {1.0});
  c.pass({key("scaling.finetuned").c_str()});

  const std::string type = c.text(key("scaling.type"), "none");
  if (type == "linear" || type == "yarn") {
    model["rope_scaling"] = type;
    model["rope_factor"] = c.real(key("scaling.factor"));
  } else if (type != "none") {
    c.refuse(key("scaling.type"), "this build computes only none, linear and yarn");
  }

  if (type == "yarn") {
    model["rope_beta_fast"] = c.real(key("scaling.yarn_beta_fast"), 32);
    model["rope_beta_slow"] = c.real(key("scaling.yarn_beta_slow"), 1);
    model["rope_original_context"] = c.whole(key("scaling.original_context_length"), 1, 100000000);
    const double factor = c.real(key("scaling.attn_factor"), 0);
    model["rope_attention_factor"] =
        factor == 0 ? 0.0
                    : attention_factor_of(static_cast<float>(factor),
                                          static_cast<float>(c.real(key("scaling.factor"))));
  }

  if (facts.rope_divisors.empty()) return;
  if (type != "none") c.refuse(key("scaling.type"), "rope_freqs.weight scales the positions too");
  if (std::ssize(facts.rope_divisors) != width / 2)
    c.refuse(key("dimension_count"), str("rope_freqs.weight has ", facts.rope_divisors.size(),
                                         " elements instead of ", width / 2));
  const double factor = decimal_value(std::ranges::max(facts.rope_divisors));
  if (factor >= 1 && std::ranges::min(facts.rope_divisors) == factor) {
    model["rope_scaling"] = std::string(factor == 1 ? "none" : "linear");
    model["rope_factor"] = factor;
    return;
  }
  const auto found = factor > 1 ? scaling_of(facts.rope_divisors, theta, factor) : std::nullopt;
  if (!found)
    c.refuse(
        key("freq_base"),
        "rope_freqs.weight has neither equal elements nor llama3's scaling of the angles, and this "
        "build computes no other scaling");
  model["rope_scaling"] = std::string("llama3");
  model["rope_factor"] = found->factor;
  model["rope_low_freq_factor"] = found->low;
  model["rope_high_freq_factor"] = found->high;
  model["rope_original_context"] = found->context;
}

}  // namespace

GGUFMetadata llama_gguf(const AnyConfig& own) {
  const auto window = value_of<int64_t>(own, "sliding_window");
  if (window > 0 && window < value_of<int64_t>(own, "block_size"))
    fail(Exit::usage, "this build can't write GGUF files with model.sliding_window = ", window,
         "; export to Hugging Face's format (leave --format out)");

  if (value_of<std::string>(own, "rope_scaling") == "yarn" && !value_of<bool>(own, "rope_truncate"))
    fail(Exit::usage,
         "GGUF has no key for model.rope_truncate = false; export to Hugging Face's format (leave "
         "--format out)");

  const auto size = [&](const char* key) {
    return static_cast<uint32_t>(value_of<int64_t>(own, key));
  };
  const auto real = [&](const char* key) { return static_cast<float>(value_of<double>(own, key)); };
  const AttentionSizes shape(own);
  const auto width = static_cast<uint32_t>(shape.width);
  GGUFMetadata made{{"vocab_size", size("vocab_size")},
                    {"block_count", size("n_layer")},
                    {"context_length", size("block_size")},
                    {"embedding_length", size("n_embd")},
                    {"feed_forward_length", size("n_inner")},
                    {"attention.head_count", static_cast<uint32_t>(shape.heads)},
                    {"attention.head_count_kv", static_cast<uint32_t>(shape.groups)},
                    {"attention.key_length", width},
                    {"attention.value_length", width},
                    {"attention.layer_norm_rms_epsilon", real("norm_eps")},
                    {"rope.dimension_count", width},
                    {"rope.freq_base", real("rope_theta")}};

  // GGUF has no keys for llama3's scaling; llama_gguf_tensors() returns it as a tensor.
  const auto& scaling = value_of<std::string>(own, "rope_scaling");
  if (scaling == "linear" || scaling == "yarn") {
    made.emplace_back("rope.scaling.type", scaling);
    made.emplace_back("rope.scaling.factor", real("rope_factor"));
  }

  if (scaling == "yarn") {
    made.emplace_back("rope.scaling.original_context_length", size("rope_original_context"));
    made.emplace_back("rope.scaling.yarn_beta_fast", real("rope_beta_fast"));
    made.emplace_back("rope.scaling.yarn_beta_slow", real("rope_beta_slow"));
    const float factor = real("rope_attention_factor");
    if (factor > 0)
      made.emplace_back("rope.scaling.attn_factor", factor / yarn_magnitude(real("rope_factor")));
  }
  return made;
}

std::vector<std::pair<std::string, std::vector<float>>> llama_gguf_tensors(const AnyConfig& own) {
  if (value_of<std::string>(own, "rope_scaling") != "llama3") return {};
  const auto real = [&](const char* key) { return value_of<double>(own, key); };
  return {{"rope_freqs.weight",
           divisors_of({.theta = real("rope_theta"),
                        .width = AttentionSizes(own).width,
                        .factor = real("rope_factor"),
                        .low = real("rope_low_freq_factor"),
                        .high = real("rope_high_freq_factor"),
                        .context = value_of<int64_t>(own, "rope_original_context")})}};
}

ModelKeys read_llama_gguf(ConfigKeys& c, const GGUFFacts& facts, int64_t most) {
  const auto key = [&](const char* name) { return facts.architecture + "." + name; };
  const int64_t heads = c.whole(key("attention.head_count"), 1, 1000),
                channels = c.whole(key("embedding_length"), 1, 100000),
                width = c.whole(key("attention.key_length"), 1, 100000, channels / heads),
                context = context_of(c.whole(key("context_length"), 1, 100000000), most);
  ModelKeys model{{"n_layer", c.whole(key("block_count"), 1, 1000)},
                  {"n_head", heads},
                  {"n_kv_head", c.whole(key("attention.head_count_kv"), 1, 1000, heads)},
                  {"n_embd", channels},
                  {"head_dim", width},
                  {"n_inner", c.whole(key("feed_forward_length"), 1, 1000000)},
                  {"block_size", context},
                  {"vocab_size", read_gguf_vocabulary(c, facts)},
                  {"norm_eps", c.real(key("attention.layer_norm_rms_epsilon"))},
                  {"tie_weights", facts.tied}};

  // Any other value of these keys would change the computation.
  c.only(key("attention.value_length"), {width});
  c.only(key("expert_count"), {0});
  c.only(key("attention.causal"), {true});
  c.only(key("tensor_data_layout"), {"Meta AI original pth"});  // the channels of a rotary pair are
                                                                // adjacent
  if (c.has(key("attention.sliding_window")) &&
      c.whole(key("attention.sliding_window"), 0, int64_t{1} << 40) < context)
    c.refuse(key("attention.sliding_window"),
             str("this build attends to the whole context of ", context,
                 " tokens; give a --block-size that is at most the window"));
  read_rope_keys(c, facts, width, model);
  return model;
}

}  // namespace lathe
