#!/usr/bin/env python3
"""Measures Lathe on this machine and writes the tables of docs/benchmarks/README.md.

usage: performance.py [--lathe build/lathe] [--data data/bench] [--peer PYTHON] [--rounds 3]
                      [ops|steps|compiled|growth|recompute ...]

The tables are:
  ops        each op, compared with the same computation in ATen
  steps      training steps of four models, with Lathe's kernels and with ATen's kernels
             (train.kernels = "aten"). With --peer, the steps are compared with PyTorch
             (tests/bench/torch_gpt.py). Tuned PyTorch (fused AdamW, and a C allocator that keeps
             its memory) runs in the same rounds as Lathe. PyTorch with default settings runs in one
             round.
  compiled   the same models, compared with tuned PyTorch that uses torch.compile
  growth     longer contexts, larger batches, wider models and more threads, in one round each. With
             --peer, they are compared with tuned PyTorch.
  recompute  the memory of activations and the time of a step, for each value of memory.recompute
             and several numbers of blocks. The exponents show how the memory grows with this
             number.

Runs that other processes disturbed are repeated (tests/bench/interleave.py).
"""
import argparse
import json
import math
import os
import pathlib
import subprocess

import chart
from interleave import measure, tuned_environment
from page import write_table

PAGE = pathlib.Path("docs/benchmarks/README.md")
CONFIG = "configs/shakespeare_char_cpu.toml"
# layers, heads, width, context, batch, vocabulary (0: the vocabulary of the data), biases, steps,
# skipped steps
MODELS = {
    "a": (4, 4, 128, 64, 12, 0, False, 160, 20),
    "b": (6, 6, 384, 256, 16, 0, False, 10, 2),
    "c": (12, 12, 768, 256, 4, 50304, True, 6, 1),
    "d": (12, 12, 768, 64, 4, 50304, True, 10, 2),
}


