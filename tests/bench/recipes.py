#!/usr/bin/env python3
"""Trains the recipes of configs/ on public data sets, and prints the tables of
docs/benchmarks/recipes.md.

  tests/bench/recipes.py LATHE DATA [--only NAME ...] [--seeds 3] [--folds 5]
  tests/bench/recipes.py LATHE DATA --quick

DATA holds digits.csv (64 pixels and the label per line), diabetes.csv (10 features and the target
per line) and names.txt (one name per line). --quick trains each recipe for a short time, and checks
that it learns. Exits with 77 if DATA is incomplete.
"""
import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

# The config keys that are set for each optimizer.
OPTIMIZERS = {
    "digits_mlp": {
        "sgd": {"optim.lr": 0.2},
        "momentum": {"optim.lr": 0.05},
        "adagrad": {"optim.lr": 0.02},
        "rmsprop": {"optim.lr": 0.001},
        "adam": {},
    },
    "digits_convnet": {
        "sgd": {"optim.lr": 0.4},
        "momentum": {"optim.lr": 0.05},
        "adagrad": {"optim.lr": 0.03},
        "rmsprop": {"optim.lr": 0.003},
        "adam": {},
    },
}
DTYPES = {"fp32": {}, "bf16": {"amp.dtype": "bf16"}, "fp16": {"amp.dtype": "fp16"}}


