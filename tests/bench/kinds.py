#!/usr/bin/env python3
"""Measures training steps of the model kinds rnn, convnet and mlp in Lathe and in PyTorch, and
writes the table of docs/benchmarks/README.md.

usage: kinds.py --peer PYTHON [--lathe build/lathe] [--names data/names] [--digits data/digits] [--rounds 3]

--names and --digits are the data of configs/names_lstm.toml and configs/digits_convnet.toml. Runs
that other processes disturbed are repeated (tests/bench/interleave.py). PyTorch uses fused AdamW,
and glibc's allocator keeps its memory.
"""
import argparse
import json
import os
import pathlib

from interleave import measure, tuned_environment
from page import write_table

PAGE = pathlib.Path("docs/benchmarks/README.md")
RNN, CONVNET, MLP = "names_lstm", "digits_convnet", "digits_mlp"
CASES = [  # name, config, PyTorch's --kind, units or channels, layers or stages, batch, steps
    ("LSTM, 128 units, 32 x 64 characters", RNN, "LSTM", 128, 2, 32, 150),
    ("LSTM, 512 units", RNN, "LSTM", 512, 2, 32, 12),
    ("GRU, 128 units", RNN, "GRU", 128, 2, 32, 150),
    ("GRU, 512 units", RNN, "GRU", 512, 2, 32, 12),
    ("convnet, 2 stages from 16 channels, 64 images", CONVNET, "convnet", 16, 2, 64, 300),
    ("convnet, 2 stages from 64 channels", CONVNET, "convnet", 64, 2, 64, 60),
    ("mlp, 2 layers of 256, 64 examples", MLP, "mlp", 256, 2, 64, 600),
    ("mlp, 2 layers of 2048", MLP, "mlp", 2048, 2, 64, 100),
]


def commands(args, case):
    _, config, kind, width, layers, batch, steps = case
    data = args.names if config == RNN else args.digits
    keys = {"data.dir": data, "train.steps": steps, "train.batch_size": batch, "optim.kind": "adamw",
            "schedule.warmup_steps": 2}
    if config == RNN:
        keys |= {"model.cell": kind.lower(), "model.n_hidden": width, "model.n_embd": width, "model.n_layer": layers}
    elif config == CONVNET:
        keys |= {"model.n_channel": width, "model.n_stage": layers}
    else:
        keys |= {"model.n_hidden": width, "model.n_layer": layers}
    vocab = json.loads((args.names / "manifest.json").read_text())["vocab_size"]
    dropout = {RNN: 0.1, CONVNET: 0, MLP: 0.2}[config]
    skip = max(2, steps // 10)
    lathe = f"{args.lathe} bench step configs/{config}.toml --skip {skip} " + " ".join(
        f"--{key}={value}" for key, value in keys.items())
    torch = (f"{args.peer} tests/bench/torch_kinds.py --kind {kind} --width {width} --layers {layers} --batch {batch} "
             f"--vocab {vocab} --dropout {dropout} --steps {steps} --skip {skip} --threads {os.cpu_count()}")
    return lathe, torch


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peer", required=True, help="a Python with torch")
    p.add_argument("--lathe", default="build/lathe")
    p.add_argument("--names", type=pathlib.Path, default=pathlib.Path("data/names"))
    p.add_argument("--digits", type=pathlib.Path, default=pathlib.Path("data/digits"))
    p.add_argument("--rounds", type=int, default=3)
    args = p.parse_args()

    rows = ["| | Lathe, ms | PyTorch tuned, ms | tuned / Lathe | peak MB | PyTorch, MB |", "|---" * 6 + "|"]
    for case in CASES:
        lathe, torch = commands(args, case)
        m = measure([("lathe", lathe, dict(os.environ)), ("torch", torch, tuned_environment())], args.rounds)
        ours, theirs = m["lathe"], m["torch"]
        rows.append(f"| {case[0]} | {ours['ms_median']:.4g} | {theirs['ms_median']:.4g} | "
                    f"{theirs['ms_median'] / ours['ms_median']:.2f} | {ours['rss_mb']:.0f} | {theirs['rss_mb']:.0f} |")
        print(rows[-1], flush=True)
    write_table(PAGE, "kinds", rows)


main()
