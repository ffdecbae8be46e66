// The table of verbs.
#include "train/verbs/verbs.h"

#include <algorithm>

namespace lathe {

Verb train_verb();
Verb plan_verb();
Verb prepare_verb();
Verb tokenizer_verb();
Verb eval_verb();
Verb generate_verb();
Verb chat_verb();
Verb gradients_verb();
Verb replay_verb();
Verb merge_verb();
Verb inspect_verb();
Verb verify_verb();
Verb bench_verb();
Verb config_verb();

namespace {

std::vector<Verb>& table() {
  static std::vector<Verb> all{train_verb(),    plan_verb(),   prepare_verb(),   tokenizer_verb(), eval_verb(),
                               generate_verb(), chat_verb(),   gradients_verb(), replay_verb(),    merge_verb(),
                               inspect_verb(),  verify_verb(), bench_verb(),     config_verb()};
  return all;
}

}  // namespace

const std::vector<Verb>& verbs() { return table(); }

void add_verb(Verb verb) {
  const bool taken = std::any_of(table().begin(), table().end(), [&](const Verb& v) { return v.name == verb.name; });
  LATHE_CHECK(!taken, "there is a verb ", verb.name, " already; give yours another name");
  table().push_back(std::move(verb));
}

}  // namespace lathe
