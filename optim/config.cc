#include "optim/config.h"

#include "core/error.h"

namespace lathe {

std::vector<GroupOptions> group_options(const OptimConfig& config) {
  std::vector<GroupOptions> groups;
  for (const auto& table : config.groups) {
    // Messages count groups from 1, in the order of the file.
    const std::string where = str("optim.groups, group ", groups.size() + 1, ": ");
    GroupOptions group;

    for (const auto& [key, value] : table) {
      // The tables of optim.groups hold plain values, but toml_text() prints ConfigValues.
      const ConfigValue as_value = std::visit([](const auto& x) { return ConfigValue(x); }, value);
      // Returns `value` as a number. A text or a boolean becomes -1, which the check then refuses.
      // The condition `!(x >= 0)` also refuses NaN.
      const auto number = [&] {
        const auto* whole = std::get_if<int64_t>(&value);
        const auto* real = std::get_if<double>(&value);
        const double x = whole != nullptr  ? static_cast<double>(*whole)
                         : real != nullptr ? *real
                                           : -1;
        if (!(x >= 0) || x > 1e30)
          fail(Exit::usage, where, key, " must be a number from 0 to 1e30, not ",
               toml_text(as_value));
        return x;
      };

      if (key == "match") {
        const auto* pattern = std::get_if<std::string>(&value);
        if (pattern == nullptr || pattern->empty())
          fail(Exit::usage, where, "match must be a pattern of paths, such as \"*.bias\", not ",
               toml_text(as_value));
        group.pattern = *pattern;
      } else if (key == "lr_scale") {
        group.lr_factor = number();
      } else if (key == "weight_decay") {
        group.weight_decay = number();
      } else {
        const std::string near = nearest(key, {"match", "lr_scale", "weight_decay"});
        fail(Exit::usage, where, "there is no key ", key, "; ",
             near.empty() ? "a group has match, lr_scale and weight_decay"
                          : "did you mean " + near + "?");
      }
    }

    if (group.pattern.empty())
      fail(Exit::usage, where,
           "match is missing; add a pattern of paths, such as match = \"*.bias\"");

    groups.push_back(std::move(group));
  }

  return groups;
}

UpdateRule rule_of(const OptimConfig& c) {
  return {.nesterov = c.nesterov,
          .centered = c.centered,
          .amsgrad = c.amsgrad,
          .beta1 = c.beta1,
          .beta2 = c.beta2,
          .eps = c.eps,
          .momentum = c.momentum,
          .dampening = c.dampening,
          .alpha = c.alpha,
          .lr_decay = c.lr_decay,
          .initial_accumulator = c.initial_accumulator,
          .momentum_decay = c.momentum_decay,
          .clip_value = c.grad_clip_by == "value" ? c.grad_clip : 0,
          .clip_parameter = c.grad_clip_by == "parameter" ? c.grad_clip : 0,
          .average_decay = c.ema_decay};
}

}  // namespace lathe
