// Implements `lathe import` and `lathe export`, which exchange models with other programs.
#include <algorithm>
#include <iterator>

#include "core/io/log.h"
#include "core/io/text.h"
#include "data/tokenizers/chat_template.h"
#include "train/commands/commands.h"
#include "train/formats/gguf.h"
#include "train/formats/gguf_model.h"
#include "train/formats/onnx.h"
#include "train/formats/peft.h"
#include "train/loop/stop.h"
#include "train/store/checkpoint_tensors.h"

namespace lathe {
namespace {

/// Logs the model, tokenizer and chat template of an imported run, and useful next commands.
void report_import(const fs::path& run) {
  const fs::path checkpoint = find_checkpoint(run);
  const RunState state = read_state(checkpoint);
  const RunConfig config = saved_config(state, checkpoint);
  double parameters = 0;
  std::string dtype;
  const CheckpointTensors model(checkpoint, CheckpointPart::model);
  for (const TensorEntry& t : model.tensors()) {
    double elements = 1;
    for (const int64_t size : t.shape) elements *= static_cast<double>(size);
    parameters += elements;
    if (dtype.empty() && t.shape.size() == 2) dtype = t.dtype;
  }

  log_info("model     ", config.model.kind, ", ", format("%.2f", parameters / 1e6),
           "M parameters in ", dtype, ", context of ", model_context(config), " tokens");
  for (const std::string& key : state.ignored_keys)
    log_info("ignored   ", key, ", as --ignore-key asks");
  const std::string tune =
      str("lathe train CONFIG --data.dir=DATA --train.init_from=", run.string());
  if (!state.tokenizer) {
    log_info("tokenizer none");
    log_info("next      ", tune);
    return;
  }

  const Tokenizer& tokenizer = *state.tokenizer;
  const int32_t end = tokenizer.marks().end;
  const std::string chat = describe_chat(tokenizer);
  log_info("tokenizer BPE of ", tokenizer.size(), " tokens",
           end >= 0 ? ", texts end with " + tokenizer.piece(end) : "");
  log_info("chat      ", chat.empty() ? "no template" : chat);
  log_info("next      lathe generate ", run.string(), " --prompt TEXT");
  log_info("          or lathe prepare TEXT --tokenizer ", run.string(), " --out DATA, then ",
           tune);
}

Exit import_adapters(const Arguments& arguments, const ImportOptions& o) {
  for (const char* flag : {"block-size", "tokenizer", "chat-template"}) {
    if (arguments.flags.contains(flag))
      fail(Exit::usage, "command line: --", flag,
           " does not apply to adapters, whose base has it; leave it out");
  }
  if (arguments.lists.contains("ignore-key"))
    fail(Exit::usage, "command line: --ignore-key does not apply to adapters; leave it out");
  const std::string base = arguments.get("base", "");
  if (base.empty())
    fail(Exit::usage, o.folder.string(),
         " holds adapters; name the run of the model that they were trained on as --base RUN");

  install_stop_handlers("the import");
  log_info("imported as ", import_peft({.folder = o.folder,
                                        .base = base,
                                        .out = o.out,
                                        .stop = [] { return stop_signal() != 0; }})
                               .string());
  log_info("next      lathe generate ", o.out.string(), " --prompt TEXT");
  log_info("          or lathe merge ", o.out.string(), " --out RUN");
  return Exit::done;
}

Exit run_import(const Arguments& arguments) {
  ImportOptions o{.folder = arguments.positionals[0], .out = arguments.get("out", "")};
  if (o.out.empty()) fail(Exit::usage, "lathe import needs --out RUN");
  if (is_peft(o.folder)) return import_adapters(arguments, o);
  if (arguments.flags.contains("base") && fs::exists(o.folder))
    fail(Exit::usage, "command line: --base is for adapters of PEFT, and ", o.folder.string(),
         " has no adapter_config.json; leave it out");
  o.block_size = static_cast<int64_t>(arguments.number("block-size", 0, between(0, 1000000), true));
  o.tokenizer = arguments.get("tokenizer", o.tokenizer);
  o.chat_template = arguments.get("chat-template", "");
  if (const auto given = arguments.lists.find("ignore-key"); given != arguments.lists.end())
    o.ignored_keys = given->second;
  if (o.tokenizer != "auto" && o.tokenizer != "none" && !fs::exists(o.tokenizer))
    fail(Exit::usage,
         "command line: --tokenizer must be auto, none, or the path of a tokenizer, and there is "
         "no file ",
         o.tokenizer);

  install_stop_handlers("the import");
  o.stop = [] { return stop_signal() != 0; };
  const bool is_file = fs::is_regular_file(o.folder);
  log_info("imported as ", (is_file ? import_gguf(o) : import_hugging_face(o)).string());
  report_import(o.out);
  return Exit::done;
}

Exit run_export(const Arguments& arguments) {
  ExportOptions o{.run = run_argument(arguments), .out = arguments.get("out", "")};
  if (o.out.empty()) fail(Exit::usage, "lathe export needs --out FOLDER");
  const std::string format = arguments.choice("format", "hf", {"hf", "gguf", "peft", "onnx"});
  o.checkpoint = arguments.get("checkpoint", o.checkpoint);
  o.chat_template = arguments.get("chat-template", "");
  o.average = wants_ema(arguments);
  std::vector<std::string> dtypes{"fp32", "bf16", "fp16"};
  const std::vector<std::string> quantized = gguf_dtypes();
  const std::string dtype = arguments.get("dtype", "");
  if (format == "gguf")
    dtypes.insert(dtypes.end(), quantized.begin(), quantized.end());
  else if (std::ranges::find(quantized, dtype) != quantized.end())
    fail(Exit::usage, "command line: --dtype ", dtype, " needs --format gguf");
  if (arguments.flags.contains("dtype")) o.dtype = arguments.choice("dtype", "", dtypes);

  install_stop_handlers("the export");
  o.stop = [] { return stop_signal() != 0; };
  const auto write = format == "hf"     ? export_hugging_face
                     : format == "gguf" ? export_gguf
                     : format == "onnx" ? export_onnx
                                        : export_peft;
  write(o);
  log_info("exported to ", o.out.string());
  return Exit::done;
}

}  // namespace

Command import_command() {
  return {
      .name = "import",
      .usage = "FOLDER|FILE.gguf --out RUN",
      .doc =
          "Import a Hugging Face folder, a GGUF file, or adapters of PEFT as a run for eval, "
          "generate, export and train.init_from.",
      .examples =
          {"import downloads/gpt2 --out runs/gpt2",
           "import downloads/llama --out runs/llama --block-size 2048 --chat-template llama3"},
      .flags =
          {{"out", "Write the run to this folder."},
           {"base", "Use this run or checkpoint as the base model of PEFT adapters."},
           {"block-size", "Limit the context to this many tokens. Default: the model's context."},
           {"tokenizer",
            "Take the model's tokenizer (auto), the one at a path, or none for the weights alone. "
            "Default: auto.",
            {"auto", "none"}},
           {"chat-template",
            "Set the chat template to chatml, llama3, or a Jinja file. Default: the model's.",
            {"chatml", "llama3"}},
           {"ignore-key",
            "Ignore this key of config.json, or of the architecture in a GGUF file. The key must "
            "not change what the model computes. It may be given several times."}},
      .run = run_import,
      .repeatable = {"ignore-key"}};
}

Command export_command() {
  return {
      .name = "export",
      .usage = "RUN|CHECKPOINT --out FOLDER",
      .doc =
          "Export a model for other programs, as a Hugging Face folder, a GGUF or ONNX file, or "
          "adapters for PEFT.",
      .examples = {"export runs/gpt2 --format hf --out exported/gpt2",
                   "export runs/gpt2 --format gguf --dtype fp16 --out exported/gpt2-gguf"},
      .flags =
          {{"out", "Write the model to this new folder."},
           {"format",
            "Write hf (config.json, model.safetensors and a BPE's tokenizer.json), gguf "
            "(model.gguf), peft (adapters), or onnx (model.onnx, for mlp, convnet, rnn and gpt). "
            "Default: hf.",
            {"hf", "gguf", "peft", "onnx"}},
           {"dtype",
            "Write matrices in fp32, bf16 or fp16, or in q8_0 or q4_0 with --format gguf. Default: "
            "as they are saved; onnx has fp32.",
            {"fp32", "bf16", "fp16", "q8_0", "q4_0"}},
           {"chat-template",
            "Set the chat template to chatml, llama3, or a Jinja file. Default: the run's.",
            {"chatml", "llama3"}},
           checkpoint_flag,
           weights_flag},
      .run = run_export};
}

}  // namespace lathe
