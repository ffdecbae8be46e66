// The table of commands.
#include "train/verbs/verbs.h"

#include <algorithm>

namespace lathe {

Verb train_verb();
Verb launch_verb();
Verb plan_verb();
Verb prepare_verb();
Verb profile_verb();
Verb tokenizer_verb();
Verb eval_verb();
Verb predict_verb();
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

/// Returns a command with its heading in `lathe --help` and its line there: one sentence of at most
/// 66 characters.
Verb listed(const char* group, const char* brief, Verb verb) {
  verb.group = group;
  verb.brief = brief;
  return verb;
}

std::vector<Verb>& verb_table() {
  static std::vector<Verb> all{
      listed("Train", "Train a model from a config, or resume its run.", train_verb()),
      listed("Train", "Train with several processes on this machine.", launch_verb()),
      listed("Train", "Train many runs: grids, random samples, successive halving.", sweep_verb()),
      listed("Train", "Forecast the memory, time and disk space of a run.", plan_verb()),
      listed("Train", "Find a learning rate, or the largest micro-batch that fits.", finder_verb()),
      listed("Train", "Rerun a diverged step and name the op where it diverged.", replay_verb()),
      listed("Data", "Convert text, JSON Lines, tables or arrays into training data.",
             prepare_verb()),
      listed("Data", "Train, inspect and apply byte-level BPE tokenizers.", tokenizer_verb()),
      listed("Models", "Compute the loss, accuracy or perplexity of a model.", eval_verb()),
      listed("Models", "Predict classes or numbers for new tables and arrays.", predict_verb()),
      listed("Models", "Generate text that continues a prompt.", generate_verb()),
      listed("Models", "Chat with a fine-tuned model in the terminal.", chat_verb()),
      listed("Models", "Import a Hugging Face model as a run.", import_verb()),
      listed("Models", "Export a model as a Hugging Face folder or a GGUF file.", export_verb()),
      listed("Models", "Merge low-rank adapters into the model under them.", merge_verb()),
      listed("Inspect", "List the runs in a folder.", runs_verb()),
      listed("Inspect", "Draw the curves of runs in the terminal, live.", watch_verb()),
      listed("Inspect", "Write an offline HTML page of one run or several.", report_verb()),
      listed("Inspect", "Compare the configs, curves and bits of two runs.", compare_verb()),
      listed("Inspect", "Show what is in a run, a checkpoint or a data folder.", inspect_verb()),
      listed("Inspect", "Check a run, a checkpoint or a data folder for damage.", verify_verb()),
      listed("Inspect", "Show which gradients of a model float16 can hold.", gradients_verb()),
      listed("Tools", "Show where the time and memory of a training step go.", profile_verb()),
      listed("Tools", "Time training steps, generation, ops or matrix products.", bench_verb()),
      listed("Tools", "Show or check a config; print reference pages and completion.",
             config_verb()),
  };

  return all;
}

}  // namespace

const std::vector<Verb>& verbs() { return verb_table(); }

void add_verb(Verb verb) {
  const bool taken = std::any_of(verb_table().begin(), verb_table().end(),
                                 [&](const Verb& v) { return v.name == verb.name; });
  LATHE_CHECK(!taken, "there is a verb ", verb.name, " already; give yours another name");
  if (verb.group.empty()) verb.group = "Your own";
  if (verb.brief.empty())
    verb.brief = verb.doc.substr(0, std::min(verb.doc.find("; "), verb.doc.find(". ")));
  verb_table().push_back(std::move(verb));
}

}  // namespace lathe
