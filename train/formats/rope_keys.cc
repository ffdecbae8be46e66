#include "train/formats/rope_keys.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

namespace lathe {
namespace {

/// Returns the factor by which YaRN scales cosines and sines, or 0 for the formula of YaRN's paper.
/// As in transformers, DeepSeek's mscale and mscale_all_dim are used only if both are present.
double yarn_attention_factor(ConfigKeys& rope, double factor) {
  const double given = rope.real("attention_factor", 0), mscale = rope.real("mscale", 0),
               all = rope.real("mscale_all_dim", 0);
  if (given != 0 || mscale == 0 || all == 0 || factor <= 1) return given;
  return (0.1 * mscale * std::log(factor) + 1) / (0.1 * all * std::log(factor) + 1);
}

/// Sets the keys of RoPE scaling in `model` from the object `rope`, and returns the scaling's type.
std::string read_scaling(ConfigKeys& rope, int64_t context, ModelKeys& model) {
  // Older files have "type" instead of "rope_type"; some files have both keys.
  const std::string old = rope.text("type", "default"), type = rope.text("rope_type", old);
  if (rope.has("type") && old != type)
    rope.refuse("type", "rope_type = \"" + type + "\" contradicts \"type\"");

  if (type == "linear") {
    model["rope_scaling"] = type;
    model["rope_factor"] = rope.real("factor");
  } else if (type == "llama3") {
    model["rope_scaling"] = type;
    model["rope_factor"] = rope.real("factor");
    model["rope_low_freq_factor"] = rope.real("low_freq_factor");
    model["rope_high_freq_factor"] = rope.real("high_freq_factor");
    model["rope_original_context"] = rope.whole("original_max_position_embeddings", 1, 100000000);
  } else if (type == "yarn") {
    const int64_t original = rope.whole("original_max_position_embeddings", 1, 100000000, context);
    // A factor of null means the ratio of the new to the original context length.
    const double factor = rope.real(
        "factor", rope.is_null("factor")
                      ? std::optional(static_cast<double>(context) / static_cast<double>(original))
                      : std::nullopt);
    model["rope_scaling"] = type;
    model["rope_factor"] = factor;
    model["rope_beta_fast"] = rope.real("beta_fast", 32);
    model["rope_beta_slow"] = rope.real("beta_slow", 1);
    model["rope_attention_factor"] = yarn_attention_factor(rope, factor);
    model["rope_original_context"] = original;
    model["rope_truncate"] = rope.flag("truncate", true);
  } else if (type != "default") {
    rope.refuse(rope.has("rope_type") ? "rope_type" : "type",
                "this build supports only default, linear, llama3 and yarn");
  }

  rope.only("partial_rotary_factor", {1.0});
  return type;
}

/// Reads an object rope_parameters that contains an object for each type of layer.
void read_rope_of_types(ConfigKeys both, double theta, double local_theta, int64_t context,
                        ModelKeys& model) {
  ConfigKeys full = both.part("full_attention"), local = both.part("sliding_attention");
  model["rope_theta"] = full.real("rope_theta", theta);
  model["rope_local_theta"] = local.real("rope_theta", local_theta);
  read_scaling(full, context, model);
  local.only("rope_type", {"default"});
  local.only("partial_rotary_factor", {1.0});
  full.finish();
  local.finish();
  both.finish();
}

/// Returns the shortest pattern whose repetition gives `digits`.
std::string shortest(const std::string& digits) {
  for (size_t period = 1; period < digits.size(); ++period) {
    bool repeats = true;
    for (size_t i = period; i < digits.size(); ++i) repeats &= digits[i] == digits[i % period];
    if (repeats) return digits.substr(0, period);
  }
  return digits;
}

/// Returns `pattern` repeated until it has a digit for each of `layers` layers.
std::string repeated(const std::string& pattern, size_t layers) {
  std::string digits;
  while (digits.size() < layers) digits += pattern[digits.size() % pattern.size()];
  return digits;
}

/// Returns a pattern of `interval` digits, of which only the last is 0.
std::string zero_at_each(int64_t interval) {
  return std::string(static_cast<size_t>(interval - 1), '1') + "0";
}

/// Returns a digit for each layer: 1 if the layer has rotary positions, 0 if it does not.
std::string read_rope_layers(ConfigKeys& c, size_t layers) {
  const int64_t interval = c.whole("no_rope_layer_interval", 1, 1000, 4);
  const std::vector<int64_t> given = c.wholes("no_rope_layers", 0, 1);
  if (given.empty()) return repeated(zero_at_each(interval), layers);
  if (given.size() < layers)
    c.refuse("no_rope_layers", str("there must be one entry for each of ", layers, " layers"));

  std::string digits;
  for (size_t i = 0; i < layers; ++i) digits += given[i] != 0 ? '1' : '0';
  return digits;
}

/// Returns a digit for each layer: 1 if the layer has a window whenever the model uses windows, 0
/// if it has none.
std::string read_window_layers(const LlamaVariant& variant, ConfigKeys& c, size_t layers,
                               const std::string& rope_layers) {
  const std::vector<std::string> types = c.texts("layer_types");
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      c.refuse("layer_types", "this build supports only full_attention and sliding_attention");
  }
  if (!types.empty() && types.size() != layers)
    c.refuse("layer_types", str("there must be one entry for each of ", layers, " layers"));

