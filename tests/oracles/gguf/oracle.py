#!/usr/bin/env python3
"""Compares `lathe import` and `lathe export` of GGUF files with the package gguf and transformers.

  tests/oracles/gguf/oracle.py LATHE [NAME ...]

- types: random blocks of each type that Lathe reads, against gguf.dequantize, bit for bit.
- quantize: the blocks that `export --dtype` writes, against gguf.quantize, byte for byte.
- models: the tensors and logits of a file's model, against transformers, which reads the same file.
- tokenizers: the ids of a file's tokenizer, against transformers, which reads the same file.

Exits with 77 and prints the reason if a package is missing both in this interpreter and in the one
that LATHE_HF_PYTHON names. The first three parts also check that they notice a fault.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import packages  # noqa: E402

PACKAGES = ["gguf", "numpy", "torch", "transformers", "tokenizers", "safetensors"]
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
QUANTIZED = {"q8_0": "Q8_0", "q4_0": "Q4_0"}
VOCABULARY, CONTEXT = 320, 48
TEXT = "the lathe turns wood and the tool cuts what turns slowly under it. I'm 42, naïve 😀\n" * 40
SAMPLES = ["the lathe turns", "  two spaces, 12345 and naïve 😀!\n\nthe end ", "I'm<|endoftext|>what's under it?", "a\tb\r\nc"]


class Bench:
    def __init__(self, lathe, folder):
        self.lathe, self.folder, self.count = lathe, folder, 0

    def path(self, name):
        self.count += 1
        return self.folder / f"{self.count:03d}-{name}"

    def call(self, *words):
        done = subprocess.run([self.lathe, *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, f"lathe {words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def weights(self, run):
        from safetensors.torch import load_file

        return load_file(next((run / "checkpoints").iterdir()) / "model.safetensors")


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def to_halves(rows, heads):
    """Reorders rows from llama.cpp's order of rotary channels (adjacent pairs) to Lathe's order
    (halves)."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def random_blocks(kind, count, random):
    """Returns random blocks whose values are all finite."""
    import gguf
    import numpy

    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.integers(0, 256, (count, size), dtype=numpy.uint8)
    while True:
        with numpy.errstate(all="ignore"):
            bad = ~numpy.isfinite(gguf.dequantize(blocks, kind).reshape(count, -1)).all(1)
        if not bad.any():
            return blocks
        blocks[bad] = random.integers(0, 256, (int(bad.sum()), size), dtype=numpy.uint8)


