#!/usr/bin/env python3
"""Compares models before and after `lathe import` and `lathe export` with transformers. The models
are small and have random weights. Logits in float32 must agree to 1e-4, and greedily generated
tokens exactly.

  tests/oracles/transformers/oracle.py LATHE LATHE_TESTS [NAME ...]

If the package gguf is installed, GGUF files are checked too. Exits with 77 and prints the reason if
torch, transformers, tokenizers or safetensors is missing both in this interpreter and in the one
that LATHE_HF_PYTHON names. The test must notice wrong weights and keys, such as weights that were
not transposed.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import packages  # noqa: E402
from families import families
from scores import scores

PACKAGES = ["torch", "transformers", "tokenizers", "safetensors"]
TOLERANCE = 1e-4  # logits have magnitude 1 to 10, and sums are computed in another order
VOCABULARY, CONTEXT = 300, 48
TEXT = "the lathe turns wood and the tool cuts what turns slowly under it. I'm 42, naïve 😀\n" * 40


class Bench:
    def __init__(self, lathe, tests, folder):
        self.lathe, self.tests, self.folder = lathe, tests, folder
        self.tokenizer = folder / "tokenizer.json"
        self.count = 0

    def path(self, name):
        self.count += 1
        return self.folder / f"{self.count:03d}-{name}"

    def call(self, *words, fails=False):
        done = subprocess.run([self.lathe, *map(str, words)], capture_output=True, text=True)
        assert (done.returncode != 0) == fails, f"lathe {words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def logits(self, run, ids, greedy):
        """Returns Lathe's logits [B, T, V] for `ids`, and the tokens that it generates after the
        first row."""
        from safetensors.torch import load_file

        out, jobs = self.path("logits.safetensors"), self.path("jobs.jsonl")
        outs = [str(out) + ".cache", str(out) + ".window"]  # with and without a cache of keys and values
        jobs.write_text("".join(json.dumps({"run": str(run), "ids": ids.tolist(), "greedy": greedy, "cache": i == 0, "out": o}) + "\n"
                                for i, o in enumerate(outs)))
        done = subprocess.run([self.tests, "[.hf]"], env={**os.environ, "LATHE_HF": str(jobs)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        made, again = load_file(outs[0]), load_file(outs[1])
        assert made["greedy"].tolist() == again["greedy"].tolist(), "the cache changes the tokens"
        return made["logits"], made["greedy"].tolist()


def make_tokenizer(path, vocabulary=VOCABULARY):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(path))


def make_sentencepiece(path):
    """Writes a tokenizer in SentencePiece's form, like Llama 2's, with byte tokens for characters
    without a token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

    mark, size = "\u2581", VOCABULARY - 259
    normalizer = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizer
    trained.train_from_iterator(TEXT.replace("naïve 😀", "naive").split("\n"), trainers.BpeTrainer(vocab_size=size, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    special = ["<unk>", "<s>", "</s>"]
    names = special + [f"<0x{b:02X}>" for b in range(256)] + sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(names)}, merges=merges, unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.save(str(path))


def randomise(model, seed=1):
    """Draws every weight at random, because a missing bias or norm would go unnoticed if biases
    were zero and norms one."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name or "ln_" in name
            p.copy_(torch.randn_like(p) * 0.15 + (1 if norm and name.endswith("weight") else 0))
    return model.eval()


def theirs(folder, ids, greedy):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(ids).logits
        row = ids[:1]
        for _ in range(greedy):  # without a cache, each token needs the complete window
            row = torch.cat([row, model(row[:, -CONTEXT:]).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return logits, row[0, ids.shape[1]:].tolist()


def compare(bench, name, folder, run, ids, must_differ=False):
    mine, my_tokens = bench.logits(run, ids, 24)
    other, their_tokens = theirs(folder, ids, 24)
    assert mine.shape == other.shape, f"{name}: logits {tuple(mine.shape)} and {tuple(other.shape)}"
    apart = (mine - other).abs().max().item()
    same = my_tokens == their_tokens
    print(f"{name}: logits differ by {apart:.1e} at most (of {other.abs().max().item():.1f}), greedy tokens {'agree' if same else 'differ'}")
    good = apart < TOLERANCE and same
    assert good != must_differ, f"{name}: {'a control that should fail agrees' if must_differ else 'too far apart'}"


def some_ids(vocabulary=VOCABULARY):
    import torch

    torch.manual_seed(2)
    return torch.randint(0, vocabulary, (2, 20))


def there_and_back(bench, name, model, shard=None, tokenizer="tokenizer.json", save=None):
    """Imports a transformers model, exports it again, and compares logits and texts each time."""
    folder, run, again = bench.path(name), bench.path(name + "-run"), bench.path(name + "-again")
    options = {"max_shard_size": shard} if shard else {}
    (save or model).save_pretrained(folder, **options)
    if shard:
        assert (folder / "model.safetensors.index.json").exists(), f"{name}: not sharded"
    if tokenizer == "tokenizer.json":
        (folder / tokenizer).write_bytes(bench.tokenizer.read_bytes())
    elif tokenizer == "sentencepiece":
        make_sentencepiece(folder / "tokenizer.json")
    else:
        whole = json.loads(bench.tokenizer.read_text())["model"]
        (folder / "vocab.json").write_text(json.dumps(whole["vocab"]))
        pairs = [m if isinstance(m, str) else " ".join(m) for m in whole["merges"]]
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    bench.call("import", folder, "--out", run)
    compare(bench, name + ", imported", folder, run, some_ids())
    bench.call("export", run, "--out", again)
    compare(bench, name + ", exported again", again, run, some_ids())
    texts(bench, name, again, run)
    gguf_file(bench, name, again, run)
    return folder, run, again


def texts(bench, name, folder, run):
    """Compares the greedy text of Lathe and transformers, each with its own tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    # Don't use AutoTokenizer. In version 5 it splits text by Qwen 2's rules instead of those in
    # tokenizer.json.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = "the tool cuts 42 naïve"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    begins = tokenizer.convert_ids_to_tokens(ids[0].tolist())[0] == "<s>"
    assert begins == ("<s>" in tokenizer.get_vocab()), f"{name}: the prompt begins with {ids[0][0]}"
    made = model.generate(ids, max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None)
    from tokenizers import pre_tokenizers  # noqa: F401

    alphabet = {}
    spare = 256
    for b in range(256):
        printable = 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE
        alphabet[chr(b if printable else spare)] = b
        spare += not printable
    special = set(tokenizer.all_special_tokens)
    wanted = b""
    for token in tokenizer.convert_ids_to_tokens(made[0, int(begins):].tolist()):
        if "</s>" in special:  # SentencePiece's form
            wanted += bytes([int(token[3:5], 16)]) if token.startswith("<0x") else token.replace("\u2581", " ").encode()
        else:
            wanted += token.encode() if token in special else bytes(alphabet[c] for c in token)
    wanted = wanted.removeprefix(b" ")
    done = subprocess.run([bench.lathe, "generate", str(run), "--prompt", prompt, "--tokens", "20", "--temperature", "0", "--ignore-eos=true"],
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip(b"\n") == wanted.rstrip(b"\n"), f"{name}: {done.stdout!r} and {wanted!r}"
    print(f"{name}: the same {len(wanted)} bytes of text")


def gpt2(bench):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    def model(**more):
        return randomise(GPT2LMHeadModel(GPT2Config(
            **{**dict(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4), **more})))

    folder, run, again = there_and_back(bench, "gpt2", model())
    there_and_back(bench, "gpt2-sharded", model(), shard="20KB")
    there_and_back(bench, "gpt2-untied", model(tie_word_embeddings=False))
    there_and_back(bench, "gpt2-bf16", model().to(torch.bfloat16))
    there_and_back(bench, "gpt2-fp16", model().to(torch.float16))
    there_and_back(bench, "gpt2-files-of-merges", model(), tokenizer="merges.txt")
    whole = model()
    bare = bench.path("gpt2-bare")
    there_and_back(bench, "gpt2-without-prefix", whole, save=whole.transformer)
    refused = model(n_inner=100)
    refused.save_pretrained(bare)
    assert "n_inner" in bench.call("import", bare, "--out", bench.path("x"), fails=True).stderr

    # The test must notice a square matrix that was not transposed, and one changed row of an
    # embedding.
    from safetensors.torch import load_file, save_file
    for what in ("transpose", "row"):
        wrong = bench.path("gpt2-wrong-" + what)
        bench.call("export", run, "--out", wrong)
        tensors = load_file(wrong / "model.safetensors")
        if what == "transpose":
            tensors["transformer.h.1.attn.c_proj.weight"] = tensors["transformer.h.1.attn.c_proj.weight"].t().contiguous()
        else:
            tensors["transformer.wpe.weight"][3] *= 1.1
        save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
        compare(bench, "gpt2, control with a wrong " + what, wrong, run, some_ids(), must_differ=True)

    # This model was trained by Lathe and has no biases.
    text, data, config, run = bench.path("text.txt"), bench.path("data"), bench.path("tiny.toml"), bench.path("trained")
    text.write_text(TEXT * 4)
    bench.call("prepare", text, "--out", data, "--tokenizer", bench.tokenizer)
    config.write_text('[model]\nkind = "gpt"\nn_layer = 2\nn_head = 4\nn_embd = 32\nblock_size = 48\nbias = false\n'
                      '[optim]\nlr = 0.01\n[train]\nsteps = 20\nbatch_size = 4\n')
    bench.call("train", config, f"--data.dir={data}", f"--train.out_dir={run}")
    out = bench.path("trained-hf")
    bench.call("export", run, "--out", out)
    compare(bench, "gpt trained without biases, exported", out, run, some_ids(280))
    texts(bench, "gpt trained without biases", out, run)


def llama(bench):
    import torch
    from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                              Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

    def model(config=LlamaConfig, kind=LlamaForCausalLM, rope=None, **more):
        sizes = dict(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=72,
                     num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5)
        if rope:
            more["rope_parameters"] = {"rope_theta": 10000.0, **rope}
        return randomise(kind(config(**{**sizes, **more})))

    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=16)
    folder, run, again = there_and_back(bench, "llama", model())
    there_and_back(bench, "llama-sentencepiece", model(), tokenizer="sentencepiece")
    there_and_back(bench, "llama-sharded-bf16", model().to(torch.bfloat16), shard="20KB")
    there_and_back(bench, "llama-tied", model(tie_word_embeddings=True))
    there_and_back(bench, "llama-all-heads", model(num_key_value_heads=4, head_dim=16))
    there_and_back(bench, "llama-base", model(rope={"rope_type": "default", "rope_theta": 500000.0}))
    there_and_back(bench, "llama-linear", model(rope={"rope_type": "linear", "factor": 4.0}))
    scaled, _, _ = there_and_back(bench, "llama3-rope", model(rope=llama3))
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
    there_and_back(bench, "llama-yarn", model(rope=yarn))
    there_and_back(bench, "llama-yarn-all-keys", model(rope={**yarn, "beta_fast": 8.0, "beta_slow": 0.5, "attention_factor": 1.3}))
    qwen = dict(config=Qwen2Config, kind=Qwen2ForCausalLM)
    there_and_back(bench, "qwen2", model(**qwen))
    there_and_back(bench, "qwen3", model(config=Qwen3Config, kind=Qwen3ForCausalLM))
    there_and_back(bench, "mistral", model(config=MistralConfig, kind=MistralForCausalLM, sliding_window=None))

    # These keys have the form that transformers wrote before version 5.
    config = json.loads((scaled / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {**rope, "type": rope["rope_type"]}
    (scaled / "config.json").write_text(json.dumps(config))
    old = bench.path("llama3-rope-old-keys")
    bench.call("import", scaled, "--out", old)
    compare(bench, "llama3-rope, keys of transformers 4", scaled, old, some_ids())

    def refused(name, key, made, *words):
        made.save_pretrained(bench.path(name))
        place = bench.folder / f"{bench.count:03d}-{name}"
        (place / "tokenizer.json").write_bytes(bench.tokenizer.read_bytes())
        said = bench.call("import", place, "--out", bench.path("x"), fails=True).stderr
        assert key in said, f"{name}: {said}"
        print(f"{name}: refused, naming {key}")

    refused("llama-dynamic", "rope_type", model(rope={"rope_type": "dynamic", "factor": 4.0}))
    refused("llama-biased", "attention_bias", model(attention_bias=True))
    refused("llama-mlp-biased", "mlp_bias", model(mlp_bias=True))
    refused("llama-gelu", "hidden_act", model(hidden_act="gelu"))

    # The test must notice rotary channels in adjacent pairs instead of halves, and another
    # rope_theta.
    from safetensors.torch import load_file, save_file
    for what in ("order of rotary channels", "base"):
        wrong = bench.path("llama-wrong")
        bench.call("export", run, "--out", wrong)
        if what == "base":
            config = json.loads((wrong / "config.json").read_text())
            config["rope_theta"] *= 1.1
            (wrong / "config.json").write_text(json.dumps(config))
        else:
            tensors = load_file(wrong / "model.safetensors")
            name = "model.layers.0.self_attn.q_proj.weight"
            tensors[name] = to_interleaved(tensors[name], 4).contiguous()
            save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
        compare(bench, "llama, control with a wrong " + what, wrong, run, some_ids(), must_differ=True)


def to_interleaved(t, heads):
    """Reorders the rotary channels of each head to llama.cpp's order: (a0 a1 .. b0 b1 ..) -> (a0 b0
    a1 b1 ..)."""
    return t.reshape(heads, 2, t.shape[0] // heads // 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)


def gguf_file(bench, name, folder, run):
    """Compares the GGUF file of a run, read by the package gguf, with a Hugging Face folder."""
    try:
        import gguf
    except ImportError:
        print(f"{name}: GGUF is not checked: the package gguf is not installed")
        return
    import numpy
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    out = bench.path(name + "-gguf")
    bench.call("export", run, "--format", "gguf", "--out", out)
    reader = gguf.GGUFReader(out / "model.gguf")
    arch = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    number = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch]
    blocks = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(number, blocks)
    found = {t.name: t for t in reader.tensors}
    wanted = load_file(folder / "model.safetensors")
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    for key, t in wanted.items():
        t = t.float()
        theirs_name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert theirs_name in found, f"{name}: {theirs_name} for {key} is not in the file"
        if arch == "gpt2" and key.endswith("weight") and t.dim() == 2 and ".h." in key:
            t = t.t()
        if arch == "llama" and "q_proj" in key:
            t = to_interleaved(t, heads)
        if arch == "llama" and "k_proj" in key:
            t = to_interleaved(t, groups)
        stored = found.pop(theirs_name)
        data = gguf.dequantize(stored.data, stored.tensor_type).reshape(t.shape)
        assert list(reversed(stored.shape.tolist())) == list(t.shape), f"{name}: {theirs_name} is {stored.shape}"
        assert numpy.array_equal(data, t.numpy()), f"{name}: {theirs_name} differs"
    scaled = config.get("rope_scaling") or {}
    if scaled.get("rope_type") == "llama3":
        factors = found.pop("rope_freqs.weight").data
        import torch
        from transformers import AutoConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        scaled_angles = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(folder), "cpu")[0]
        plain = 1.0 / config["rope_theta"] ** (torch.arange(0, config["head_dim"], 2) / config["head_dim"])
        assert numpy.allclose(factors, (plain / scaled_angles).numpy(), rtol=1e-5), f"{name}: rope_freqs"
    assert not found, f"{name}: unexpected tensors {list(found)}"

    def value(key):
        field = reader.get_field(key)
        assert field is not None, f"{name}: no {key}"
        return field.contents()

    first = lambda *keys: next(config[k] for k in keys if k in config)
    assert value("general.architecture") == arch
    assert value(f"{arch}.block_count") == blocks
    assert value(f"{arch}.context_length") == first("n_positions", "max_position_embeddings")
    assert value(f"{arch}.embedding_length") == first("n_embd", "hidden_size")
    assert value(f"{arch}.attention.head_count") == first("n_head", "num_attention_heads")
    if arch == "gpt2":
        assert value("gpt2.feed_forward_length") == 4 * config["n_embd"]
        assert abs(value("gpt2.attention.layer_norm_epsilon") - 1e-5) < 1e-10
    else:
        assert value(f"{arch}.feed_forward_length") == config["intermediate_size"]
        assert value(f"{arch}.attention.head_count_kv") == groups
        assert value(f"{arch}.attention.key_length") == config["head_dim"]
        assert value(f"{arch}.rope.dimension_count") == config["head_dim"]
        assert abs(value(f"{arch}.attention.layer_norm_rms_epsilon") - config["rms_norm_eps"]) < 1e-10
        assert abs(value(f"{arch}.rope.freq_base") - config["rope_theta"]) < 1
        if scaled.get("rope_type") == "linear":
            assert value(f"{arch}.rope.scaling.type") == "linear"
            assert value(f"{arch}.rope.scaling.factor") == scaled["factor"]
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokens = value("tokenizer.ggml.tokens")
    assert tokens[:len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer))), f"{name}: tokens"
    assert len(tokens) == config["vocab_size"]
    types = value("tokenizer.ggml.token_type")
    special = set(tokenizer.all_special_ids)
    merges = [m if isinstance(m, str) else " ".join(m)
              for m in json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]]
    if "</s>" in tokens:  # SentencePiece's form
        assert value("tokenizer.ggml.model") == "llama" and value("tokenizer.ggml.add_space_prefix")
        kinds = {i: gguf.TokenType.CONTROL for i in special} | {0: gguf.TokenType.UNKNOWN}
        kinds |= {i: gguf.TokenType.BYTE for i, t in enumerate(tokens) if t.startswith("<0x")}
        assert all(t == kinds.get(i, gguf.TokenType.NORMAL) for i, t in enumerate(types)), f"{name}: token types"
        scores = dict(zip(tokens, value("tokenizer.ggml.scores"), strict=True))
        made = [scores[m.replace(" ", "")] for m in merges]
        assert made == sorted(made, reverse=True) and made[0] < 0, f"{name}: scores"
        end = "</s>"
        assert value("tokenizer.ggml.bos_token_id") == 1 and value("tokenizer.ggml.unknown_token_id") == 0
        assert value("tokenizer.ggml.add_bos_token")
    else:
        assert value("tokenizer.ggml.model") == "gpt2" and value("tokenizer.ggml.pre") == "gpt-2"
        assert all((t == gguf.TokenType.CONTROL) == (i in special) for i, t in enumerate(types)), f"{name}: token types"
        assert value("tokenizer.ggml.merges") == merges
        end = "<|endoftext|>"
    assert value("tokenizer.ggml.eos_token_id") == tokenizer.convert_tokens_to_ids(end)
    print(f"{name}: GGUF has the same {len(wanted)} tensors, keys and {len(tokens)} tokens")


