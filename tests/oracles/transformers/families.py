"""Compares model families related to Llama with transformers. Random models are imported and
exported again, and other models are trained and exported by Lathe. Logits must agree to 1e-5 of the
largest logit, and greedy tokens exactly, for sequences that are much longer than the sliding
windows.
"""
import json

RELATIVE = 1e-5
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def models():
    """Returns for each model its name, transformers' config and model class, and Lathe's config
    keys."""
    import transformers as t

    gemma = dict(head_dim=8, query_pre_attn_scalar=12, sliding_window=6)
    nested = {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300000.0},
              "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}
    listed = dict(use_sliding_window=True, sliding_window=6)
    return [
        ("mistral-window", t.MistralConfig, t.MistralForCausalLM, dict(sliding_window=6)),
        ("mistral-window-of-two", t.MistralConfig, t.MistralForCausalLM, dict(sliding_window=2)),
        ("mistral-window-yarn", t.MistralConfig, t.MistralForCausalLM, dict(sliding_window=9, rope=YARN)),
        ("qwen2-window", t.Qwen2Config, t.Qwen2ForCausalLM, dict(**listed, max_window_layers=1)),
        ("qwen3-window", t.Qwen3Config, t.Qwen3ForCausalLM,
         dict(**listed, head_dim=8, layer_types=["sliding_attention", "full_attention"] * 2)),
        ("llama-yarn", t.LlamaConfig, t.LlamaForCausalLM, dict(rope=YARN)),
        ("llama-yarn-not-truncated", t.LlamaConfig, t.LlamaForCausalLM, dict(rope={**YARN, "beta_slow": 0.05, "truncate": False})),
        ("llama-yarn-mscale", t.LlamaConfig, t.LlamaForCausalLM,
         dict(rope={**YARN, "mscale": 0.7, "mscale_all_dim": 1.4, "beta_fast": 4.0})),
        ("olmo2", t.Olmo2Config, t.Olmo2ForCausalLM, {}),
        ("olmo2-all-heads", t.Olmo2Config, t.Olmo2ForCausalLM, dict(num_key_value_heads=4, tie_word_embeddings=True)),
        ("smollm3", t.SmolLM3Config, t.SmolLM3ForCausalLM, {}),
        ("smollm3-window", t.SmolLM3Config, t.SmolLM3ForCausalLM, dict(**listed, no_rope_layers=[1, 0, 1, 0])),
        ("gemma2", t.Gemma2Config, t.Gemma2ForCausalLM, gemma),
        ("gemma2-without-caps", t.Gemma2Config, t.Gemma2ForCausalLM,
         dict(**gemma, attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False)),
        ("gemma2-low-caps", t.Gemma2Config, t.Gemma2ForCausalLM,
         dict(**gemma, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
        ("gemma3", t.Gemma3TextConfig, t.Gemma3ForCausalLM, dict(**gemma, sliding_window_pattern=3)),
        ("gemma3-scaled", t.Gemma3TextConfig, t.Gemma3ForCausalLM,
         dict(**gemma, rope_parameters=nested, layer_types=["sliding_attention"] * 3 + ["full_attention"])),
    ]


# These are wrong values of the keys in config.json that a family adds to Llama's keys. With each of
# them, logits or greedy tokens must differ.
CONTROLS = {
    "mistral-window": {"sliding_window": 7},
    "qwen2-window": {"max_window_layers": 0, "layer_types": ["sliding_attention"] * 4},
    "smollm3": {"no_rope_layers": [1, 1, 1, 1]},
    "gemma2-low-caps": {"attn_logit_softcapping": None},
    "gemma3": {"rope_local_base_freq": 12000.0},
    "llama-yarn-not-truncated": {"rope_scaling": {**YARN, "beta_slow": 0.05}},
    "llama-yarn-mscale": {"rope_scaling": {**YARN, "beta_fast": 4.0}},
}

TRAINED = {
    "mistral": "sliding_window = 5\n",
    "olmo2": 'norm_position = "post"\nqk_norm = true\nqk_norm_over = "projection"\n',
    "smollm3": 'rope_layers = "1110"\n',
    "gemma2": 'norm_position = "both"\nactivation = "gelu"\nscale_embeddings = true\nquery_pre_attn_scalar = 10\n'
              'attention_softcap = 50\nlogit_softcap = 30\nsliding_window = 5\nwindow_layers = "10"\n',
    "gemma3_text": 'norm_position = "both"\nactivation = "gelu"\nscale_embeddings = true\nqk_norm = true\n'
                   'sliding_window = 5\nwindow_layers = "110"\nrope_theta = 1e6\nrope_local_theta = 1e4\n',
}


def families(bench):
    import oracle

    def compare(name, folder, run, ids, must_differ=False):
        mine, my_tokens = bench.logits(run, ids, 26)
        other, their_tokens = oracle.theirs(folder, ids, 26)
        assert mine.shape == other.shape, f"{name}: logits {tuple(mine.shape)} and {tuple(other.shape)}"
        apart = ((mine - other).abs().max() / other.abs().max()).item()
        same = my_tokens == their_tokens
        print(f"{name}: logits differ by {apart:.1e} of the largest, greedy tokens {'agree' if same else 'differ'}")
        assert (apart < RELATIVE and same) != must_differ, f"{name}: {'a control agrees' if must_differ else 'too far apart'}"

    for name, config, kind, more in models():
        sizes = dict(vocab_size=oracle.VOCABULARY, max_position_embeddings=oracle.CONTEXT, hidden_size=32, intermediate_size=72,
                     num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, bos_token_id=None,
                     eos_token_id=None)
        more = dict(more)
        if "rope" in more:
            more["rope_parameters"] = {"rope_theta": 10000.0, **more.pop("rope")}
        model = oracle.randomise(kind(config(**{**sizes, **more})))
        folder, run, again = (bench.path(name + end) for end in ("", "-run", "-again"))
        model.save_pretrained(folder)
        (folder / "tokenizer.json").write_bytes(bench.tokenizer.read_bytes())
        bench.call("import", folder, "--out", run)
        compare(name + ", imported", folder, run, oracle.some_ids())
        bench.call("export", run, "--out", again)
        compare(name + ", exported again", again, run, oracle.some_ids())
        oracle.texts(bench, name, again, run)
        if name in CONTROLS:
            written = json.loads((again / "config.json").read_text())
            written.update(CONTROLS[name])
            (again / "config.json").write_text(json.dumps(written))
            compare(name + f", control with {', '.join(CONTROLS[name])}", again, run, oracle.some_ids(), must_differ=True)

    text, data = bench.path("families.txt"), bench.path("families-data")
    text.write_text(oracle.TEXT * 4)
    bench.call("prepare", text, "--out", data, "--tokenizer", bench.tokenizer)
    for name, keys in TRAINED.items():
        config, run, out = bench.path(name + ".toml"), bench.path(name + "-trained"), bench.path(name + "-trained-hf")
        config.write_text('[model]\nkind = "llama"\nn_layer = 4\nn_head = 4\nn_kv_head = 2\nn_embd = 32\nblock_size = 48\n' + keys +
                          '[optim]\nlr = 0.01\n[train]\nsteps = 30\nbatch_size = 4\n')
        bench.call("train", config, f"--data.dir={data}", f"--train.out_dir={run}")
        bench.call("export", run, "--out", out)
        kind = json.loads((out / "config.json").read_text())["model_type"]
        assert kind == name, f"a model of the family {name} is exported as {kind}"
        compare(name + ", trained by Lathe and exported", out, run, oracle.some_ids(280))
        oracle.texts(bench, name + " trained by Lathe", out, run)
