#!/usr/bin/env python3
"""Compares training steps on two processes with PyTorch's DDP and FSDP.

usage: ranks.py LATHE [--peer PYTHON] [--rounds N]

Runs one process with two threads, then two processes with one thread each for every value of
dist.shard. The value "parameters" runs with memory.recompute = "blocks". With --peer, also runs
PyTorch in one process, with DDP and with FSDP. Prints the medians of the rounds: ms of a step, and
the peak resident memory of a process.
"""
import argparse
import json
import statistics
import tempfile
from pathlib import Path

from peak import resident
from small_model import prepare, train_and_measure, write_config

HERE = Path(__file__).resolve().parent
LAYERS, HEADS, DIM, CONTEXT, BATCH, ACCUM, VOCABULARY, STEPS = 6, 6, 384, 256, 4, 4, 256, 8


def lathe_step(lathe, folder, ranks, shard):
    words = [f"--train.threads={2 // ranks}", f"--dist.shard={shard}"]
    if shard == "parameters":
        words.append("--memory.recompute=blocks")
    steps, peak = train_and_measure(lathe, folder, *words, ranks=ranks)
    return statistics.median(line["step_ms"] for line in steps[2:]), peak


def peer_step(python, folder, ranks, parallel):
    words = [str(HERE / "torch_gpt.py"), "--layers", LAYERS, "--heads", HEADS, "--dim", DIM, "--ctx", CONTEXT, "--batch", BATCH,
             "--accum", ACCUM, "--vocab", VOCABULARY, "--steps", STEPS, "--skip", 2, "--dtype", "bf16", "--optim", "fused",
             "--threads", 2 // ranks, "--data", "tokens.bin", "--parallel", parallel]
    command = [python]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    out, peak = resident([*command, *map(str, words)], folder)
    return json.loads(out.strip().splitlines()[-1])["ms_median"], peak


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--peer", help="a Python that has PyTorch")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    lathe = str(Path(a.lathe).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(lathe, folder)
        write_config(folder, kind="gpt", layers=LAYERS, heads=HEADS, width=DIM, tokens=CONTEXT, batch=BATCH, accum=ACCUM,
                     vocabulary=VOCABULARY, steps=STEPS, dtype="bf16")
        text = (folder / "text.txt").read_bytes()
        (folder / "tokens.bin").write_bytes(b"".join(bytes([b, 0]) for b in text))

        rows = {f"Lathe, {ranks} x {2 // ranks} threads, {shard}": (lambda r=ranks, s=shard: lathe_step(lathe, folder, r, s))
                for ranks, shard in [(1, "none"), *((2, s) for s in ("none", "optimizer", "gradients", "parameters"))]}
        if a.peer:
            rows |= {f"PyTorch, {ranks} x {2 // ranks} threads, {kind}": (lambda r=ranks, k=kind: peer_step(a.peer, folder, r, k))
                     for ranks, kind in [(1, "none"), (2, "ddp"), (2, "fsdp")]}
        found = {name: [] for name in rows}
        for _ in range(a.rounds):
            for name, measure in rows.items():
                found[name].append(measure())
        print("| | ms per step | MB per process |\n|---|---|---|")
        for name, figures in found.items():
            ms, mb = (statistics.median(column) for column in zip(*figures))
            print(f"| {name} | {ms:.0f} | {mb:.0f} |")


main()
