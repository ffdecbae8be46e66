// Defines the table of commands.
#include "train/commands/commands.h"

#include <algorithm>

namespace lathe {

Command train_command();
Command launch_command();
Command plan_command();
Command prepare_command();
Command profile_command();
Command tokenizer_command();
Command eval_command();
Command predict_command();
Command generate_command();
Command chat_command();
Command serve_command();
Command gradients_command();
Command replay_command();
Command merge_command();
Command import_command();
Command export_command();
Command inspect_command();
Command verify_command();
Command bench_command();
Command runs_command();
Command compare_command();
Command watch_command();
Command report_command();
Command sweep_command();
Command finder_command();
Command config_command();

namespace {

/// Sets the heading under which `lathe --help` lists a command, and the line that it prints there:
/// a sentence of at most 66 characters. Returns the command.
Command listed(const char* group, const char* summary, Command command) {
  command.group = group;
  command.summary = summary;
  return command;
}

std::vector<Command>& command_table() {
  static std::vector<Command> all{
      listed("Train", "Train a model from a config, or resume its run.", train_command()),
      listed("Train", "Train with several processes on this machine.", launch_command()),
      listed("Train", "Train many runs: grids, random samples, successive halving.",
             sweep_command()),
      listed("Train", "Forecast the memory, time and disk space of a run.", plan_command()),
      listed("Train", "Find a learning rate, or the largest micro-batch that fits.",
             finder_command()),
      listed("Train", "Rerun a diverged step and name the op where it diverged.", replay_command()),
      listed("Data", "Convert text, JSON Lines, tables or arrays into training data.",
             prepare_command()),
      listed("Data", "Train, inspect and apply byte-level BPE tokenizers.", tokenizer_command()),
      listed("Models", "Compute the loss, accuracy or perplexity of a model.", eval_command()),
      listed("Models", "Predict classes or numbers for new tables and arrays.", predict_command()),
      listed("Models", "Generate text that continues a prompt.", generate_command()),
      listed("Models", "Chat with a fine-tuned model in the terminal.", chat_command()),
      listed("Models", "Serve a language model over HTTP, with OpenAI's interface.",
             serve_command()),
      listed("Models", "Import a Hugging Face model or a GGUF file as a run.", import_command()),
      listed("Models", "Export a model as a Hugging Face folder or a GGUF file.", export_command()),
      listed("Models", "Merge adapters into their base, or the files of a checkpoint.",
             merge_command()),
      listed("Inspect", "List the runs in a folder.", runs_command()),
      listed("Inspect", "Draw the curves of runs in the terminal, live.", watch_command()),
      listed("Inspect", "Write an offline HTML page of one run or several.", report_command()),
      listed("Inspect", "Compare the configs, curves and bits of two runs.", compare_command()),
      listed("Inspect", "Show what is in a run, a checkpoint or a data folder.", inspect_command()),
      listed("Inspect", "Check a run, a checkpoint or a data folder for damage.", verify_command()),
      listed("Inspect", "Show which of a model's gradients float16 can represent.",
             gradients_command()),
      listed("Tools", "Show where the time and memory of a training step go.", profile_command()),
      listed("Tools", "Time training steps, generation, ops or matrix products.", bench_command()),
      listed("Tools", "Show or check a config; print reference pages and completion.",
             config_command()),
  };

  return all;
}

}  // namespace

const std::vector<Command>& commands() { return command_table(); }

void add_command(Command command) {
  const bool taken = std::any_of(command_table().begin(), command_table().end(),
                                 [&](const Command& v) { return v.name == command.name; });
  LATHE_CHECK(!taken, "there is a command ", command.name, " already; give yours another name");
  if (command.group.empty()) command.group = "Your own";
  if (command.summary.empty()) {
    const std::string& doc = command.doc;
    command.summary = doc.substr(0, std::min({doc.find("; "), doc.find(": "), doc.find(". ")}));
    if (!command.summary.ends_with('.')) command.summary += '.';
  }
  command_table().push_back(std::move(command));
}

}  // namespace lathe