class Trials:
    def __init__(self, lathe, data):
        self.lathe = Path(lathe).resolve()
        self.folder = Path(tempfile.mkdtemp(prefix="lathe-recipes-"))
        for name, words in {
            "digits.csv": ["--target", "last", "--task", "classification", "--shape", "1,8,8"],
            "diabetes.csv": ["--target", "last", "--task", "regression"],
            "names.txt": ["--tokenizer", "char"],
        }.items():
            out = self.folder / "data" / Path(name).stem
            self.call("prepare", Path(data).resolve() / name, "--out", out, *words)
        self.runs = 0

    def call(self, *words):
        done = subprocess.run([self.lathe, *map(str, words)], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"FAILED: lathe {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def run(self, config, keys):
        """Trains a config with changed keys, and returns the JSON line of `lathe eval`."""
        self.runs += 1
        out = self.folder / f"run{self.runs}"
        self.call("train", CONFIGS / f"{config}.toml", f"--train.out_dir={out}", "--train.eval_interval=0",
                  "--train.sample_interval=0", *(f"--{key}={value}" for key, value in keys.items()))
        figures = json.loads(self.call("eval", out).splitlines()[-1])
        if config.startswith("names"):
            figures["sample"] = self.call("generate", out, "--tokens", 60)
        shutil.rmtree(out)
        return figures


def ridge(path, folds, seeds):
    """Returns the mean squared error of ridge regression on standardized features.

    The error is averaged over folds and shuffles. The best of several penalties is used.
    """
    rows = [[float(x) for x in line.split(",")] for line in path.read_text().split()]

    def solve(a, b):  # Gaussian elimination with pivots
        n = len(b)
        a = [row[:] + [y] for row, y in zip(a, b)]
        for i in range(n):
            pivot = max(range(i, n), key=lambda r: abs(a[r][i]))
            a[i], a[pivot] = a[pivot], a[i]
            for r in range(i + 1, n):
                f = a[r][i] / a[i][i]
                a[r] = [x - f * y for x, y in zip(a[r], a[i])]
        w = [0.0] * n
        for i in reversed(range(n)):
            w[i] = (a[i][n] - sum(a[i][j] * w[j] for j in range(i + 1, n))) / a[i][i]
        return w

    def error(penalty, train, test):
        columns = list(zip(*train))
        mean = [statistics.fmean(c) for c in columns]
        scale = [statistics.pstdev(c) or 1.0 for c in columns]
        x = [[(v - m) / s for v, m, s in zip(r[:-1], mean, scale)] for r in train]
        y = [r[-1] - mean[-1] for r in train]
        k = len(x[0])
        a = [[sum(r[i] * r[j] for r in x) + (penalty if i == j else 0) for j in range(k)] for i in range(k)]
        w = solve(a, [sum(r[i] * t for r, t in zip(x, y)) for i in range(k)])
        said = [mean[-1] + sum(u * (v - m) / s for u, v, m, s in zip(w, r[:-1], mean, scale)) for r in test]
        return statistics.fmean((p - r[-1]) ** 2 for p, r in zip(said, test))

    best = None
    for penalty in [0.1, 1, 3, 10, 30, 100]:
        errors = []
        for seed in range(seeds):
            order = rows[:]
            random.Random(seed).shuffle(order)
            for fold in range(folds):
                test = order[fold::folds]
                errors.append(error(penalty, [r for i, r in enumerate(order) if i % folds != fold], test))
        mean = statistics.fmean(errors)
        best = min(best or mean, mean)
    return best


def cross_validate(trials, config, keys, figure, folds, seeds):
    values = []
    for seed in range(1, seeds + 1):
        for fold in range(folds):
            values.append(trials.run(config, {**keys, "data.folds": folds, "data.fold": fold, "train.seed": seed})[figure])
    return statistics.fmean(values), statistics.pstdev(values)


def quick(trials, data):
    digits = {"data.folds": 5, "train.threads": 1, "train.steps": 150}
    for config in OPTIMIZERS:
        for dtype, keys in DTYPES.items():
            accuracy = trials.run(config, {**digits, **keys})["accuracy"]
            print(f"{config} {dtype}: accuracy {accuracy:.4f} after 150 steps", flush=True)
            if accuracy < 0.93:
                sys.exit(f"FAILED: {config} in {dtype} does not learn the digits")
    untrained = trials.run("digits_mlp", {**digits, "train.steps": 1})["accuracy"]
    if untrained > 0.8:
        sys.exit("FAILED: a run of one step already knows the digits")
    mse = trials.run("diabetes_mlp", {"data.folds": 5, "train.threads": 1})["mse"]
    print(f"diabetes_mlp: mse {mse:.0f}", flush=True)
    if mse > 4500:  # the target's variance is 5900
        sys.exit("FAILED: diabetes_mlp does not learn")
    for config in ["names_lstm", "names_gpt"]:
        loss = trials.run(config, {"train.steps": 100, "train.threads": 1})["val_loss"]
        print(f"{config}: validation loss {loss:.3f} after 100 steps", flush=True)
        if loss > 2.7:
            sys.exit(f"FAILED: {config} does not learn")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lathe")
    parser.add_argument("data", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=["digits_mlp", "digits_convnet", "dtypes", "diabetes", "names"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    a = parser.parse_args()
    if not all((a.data / name).exists() for name in ["digits.csv", "diabetes.csv", "names.txt"]):
        print(f"skipped: {a.data} does not hold digits.csv, diabetes.csv and names.txt")
        sys.exit(77)
    trials = Trials(a.lathe, a.data)
    try:
        if a.quick:
            return quick(trials, a.data)
        for config in ["digits_mlp", "digits_convnet"]:
            if config not in a.only:
                continue
            print(f"\n| {config} | accuracy, % | deviation of runs |\n|---|---|---|")
            for optimizer, keys in OPTIMIZERS[config].items():
                mean, spread = cross_validate(trials, config, {"optim.kind": optimizer, **keys}, "accuracy", a.folds, a.seeds)
                print(f"| {optimizer} {keys.get('optim.lr', '')} | {100 * mean:.2f} | {100 * spread:.2f} |", flush=True)
        if "dtypes" in a.only:
            print("\n| accuracy, % | fp32 | bf16 | fp16 |\n|---|---|---|---|")
            for config in ["digits_mlp", "digits_convnet"]:
                cells = [f"{100 * cross_validate(trials, config, keys, 'accuracy', a.folds, a.seeds)[0]:.2f}"
                         for keys in DTYPES.values()]
                print(f"| {config} | {' | '.join(cells)} |", flush=True)
        if "diabetes" in a.only:
            mean, spread = cross_validate(trials, "diabetes_mlp", {}, "mse", a.folds, a.seeds)
            print(f"\ndiabetes_mlp: mse {mean:.0f} (deviation of runs {spread:.0f}); ridge regression "
                  f"{ridge(a.data / 'diabetes.csv', a.folds, 10):.0f}", flush=True)
        if "names" in a.only:
            for config in ["names_lstm", "names_gpt"]:
                runs = [trials.run(config, {"train.seed": seed}) for seed in range(1, a.seeds + 1)]
                print(f"\n{config}: validation loss {statistics.fmean(r['val_loss'] for r in runs):.4f} "
                      f"({' '.join('%.4f' % r['val_loss'] for r in runs)}). A sample:\n{runs[0]['sample']}", flush=True)
    finally:
        shutil.rmtree(trials.folder)


main()
