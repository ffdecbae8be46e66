// Implements the declaration of config keys. Each key is declared once, as a member of a struct.
// LATHE_FIELD defines the member, and registers the key for parsing, validation, --help, the
// reference page and the copy of the config in the run folder:
//
//   struct TrainConfig {
//     LATHE_FIELD(int64_t, steps, 2000, "Number of optimizer steps.", at_least(1))
//   };
//   struct RunConfig {
//     LATHE_SECTION(TrainConfig, train, "the run itself")
//   };
//
// Such structs remain plain aggregates. Members are bool, int64_t, double, std::string or
// ConfigTables.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <vector>

#include "core/io/toml.h"

namespace lathe {

/// The allowed values of a key, and whether the key may change when a run is resumed.
struct Rule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;  ///< whether `min` or `max` itself is not allowed
  std::vector<std::string> choices{};       ///< the allowed strings; empty: any string
  /// Strings that are allowed in addition to `choices`: `form` shows how these strings are written,
  /// and `has_form` returns whether a string is allowed.
  std::string form{};
  bool (*has_form)(const std::string&) = nullptr;
  bool is_fixed = false;  ///< the key can't change when a run is resumed
  bool is_list = false;   ///< the text is a comma-separated list
  /// The values of the key `selector` (in the same section) with which this key has an effect;
  /// empty: it always has an effect. The doc of this key begins with these values.
  std::vector<std::string> kinds{};
  std::string selector = "kind";

  /// Returns the same rule for a key that can't change when a run is resumed.
  Rule fixed() const {
    Rule r = *this;
    r.is_fixed = true;
    return r;
  }
  /// Returns the same rule for a key whose text is a comma-separated list.
  Rule list() const {
    Rule r = *this;
    r.is_list = true;
    return r;
  }
  /// Returns the same rule for a key that has an effect only if `selector` has one of these values.
  Rule of(std::vector<std::string> values, std::string selector = "kind") const {
    Rule r = *this;
    r.kinds = std::move(values);
    r.selector = std::move(selector);
    return r;
  }
  /// Returns the same rule, extended to also allow the strings for which `has_form` returns true.
  /// `form` shows how these strings are written.
  Rule or_form(std::string form, bool (*has_form)(const std::string&)) const {
    Rule r = *this;
    r.form = std::move(form);
    r.has_form = has_form;
    return r;
  }
};
/// Allows every value.
inline Rule anything() { return {}; }
/// Allows x >= min.
inline Rule at_least(double min) { return {.min = min}; }
/// Allows min <= x <= max.
inline Rule between(double min, double max) { return {.min = min, .max = max}; }
/// Allows min <= x < max.
inline Rule below(double min, double max) { return {.min = min, .max = max, .open_max = true}; }
/// Allows min < x <= max.
inline Rule above(double min, double max) { return {.min = min, .max = max, .open_min = true}; }
/// Allows min < x < max.
inline Rule inside(double min, double max) {
  return {.min = min, .max = max, .open_min = true, .open_max = true};
}
/// Allows only these strings.
inline Rule one_of(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }

/// A key of the config, and the location of its value.
struct Field {
  std::string key;      ///< "section.name"
  ConfigValue initial;  ///< the default; its type is the type of the key
  std::string doc;
  Rule rule;
  size_t offset;  ///< offset of the value in bytes from the beginning of the struct that `part`
                  ///< returns
  /// Returns the struct within the config that holds the value. If this function is empty, the
  /// config itself holds the value.
  std::function<void*(void* config)> part{};
};

/// A section of the config, written as `[name]`.
struct Section {
  std::string name, doc;
};

/// Maps each key to the source of its value, such as "configs/a.toml:3:1", "command line" or
/// "LATHE_TRAIN_STEPS". Keys with their default values are absent.
using Origins = std::map<std::string, std::string>;

/// The fields of a config type. Values are read and written through a pointer to the config.
class Schema {
 public:
  const std::vector<Field>& fields() const { return fields_; }
  const std::vector<Section>& sections() const { return sections_; }
  /// Returns the field of a key; null if there is no such key.
  const Field* find(const std::string& key) const;

  /// Returns the field's value in `config`, which must be of the schema's type.
  ConfigValue get(const void* config, const Field& field) const;
  /// Sets a key. Throws Exit::usage if the key is unknown, or if the value has the wrong type or is
  /// not allowed. The message begins with `where`. For an unknown key, the message suggests the
  /// nearest key.
  void set(void* config, const std::string& key, const ConfigValue& value,
           const std::string& where) const;

  /// Appends the fields of `own`, the schema of a config type without sections, to a section of
  /// this schema. `part` returns the struct within the complete config that holds the values of
  /// these fields.
  void add(const std::string& section, const Schema& own,
           const std::function<void*(void* config)>& part);
  /// Adds a section without fields.
  void add_section(Section section) { sections_.push_back(std::move(section)); }

  /// Returns the config as TOML. If `comments` is true, each key's doc follows as a comment.
  std::string to_toml(const void* config, bool comments) const;
  /// Returns the reference page in Markdown for one section, or for all sections if `section` is
  /// empty.
  std::string to_markdown(const std::string& section = "") const;

 private:
  friend class SchemaRecorder;
  std::vector<Field> fields_;
  std::vector<Section> sections_;
};

