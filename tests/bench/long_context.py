#!/usr/bin/env python3
"""Measures memory and time of long contexts: long_context.py LATHE [--tokens N ...] [--dtype fp32]

Trains a model of one block and one head of 64 channels on a sequence of each length. Prints the
peak memory of tensors, in total and per token, and the time of a step, in total and in nanoseconds
per pair of tokens (T^2 / 2 pairs).
"""
import argparse
import shutil
import tempfile
from pathlib import Path

from metrics import logged_steps
from peak import resident

CONFIG = """[model]
kind = "llama"
n_layer = 1
n_head = 1
n_embd = 64
block_size = {tokens}
[data]
dir = "data"
[train]
steps = 3
batch_size = 1
grad_accum = 1
eval_interval = 0
log_interval = 1
[amp]
dtype = "{dtype}"
[checkpoint]
interval = 0
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--tokens", type=int, nargs="*", default=[8192, 16384, 32768, 65536, 131072])
    p.add_argument("--dtype", default="fp32")
    a = p.parse_args()
    lathe = str(Path(a.lathe).resolve())
    print("| context | MB of tensors | KB for each token | s a step | ns for each pair |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("the lathe turns wood and a tool cuts what turns under it " * 30000)
        resident([lathe, "prepare", "text.txt", "--out", "data", "--tokenizer", "byte"], folder)
        for tokens in a.tokens:
            (folder / "model.toml").write_text(CONFIG.format(tokens=tokens, dtype=a.dtype))
            shutil.rmtree(folder / "run", ignore_errors=True)
            resident([lathe, "train", "model.toml", "--train.out_dir=run"], folder)
            lines = logged_steps(folder / "run")
            memory, seconds = lines[-1]["memory_bytes"], min(line["step_ms"] for line in lines[1:]) / 1e3
            print(f"| {tokens} | {memory / 2**20:.0f} | {memory / 1024 / tokens:.2f} | {seconds:.2f} "
                  f"| {2e9 * seconds / tokens**2:.2f} |", flush=True)


main()
