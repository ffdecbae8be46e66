#include "train/formats/onnx.h"

#include "core/io/json.h"
#include "data/tokenizers/bpe.h"
#include "train/formats/exported.h"
#include "train/formats/onnx_examples.h"
#include "train/formats/onnx_layers.h"
#include "train/store/encoding.h"

namespace lathe {
namespace {

const OnnxKind& onnx_kind(const fs::path& run, const std::string& name) {
  std::string known;
  for (const OnnxKind& kind : onnx_kinds()) {
    if (kind.name == name) return kind;
    known += (known.empty() ? "" : ", ") + kind.name;
  }
  fail(Exit::usage, run.string(), ": ONNX files are for models of the kinds ", known, ", not for ",
       name, "; give another --format");
}

/// Returns the weights and buffers of a checkpoint's model in float32.
StateDict weights_of(const fs::path& checkpoint, const RunConfig& config, const ModelSizes& sizes,
                     bool average) {
  const auto model = find_model_kind(config.model.kind)->make(config.model.own, sizes);
  load_parameters(checkpoint, saved_tensors(*model));
  if (average) load_averages(checkpoint, trained_parameters(*model));
  return state_dict(*model);
}

/// Adds a language model and its metadata. The model maps ids [batch, time] to logits [batch, time,
/// V]. Writes a BPE tokenizer to tokenizer.json in `out`.
void add_language_model(OnnxLayers& layers, const OnnxKind& kind, const RunConfig& config,
                        const RunState& state, const fs::path& out) {
  OnnxGraph& graph = layers.graph();
  graph.add_input("ids", OnnxType::i64, {"batch", "time"});
  const std::string logits = kind.add(layers, config.model.own, state.sizes, "ids");
  graph.add_node("Identity", {logits}, {}, "logits");
  graph.add_output("logits", OnnxType::f32,
                   {"batch", "time", value_of<int64_t>(config.model.own, "vocab_size")});
  graph.set_metadata("context", std::to_string(value_of<int64_t>(config.model.own, "block_size")));

  if (!state.tokenizer) return;
  graph.set_metadata("tokenizer", state.tokenizer->kind());
  if (const BPE* bpe = state.tokenizer->bpe(); bpe != nullptr)
    write_bpe(bpe->definition(), out / "tokenizer.json");
  else if (!state.tokenizer->vocabulary().empty())
    graph.set_metadata("characters", json_text(state.tokenizer->vocabulary()));
}

}  // namespace

void export_onnx(const ExportOptions& o) {
  if (!o.dtype.empty() && o.dtype != "fp32")
    fail(Exit::usage,
         "command line: --dtype does not apply to ONNX, which is written in fp32; "
         "leave it out");
  if (!o.chat_template.empty())
    fail(Exit::usage, "command line: --chat-template does not apply to ONNX; leave it out");

  const fs::path checkpoint = find_checkpoint(o.run, o.checkpoint);
  const RunState state = read_state(checkpoint);
  const RunConfig config = saved_config(state, checkpoint);
  check_exportable(o, config);
  const OnnxKind& kind = onnx_kind(o.run, config.model.kind);
  const bool is_language = state.sizes.outputs == 0, classifies = state.task == "classification";
  if (!is_language && !classifies && state.task != "regression")
    fail(Exit::usage,
         "this build writes ONNX files for classification, regression and language "
         "models, not for the task ",
         state.task);

  OnnxGraph graph;
  OnnxLayers layers(graph, weights_of(checkpoint, config, state.sizes, o.average));
  graph.set_metadata("task", state.task);
  NewFolder out(o.out, o.stop);
  if (is_language) {
    add_language_model(layers, kind, config, state, out.path());
  } else {
    const ExampleEncoding encoding = encoding_of(o.run, state, config);
    const std::string x = add_example_inputs(graph, encoding);
    const std::string y = kind.add(layers, config.model.own, state.sizes, x);
    add_example_outputs(graph, encoding, classifies, y);
  }

  out.check_stop();
  graph.write(out.path() / "model.onnx");
  out.publish();
}

}  // namespace lathe
