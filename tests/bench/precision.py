#!/usr/bin/env python3
"""Runs the experiments of docs/reference/precision.md and writes their tables into that page.

usage: tests/bench/precision.py [--lathe build/lathe] [--runs runs/precision] [accuracy masters gradients accumulation memory loading]

Training runs need data/shakespeare_char (see docs/guide/data.md) and take two minutes each on one
core. Runs that are already complete in the folder --runs are not repeated.
"""
import argparse
import json
import pathlib
import subprocess

from page import write_table

CONFIG = "configs/shakespeare_char_cpu.toml"
PAGE = pathlib.Path("docs/reference/precision.md")
ONE = ["--train.threads=1", "--checkpoint.interval=0"]
FP8_ALL = ["--amp.dtype=fp8", "--amp.fp8_edge_blocks=0"]
NO_MASTER = "--amp.master=false"
SMALL = ["--optim.lr=3e-6", "--schedule.kind=constant"]


class Experiments:
    def __init__(self, lathe, runs):
        self.lathe, self.runs = lathe, runs

    def call(self, *words):
        return subprocess.run([self.lathe, *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    def train(self, name, seed, *flags):
        """Returns the metrics of a run. Trains the run first if it is not complete."""
        folder = self.runs / name
        self.call("train", CONFIG, f"--train.out_dir={folder}", f"--train.seed={seed}", *ONE, *flags)
        return [json.loads(line) for line in open(folder / "metrics.jsonl")]

    @staticmethod
    def val_loss(metrics, last=True):
        losses = [m["val_loss"] for m in metrics if "val_loss" in m]
        return losses[-1 if last else 0]

    def accuracy(self):
        rows = ["| `amp.dtype` | seed 1 | seed 2 | seed 3 | mean | against fp32 |", "|---|---|---|---|---|---|"]
        wide = None
        for dtype in ("fp32", "bf16", "fp16", "fp8"):
            losses = [self.val_loss(self.train(f"{dtype}-{s}", s, f"--amp.dtype={dtype}")) for s in (1, 2, 3)]
            mean = sum(losses) / 3
            wide = wide or mean
            rows.append(f"| {dtype} | " + " | ".join(f"{x:.4f}" for x in losses)
                        + f" | {mean:.4f} | {100 * (mean / wide - 1):+.2f}% |")
        rows += ["", "The next table shows variants with seed 1:", "",
                 "| setting | validation loss |", "|---|---|"]
        for name, text, flags in (
                ("fp8e0-1", "fp8 in every block (`amp.fp8_edge_blocks = 0`)", FP8_ALL),
                ("fp8d-1", "the same with delayed scaling", [*FP8_ALL, "--amp.fp8_scaling=delayed"]),
                ("bf16sr-1", "bf16 without masters, stochastic rounding", ["--amp.dtype=bf16", NO_MASTER]),
                ("bf16nr-1", "bf16 without masters, rounding to nearest",
                 ["--amp.dtype=bf16", NO_MASTER, "--amp.rounding=nearest"]),
                ("fp16nm-1", "fp16 without masters", ["--amp.dtype=fp16", NO_MASTER])):
            rows.append(f"| {text} | {self.val_loss(self.train(name, 1, *flags)):.4f} |")
        return rows

    def masters(self):
        rows = ["| parameters | loss at step 0 | after 2000 steps | updates lost at step 10 | at step 2000 |",
                "|---|---|---|---|---|"]
        for name, text, flags in (
                ("small-fp32", "fp32", []),
                ("small-fp16", "fp16 with fp32 masters", ["--amp.dtype=fp16"]),
                ("small-fp16nm", "fp16 without masters", ["--amp.dtype=fp16", NO_MASTER]),
                ("small-bf16nr", "bf16 without masters, to nearest",
                 ["--amp.dtype=bf16", NO_MASTER, "--amp.rounding=nearest"]),
                ("small-bf16sr", "bf16 without masters, stochastic", ["--amp.dtype=bf16", NO_MASTER])):
            metrics = self.train(name, 1, *SMALL, *flags)
            steps = {m["step"]: m for m in metrics if "loss" in m}
            lost = [f"{100 * steps[s]['updates_lost']:.0f}%" if "updates_lost" in steps[s] else "" for s in (10, 2000)]
            rows.append(f"| {text} | {self.val_loss(metrics, False):.4f} | {self.val_loss(metrics):.4f} | "
                        + " | ".join(lost) + " |")
        rows += ["",
                 "The next table counts lost updates of fp16 without masters in the recipe above",
                 "(the learning rate falls from 1e-3 to 1e-4):",
                 "", "| step | learning rate | updates lost |", "|---|---|---|"]
        for m in self.train("fp16nm-1", 1, "--amp.dtype=fp16", NO_MASTER):
            if m["step"] in (10, 100, 1000, 1500, 2000) and "loss" in m:
                rows.append(f"| {m['step']} | {m['lr']:.2g} | {100 * m['updates_lost']:.0f}% |")
        return rows

    def gradients(self):
        self.train("fp32-1", 1)
        text = self.call("gradients", str(self.runs / "fp32-1"), "--threads=1", "--svg", "docs/assets/gradients.svg")
        return ["```", *text.rstrip().split("\n"), "```", "", "![Histogram of the exponents of gradients](../assets/gradients.svg)"]

    def accumulation(self):
        return self.call("bench", "accumulation").rstrip().split("\n")

    def memory(self):
        rows = ["| setting | parameters | weight casts | optimizer | gradients | static, bytes a parameter | activations |",
                "|---|---|---|---|---|---|---|"]
        for text, flags in (
                ("fp32", []), ("bf16", ["--amp.dtype=bf16"]),
                ("bf16, fp32 gradients", ["--amp.dtype=bf16", "--amp.grad=fp32"]),
                ("bf16, no copies, cached", ["--amp.dtype=bf16", "--amp.working_copies=false"]),
                ("bf16, no copies, not cached",
                 ["--amp.dtype=bf16", "--amp.working_copies=false", "--amp.cache=false"]),
                ("bf16, no masters", ["--amp.dtype=bf16", NO_MASTER]), ("fp16", ["--amp.dtype=fp16"]),
                ("fp8 in every block", FP8_ALL)):
            plan = self.call("plan", CONFIG, "--train.threads=1", *flags)
            lines = {line[:26].strip(): line[26:] for line in plan.split("\n")}

            def megabytes(key):
                words = lines.get(key, "0 B").split()
                return float(words[0]) * {"B": 1e-6, "kB": 1e-3, "MB": 1}[words[1]]

            count = float(lines["parameters"].split()[0])
            parts = [megabytes(f"memory: {k}") for k in ("parameters", "weight casts", "optimizer", "gradients")]
            static = (parts[0] + parts[2] + parts[3]) * 1e6 / count
            rows.append(f"| {text} | " + " | ".join(f"{p:.1f} MB" for p in parts)
                        + f" | {static:.1f} | {megabytes('memory: activations'):.1f} MB |")
        return rows

    def loading(self):
        self.train("fp32-1", 1)
        rows = ["| `--load-dtype` | validation loss | against fp32 | weights | while loading |", "|---|---|---|---|---|"]
        wide = None
        for text, flags in (("fp32", []), ("bf16", ["bf16"]), ("fp16", ["fp16"]), ("int8", ["int8"]), ("nf4", ["nf4"]),
                            ("nf4, scales in 8 bits", ["nf4", "--double-quant=true"])):
            words = ["--load-dtype", *flags] if flags else []
            r = json.loads(self.call("eval", str(self.runs / "fp32-1"), "--threads=1", *words).split("\n")[-2])
            wide = wide or r["val_loss"]
            rows.append(f"| {text} | {r['val_loss']:.4f} | {100 * (r['val_loss'] / wide - 1):+.2f}% | "
                        f"{r['weight_bytes'] / 1e6:.2f} MB | {r['loading_peak_bytes'] / 1e6:.2f} MB |")
        return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lathe", default="build/lathe")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/precision"))
    names = ("accuracy", "masters", "gradients", "accumulation", "memory", "loading")
    parser.add_argument("which", nargs="*", choices=[*names, []])
    args = parser.parse_args()
    experiments = Experiments(args.lathe, args.runs)
    for name in args.which or names:
        write_table(PAGE, name, getattr(experiments, name)())


main()
