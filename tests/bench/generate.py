#!/usr/bin/env python3
"""Compares text generation of Lathe and `transformers`, and measures quantized weights.

usage: generate.py LATHE [--kind gpt|llama] [--rounds 3] [--context 512] [--tokens 48] [--threads 2] [--small]

Trains GPT-2's smallest model (or a Llama of its size) for one step, loads its weights into
transformers, and checks that Lathe and transformers continue a prompt with the same tokens. Then
prints a table of the speeds of prefill and decode with batch size 1. Lathe and transformers run in
turn, and the table has the medians of the rounds. Exits with 77 if torch, transformers or
safetensors is missing.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

MODELS = {
    "gpt": {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304, "bias": True},
    "llama": {"n_layer": 12, "n_head": 12, "n_kv_head": 4, "n_embd": 768, "n_inner": 2048, "block_size": 1024,
              "vocab_size": 50304},
}
SMALL = {"n_layer": 2, "n_head": 4, "n_embd": 128, "block_size": 256, "vocab_size": 512}


def toml(value):
    return json.dumps(value)


def make_run(lathe, folder, kind, model):
    (folder / "text.txt").write_bytes(bytes(range(32, 127)) * 200)
    lines = ["[model]", f'kind = "{kind}"', *(f"{k} = {toml(v)}" for k, v in model.items()), "[data]", 'dir = "data"',
             "[schedule]", "warmup_steps = 0", "[train]", "steps = 1", "batch_size = 1", "eval_interval = 0",
             'out_dir = "run"', "[optim]", "lr = 1e-3"]
    (folder / "config.toml").write_text("\n".join(lines) + "\n")
    for words in (["prepare", "text.txt", "--out", "data", "--tokenizer", "byte"], ["train", "config.toml"]):
        subprocess.run([lathe, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return next((folder / "run/checkpoints").glob("step-*/model.safetensors"))


def gpt2(model, w):
    config = transformers.GPT2Config(vocab_size=model["vocab_size"], n_positions=model["block_size"],
                                     n_embd=model["n_embd"], n_layer=model["n_layer"], n_head=model["n_head"],
                                     activation_function="gelu_new")
    names = {"tokens.weight": "transformer.wte.weight", "positions.weight": "transformer.wpe.weight"}
    theirs = {}
    for path, t in w.items():
        name = names.get(path)
        if name is None:
            name = "transformer." + path
            for ours, other in (("blocks.", "h."), (".norm1.", ".ln_1."), (".norm2.", ".ln_2."), (".qkv.", ".c_attn."),
                                (".attn.proj.", ".attn.c_proj."), (".mlp.up.", ".mlp.c_fc."),
                                (".mlp.down.", ".mlp.c_proj."), ("transformer.norm.", "transformer.ln_f.")):
                name = name.replace(ours, other)
            if t.dim() == 2:
                t = t.t().contiguous()  # GPT-2's Conv1D in transformers stores weights transposed
        theirs[name] = t
    return transformers.GPT2LMHeadModel(config), theirs


def llama(model, w):
    config = transformers.LlamaConfig(vocab_size=model["vocab_size"], max_position_embeddings=model["block_size"],
                                      hidden_size=model["n_embd"], intermediate_size=model["n_inner"],
                                      num_hidden_layers=model["n_layer"], num_attention_heads=model["n_head"],
                                      num_key_value_heads=model["n_kv_head"], rms_norm_eps=1e-5,
                                      tie_word_embeddings=True)
    theirs = {}
    for path, t in w.items():
        name = "model." + path
        for ours, other in (("model.tokens.", "model.embed_tokens."), ("blocks.", "layers."),
                            (".norm1.", ".input_layernorm."), (".norm2.", ".post_attention_layernorm."),
                            (".attn.q.", ".self_attn.q_proj."), (".attn.k.", ".self_attn.k_proj."),
                            (".attn.v.", ".self_attn.v_proj."), (".attn.proj.", ".self_attn.o_proj."),
                            (".mlp.gate.", ".mlp.gate_proj."), (".mlp.up.", ".mlp.up_proj."),
                            (".mlp.down.", ".mlp.down_proj.")):
            name = name.replace(ours, other)
        theirs[name] = t
    return transformers.LlamaForCausalLM(config), theirs


def load_peer(kind, model, weights):
    net, theirs = (gpt2 if kind == "gpt" else llama)(model, load_file(weights))
    missing, unexpected = net.load_state_dict(theirs, strict=False)
    assert not unexpected and all("lm_head" in m or "inv_freq" in m for m in missing), (missing, unexpected)
    net.tie_weights()
    return net.eval()


@torch.no_grad()
def peer_ids(net, prompt, tokens):
    ids, past, out = torch.tensor([prompt]), None, []
    for _ in range(tokens):
        made = net(input_ids=ids, past_key_values=past, use_cache=True)
        past, ids = made.past_key_values, made.logits[:, -1].argmax(-1, keepdim=True)
        out.append(int(ids))
    return out


@torch.no_grad()
def time_peer(net, prompt, tokens, vocab):
    """Returns tokens/s of prefill and of decode, the latter from the median step."""
    ids, past, steps = torch.randint(0, vocab, (1, prompt)), None, []
    for _ in range(tokens):
        begin = time.perf_counter()
        made = net(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
        past, ids = made.past_key_values, made.logits[:, -1].argmax(-1, keepdim=True)
        steps.append(time.perf_counter() - begin)
    return prompt / steps[0], 1 / statistics.median(steps[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lathe", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("--kind", choices=MODELS, default="gpt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    args = parser.parse_args()
    model = dict(MODELS[args.kind])
    if args.small:
        model.update(SMALL)
        if args.kind == "llama":
            model.update(n_kv_head=2, n_inner=352)
        args.context, args.tokens = 64, 16
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        net = load_peer(args.kind, model, make_run(args.lathe, folder, args.kind, model))

        def run(*words):
            return subprocess.run([args.lathe, *words, f"--threads={args.threads}"], cwd=folder, check=True, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

        text = "the quick brown fox"
        lines = run("generate", "run", f"--prompt={text}", "--temperature=0", "--tokens=8", "--logprobs=true")
        ours = [json.loads(line)["id"] for line in lines.splitlines()]
        theirs = peer_ids(net, list(text.encode()), 8)
        print(f"greedy tokens: {ours}, transformers' {theirs}")
        if ours != theirs:
            sys.exit("the two models differ")

        results = {}
        for _ in range(args.rounds):
            for dtype in ("fp32", "bf16", "int8", "nf4"):
                j = json.loads(run("bench", "generate", "run", f"--load-dtype={dtype}", f"--context={args.context}",
                                   f"--tokens={args.tokens}"))
                results.setdefault(("lathe", dtype), []).append(
                    (j["prefill_tokens_per_s"], j["decode_tokens_per_s"], j["weight_bytes_per_s"], j["share_of_read"]))
                if dtype in ("fp32", "bf16"):
                    peer = net.to(torch.float32 if dtype == "fp32" else torch.bfloat16)
                    time_peer(peer, args.context, 4, model["vocab_size"])
                    results.setdefault(("peer", dtype), []).append(
                        time_peer(peer, args.context, args.tokens, model["vocab_size"]))

    def median(who, dtype, i):
        return statistics.median(r[i] for r in results[who, dtype])

    print("| weights | prefill, tokens/s | transformers' | ratio | decode, tokens/s | transformers' | ratio | weights, GB/s | "
          "of the read bandwidth |\n|---|---|---|---|---|---|---|---|---|")
    for dtype in ("fp32", "bf16", "int8", "nf4"):
        cells = [dtype]
        for i in (0, 1):
            own = median("lathe", dtype, i)
            other = median("peer", dtype, i) if ("peer", dtype) in results else None
            cells += [f"{own:.1f}", f"{other:.1f}" if other else "", f"{own / other:.2f}" if other else ""]
        cells += [f"{median('lathe', dtype, 2) / 1e9:.1f}", f"{100 * median('lathe', dtype, 3):.0f}%"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
