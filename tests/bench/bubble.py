#!/usr/bin/env python3
"""Measures how long the stages of a pipeline are idle, and compares this time with the forecast of
lathe plan.

usage: bubble.py LATHE [--rounds N]

Trains a GPT model with 8 blocks in two stages, with one thread per process, for several values of
dist.virtual_stages and several numbers of micro-batches. "Idle" is the fraction of the step in
which a stage waits for the other stage, averaged over both stages. "By the forecast" starts from
the measured time of a step with 8 micro-batches. It scales this time to the number of micro-batches
of the row, with the idle fractions that lathe plan forecasts for the two numbers of micro-batches.
Prints medians over the rounds.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from small_model import prepare, train, write_config

SIZES = dict(kind="gpt", layers=8, heads=12, width=768, tokens=256, vocabulary=256, batch=2, steps=8, dtype="bf16")


def measure(lathe, folder, words):
    """Returns the ms of a step, and the idle fraction, averaged over the stages."""
    steps = train(lathe, folder, *words, ranks=2)[3:]
    idle = [statistics.mean(r["wait_ms"] / (r["busy_ms"] + r["wait_ms"]) for r in step["ranks"]) for step in steps]
    return statistics.median(step["step_ms"] for step in steps), statistics.median(idle)


def forecast(lathe, folder, words):
    out = subprocess.run([lathe, "plan", "model.toml", "--ranks", "2", "--json", *words], cwd=folder, check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])["pipeline_bubble"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    lathe = str(Path(a.lathe).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(lathe, folder)
        write_config(folder, **SIZES)
        cases = {(parts, n): ["--dist.pipeline=2", f"--dist.virtual_stages={parts}", f"--train.grad_accum={n}", "--train.threads=1"]
                 for n in (2, 4, 8) for parts in (1, 2, 4)}
        found = {case: [] for case in cases}
        for _ in range(a.rounds):
            for case, words in cases.items():
                found[case].append(measure(lathe, folder, words))
        print("| micro-batches | `dist.virtual_stages` | idle: forecast | measured | ms per step | by the forecast |")
        print("|---|---|---|---|---|---|")
        most = max(n for _, n in cases)
        middle = {case: [statistics.median(column) for column in zip(*figures)] for case, figures in found.items()}
        planned = {case: forecast(lathe, folder, words) for case, words in cases.items()}
        for (parts, n), (ms, idle) in middle.items():
            scale = n / (1 - planned[parts, n]) / (most / (1 - planned[parts, most]))
            print(f"| {n} | {parts} | {100 * planned[parts, n]:.0f}% | {100 * idle:.0f}% | {ms:.0f} | "
                  + (f"{scale * middle[parts, most][0]:.0f} |" if n < most else "|"))


main()