def types(bench):
    import gguf
    import numpy

    random = numpy.random.default_rng(5)
    width, heads, groups = 256, 4, 2
    shapes = {"token_embd": VOCABULARY, "output": VOCABULARY, "blk.0.attn_q": width, "blk.0.attn_k": width // 2,
              "blk.0.attn_v": width // 2, "blk.0.attn_output": width, "blk.0.ffn_gate": width, "blk.0.ffn_up": width,
              "blk.0.ffn_down": width}
    ours = {"token_embd": "tokens", "output": "head", "blk.0.attn_q": "blocks.0.attn.q", "blk.0.attn_k": "blocks.0.attn.k",
            "blk.0.attn_v": "blocks.0.attn.v", "blk.0.attn_output": "blocks.0.attn.proj", "blk.0.ffn_gate": "blocks.0.mlp.gate",
            "blk.0.ffn_up": "blocks.0.mlp.up", "blk.0.ffn_down": "blocks.0.mlp.down"}
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        per_block, size = gguf.GGML_QUANT_SIZES[kind]
        path, run = bench.path(f"{name}.gguf"), bench.path(name)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_context_length(16)
        writer.add_embedding_length(width)
        writer.add_feed_forward_length(width)
        writer.add_head_count(heads)
        writer.add_head_count_kv(groups)
        writer.add_layer_norm_rms_eps(1e-5)
        data = {}
        for tensor, rows in shapes.items():
            data[tensor] = random_blocks(kind, rows * width // per_block, random).reshape(rows, -1)
            assert data[tensor].shape[1] == width // per_block * size
            writer.add_tensor(tensor + ".weight", data[tensor], raw_dtype=kind)
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            writer.add_tensor(norm + ".weight", numpy.ones(width, numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

        bench.call("verify", path)
        assert f"blk.0.attn_k.weight  {name} [{width // 2},{width}]" in bench.call("inspect", path)
        bench.call("import", path, "--tokenizer", "none", "--out", run)
        weights = bench.weights(run)
        for tensor, blocks in data.items():
            wanted = gguf.dequantize(blocks, kind).reshape(-1, width)
            if tensor[-1] in "qk" and "attn" in tensor:
                assert not same(wanted, to_halves(wanted, heads if tensor[-1] == "q" else groups))
                wanted = to_halves(wanted, heads if tensor[-1] == "q" else groups)
            assert same(weights[ours[tensor] + ".weight"].float().numpy(), numpy.ascontiguousarray(wanted)), f"{name}: {tensor}"
            changed = blocks.copy()
            changed[0, -1] ^= 1
            other = gguf.dequantize(changed, kind).reshape(-1, width)
            if tensor[-1] in "qk" and "attn" in tensor:
                other = to_halves(other, heads if tensor[-1] == "q" else groups)
            assert not same(weights[ours[tensor] + ".weight"].float().numpy(), numpy.ascontiguousarray(other)), (
                f"{name}: {tensor}: the control agrees")
        print(f"{name}: {len(data)} tensors are bitwise equal")


def make_tokenizer(path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(path))


def make_sentencepiece(path):
    """Writes a tokenizer like Llama 2's, which is trained on TEXT and has byte tokens for all other
    characters."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

    mark = "\u2581"
    normalizer = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizer
    trained.train_from_iterator(TEXT.replace("naïve 😀", "naive").split("\n"), trainers.BpeTrainer(vocab_size=VOCABULARY - 259, show_progress=False))
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


def make_models():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    sizes = dict(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5)
    torch.manual_seed(1)
    # transformers 5 does not read the number of positions from a GPT-2 file. It assumes 1024, as in
    # GPT-2.
    models = {"gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=1024, n_embd=64, n_layer=2, n_head=4)),
              "llama": LlamaForCausalLM(LlamaConfig(**sizes)), "qwen2": Qwen2ForCausalLM(Qwen2Config(**sizes))}
    with torch.no_grad():
        for model in models.values():
            for name, p in model.named_parameters():
                norm = "norm" in name or "ln_" in name
                p.copy_(torch.randn_like(p) * 0.15 + (1 if norm and name.endswith("weight") else 0))
    return models


def imported(bench, name, model, tokenizer=make_tokenizer):
    folder, run = bench.path(name), bench.path(name + "-run")
    model.save_pretrained(folder)
    tokenizer(folder / "tokenizer.json")
    bench.call("import", folder, "--out", run)
    return folder, run


def quantize(bench):
    import gguf
    import numpy

    for name, model in make_models().items():
        _, run = imported(bench, name, model)
        plain = bench.path(name + "-gguf")
        bench.call("export", run, "--format", "gguf", "--out", plain)
        floats = {t.name: t for t in gguf.GGUFReader(plain / "model.gguf").tensors}
        for dtype, kind in QUANTIZED.items():
            kind, out, again, twice = gguf.GGMLQuantizationType[kind], bench.path(dtype), bench.path("again"), bench.path("twice")
            bench.call("export", run, "--format", "gguf", "--dtype", dtype, "--out", out)
            reader = gguf.GGUFReader(out / "model.gguf")
            assert reader.get_field("general.file_type").contents() == gguf.LlamaFileType[f"MOSTLY_{kind.name}"]
            quantized = 0
            for t in reader.tensors:
                values = floats[t.name].data
                if t.tensor_type == kind:
                    quantized += 1
                    wanted = gguf.quantize(values, kind)
                    assert numpy.array_equal(t.data, wanted), f"{name}: {t.name} in {dtype}"
                    assert not numpy.array_equal(t.data, gguf.quantize(numpy.ascontiguousarray(values[::-1]), kind)), "the control agrees"
                else:
                    assert t.tensor_type == gguf.GGMLQuantizationType.F32 and same(t.data, values), f"{name}: {t.name}"
                    assert values.ndim == 1 or t.name == "position_embd.weight", f"{name}: {t.name} is not quantized"
            assert quantized == sum(t.data.ndim == 2 and n != "position_embd.weight" for n, t in floats.items())
            bench.call("import", out / "model.gguf", "--out", again / run.name)
            bench.call("export", again / run.name, "--format", "gguf", "--dtype", dtype, "--out", twice)
            assert (twice / "model.gguf").read_bytes() == (out / "model.gguf").read_bytes(), f"{name}: {dtype} changes when it is written again"
            print(f"{name}: {quantized} matrices in {dtype} are the same bytes")


def theirs(folder):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32).eval()


def models(bench):
    """Compares two models: the one that transformers loads from a GGUF file, and the one that Lathe
    imports from the same file and exports again."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(2)
    ids = torch.randint(0, VOCABULARY, (2, 20))
    for name, model in make_models().items():
        _, run = imported(bench, name, model)
        for dtype in ("fp32", "fp16", "bf16", *QUANTIZED):
            out, again, hf = bench.path(name + dtype), bench.path("again"), bench.path("hf")
            bench.call("export", run, "--format", "gguf", "--dtype", dtype, "--out", out)
            bench.call("import", out / "model.gguf", "--out", again)
            bench.call("export", again, "--dtype", "fp32", "--out", hf)
            wanted = theirs(out)
            mine = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32).eval()
            a, b = wanted.state_dict(), mine.state_dict()
            assert a.keys() == b.keys(), f"{name}: {a.keys() ^ b.keys()}"
            differs = [key for key in a if not torch.equal(a[key], b[key])]
            assert not differs, f"{name} in {dtype}: {differs}"
            with torch.no_grad():
                assert torch.equal(wanted(ids).logits, mine(ids).logits), f"{name} in {dtype}: logits"
                next(iter(mine.parameters())).mul_(1.01)
                assert not torch.equal(wanted(ids).logits, mine(ids).logits), "the control agrees"
            print(f"{name} in {dtype}: transformers loads the same {len(a)} tensors, and computes the same logits")


def tokenizers(bench):
    from transformers import AutoTokenizer

    all_models = make_models()
    for name, kind in (("gpt2", make_tokenizer), ("llama", make_sentencepiece)):
        _, run = imported(bench, name, all_models[name], kind)
        out, again = bench.path("gguf"), bench.path("again")
        bench.call("export", run, "--format", "gguf", "--out", out)
        bench.call("import", out / "model.gguf", "--out", again)
        tokenizer = AutoTokenizer.from_pretrained(out, gguf_file="model.gguf")
        for sample in SAMPLES:
            text = bench.path("text.txt")
            text.write_bytes(sample.encode())
            mine = [list(map(int, bench.call("tokenizer", "encode", text, "--tokenizer", r).split())) for r in (run, again)]
            wanted = tokenizer.encode(sample, add_special_tokens=False)
            assert mine[0] == mine[1], f"{name}: {sample!r}: {mine}"
            if kind is make_sentencepiece and sample.startswith(" "):
                continue  # llama.cpp adds a space before a leading space, transformers doesn't
            assert mine[1] == wanted, f"{name}: {sample!r}: {mine[1]}, and transformers has {wanted}"
        print(f"{name}: {len(SAMPLES)} texts have the same ids")


CASES = {"types": types, "quantize": quantize, "models": models, "tokenizers": tokenizers}


def main():
    packages.require(PACKAGES)
    packages.quiet_transformers()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(sys.argv[1], Path(temporary))
        for name in sys.argv[2:] or CASES:
            CASES[name](bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
