#!/usr/bin/env python3
"""Compares models that go through `lathe import` and `lathe export` with transformers: logits in float32 to 1e-4 and
greedy generation token for token, both ways, on small models with random weights that are made on the spot.

  tests/hf/oracle.py LATHE LATHE_TESTS [NAME ...]

Ends with 77, and a reason, where torch, transformers, tokenizers or safetensors are absent: neither in this interpreter
nor in the one that LATHE_HF_PYTHON names. A control with a wrong transpose must fail.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ["torch", "transformers", "tokenizers", "safetensors"]
TOLERANCE = 1e-4  # of logits of a few units, summed in another order
VOCABULARY, CONTEXT = 300, 48
TEXT = "the lathe turns wood and the tool cuts what turns slowly under it. I'm 42, naïve 😀\n" * 40


def with_packages():
    """This interpreter if it has them all, else the one that LATHE_HF_PYTHON names, or None."""
    try:
        for name in PACKAGES:
            __import__(name)
        return sys.executable
    except ImportError:
        other = os.environ.pop("LATHE_HF_PYTHON", None)
        return other if other and Path(other).exists() else None


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
        """What Lathe makes of a run: logits [B, T, V], and the tokens that it adds to the first row."""
        from safetensors.torch import load_file

        out, jobs = self.path("logits.safetensors"), self.path("jobs.jsonl")
        jobs.write_text(json.dumps({"run": str(run), "ids": ids.tolist(), "greedy": greedy, "out": str(out)}) + "\n")
        done = subprocess.run([self.tests, "[.hf]"], env={**os.environ, "LATHE_HF": str(jobs)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        made = load_file(out)
        return made["logits"], made["greedy"].tolist()


def make_tokenizer(path, vocabulary=VOCABULARY):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(path))


def randomise(model, seed=1):
    """Every weight random: initial biases and norms would hide that they are left out."""
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
        for _ in range(greedy):  # as Lathe does it: the whole window for each token
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
    """A model of transformers, imported; and exported again."""
    folder, run, again = bench.path(name), bench.path(name + "-run"), bench.path(name + "-again")
    options = {"max_shard_size": shard} if shard else {}
    (save or model).save_pretrained(folder, **options)
    if shard:
        assert (folder / "model.safetensors.index.json").exists(), f"{name}: not sharded"
    if tokenizer == "tokenizer.json":
        (folder / tokenizer).write_bytes(bench.tokenizer.read_bytes())
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
    return folder, run, again


def texts(bench, name, folder, run):
    """Greedy text from a prompt, by both programs with their own tokenizers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = "the tool cuts 42 naïve"
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
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
    for token in tokenizer.convert_ids_to_tokens(made[0].tolist()):
        wanted += token.encode() if token in special else bytes(alphabet[c] for c in token)
    done = subprocess.run([bench.lathe, "generate", str(run), "--prompt", prompt, "--tokens", "20", "--temperature", "0"],
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

    # Controls: a square matrix that was not transposed, and one row of an embedding.
    from safetensors.torch import load_file, save_file
    for what in ("transpose", "row"):
        wrong = bench.path("gpt2-wrong-" + what)
        bench.call("export", run, "--out", wrong)
        tensors = load_file(wrong / "model.safetensors")
        if what == "transpose":
            tensors["transformer.h.1.attn.c_proj.weight"] = tensors["transformer.h.1.attn.c_proj.weight"].t().contiguous()
        else:
            tensors["transformer.wpe.weight"][3] += 0.01
        save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
        compare(bench, "gpt2, control with a wrong " + what, wrong, run, some_ids(), must_differ=True)

    # A model that Lathe made, without biases.
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


CASES = {"gpt2": gpt2}


def main():
    python = with_packages()
    if python is None:
        print("skipped: " + ", ".join(PACKAGES) + " are not all here; install them, or name a Python that has them in LATHE_HF_PYTHON")
        return 77
    if python != sys.executable:
        return subprocess.call([python, *sys.argv])
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    import warnings

    warnings.filterwarnings("ignore")
    import transformers

    print("transformers", transformers.__version__)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(sys.argv[1], sys.argv[2], Path(temporary))
        make_tokenizer(bench.tokenizer)
        for name in sys.argv[3:] or CASES:
            CASES[name](bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
