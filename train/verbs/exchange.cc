// `lathe import` and `lathe export` exchange models with other programs.
#include <algorithm>

#include "core/io/log.h"
#include "train/formats/gguf.h"
#include "train/run/stop.h"
#include "train/verbs/verbs.h"

namespace lathe {
namespace {

Exit run_import(const Arguments& arguments) {
  ImportOptions o{.folder = arguments.words[0], .out = arguments.get("out", "")};
  if (o.out.empty()) fail(Exit::usage, "lathe import needs --out RUN");
  o.block_size = static_cast<int64_t>(arguments.number("block-size", 0, between(0, 1000000), true));
  o.tokenizer = arguments.get("tokenizer", o.tokenizer);
  o.chat_template = arguments.get("chat-template", "");
  if (o.tokenizer != "auto" && o.tokenizer != "none" && !fs::exists(o.tokenizer))
    fail(Exit::usage,
         "command line: --tokenizer must be auto, none, or the path of a tokenizer, and there is "
         "no file ",
         o.tokenizer);

  install_stop_handlers("the import");
  o.stop = [] { return stop_signal() != 0; };
  log_info("imported as ", import_hugging_face(o).string());
  return Exit::done;
}

Exit run_export(const Arguments& arguments) {
  ExportOptions o{.run = run_argument(arguments), .out = arguments.get("out", "")};
  if (o.out.empty()) fail(Exit::usage, "lathe export needs --out FOLDER");
  const auto choice = [&](const char* name, const char* otherwise,
                          const std::vector<std::string>& allowed) {
    const std::string value = arguments.get(name, otherwise);
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      fail(Exit::usage, "command line: --", name, " must be ", rule_text(one_of(allowed)), ", not ",
           value);
    return value;
  };
  const std::string format = choice("format", "hf", {"hf", "gguf"});
  o.checkpoint = arguments.get("checkpoint", o.checkpoint);
  o.chat_template = arguments.get("chat-template", "");
  o.average = choice("weights", "model", {"model", "ema"}) == "ema";
  if (arguments.flags.contains("dtype")) o.dtype = choice("dtype", "", {"fp32", "bf16", "fp16"});

  install_stop_handlers("the export");
  o.stop = [] { return stop_signal() != 0; };
  format == "hf" ? export_hugging_face(o) : export_gguf(o);
  log_info("exported to ", o.out.string());
  return Exit::done;
}

}  // namespace

Verb import_verb() {
  return {"import",
          "FOLDER --out RUN",
          "make a run of a Hugging Face folder (config.json, safetensors, tokenizer.json), for "
          "eval, generate, export "
          "and train.init_from",
          "import downloads/gpt2 --out runs/gpt2",
          {{"out", "folder for the run"},
           {"block-size", "context in tokens, where the model's whole one is not wanted (all)"},
           {"tokenizer",
            "auto: the folder's; the path of another; or none, for the weights alone (auto)"},
           {"chat-template", "chatml, llama3, or a file in Jinja, in place of the folder's"}},
          false,
          1,
          1,
          run_import};
}

Verb export_verb() {
  return {
      "export",
      "RUN|CHECKPOINT --out FOLDER",
      "write a model for other programs: as a Hugging Face folder, or a GGUF file",
      "export runs/gpt2 --format hf --out exported/gpt2",
      {{"out", "folder to make"},
       {"format",
        "hf: config.json, model.safetensors and, of a BPE, tokenizer.json; gguf: model.gguf (hf)"},
       {"dtype", "of matrices: fp32, bf16 or fp16 (as they are saved)"},
       {"chat-template", "chatml, llama3, or a file in Jinja, in place of the run's"},
       {"checkpoint", "of a run: newest, best, or a name such as step-00001000 (newest)"},
       {"weights", "model, or ema: the moving average that optim.ema_decay keeps (model)"}},
      false,
      1,
      1,
      run_export};
}

}  // namespace lathe