def source(bench):
    """Checks train.init_from. A run that starts from a folder's weights must begin with the loss of
    these weights, and must resume after the folder is deleted."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder, data, text = bench.path("source"), bench.path("source-data"), bench.path("source.txt")
    randomise(GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4))).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(bench.tokenizer.read_bytes())
    imported = bench.path("source-run")
    bench.call("import", folder, "--out", imported)
    text.write_text(TEXT * 4)
    bench.call("prepare", text, "--out", data, "--tokenizer", imported)
    config = bench.path("tune.toml")
    config.write_text('[optim]\nlr = 1e-3\n[train]\nsteps = 4\nbatch_size = 2\neval_interval = 2\n')
    loss = json.loads(bench.call("eval", imported, "--data", data).stdout.splitlines()[-1])["val_loss"]
    for name, begin in (("folder", folder), ("run", imported)):
        run = bench.path("tuned-from-" + name)
        words = ("train", config, f"--data.dir={data}", f"--train.out_dir={run}", f"--train.init_from={begin}")
        bench.call(*words)
        first = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        first = next(line["val_loss"] for line in first if "val_loss" in line)
        assert abs(first - loss) < 1e-5, f"init_from a {name}: {first} at first, {loss} before"
        kept = begin.rename(begin.with_name("gone"))
        bench.call(*words, "--train.steps=6")
        kept.rename(begin)
        print(f"train.init_from a {name}: validation loss {first:.4f} at first, {loss:.4f} before; resumes without it")
    other = bench.path("other-tokenizer")
    other.mkdir()
    make_tokenizer(other / "tokenizer.json", 290)
    bench.call("prepare", text, "--out", bench.path("other-data"), "--tokenizer", other)
    wrong = bench.folder / f"{bench.count:03d}-other-data"
    said = bench.call("train", config, f"--data.dir={wrong}", f"--train.out_dir={bench.path('x')}",
                      f"--train.init_from={folder}", fails=True).stderr
    assert "made with another tokenizer" in said and "lathe prepare" in said, said


def scored(bench):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    gpt = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4)
    llama = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=72,
                        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5)
    for name, model in (("gpt2", GPT2LMHeadModel(gpt)), ("llama", LlamaForCausalLM(llama))):
        folder, run = bench.path(name + "-scored"), bench.path(name + "-scored-run")
        randomise(model).save_pretrained(folder)
        (folder / "tokenizer.json").write_bytes(bench.tokenizer.read_bytes())
        bench.call("import", folder, "--out", run)
        scores(bench, name, folder, run)


CASES = {"gpt2": gpt2, "source": source, "llama": llama, "families": families, "scored": scored}


def main():
    packages.require(PACKAGES)
    packages.quiet_transformers()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(sys.argv[1], sys.argv[2], Path(temporary))
        make_tokenizer(bench.tokenizer)
        for name in sys.argv[3:] or CASES:
            CASES[name](bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