/// Reads text from a command line or the environment as a value for a field whose default is
/// `like`. Numbers may be written as 1000, 1e3, 1_000, +3, .5 and 5., and in any form that TOML
/// allows. An integer field accepts any of these whose value is an integer. For a string field,
/// returns the text unchanged, or without the quotes around it. If the text is not a value of the
/// field's type, returns a value of another type, which Schema::set() rejects.
ConfigValue read_value(const std::string& text, const ConfigValue& like);

/// Returns a rule as text: "fp32 | bf16", ">= 1", ...
std::string rule_text(const Rule& rule);
/// Returns the candidate nearest to `word` by edit distance; "" if none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);
/// Returns Lathe's name, without the section, of a key that other frameworks call `name`: "lr" for
/// "learning_rate". Returns `name` itself if no such key is known.
std::string lathe_name_of(const std::string& name);

/// Collects fields while a config is default-constructed on this thread.
class SchemaRecorder {
 public:
  SchemaRecorder(Schema& schema, const void* config);
  ~SchemaRecorder();
  SchemaRecorder(const SchemaRecorder&) = delete;
  SchemaRecorder& operator=(const SchemaRecorder&) = delete;
  /// Pauses this thread's recorder until destroyed. A config that is constructed within another
  /// config then adds nothing to the schema of the outer config.
  class Pause {
   public:
    Pause();
    ~Pause();

   private:
    SchemaRecorder* paused_;
  };
  // LATHE_SECTION and LATHE_FIELD call these functions when a config is constructed. They add the
  // declaration to the schema that this thread is recording, if any.
  static void section(const char* name, const char* doc);
  static void field(const void* member, const char* name, ConfigValue initial, const char* doc,
                    Rule rule);

 private:
  Schema& schema_;
  const std::byte* config_;
  SchemaRecorder* outer_;
};

/// Starts a section, to which the fields that are recorded next belong.
struct SectionMark {
  SectionMark(const char* name, const char* doc) { SchemaRecorder::section(name, doc); }
};

namespace detail {
template <class Config>
struct Storage {
  alignas(Config) std::byte bytes[sizeof(Config)];
};
template <class T, class D, class... R>
T record_field(const void* member, const char* name, D initial, const char* doc, const R&... rule) {
  T value(std::move(initial));
  SchemaRecorder::field(member, name, value, doc, rule...);
  return value;
}
}  // namespace detail

/// Returns the schema of a config type.
template <class Config>
const Schema& schema_of() {
  static const Schema schema = [] {
    Schema s;
    detail::Storage<Config> storage;
    const SchemaRecorder recorder(s, &storage);
    auto* config = new (&storage) Config{};
    config->~Config();
    return s;
  }();
  return schema;
}

/// A config whose type is known only at run time, such as the config of a model kind. A copy of
/// this object holds a copy of the config.
class AnyConfig {
 public:
  AnyConfig() = default;
  /// Returns a config of type Config with its defaults.
  template <class Config>
  static AnyConfig of() {
    const SchemaRecorder::Pause apart;
    AnyConfig any;
    any.schema_ = &schema_of<Config>();
    any.type_ = typeid(Config);
    any.copy_ = [](const void* from) -> std::shared_ptr<void> {
      return std::make_shared<Config>(*static_cast<const Config*>(from));
    };
    any.value_ = std::make_shared<Config>();
    return any;
  }
  AnyConfig(const AnyConfig& other)
      : schema_(other.schema_),
        type_(other.type_),
        copy_(other.copy_),
        value_(other.value_ ? copy_(other.value_.get()) : nullptr) {}
  AnyConfig& operator=(const AnyConfig& other) { return *this = AnyConfig(other); }
  AnyConfig(AnyConfig&&) = default;
  AnyConfig& operator=(AnyConfig&&) = default;

  /// Returns the schema of the config's keys. They have no section.
  const Schema& schema() const { return *schema_; }
  /// Returns the address of the config, to which the offsets of fields are added.
  void* data() { return value_.get(); }
  /// Returns the config as a Config. Throws if the config has another type.
  template <class Config>
  const Config& as() const {
    check_type(typeid(Config));
    return *static_cast<const Config*>(value_.get());
  }
  /// Returns a pointer to the value of a key; null if there is no key of that name and type.
  template <class T>
  T* find(const std::string& key) const {
    const Field* field = value_ ? schema_->find(key) : nullptr;
    if (field == nullptr || !std::holds_alternative<T>(field->initial)) return nullptr;
    return reinterpret_cast<T*>(static_cast<std::byte*>(value_.get()) + field->offset);
  }

 private:
  void check_type(std::type_index wanted) const;

  const Schema* schema_ = nullptr;
  std::type_index type_ = typeid(void);
  std::shared_ptr<void> (*copy_)(const void*) = nullptr;
  std::shared_ptr<void> value_;
};

}  // namespace lathe

#define LATHE_FIELD(type, name, initial, doc, rule) \
  type name = ::lathe::detail::record_field<type>(&this->name, #name, initial, doc, rule);
#define LATHE_SECTION(type, name, doc)                                \
  [[no_unique_address]] ::lathe::SectionMark mark_##name{#name, doc}; \
  type name{};
