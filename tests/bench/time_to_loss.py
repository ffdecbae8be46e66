#!/usr/bin/env python3
"""Prints a table for the section "Time to a loss" of docs/benchmarks/recipes.md.

The table shows the final validation losses and the training times of several configs. It shows
whether a config reaches the final loss of configs/shakespeare_char_cpu.toml in less time.

  tests/bench/time_to_loss.py LATHE DATA [--seeds 1 2 3] [--ends-only] [--keep FOLDER]

DATA holds tinyshakespeare.txt. The script trains all rows with the first seed, then all rows with
the next seed, so that a slowdown of the machine affects all rows. The time is the duration of
`lathe train` without evaluation. `lathe eval` computes the loss over the complete validation split.
--ends-only trains only the first and the last row. Exits with 1 if the last row's mean loss is
above the first row's, or if its time is above half of the first row's. Exits with 77 if DATA does
not hold tinyshakespeare.txt.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
BASE, RECIPE = "shakespeare_char_cpu", "shakespeare_char_muon"

# The rows: BASE, RECIPE, configs between the two, and changes that did not help. Each row has a
# name, a config, and the keys of the config that it changes.
ROWS = [
    ("adamw, lr 1e-3, cosine, 2000 steps: shakespeare_char_cpu.toml", BASE, {}),
    ("shakespeare_char_cpu.toml, 500 steps", BASE, {"train.steps": 500}),
    ("the same with lr 4e-3, linear to 0", BASE,
     {"train.steps": 500, "optim.lr": 4e-3, "schedule.kind": "linear", "schedule.min_lr": 0}),
    ("500 steps of muon, lr 1.5e-2, cosine to a tenth, warm-up of 100", RECIPE,
     {"schedule.kind": "cosine", "schedule.min_lr": 1.5e-3, "schedule.warmup_steps": 100}),
    ("shakespeare_char_muon.toml with an untied head", RECIPE, {"model.tie_weights": "false"}),
    ("shakespeare_char_muon.toml with batches of 24, 250 steps", RECIPE,
     {"train.batch_size": 24, "train.steps": 250}),
    ("muon, lr 1.5e-2, linear to 0, 500 steps: shakespeare_char_muon.toml", RECIPE, {}),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lathe", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--ends-only", action="store_true")
    parser.add_argument("--keep", type=Path, help="the folder for runs, which is kept (default: a temporary folder)")
    a = parser.parse_args()
    text = (a.data / "tinyshakespeare.txt").resolve()
    if not text.exists():
        print(f"skipped: {a.data} does not hold tinyshakespeare.txt")
        sys.exit(77)
    lathe = a.lathe.resolve()
    folder = a.keep.resolve() if a.keep else Path(tempfile.mkdtemp(prefix="lathe-time-"))
    folder.mkdir(parents=True, exist_ok=True)

    def call(*words):
        begin = time.monotonic()
        done = subprocess.run([lathe, *map(str, words)], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"FAILED: lathe {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return done.stdout, time.monotonic() - begin

    shutil.rmtree(folder / "data/shakespeare_char", ignore_errors=True)
    call("prepare", text, "--out", "data/shakespeare_char", "--tokenizer", "char")
    rows = [ROWS[0], ROWS[-1]] if a.ends_only else ROWS
    results = [[] for _ in rows]
    for seed in a.seeds:
        for i, (name, config, keys) in enumerate(rows):
            run = folder / f"row{i}_{seed}"
            shutil.rmtree(run, ignore_errors=True)
            _, seconds = call("train", CONFIGS / f"{config}.toml", f"--train.out_dir={run}", f"--train.seed={seed}",
                              "--train.eval_interval=0", "--checkpoint.interval=0", "--train.log_interval=1",
                              *(f"--{key}={value}" for key, value in keys.items()))
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            ms = statistics.median(line["step_ms"] for line in lines if "step_ms" in line)
            loss = json.loads(call("eval", run)[0].splitlines()[-1])["val_loss"]
            results[i].append((loss, seconds, lines[-1]["step"], ms))
            print(f"seed {seed}, {name}: {loss:.4f} in {seconds:.1f} s", file=sys.stderr, flush=True)
    print("| | validation loss, mean (seeds) | steps | ms per step | seconds | relative time |\n|---|---|---|---|---|---|")
    mean = [[statistics.fmean(run[k] for run in row) for k in range(4)] for row in results]
    for (name, _, _), row, (loss, seconds, steps, ms) in zip(rows, results, mean):
        print(f"| {name} | {loss:.4f} ({' '.join('%.4f' % run[0] for run in row)}) | {steps:.0f} | {ms:.1f} | "
              f"{seconds:.1f} | {seconds / mean[0][1]:.2f} |")
    if not a.keep:
        shutil.rmtree(folder)
    if mean[-1][0] > mean[0][0] or mean[-1][1] > mean[0][1] / 2:
        sys.exit("FAILED: the last row does not reach the first row's loss in half of the first "
                 "row's time")


main()
