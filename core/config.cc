#include "core/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/io/text.h"

namespace lathe {
namespace {

thread_local SchemaRecorder* recorder = nullptr;

const char* type_name(const ConfigValue& v) {
  constexpr const char* names[]{"true or false", "a whole number", "a number", "a string",
                                "a list of tables"};
  return names[v.index()];
}

/// Returns a decimal number in the form that std::from_chars accepts, without '+' and without '_'
/// between digits; "" if `text` is not a decimal number.
std::string plain_decimal(std::string_view text) {
  std::string out;
  size_t at = 0;
  const auto is_digit = [&](size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  const auto next_is = [&](char c) { return at < text.size() && text[at] == c; };
  const auto sign = [&] {
    if (next_is('-')) out += '-';
    if (next_is('-') || next_is('+')) ++at;
  };
  // An underscore is allowed only between digits, as in TOML.
  const auto digits = [&] {
    const size_t begin = out.size();
    for (; is_digit(at) || (next_is('_') && out.size() > begin && is_digit(at + 1)); ++at) {
      if (is_digit(at)) out += text[at];
    }
    return out.size() > begin;
  };

  // Digits may be missing before or after the point, but not on both sides.
  sign();
  bool some = digits();
  if (next_is('.')) {
    ++at;
    out += '.';
    some = digits() || some;
  }

  if (some && (next_is('e') || next_is('E'))) {
    ++at;
    out += 'e';
    sign();
    some = digits();
  }

  return some && at == text.size() ? out : "";
}

/// Returns the whole number that equals a plain decimal; nullopt if the decimal has a fraction or
/// does not fit into int64_t.
std::optional<int64_t> whole_number(const std::string& plain) {
  const size_t e = plain.find('e');
  std::string digits = plain.substr(0, e);
  if (digits.find_first_not_of("-.0") == std::string::npos) return 0;
  int64_t zeros = 0, whole = 0;  // zeros: how many zeros to append to the digits; if negative, how
                                 // many to remove
  if (e != std::string::npos &&
      std::from_chars(plain.data() + e + 1, plain.data() + plain.size(), zeros).ec != std::errc())
    return std::nullopt;
  // With a larger exponent, no text of a realistic length equals a 64-bit whole number.
  constexpr int64_t most = int64_t{1} << 40;
  if (zeros < -most || zeros > most) return std::nullopt;
  if (const size_t point = digits.find('.'); point != std::string::npos) {
    zeros -= static_cast<int64_t>(digits.size() - point - 1);
    digits.erase(point, 1);
  }
  for (; zeros < 0 && digits.ends_with('0'); ++zeros) digits.pop_back();
  if (zeros < 0 || zeros > 18) return std::nullopt;
  digits.append(static_cast<size_t>(zeros), '0');
  if (std::from_chars(digits.data(), digits.data() + digits.size(), whole).ec != std::errc())
    return std::nullopt;
  return whole;
}

}  // namespace

ConfigValue read_value(const std::string& text, const ConfigValue& like) {
  if (std::holds_alternative<std::string>(like)) {
    const ConfigValue quoted = parse_value(text);
    return std::holds_alternative<std::string>(quoted) ? quoted : ConfigValue(text);
  }
  const std::string plain = std::holds_alternative<bool>(like) ? "" : plain_decimal(text);
  if (plain.empty()) return parse_value(text);
  if (std::holds_alternative<int64_t>(like)) {
    if (const auto whole = whole_number(plain)) return *whole;
  }
  double number = 0;
  if (std::from_chars(plain.data(), plain.data() + plain.size(), number).ec != std::errc())
    return text;
  return number;
}

SchemaRecorder::SchemaRecorder(Schema& schema, const void* config)
    : schema_(schema), config_(static_cast<const std::byte*>(config)), outer_(recorder) {
  recorder = this;
}
SchemaRecorder::~SchemaRecorder() { recorder = outer_; }
SchemaRecorder::Pause::Pause() : paused_(recorder) { recorder = nullptr; }
SchemaRecorder::Pause::~Pause() { recorder = paused_; }

void AnyConfig::check_type(std::type_index wanted) const {
  LATHE_CHECK(type_ == wanted, "the config has another type than the requested one (it is ",
              type_.name(), ", not ", wanted.name(), ")");
}

void SchemaRecorder::section(const char* name, const char* doc) {
  if (recorder != nullptr) recorder->schema_.sections_.push_back({name, doc});
}

void SchemaRecorder::field(const void* member, const char* name, ConfigValue initial,
                           const char* doc, Rule rule) {
  if (recorder == nullptr) return;
  auto& schema = recorder->schema_;
  const std::string section = schema.sections_.empty() ? "" : schema.sections_.back().name + ".";
  std::string text;
  for (const std::string& kind : rule.kinds) text += (text.empty() ? "" : ", ") + kind;
  if (!text.empty()) text += ": ";
  schema.fields_.push_back(
      {.key = section + name,
       .initial = std::move(initial),
       .doc = text + doc,
       .rule = std::move(rule),
       .offset = static_cast<size_t>(static_cast<const std::byte*>(member) - recorder->config_)});
}

const Field* Schema::find(const std::string& key) const {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(), [&](const Field& f) { return f.key == key; });
  return found == fields_.end() ? nullptr : &*found;
}

void Schema::add(const std::string& section, const Schema& own,
                 const std::function<void*(void*)>& part) {
  auto place = std::find_if(fields_.rbegin(), fields_.rend(), [&](const Field& f) {
                 return f.key.starts_with(section + ".");
               }).base();
  if (place == fields_.begin()) place = fields_.end();
  for (Field field : own.fields_) {
    field.key = section + "." + field.key;
    field.part = part;
    place = fields_.insert(place, std::move(field)) + 1;
  }
}

/// Returns the address of a field's value in `config`.
static std::byte* field_address(void* config, const Field& field) {
  return static_cast<std::byte*>(field.part ? field.part(config) : config) + field.offset;
}

ConfigValue Schema::get(const void* config, const Field& field) const {
  const std::byte* at = field_address(const_cast<void*>(config), field);
  return std::visit(
      [at](const auto& v) -> ConfigValue {
        return *reinterpret_cast<const std::decay_t<decltype(v)>*>(at);
      },
      field.initial);
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  // No candidate is near a word of more than 200 characters, and computing the distances would take
  // a long time.
  if (word.size() > 200) return best;

  // At least half of a short word's characters must match. Otherwise, any two short words would be
  // near each other.
  size_t best_distance = std::min(std::max<size_t>(3, word.size() / 3), word.size() / 2) + 1;
  for (const auto& c : candidates) {
    std::vector<size_t> row(c.size() + 1);  // one row of the table of Levenshtein distances
    for (size_t j = 0; j <= c.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= c.size(); ++j) {
        const size_t changed = diagonal + (word[i - 1] != c[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
      }
    }

    if (row[c.size()] < best_distance) {
      best_distance = row[c.size()];
      best = c;
    }
  }
  return best;
}

std::string lathe_name_of(const std::string& name) {
  // Maps names that Hugging Face, litgpt and PyTorch use to Lathe's names.
  static const std::map<std::string, std::string> names{
      {"epochs", "steps"},
      {"num_train_epochs", "steps"},
      {"max_steps", "steps"},
      {"max_iters", "steps"},
      {"learning_rate", "lr"},
      {"per_device_train_batch_size", "batch_size"},
      {"micro_batch_size", "batch_size"},
      {"gradient_accumulation_steps", "grad_accum"},
      {"max_seq_length", "window"},
      {"seq_length", "window"},
      {"context_length", "block_size"},
      {"max_position_embeddings", "block_size"},
      {"n_ctx", "block_size"},
      {"hidden_size", "n_embd"},
      {"d_model", "n_embd"},
      {"intermediate_size", "n_inner"},
      {"num_hidden_layers", "n_layer"},
      {"num_attention_heads", "n_head"},
      {"num_key_value_heads", "n_kv_head"},
      {"max_grad_norm", "grad_clip"},
      {"clip_grad_norm", "grad_clip"},
      {"gradient_checkpointing", "recompute"},
      {"lora_r", "rank"},
      {"lora_alpha", "alpha"},
  };

  const auto found = names.find(name);
  return found == names.end() ? name : found->second;
}

std::string rule_text(const Rule& r) {
  std::string text;
  if (!r.choices.empty()) {
    for (const auto& c : r.choices) text += (text.empty() ? "" : " | ") + c;
    return r.form.empty() ? text : text + " | " + r.form;
  }
  const auto number = [](double x) {
    return x == std::floor(x) && std::fabs(x) <= 0x1p53 ? std::to_string(static_cast<int64_t>(x))
                                                        : toml_text(x);
  };
  if (std::isfinite(r.min)) text = (r.open_min ? "> " : ">= ") + number(r.min);
  if (std::isfinite(r.max))
    text += (text.empty() ? "" : ", ") + std::string(r.open_max ? "< " : "<= ") + number(r.max);
  return text;
}

void Schema::set(void* config, const std::string& key, const ConfigValue& value,
                 const std::string& where) const {
  const Field* field = find(key);
  if (field == nullptr) {
    std::vector<std::string> keys;
    for (const auto& f : fields_) keys.push_back(f.key);
    std::string near = nearest(key, keys);
    // The same name in another section is a better suggestion than a similar spelling.
    const size_t point = key.find('.');
    if (point != std::string::npos) {
      const std::string last_part = "." + lathe_name_of(key.substr(point + 1));
      for (const auto& k : keys) {
        if (k.ends_with(last_part)) near = k;
      }
    }
    fail(Exit::usage, where, ": there is no key ", key,
         near.empty() ? "; `lathe config docs` lists all keys" : "; did you mean " + near + "?");
  }

  // Integers are accepted for floating-point keys. A number that is too large for an integer key
  // gets a separate error, since the type error would wrongly report that 1e30 is not a whole
  // number.
  ConfigValue v = value;
  if (std::holds_alternative<double>(field->initial) && std::holds_alternative<int64_t>(v)) {
    v = static_cast<double>(std::get<int64_t>(v));
  }
  if (const auto* d = std::get_if<double>(&v); d != nullptr &&
                                               std::holds_alternative<int64_t>(field->initial) &&
                                               std::isfinite(*d) && std::fabs(*d) >= 0x1p63) {
    fail(Exit::usage, where, ": ", key, " = ", toml_text(value),
         " is too large for a whole number; it must be below 2^63");
  }
  if (v.index() != field->initial.index()) {
    fail(Exit::usage, where, ": ", key, " must be ", type_name(field->initial), ", not ",
         toml_text(value));
  }

  const Rule& r = field->rule;
  const auto refuse = [&] {
    fail(Exit::usage, where, ": ", key, " = ", toml_text(value), " is not allowed; it must be ",
         rule_text(r));
  };
  if (const auto* s = std::get_if<std::string>(&v)) {
    if (!is_utf8(*s) || s->find('\0') != std::string::npos)
      fail(Exit::usage, where, ": ", key, " must be UTF-8 text without null characters");
    const bool is_choice =
        r.choices.empty() || std::find(r.choices.begin(), r.choices.end(), *s) != r.choices.end();
    if (!is_choice && (r.has_form == nullptr || !r.has_form(*s))) refuse();
  } else if (std::holds_alternative<int64_t>(v) || std::holds_alternative<double>(v)) {
    const double x = std::holds_alternative<double>(v) ? std::get<double>(v)
                                                       : static_cast<double>(std::get<int64_t>(v));
    const bool low = r.open_min ? x > r.min : x >= r.min,
               high = r.open_max ? x < r.max : x <= r.max;
    if (!std::isfinite(x) || !low || !high) refuse();
  }

  std::byte* at = field_address(config, *field);
  std::visit([at](const auto& x) { *reinterpret_cast<std::decay_t<decltype(x)>*>(at) = x; }, v);
}

std::string Schema::to_toml(const void* config, bool comments) const {
  std::string text, section;
  for (const auto& f : fields_) {
    const std::string own = f.key.substr(0, f.key.find('.'));
    if (own != section) text += (text.empty() ? "[" : "\n[") + own + "]\n";
    section = own;
    text += f.key.substr(own.size() + 1) + " = " + toml_text(get(config, f));
    if (comments) text += "  # " + f.doc;
    text += "\n";
  }
  return text;
}

std::string Schema::to_markdown(const std::string& section) const {
  std::string text;
  for (const auto& s : sections_) {
    if (!section.empty() && s.name != section) continue;
    text += "\n## [" + s.name + "]: " + s.doc +
            "\n\n| key | default | allowed | on resume | what it does |\n|---|---|---|---|---|\n";
    for (const auto& f : fields_) {
      if (!f.key.starts_with(s.name + ".")) continue;
      constexpr const char* types[]{"true | false", "whole number", "number", "string", "tables"};
      std::string allowed = rule_text(f.rule);
      if (f.rule.choices.empty())
        allowed = types[f.initial.index()] + (allowed.empty() ? "" : " " + allowed);
      std::string doc = f.doc;
      for (std::string* cell : {&allowed, &doc})
        for (size_t i = 0; (i = cell->find('|', i)) != std::string::npos; i += 2)
          cell->insert(i, 1, '\\');
      text += "| `" + f.key + "` | `" + toml_text(f.initial) + "` | " + allowed + " | " +
              (f.rule.is_fixed ? "fixed" : "free") + " | " + doc + " |\n";
    }
  }
  return text;
}

}  // namespace lathe
