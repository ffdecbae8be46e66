// The table of verbs.
#include "train/verbs/verbs.h"

#include <algorithm>

namespace lathe {

Verb train_verb();
Verb plan_verb();
Verb prepare_verb();
Verb profile_verb();
Verb tokenizer_verb();
Verb eval_verb();
Verb generate_verb();
Verb chat_verb();
Verb gradients_verb();
Verb replay_verb();
Verb merge_verb();
Verb import_verb();
Verb export_verb();
Verb inspect_verb();
Verb verify_verb();
Verb bench_verb();
Verb runs_verb();
Verb compare_verb();
Verb watch_verb();
Verb report_verb();
Verb sweep_verb();
Verb finder_verb();
Verb config_verb();

namespace {

std::vector<Verb>& verb_table() {
  static std::vector<Verb> all{train_verb(),   plan_verb(),     prepare_verb(), tokenizer_verb(),
                               eval_verb(),    generate_verb(), chat_verb(),    gradients_verb(),
                               replay_verb(),  merge_verb(),    import_verb(),  export_verb(),
                               inspect_verb(), verify_verb(),   runs_verb(),    compare_verb(),
                               report_verb(),  watch_verb(),    sweep_verb(),   bench_verb(),
                               profile_verb(), finder_verb(),   config_verb()};
  return all;
}

}  // namespace

const std::vector<Verb>& verbs() { return verb_table(); }

void add_verb(Verb verb) {
  const bool taken = std::any_of(verb_table().begin(), verb_table().end(),
                                 [&](const Verb& v) { return v.name == verb.name; });
  LATHE_CHECK(!taken, "there is a verb ", verb.name, " already; give yours another name");
  verb_table().push_back(std::move(verb));
}

}  // namespace lathe
