// Tests of adapters: the choice of layers that get adapters, and adapters with magnitudes (DoRA).
#include "train/transforms/adapters.h"

#include "autograd/engine.h"
#include "core/io/json.h"
#include "nn/layers/linear.h"
#include "tests/support/process.h"
#include "tests/support/torch_oracle.h"
#include "train/store/curves.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Runs `lathe` in a folder, and requires that it succeeds.
Finished ran_in(const TempFolder& f, const std::vector<std::string>& words) {
  const Finished done = lathe_in(f, words);
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  return done;
}

TEST_CASE("an adapter with magnitudes computes DoRA and its gradients, and can be merged",
          "[adapters]") {
  torch::manual_seed(2);
  constexpr int64_t in = 6, out = 5, rank = 2;
  Linear layer(in, out, true);
  const at::Tensor w = torch::randn({out, in}), bias = torch::randn({out}),
                   x = torch::randn({4, in}), dy = torch::randn({4, out});
  layer.weight = Variable(w.clone());
  layer.bias = Variable(bias.clone());
  layer.add_adapter(rank, 3);
  layer.lora_a.data().normal_();
  layer.add_magnitudes();
  CHECK(distance(layer.lora_m.data(), w.norm(2, 1)) < 1e-6);
  const at::Tensor plain = at::linear(x, w, bias);
  CHECK(distance(layer(Variable(x)).data(), plain) < 1e-5);  // a new adapter has no effect

  layer.lora_b.data().normal_();
  layer.lora_m.data().mul_(1.5).add_(0.1);
  const at::Tensor a = layer.lora_a.data().clone().requires_grad_(),
                   b = layer.lora_b.data().clone().requires_grad_(),
                   m = layer.lora_m.data().clone().requires_grad_();
  const at::Tensor adapted = w + 1.5 * at::matmul(b, a);
  const at::Tensor weight = (m / adapted.norm(2, 1).detach()).unsqueeze(1) * adapted;
  const at::Tensor expected = at::linear(x, weight, bias);
  expected.backward(dy);
  const Variable y = layer(Variable(x));
  backward(sum(y * Variable(dy)));
  CHECK(distance(y.data(), expected) < 1e-5);
  CHECK(distance(layer.lora_a.grad(), a.grad()) < 1e-5);
  CHECK(distance(layer.lora_b.grad(), b.grad()) < 1e-5);
  CHECK(distance(layer.lora_m.grad(), m.grad()) < 1e-5);
  const Variable residual(torch::randn({4, out}));
  CHECK(distance(layer(Variable(x), residual).data(), expected + residual.data()) < 1e-5);

  layer.merge_adapter();
  CHECK(!layer.has_adapter());
  CHECK(distance(layer.weight.data(), weight) < 1e-5);
  CHECK(distance(layer(Variable(x)).data(), expected) < 1e-5);
}