  // If config.json lacks layer_types, the family determines the layers with a window.
  std::string digits = repeated(variant.window_layers, layers);
  const int64_t full = c.whole("max_window_layers", 0, 100000, 28);
  if (variant.has_max_window_layers) {
    for (size_t i = 0; i < layers && std::cmp_less(i, full); ++i) digits[i] = '0';
  } else if (variant.has_local_rope) {
    digits = repeated(zero_at_each(c.whole("sliding_window_pattern", 1, 1000, 6)), layers);
  } else if (variant.lists_rope_layers) {
    for (size_t i = 0; i < layers; ++i) digits[i] = rope_layers[i] == '1' ? '0' : '1';
  }
  for (size_t i = 0; i < types.size(); ++i) digits[i] = types[i] == "sliding_attention" ? '1' : '0';

  if (variant.windows == LlamaVariant::Windows::all && digits.find('0') != std::string::npos)
    c.refuse("layer_types",
             "a model of type " + variant.model_type + " has its window in all layers");
  return digits;
}

}  // namespace

void read_rope(const LlamaVariant& variant, ConfigKeys& c, int64_t context, ModelKeys& model) {
  const bool together = c.has("rope_parameters");
  ConfigKeys rope = c.part(together ? "rope_parameters" : "rope_scaling");
  // The key rope_theta may be in the object `rope` or outside of it. The value in `rope` has
  // precedence.
  const double theta = c.real("rope_theta", variant.rope_theta);
  const double local_theta = variant.has_local_rope ? c.real("rope_local_base_freq", 10000.0) : 0;
  c.only("partial_rotary_factor", {1.0});
  c.only("rope_interleaved", {false});

  if (variant.has_local_rope && (rope.has("full_attention") || rope.has("sliding_attention")))
    return read_rope_of_types(std::move(rope), theta, local_theta, context, model);

  model["rope_theta"] = rope.real("rope_theta", theta);
  if (variant.has_local_rope) model["rope_local_theta"] = local_theta;
  read_scaling(rope, context, model);
  rope.finish();
}

void write_rope(const LlamaVariant& variant, const AnyConfig& own, Json& config) {
  const auto size = [&](const char* key) { return value_of<int64_t>(own, key); };
  const auto real = [&](const char* key) { return value_of<double>(own, key); };

  Json scaling;
  const auto& type = value_of<std::string>(own, "rope_scaling");
  if (type != "none") scaling = {{"rope_type", type}, {"factor", real("rope_factor")}};
  if (type == "llama3") {
    scaling["low_freq_factor"] = real("rope_low_freq_factor");
    scaling["high_freq_factor"] = real("rope_high_freq_factor");
    scaling["original_max_position_embeddings"] = size("rope_original_context");
  }
  if (type == "yarn") {
    scaling["beta_fast"] = real("rope_beta_fast");
    scaling["beta_slow"] = real("rope_beta_slow");
    scaling["original_max_position_embeddings"] = size("rope_original_context");
    if (!value_of<bool>(own, "rope_truncate")) scaling["truncate"] = false;
    // 0 means YaRN's formula, which transformers uses if the key is absent.
    if (real("rope_attention_factor") > 0)
      scaling["attention_factor"] = real("rope_attention_factor");
  }

  config["rope_theta"] = real("rope_theta");
  config["rope_scaling"] = scaling;
  if (!variant.has_local_rope) return;
  const double local = real("rope_local_theta");
  config["rope_local_base_freq"] = local > 0 ? local : real("rope_theta");
}

