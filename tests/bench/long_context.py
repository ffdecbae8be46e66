#!/usr/bin/env python3
"""Measures memory and time of long contexts: long_context.py LATHE [--tokens N ...] [--dtype fp32]

Trains a model of one block and one head of 64 channels on a sequence of each length. Prints the
peak memory of tensors, in total and per token, and the time of a step, in total and in nanoseconds
per pair of tokens (T^2 / 2 pairs).
"""
import argparse
import tempfile
from pathlib import Path

from small_model import prepare, train, write_config


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
        prepare(lathe, folder, repeats=30000)
        for tokens in a.tokens:
            write_config(folder, kind="llama", layers=1, heads=1, width=64, tokens=tokens, steps=3, batch=1,
                         dtype=a.dtype)
            lines = train(lathe, folder)
            memory, seconds = lines[-1]["memory_bytes"], min(line["step_ms"] for line in lines[1:]) / 1e3
            print(f"| {tokens} | {memory / 2**20:.0f} | {memory / 1024 / tokens:.2f} | {seconds:.2f} "
                  f"| {2e9 * seconds / tokens**2:.2f} |", flush=True)


main()