class Bench:
    def __init__(self, args):
        self.args = args
        self.data_vocab = json.loads((args.data / "manifest.json").read_text())["vocab_size"]
        self.peaks = {}

    def call(self, *words):
        return subprocess.run([self.args.lathe, *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    def peak(self, dtype, threads=0):
        """Returns the measured peak of matrix products in TFLOP/s."""
        if (dtype, threads) not in self.peaks:
            words = ["--threads", str(threads)] if threads else []
            self.peaks[dtype, threads] = json.loads(self.call("bench", "peak", "--dtype", dtype, *words))["tflops"]
        return self.peaks[dtype, threads]

    def lathe(self, model, dtype, *flags):
        layers, heads, width, context, batch, vocab, bias, steps, skip = model
        keys = {"model.n_layer": layers, "model.n_head": heads, "model.n_embd": width, "model.block_size": context,
                "model.vocab_size": vocab, "model.bias": str(bias).lower(), "train.batch_size": batch,
                "train.steps": steps, "schedule.warmup_steps": 2, "amp.dtype": dtype, "data.dir": self.args.data}
        return " ".join([self.args.lathe, "bench step", CONFIG, "--skip", str(skip), *flags,
                         *(f"--{k}={v}" for k, v in keys.items())])

    def torch(self, model, dtype, *flags):
        layers, heads, width, context, batch, vocab, bias, steps, skip = model
        words = {"layers": layers, "heads": heads, "dim": width, "ctx": context, "batch": batch,
                 "vocab": vocab or self.data_vocab, "steps": steps, "skip": skip, "dtype": dtype,
                 "data": self.args.data / "train.bin"}
        return " ".join([self.args.peer, "tests/bench/torch_gpt.py", *flags, *([] if bias else ["--no-bias"]),
                         *(f"--{k} {v}" for k, v in words.items())])

    def flops(self, model):
        """Returns the FLOPs of a step by the formula of `lathe plan`."""
        layers, _, width, context, batch, vocab, _, _, _ = model
        params = 12 * layers * width * width + (vocab or self.data_vocab) * width
        return batch * context * (6.0 * params + 12.0 * layers * width * context)

    def ops(self):
        rows = ["```", *self.call("config", "kernels").rstrip().split("\n"), "```", ""]
        for dtype in ("fp32", "bf16"):
            self.peak(dtype)
            for text, flags in (("c: 4 x 256 tokens, width 768, vocabulary 50304", []),
                                ("a: 12 x 64 tokens, width 128, vocabulary 65",
                                 ["--batch", "12", "--context", "64", "--width", "128", "--vocab", "65"])):
                r = json.loads(self.call("bench", "ops", "--dtype", dtype, *flags).strip().split("\n")[-1])
                rows += [f"{dtype}, sizes of {text}:", "",
                         "| forward and backward | Lathe, ms | ATen, ms | Lathe / ATen | TFLOP/s | of the ceiling |",
                         "|---|---|---|---|---|---|"]
                for o in r["ops"]:
                    rate = o.get("tflops")
                    rows.append(f"| {o['op']} | {o['lathe_ms']:.4g} | {o['aten_ms']:.4g} | "
                                f"{o['lathe_ms'] / o['aten_ms']:.2f} | "
                                + (f"{rate:.3f} | {100 * rate / self.peak(dtype):.0f}% |" if rate else "| |"))
                rows.append("")
        return rows[:-1]

    def steps(self):
        plain, tuned = dict(os.environ), tuned_environment()
        rows = ["| | Lathe, ms | with ATen's kernels | PyTorch tuned | PyTorch default | tuned / Lathe | of the ceiling | "
                "peak MB | PyTorch, MB | start to first step, s | PyTorch, s |", "|---" * 11 + "|"]
        for name, model in MODELS.items():
            best = {}
            for dtype in ("fp32", "bf16"):
                jobs = [("lathe", self.lathe(model, dtype), plain)]
                others = [("aten", self.lathe(model, dtype, "--train.kernels=aten"), plain)]
                if self.args.peer:
                    jobs.append(("tuned", self.torch(model, dtype, "--optim fused"), tuned))
                    others.append(("stock", self.torch(model, dtype), plain))
                m = {**measure(jobs, self.args.rounds), **measure(others, 1)}
                best[dtype] = m
                ms = {k: v["ms_median"] for k, v in m.items()}
                share = self.flops(model) / (1e9 * ms["lathe"]) / self.peak(dtype)

                def cell(who, key, pattern):
                    return pattern % m[who][key] if who in m else ""

                rows.append(f"| {name} {dtype} | {ms['lathe']:.4g} | {ms['aten']:.4g} | {cell('tuned', 'ms_median', '%.4g')} "
                            f"| {cell('stock', 'ms_median', '%.4g')} | "
                            + (f"{ms['tuned'] / ms['lathe']:.2f}" if "tuned" in ms else "")
                            + f" | {100 * share:.0f}% | {m['lathe']['rss_mb']:.0f} | {cell('tuned', 'rss_mb', '%.0f')} | "
                            f"{m['lathe']['first_step_s']:.2f} | {cell('tuned', 'first_step_s', '%.2f')} |")
                print(rows[-1], flush=True)
            if self.args.peer:
                fastest = min(best[d]["tuned"]["ms_median"] for d in best)
                rows.append(f"| {name}, Lathe bf16 and the faster PyTorch | | | | | "
                            f"{fastest / best['bf16']['lathe']['ms_median']:.2f} | | | | | |")
        return rows

    def compiled(self):
        if not self.args.peer:
            return ["(not measured: performance.py had no --peer)"]
        rows = ["| | Lathe, ms | compiled, ms | compiled / Lathe | peak MB | compiled, MB | start to first step, s | "
                "compiled, s |", "|---" * 8 + "|"]
        for name, model in MODELS.items():
            for dtype in ("fp32", "bf16"):
                m = measure([("lathe", self.lathe(model, dtype), dict(os.environ)),
                             ("compiled", self.torch(model, dtype, "--compile --optim fused"), tuned_environment())],
                            self.args.rounds)
                lathe, peer = m["lathe"], m["compiled"]
                rows.append(f"| {name} {dtype} | {lathe['ms_median']:.4g} | {peer['ms_median']:.4g} | "
                            f"{peer['ms_median'] / lathe['ms_median']:.2f} | {lathe['rss_mb']:.0f} | "
                            f"{peer['rss_mb']:.0f} | {lathe['first_step_s']:.2f} | {peer['first_step_s']:.2f} |")
                print(rows[-1], flush=True)
        return rows

    def growth(self):
        rows = ["| 4 layers, bf16 | ms a step | tokens/s | of the ceiling | PyTorch tuned, ms | tuned / Lathe | peak MB | "
                "PyTorch, MB |", "|---" * 8 + "|"]

        def point(text, context, batch, width, threads=0):
            model = (4, width // 64, width, context, batch, 0, False, 5, 1)
            jobs = [("lathe", self.lathe(model, "bf16", *([f"--train.threads={threads}"] if threads else [])),
                     dict(os.environ))]
            if self.args.peer:
                flags = ["--optim fused", *([f"--threads {threads}"] if threads else [])]
                jobs.append(("tuned", self.torch(model, "bf16", *flags), tuned_environment()))
            m = measure(jobs, 1)
            ms, rss = m["lathe"]["ms_median"], m["lathe"]["rss_mb"]
            share = self.flops(model) / (1e9 * ms) / self.peak("bf16", threads)
            peer = m.get("tuned")
            rows.append(f"| {text} | {ms:.4g} | {1e3 * context * batch / ms:.0f} | {100 * share:.0f}% | "
                        + (f"{peer['ms_median']:.4g} | {peer['ms_median'] / ms:.2f} | {rss:.0f} | {peer['rss_mb']:.0f} |"
                           if peer else f"| | {rss:.0f} | |"))
            print(rows[-1], flush=True)

        for context in (256, 512, 1024, 2048, 4096, 8192):
            point(f"context {context}, 8192 tokens, width 256", context, 8192 // context, 256)
        for batch in (1, 2, 4, 8, 16, 32, 64):
            point(f"batch {batch}, context 256, width 256", 256, batch, 256)
        for width in (128, 256, 512, 1024):
            point(f"width {width}, batch 8, context 256", 256, 8, width)
        for threads in (1, 2):
            point(f"{threads} thread{'s' if threads > 1 else ''}, batch 8, context 256, width 512", 256, 8, 512, threads)
        return rows


    def recompute(self):
        depths, policies = (4, 16, 64), ("none", "selective", "blocks", "sqrt")
        rows = ["| blocks | policy | activations, MB | of none | ms a step | of none |", "|---" * 6 + "|"]
        held = {p: [] for p in policies}
        for depth in depths:
            model = (depth, 4, 128, 256, 8, 0, False, 7, 2)
            jobs = [(p, self.lathe(model, "fp32", f"--memory.recompute={p}"), dict(os.environ)) for p in policies]
            m = measure(jobs, self.args.rounds)
            for p in policies:
                memory, ms = m[p]["activations_mb"], m[p]["ms_median"]
                held[p].append(memory)
                rows.append(f"| {depth} | {p} | {memory:.1f} | {memory / held['none'][-1]:.2f} | {ms:.4g} | "
                            f"{ms / m['none']['ms_median']:.2f} |")
                print(rows[-1], flush=True)
        rows += ["", "| policy | exponent of the depth | a block, MB |", "|---|---|---|"]
        for p in policies:
            x, y = [math.log(d) for d in depths], [math.log(v) for v in held[p]]
            mx, my = sum(x) / len(x), sum(y) / len(y)
            slope = sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)
            per_block = (held[p][-1] - held[p][0]) / (depths[-1] - depths[0])
            rows.append(f"| {p} | {slope:.2f} | " + (f"{per_block:.2f} |" if p != "sqrt" else "|"))
            print(rows[-1], flush=True)
        return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", default="build/lathe")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("data/bench"))
    parser.add_argument("--peer", help="a Python with torch and numpy")
    parser.add_argument("--rounds", type=int, default=3)
    names = ("ops", "steps", "compiled", "growth", "recompute")
    parser.add_argument("which", nargs="*", choices=[*names, []])
    args = parser.parse_args()
    bench = Bench(args)
    for name in args.which or names:
        write_table(PAGE, name, getattr(bench, name)())
        if name == "steps" and args.peer:
            chart.CHART.write_text(chart.draw(chart.ratios()))


main()
