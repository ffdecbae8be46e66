#include "core/device.h"
#include "core/error.h"
#include "core/kernels/rules.h"
#include "optim/method.h"
#include "optim/methods/pieces.h"
#include "optim/methods/table.h"

namespace lathe {
namespace {

/// A method that updates each element independently, by a rule of core/kernels/rules.h.
class ByRule final : public Method {
 public:
  explicit ByRule(const UpdateRule& rule) : rule_(rule) {}
  MethodState state(const NamedParameter& p) const override {
    MethodState state = state_of_rule(rule_, p.parameter.data());
    state.divisible = true;
    return state;
  }
  UpdateRule rule() const override { return rule_; }
  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
              bool cuda) const override {
    update_elements(slots, rule, control, cuda);
  }
  bool runs_on_gpu() const override { return true; }

 private:
  UpdateRule rule_;
};

template <class Rule, class Amsgrad = Rule>
std::unique_ptr<Method> make_by_rule(const OptimConfig& config) {
  UpdateRule rule = rule_of(config);
  rule.kind = config.amsgrad ? rule_kind<Amsgrad> : rule_kind<Rule>;
  return std::make_unique<ByRule>(rule);
}

std::vector<OptimizerKind>& all() {
  static std::vector<OptimizerKind> kinds = [] {
    // First the rules, in the order of their table. The amsgrad variants in the table are hidden:
    // one kind serves both variants, and optim.amsgrad selects the variant.
    std::vector<OptimizerKind> made;
    for_each_rule(
        [&](auto rule) {
          using Rule = decltype(rule);
          if constexpr (!Rule::hidden) {
            auto make = make_by_rule<Rule>;
            if constexpr (std::is_same_v<Rule, Adam>) make = make_by_rule<Adam, AdamAmsgrad>;
            if constexpr (std::is_same_v<Rule, AdamW>) make = make_by_rule<AdamW, AdamWAmsgrad>;
            made.push_back({.name = Rule::name, .doc = Rule::doc, .make = make});
          }
        },
        Rules{});

    // Then the methods that need whole tensors, which are not in the table of rules.
    made.insert(
        made.end(),
        {
            // columns: name, doc, make
            {"lamb", "Adam with steps in proportion to each tensor's norm", make_lamb},
            {"adafactor", "second moments only of rows and columns", make_adafactor},
            {"adam8bit", "adam with moments in 8 bits", make_adam8bit},
            {"adamw8bit", "adamw with moments in 8 bits", make_adam8bit},
            {"muon", "orthogonalized momentum for hidden matrices, adamw for others", make_muon},
        });
    return made;
  }();
  return kinds;
}

}  // namespace

const std::vector<OptimizerKind>& optimizer_kinds() { return all(); }

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : all()) names.push_back(kind.name);
  return names;
}

void add_optimizer_kind(OptimizerKind kind) {
  for (const OptimizerKind& other : all())
    LATHE_CHECK(other.name != kind.name, "add_optimizer_kind: there is an optimizer ", kind.name,
                " already");
  kind.reads_any_key = true;
  all().push_back(std::move(kind));
}

std::unique_ptr<Method> make_method(const OptimConfig& config) {
  for (const OptimizerKind& kind : all()) {
    if (kind.name == config.kind) return kind.make(config);
  }
  fail(Exit::usage, "there is no optimizer ", config.kind);
}

at::ScalarType state_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

MethodState state_of_rule(const UpdateRule& rule, const at::Tensor& parameter) {
  MethodState state;
  with_rule(rule.kind, [&](auto r) {
    for (const RuleState& s : decltype(r)::state(rule))
      state.tensors.push_back({.name = s.name,
                               .sizes = parameter.sizes().vec(),
                               .dtype = state_dtype(parameter),
                               .place = s.place,
                               .start = s.start});
  });
  return state;
}

void update_elements(const std::vector<SlotUpdate>& slots, const UpdateRule& rule,
                     StepControl* control, bool cuda) {
  // The size of a piece must not depend on the number of threads, because the last elements of a
  // loop may be rounded differently from elements that fill SIMD vectors.
  constexpr int64_t piece = 1 << 14;

  if (!cuda) {
    std::vector<int64_t> sizes;
    for (const SlotUpdate& slot : slots) sizes.push_back(slot.args.n);
    each_piece_of(sizes, piece, [&](size_t which, int64_t, int64_t begin, int64_t end) {
      update_cpu(slots[which].args, rule, control, begin, end);
    });
    return;
  }

  std::vector<UpdateArgs> args;
  for (const SlotUpdate& slot : slots) args.push_back(slot.args);
  if (!args.empty())
    cuda_api().update(args.data(), static_cast<int64_t>(args.size()), rule, control);
}

}  // namespace lathe
