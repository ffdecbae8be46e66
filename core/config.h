// Declares each config key once, as a member of a struct. LATHE_FIELD defines the member and
// registers it for parsing, --help, the reference page, validation and the copy of the config in
// the run folder:
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

/// The allowed values of a key, and whether it may change when a run is resumed.
struct Rule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;  ///< the bound itself is excluded
  std::vector<std::string> choices{};       ///< only for strings; empty: any string
  /// Strings that are allowed besides the choices: `form` shows how they are written, and
  /// `has_form` accepts them.
  std::string form{};
  bool (*has_form)(const std::string&) = nullptr;
  bool is_fixed = false;  ///< the key can't change when a run is resumed
  bool is_list = false;   ///< the text is a comma-separated list
  /// This key has an effect only if the key `selector` of the same section has one of these values;
  /// empty: always. The key's doc begins with these values.
  std::vector<std::string> kinds{};
  std::string selector = "kind";

  /// Returns the same rule, for a key that a run cannot change once it has begun.
  Rule fixed() const {
    Rule r = *this;
    r.is_fixed = true;
    return r;
  }
  /// Returns the same rule, for text that is a comma-separated list.
  Rule list() const {
    Rule r = *this;
    r.is_list = true;
    return r;
  }
  /// Returns the same rule, for a key that has an effect only with these values of `selector`.
  Rule of(std::vector<std::string> values, std::string selector = "kind") const {
    Rule r = *this;
    r.kinds = std::move(values);
    r.selector = std::move(selector);
    return r;
  }
  /// Returns the same rule, which also allows the strings that `has_form` accepts. `form` shows how
  /// they are written.
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

/// A key of the config and where its value is stored.
struct Field {
  std::string key;      ///< "section.name"
  ConfigValue initial;  ///< the default; its type is the type of the key
  std::string doc;
  Rule rule;
  size_t offset;  ///< of the value, in bytes from the struct that `part` returns
  /// Returns the struct within the config that holds the value; empty: the config itself.
  std::function<void*(void* config)> part{};
};

/// A section of the config, written as `[name]`.
struct Section {
  std::string name, doc;
};

/// The source of each key's value: "configs/a.toml:3:1", "command line", "LATHE_TRAIN_STEPS";
/// absent for defaults.
using Origins = std::map<std::string, std::string>;

/// The fields of one config type. Values are read and written through a pointer to the config.
class Schema {
 public:
  const std::vector<Field>& fields() const { return fields_; }
  const std::vector<Section>& sections() const { return sections_; }
  /// Returns the field of a key, or null if there is no such key.
  const Field* find(const std::string& key) const;

  /// Returns the field's value in `config`, which must be of the schema's type.
  ConfigValue get(const void* config, const Field& field) const;
  /// Sets a key after checking type and rule. Errors are Exit::usage and begin with `where`; the
  /// error for an unknown key names the nearest one.
  void set(void* config, const std::string& key, const ConfigValue& value,
           const std::string& where) const;

  /// Appends the fields of `own`, the schema of a config type without sections, to a section of
  /// this schema. `part` returns the struct that holds their values within the complete config.
  void add(const std::string& section, const Schema& own,
           const std::function<void*(void* config)>& part);
  /// Adds a section without fields.
  void add_section(Section section) { sections_.push_back(std::move(section)); }

  /// Returns the config as TOML, with each key's doc as a comment if `comments` is set.
  std::string to_toml(const void* config, bool comments) const;
  /// Returns the reference page in Markdown: of one section, or of all if `section` is empty.
  std::string to_markdown(const std::string& section = "") const;

 private:
  friend class SchemaRecorder;
  std::vector<Field> fields_;
  std::vector<Section> sections_;
};

/// Reads text from a command line or the environment as a value for a field whose default is
/// `like`. Numbers may be written as 1000, 1e3, 1_000, +3, .5 and 5., and in any form that TOML
/// allows. An integer field accepts any of these whose value is an integer. A string field takes
/// the text unchanged, or without its quotes. If the text is not a value of the field's type,
/// returns it as a value of another type, which Schema::set() rejects.
ConfigValue read_value(const std::string& text, const ConfigValue& like);

/// Returns a rule as text: "fp32 | bf16", ">= 1", ...
std::string rule_text(const Rule& rule);
/// Returns the candidate nearest to `word` by edit distance; "" if none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);
/// Returns Lathe's name, without the section, of a key that other frameworks call `name`: "lr" for
/// "learning_rate". Returns `name` itself if it is not known.
std::string lathe_name_of(const std::string& name);

/// Collects fields while a config is default-constructed on this thread.
class SchemaRecorder {
 public:
  SchemaRecorder(Schema& schema, const void* config);
  ~SchemaRecorder();
  SchemaRecorder(const SchemaRecorder&) = delete;
  SchemaRecorder& operator=(const SchemaRecorder&) = delete;
  /// Pauses this thread's recorder while alive, so that a config that is constructed inside another
  /// one adds nothing to the schema of the outer one.
  class Pause {
   public:
    Pause();
    ~Pause();

   private:
    SchemaRecorder* paused_;
  };
  // Called by LATHE_SECTION and LATHE_FIELD when a config is made: adds the declaration to the
  // schema that this thread is recording, if any.
  static void section(const char* name, const char* doc);
  static void field(const void* member, const char* name, ConfigValue initial, const char* doc,
                    Rule rule);

 private:
  Schema& schema_;
  const std::byte* config_;
  SchemaRecorder* outer_;
};

/// Starts a section: the fields recorded next belong to it.
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

/// A config whose type is known only at run time, such as that of a model kind. A copy has a config
/// of its own.
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

  /// Returns the schema of its keys, which have no section.
  const Schema& schema() const { return *schema_; }
  /// Returns the config itself, to which its fields' offsets apply.
  void* data() { return value_.get(); }
  /// Returns the config as a Config. Throws if it is of another type.
  template <class Config>
  const Config& as() const {
    check_type(typeid(Config));
    return *static_cast<const Config*>(value_.get());
  }
  /// Returns a pointer to the value of a key, or null if there is none of that name and type.
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