void read_layers(const LlamaVariant& variant, ConfigKeys& c, ModelKeys& model) {
  using Windows = LlamaVariant::Windows;
  const auto layers = static_cast<size_t>(std::get<int64_t>(model.at("n_layer")));
  const int64_t context = std::get<int64_t>(model.at("block_size"));

  std::string rope_layers(layers, '1');
  if (variant.lists_rope_layers) rope_layers = read_rope_layers(c, layers);
  model["rope_layers"] = shortest(rope_layers);

  const std::vector<std::string> types = c.texts("layer_types");
  const bool lists_windows =
      std::find(types.begin(), types.end(), "sliding_attention") != types.end();
  const bool slides = c.flag("use_sliding_window", variant.slides || lists_windows);
  const std::string digits = read_window_layers(variant, c, layers, rope_layers);
  if (lists_windows && !slides)
    c.refuse("layer_types", "use_sliding_window = false contradicts sliding_attention");

  const int64_t otherwise = c.is_null("sliding_window") ? 0 : variant.window;
  const int64_t window = c.whole("sliding_window", 1, int64_t{1} << 40, otherwise);
  const bool has_window = window > 0 && slides && digits.find('1') != std::string::npos;

  if (has_window && variant.windows != Windows::none) {
    model["sliding_window"] = window;
    model["window_layers"] = shortest(digits);
  } else if (has_window && window < context) {
    c.refuse("sliding_window", str("this build runs models of type ", variant.model_type,
                                   " without a window, which is equivalent only for contexts that "
                                   "fit in the window, not for ",
                                   context, " tokens; give --block-size ", window));
  }

  // Leave rope_local_theta out if it changes nothing: its default, 0, means the value of
  // rope_theta.
  const auto base = [&](const char* key) { return std::get<double>(model.at(key)); };
  const bool is_same = !model.contains("rope_scaling") && model.contains("rope_local_theta") &&
                       base("rope_local_theta") == base("rope_theta");
  if (!has_window || is_same) model.erase("rope_local_theta");
}

void write_layers(const LlamaVariant& variant, const AnyConfig& own, Json& config) {
  const auto size = [&](const char* key) { return value_of<int64_t>(own, key); };
  if (variant.lists_rope_layers) {
    config["no_rope_layers"] = Json::array();
    for (const char digit : digits_of_layers(own, value_of<std::string>(own, "rope_layers")))
      config["no_rope_layers"].push_back(digit - '0');
  }

  const int64_t window = size("sliding_window");
  if (variant.windows == LlamaVariant::Windows::all) config["sliding_window"] = window;
  if (variant.windows != LlamaVariant::Windows::listed) return;

  Json types = Json::array();
  const std::string pattern = window > 0 ? value_of<std::string>(own, "window_layers") : "0";
  for (const char digit : digits_of_layers(own, pattern))
    types.push_back(digit == '1' ? "sliding_attention" : "full_attention");
  config["layer_types"] = types;
  if (variant.slides) {
    // This family always has the key, even if no layer uses the window.
    config["sliding_window"] = window > 0 ? window : size("block_size");
  } else {
    config["use_sliding_window"] = window > 0;
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  }
}

std::string digits_of_layers(const AnyConfig& own, const std::string& pattern) {
  return repeated(pattern, static_cast<size_t>(value_of<int64_t>(own, "n_layer")));
}

}  // namespace lathe