TEST_CASE(
    "adapters.layers chooses layers, and runs whose adapters have magnitudes resume and merge",
    "[adapters]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto ran = [&](const std::vector<std::string>& words) { return ran_in(f, words); };
  const auto tune = [](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words{"train",
                                   "tiny.toml",
                                   "--train.out_dir=" + out,
                                   "--adapters.rank=2",
                                   "--optim.lr=1e-2",
                                   "--train.init_from=base"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  // This run is the base of the other runs, which take the keys of [model] from it.
  ran({"train", "tiny.toml", "--train.out_dir=base"});

  ran(tune("some", {"--adapters.layers=blocks.0.attn.*,*.mlp.down", "--train.steps=10"}));
  const std::string tensors = ran({"inspect", "some/checkpoints/step-00000010"}).out;
  CHECK_THAT(tensors, ContainsSubstring("blocks.0.attn.qkv.lora_a"));
  CHECK_THAT(tensors, ContainsSubstring("blocks.1.mlp.down.lora_b"));
  CHECK_THAT(tensors, !ContainsSubstring("blocks.1.attn"));
  CHECK_THAT(tensors, !ContainsSubstring("mlp.up"));
  CHECK_THAT(tensors, !ContainsSubstring("lora_m"));
  const Finished none = lathe_in(f, tune("none", {"--adapters.layers=*.attn.qkv,*.nothing"}));
  CHECK(none.code == 2);
  CHECK_THAT(none.err, ContainsSubstring("adapters.layers") && ContainsSubstring("*.nothing"));
  CHECK(!fs::exists(f / "none"));

  for (const std::string dtype : {"fp32", "int8"}) {
    std::vector<std::string> keys{"--adapters.dora=true", "--adapters.dtype=" + dtype};
    if (dtype == "int8") keys.emplace_back("--amp.dtype=bf16");
    ran(tune("whole" + dtype, keys));
    std::vector<std::string> part = keys;
    part.emplace_back("--train.pause_at=17");
    CHECK(lathe_in(f, tune("parts" + dtype, part)).code == 75);
    ran(tune("parts" + dtype, keys));
    CHECK(difference(f / ("whole" + dtype), f / ("parts" + dtype)) == "");
  }
  CHECK_THAT(ran({"inspect", "wholefp32/checkpoints/step-00000040"}).out,
             ContainsSubstring("blocks.0.attn.qkv.lora_m"));

  ran({"merge", "wholefp32", "--out", "merged"});
  CHECK(summarize(f / "merged").state == "merged");
  const Json adapted = parse_json(ran({"eval", "wholefp32"}).out, "", Exit::internal),
             merged = parse_json(ran({"eval", "merged"}).out, "", Exit::internal),
             base = parse_json(ran({"eval", "base"}).out, "", Exit::internal);
  CHECK(merged["val_loss"].get<double>() ==
        Approx(adapted["val_loss"].get<double>()).epsilon(1e-5));
  CHECK(adapted["val_loss"].get<double>() < base["val_loss"].get<double>());

  // The moving average of adapters can also be merged.
  const Finished without = lathe_in(f, {"merge", "wholefp32", "--out", "x", "--weights", "ema"});
  CHECK(without.code == 2);
  CHECK_THAT(without.err, ContainsSubstring("optim.ema_decay"));
  CHECK(!fs::exists(f / "x"));
  ran(tune("averaged", {"--optim.ema_decay=0.8"}));
  ran({"merge", "averaged", "--out", "merged_average", "--weights", "ema"});
  const auto loss = [&](const std::vector<std::string>& words) {
    const Json result = parse_json(ran(words).out, "", Exit::internal);
    return result["val_loss"].get<double>();
  };
  const double average = loss({"eval", "averaged", "--weights", "ema"});
  CHECK(loss({"eval", "merged_average"}) == Approx(average).epsilon(1e-6));
  CHECK(std::fabs(loss({"eval", "averaged"}) - average) > 1e-4 * average);
}

TEST_CASE("adapters in PEFT's format keep the chat template of their training", "[adapters]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto ran = [&](const std::vector<std::string>& words) { return ran_in(f, words); };
  std::string text;
  for (int i = 0; i < 400; ++i) text += str("line ", i, " of the text\n");
  write_file(f / "lines.txt", text);
  ran({"tokenizer", "train", "lines.txt", "--out", "bpe", "--vocab-size", "290"});
  ran({"prepare", "lines.txt", "--tokenizer", "bpe", "--out", "lines"});
  ran({"train", "tiny.toml", "--data.dir=lines", "--train.out_dir=base", "--train.steps=2"});
  ran({"train", "tiny.toml", "--data.dir=lines", "--train.out_dir=tuned", "--adapters.rank=2",
       "--adapters.base=base", "--train.steps=2"});
  ran({"export", "tuned", "--format", "peft", "--out", "peft"});
  CHECK(fs::exists(f / "peft/tokenizer_config.json"));

  // Programs that train adapters write this file.
  const std::string own = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
  write_file(f / "peft/chat_template.jinja", own);
  ran({"import", "peft", "--base", "base", "--out", "back"});
  ran({"export", "back", "--format", "peft", "--out", "again"});
  CHECK(slurp(f / "again/chat_template.jinja") == own);
  ran({"merge", "back", "--out", "merged"});
  ran({"export", "merged", "--out", "hf"});
  CHECK(slurp(f / "hf/chat_template.jinja") == own);
}

TEST_CASE(
    "adapters are exported to PEFT's format and imported from it, and unsupported files are "
    "refused",
    "[adapters]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto ran = [&](const std::vector<std::string>& words) { return ran_in(f, words); };
  ran({"train", "tiny.toml", "--train.out_dir=base", "--train.steps=5"});
  for (const std::string dora : {"false", "true"}) {
    const std::string run = "tuned" + dora, out = "peft" + dora, back = "back" + dora;
    ran({"train", "tiny.toml", "--train.out_dir=" + run, "--adapters.rank=2",
         "--adapters.base=base", "--adapters.alpha=3", "--adapters.dora=" + dora,
         dora == "true" ? "--adapters.layers=*.mlp.*" : "--adapters.layers=", "--optim.lr=1e-2",
         "--train.steps=10"});

    ran({"export", run, "--format", "peft", "--out", out});
    ran({"import", out, "--base", "base", "--out", back});
    CHECK(slurp(f / run / "checkpoints/step-00000010/model.safetensors") ==
          slurp(f / back / "checkpoints/step-00000000/model.safetensors"));

    // An imported run has no data folder, so eval needs --data.
    const auto loss = [&](const std::string& name) {
      const Finished done = ran({"eval", name, "--data", "data", "--batch-size", "3"});
      return parse_json(done.out, "", Exit::internal)["val_loss"].get<double>();
    };
    CHECK(loss(run) == Approx(loss(back)).epsilon(1e-6));
    CHECK(loss(run) != loss("base"));
  }

  const std::string config = slurp(f / "peftfalse/adapter_config.json");
  const auto refused = [&](const std::string& changed, const std::vector<std::string>& more,
                           const std::string& what, Exit code) {
    write_file(f / "peftfalse/adapter_config.json", changed);
    std::vector<std::string> words{"import", "peftfalse", "--out", "refused"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, words);
    INFO(what << ": " << done.err);
    CHECK(done.code == static_cast<int>(code));
    CHECK_THAT(done.err, ContainsSubstring(what));
    CHECK(!fs::exists(f / "refused"));
  };

  const auto with = [&](const char* key, const Json& value) {
    Json json = parse_json(config, "", Exit::internal);
    json[key] = value;
    return json_text(json);
  };

  const std::vector<std::string> on_base{"--base", "base"};
  refused(config, {}, "--base", Exit::usage);
  refused(config, {"--base", "base", "--tokenizer", "none"}, "--tokenizer", Exit::usage);
  refused(config, {"--base", "tunedfalse"}, "tunedfalse", Exit::usage);
  refused(with("peft_type", "IA3"), on_base, "IA3", Exit::checkpoint);
  refused(with("bias", "all"), on_base, "bias", Exit::checkpoint);
  refused(with("r", 3), on_base, "adapter_model.safetensors", Exit::checkpoint);
  refused(with("modules_to_save", {"lm_head"}), on_base, "modules_to_save", Exit::checkpoint);
  refused(with("use_dora", true), on_base, "lora_m", Exit::checkpoint);
  refused("[]", on_base, "adapter_config.json", Exit::checkpoint);

  write_file(f / "rnn.toml",
             "[model]\nkind = \"rnn\"\nn_layer = 1\nn_hidden = 8\nn_embd = 8\n[data]\ndir = "
             "\"data\"\n[train]\n"
             "steps = 1\nbatch_size = 1\neval_interval = 0\n");
  ran({"train", "rnn.toml", "--train.out_dir=recurrent"});
  refused(config, {"--base", "recurrent"}, "kind rnn", Exit::usage);

  // If adapters were initialized by EVA, PEFT also writes the settings of EVA. Such adapters are
  // accepted, since this initialization does not change the base.
  Json eva = parse_json(with("init_lora_weights", "eva"), "", Exit::internal);
  eva["eva_config"] = {{"rho", 2.0}, {"tau", 0.99}};
  write_file(f / "peftfalse/adapter_config.json", json_text(eva));
  ran({"import", "peftfalse", "--base", "base", "--out", "eva"});

  write_file(f / "peftfalse/adapter_config.json", with("modules_to_save", nullptr));
  // The unchanged adapters are accepted.
  ran({"import", "peftfalse", "--base", "base", "--out", "refused"});
  CHECK(lathe_in(f, {"export", "base", "--format", "peft", "--out", "none"}).code == 2);
}

}  // namespace
