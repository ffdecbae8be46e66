#!/usr/bin/env python3
"""Measures memory and speed of GPT-2's models for the tables of docs/benchmarks/gpt2.md.

  tests/bench/gpt2.py LATHE DATA [--peer PYTHON] [--folder DIR] [--steps 10] [memory|speed|sizes|llama|walk ...]

DATA is a folder that `lathe prepare TEXT --tokenizer GPT2` wrote. The tables are:

  memory  GPT-2 124M, with a different memory technique in each row
  speed   GPT-2 124M, with a different combination of kernels and dtype in each row
  sizes   the memory that `lathe plan` forecasts for each model, and the largest model that fits
          into each limit; with --peer, also the measured memory of PyTorch
  llama   the same as in sizes, for models of the kind llama
  walk    the memory and speed of two models with 355 million and 1.5 billion parameters. Each is
          trained in memory, and again with its optimizer state on the disk. The second run of the
          larger model also keeps the parameters on the disk. The second runs have memory limits of
          3 and 8 GB, and are killed and resumed. Equal SHA-256 sums of the last weights show that
          the two runs of a model are bitwise equal.
          Needs root, 20 GB of free memory and 50 GB of disk.

--peer: a Python with PyTorch, for PyTorch's columns.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from metrics import logged_steps
from page import write_table
from peak import resident

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/benchmarks/gpt2.md"
CONFIG = ROOT / "configs/gpt2_124m.toml"
GROUP = Path("/sys/fs/cgroup/memory/lathe-bench-gpt2")
SIZES = {"124M": (12, 12, 768), "355M": (24, 16, 1024), "774M": (36, 20, 1280), "1.5B": (48, 25, 1600)}
LLAMAS = {  # layers, heads, key/value heads, width, width of the feed-forward layers, vocabulary, tied
    "TinyLlama 1.1B": (22, 32, 4, 2048, 5632, 32000, False),
    "Llama 3.2 1B": (16, 32, 8, 2048, 8192, 128256, True),
    "Llama 3.2 3B": (28, 24, 8, 3072, 8192, 128256, True),
    "Llama 2 7B": (32, 32, 32, 4096, 11008, 32000, False),
}
LIMITS = (4, 8, 12, 16, 20)

BF16 = {"amp.dtype": "bf16"}
CASTS = {**BF16, "amp.working_copies": "false", "amp.cache": "false"}
IN_BACKWARD = {"memory.update_in_backward": "true", "optim.grad_clip": 0}
BLOCKS = {"memory.recompute": "blocks"}
SMALLEST = {**CASTS, **IN_BACKWARD, **BLOCKS}
DISK = {"memory.offload": "optimizer"}
ALL_ON_DISK = {"memory.offload": "optimizer+parameters"}
# Each row has a name, the config keys of Lathe, and the arguments of torch_gpt.py, or None if
# PyTorch lacks the technique.
MEMORY = [
    ("fp32", {"amp.dtype": "fp32"}, "--dtype fp32"),
    ("bf16, fp32 master weights", BF16, "--dtype bf16"),
    ("weights cast at each use", CASTS, None),
    ("4 micro-batches", {**BF16, "train.batch_size": 1, "train.grad_accum": 4}, "--dtype bf16 --batch 1 --accum 4"),
    ("`selective` recomputation", {**BF16, "memory.recompute": "selective"}, None),
    ("recomputation of blocks", {**BF16, **BLOCKS}, "--dtype bf16 --recompute"),
    ("activations in fp8", {**BF16, "memory.saved": "fp8"}, None),
    ("8-bit Adam", {**BF16, "optim.kind": "adamw8bit"}, None),
    ("Adafactor", {**BF16, "optim.kind": "adafactor"}, "--dtype bf16 --optim adafactor"),
    ("bf16 weights only", {**BF16, "amp.master": "false"}, "--dtype bf16 --no-masters"),
    ("updates in backward", {**BF16, **IN_BACKWARD}, "--dtype bf16 --in-backward"),
    ("optimizer state on disk", {**BF16, **DISK}, None),
    ("activations on disk", {**BF16, "memory.offload": "activations"}, None),
    ("casts at each use, recomputed blocks, updates in backward, state on disk", {**SMALLEST, **DISK}, None),
]
FIT = [  # the rows of the tables sizes and llama: name, keys
    ("bf16, fp32 master weights", BF16),
    ("and recomputation of blocks", {**BF16, **BLOCKS}),
    ("and weights cast at each use", {**CASTS, **BLOCKS}),
    ("and updates in backward", SMALLEST),
    ("and 8-bit Adam", {**SMALLEST, "optim.kind": "adamw8bit"}),
    ("or optimizer state on disk", {**SMALLEST, **DISK}),
    ("and parameters on disk", {**BF16, **IN_BACKWARD, **BLOCKS, **ALL_ON_DISK}),
]
FIT_OF_PEER = [  # the same rows where PyTorch has the technique: name, arguments of torch_gpt.py
    ("PyTorch: bf16, fp32 weights", "--dtype bf16 --optim fused"),
    ("and recomputation of blocks", "--dtype bf16 --optim fused --recompute"),
    ("and updates in backward", "--dtype bf16 --recompute --in-backward"),
]
KILLED = {"checkpoint.interval": 8}
WALK = [  # name, size, limit of memory, steps, keys
    ("355M in memory", "355M", None, 20, {}),
    ("355M, state on disk, killed and resumed", "355M", 3, 20, {**DISK, **KILLED}),
    ("1.5B in memory", "1.5B", 20, 20, {}),
    ("1.5B, state and parameters on disk, killed and resumed", "1.5B", 8, 20, {**ALL_ON_DISK, **KILLED}),
]
SPEED = [
    ("fp32, ATen's kernels", {"amp.dtype": "fp32", "train.kernels": "aten"}, "--dtype fp32 --optim fused"),
    ("fp32, own kernels", {"amp.dtype": "fp32"}, None),
    ("bf16", BF16, "--dtype bf16 --optim fused"),
]


class Gpt2Bench:
    def __init__(self, a, folder):
        self.lathe, self.data, self.peer, self.steps = a.lathe.resolve(), a.data.resolve(), a.peer, a.steps
        self.folder = folder

    def words(self, keys, size="124M"):
        layers, heads, width = SIZES[size]
        keys = {"model.n_layer": layers, "model.n_head": heads, "model.n_embd": width, "data.dir": self.data,
                "train.batch_size": 4, "train.grad_accum": 1, "train.steps": self.steps, "train.eval_interval": 0,
                "train.log_interval": 1, "schedule.warmup_steps": 2, "checkpoint.interval": 0, **keys}
        return [str(CONFIG), *(f"--{key}={value}" for key, value in keys.items())]

    def train(self, keys, size="124M"):
        """Trains a run, and returns its peak MB, tokens per second and last loss."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        words = self.words({**keys, "train.out_dir": run}, size)
        _, peak = resident([self.lathe, "train", *words], self.folder)
        return (peak * 1.048576, *figures(run, 4096))

    def torch(self, words, size="124M"):
        layers, heads, width = SIZES[size]
        command = [self.peer, str(ROOT / "tests/bench/torch_gpt.py"), "--data", str(self.data / "train.bin"),
                   "--batch", "4", "--layers", str(layers), "--heads", str(heads), "--dim", str(width),
                   "--ctx", "1024", "--vocab", "50304", "--steps", str(self.steps), "--skip", "1",
                   "--lr", "6e-4", "--min-lr", "6e-5", "--beta2", "0.95", "--warmup", "2", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        r = json.loads(done.stdout.splitlines()[-1])
        return r["peak_rss_mb"] * 1.048576, r["tokens_per_s"], r["final_loss"]

    def rows(self, table):
        rows = ["| | peak MB | tokens/s | last loss | PyTorch: peak MB | tokens/s | last loss |", "|---|---|---|---|---|---|---|"]
        for name, keys, words in table:
            row = "| %s | %.0f | %.0f | %.3f |" % (name, *self.train(keys))
            row += " %.0f | %.0f | %.3f |" % self.torch(words) if words and self.peer else " | | |"
            print(row, flush=True)
            rows.append(row)
        return rows

    def memory(self):
        return self.rows(MEMORY)

    def speed(self):
        return self.rows(SPEED)

    def sizes(self):
        def needed(size, keys):
            return self.planned(self.words({"train.batch_size": 1, **keys}, size))

        return fit_rows(SIZES, needed) + self.fit_rows_of_peer()

    def fit_rows_of_peer(self):
        """Returns rows with PyTorch's measured peaks. Does not measure models that exceed this
        machine's memory."""
        rows = []
        for name, words in FIT_OF_PEER if self.peer else []:
            need = {}
            for model, (layers, _, width) in SIZES.items():
                # Weights, gradients and Adam's two moments take 16 bytes for each parameter.
                least = 16e-9 * (12 * layers * width * width + 51328 * width)
                need[model] = self.torch(f"{words} --batch 1 --steps 3", model)[0] / 1e3 if least < 0.8 * memory_gb() else None
                print(name, model, need[model], flush=True)
            rows.append(fit_row(name, need))
        return rows

    def llama(self):
        def needed(size, keys):
            layers, heads, kv_heads, width, inner, vocab, tied = LLAMAS[size]
            config = self.folder / "llama.toml"
            config.write_text(f'[model]\nkind = "llama"\nn_layer = {layers}\nn_head = {heads}\nn_kv_head = {kv_heads}\n'
                              f"n_embd = {width}\nn_inner = {inner}\nvocab_size = {vocab}\nblock_size = 1024\n"
                              f"tie_weights = {str(tied).lower()}\n[train]\nbatch_size = 1\neval_interval = 0\n")
            return self.planned([str(config), *(f"--{key}={value}" for key, value in keys.items())])

        return fit_rows(LLAMAS, needed)

    def planned(self, words):
        """Returns the GB of resident memory that `lathe plan` forecasts."""
        done = subprocess.run([self.lathe, "plan", *words, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])["peak_rss_mb"] * 1.048576e-3

    def walk(self):
        rows = ["| | limit, GB | steps | peak MB | s a step | loss of step 3 | SHA-256 of the last weights |",
                "|---|---|---|---|---|---|---|"]
        base = {**BF16, **IN_BACKWARD, **BLOCKS, "train.batch_size": 1, "checkpoint.keep": 1,
                "amp.master": "false", "train.out_dir": self.folder / "run", "schedule.min_lr": 6e-4}
        for name, size, limit, steps, keys in WALK:
            run = self.folder / "run"
            shutil.rmtree(run, ignore_errors=True)
            words = self.words({**base, "train.steps": steps, **keys}, size)
            peak = 0
            if "checkpoint.interval" in keys:
                peak = self.killed([self.lathe, "train", *words], run, at=12, limit=limit)
            peak = max(peak, self.limited([self.lathe, "train", *words], limit))
            weights = sorted(run.glob("checkpoints/*/model.safetensors"))[-1]
            lines = logged_steps(run)
            rate = statistics.median(line["step_ms"] for line in lines[1:])
            third = next(line["loss"] for line in lines if line["step"] == 3)
            rows.append(f"| {name} | {limit or ''} | {steps} | {peak * 1.048576:.0f} | {rate / 1e3:.1f} | {third:.6f} | "
                        f"`{sha256(weights)[:16]}` |")
            print(rows[-1], flush=True)
        shutil.rmtree(self.folder / "run")
        return rows

    def in_group(self, command, limit):
        if not limit:
            return command
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(int(limit * 1e9)))
        return ["sh", "-c", f'echo $$ > {GROUP}/cgroup.procs && exec "$@"', "sh", *map(str, command)]

    def limited(self, command, limit):
        _, peak = resident([str(w) for w in self.in_group(command, limit)], self.folder)
        if limit:
            GROUP.rmdir()
        return peak

    def killed(self, command, run, at, limit):
        """Runs a command, kills it once it has logged step `at`, and returns its peak MiB."""
        process = subprocess.Popen(self.in_group(command, limit), cwd=self.folder, stdout=subprocess.DEVNULL)
        peak, metrics = 0, run / "metrics.jsonl"
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            peak = max(peak, int(found[1]) / 1024 if found else 0)
            if metrics.exists() and steps_of(metrics)[-1:] >= [at]:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.05)
        if process.wait() != -signal.SIGKILL:
            sys.exit(f"FAILED: the run ended with {process.returncode} before it was killed")
        return peak


def fit_row(name, need):
    """Returns a row with the GB that each model needs, and the largest model within each limit.
    `need` maps each model, the smallest first, to its GB, or to None if it was not measured."""
    fits = {limit: [model for model, gb in need.items() if gb is not None and gb <= limit] for limit in LIMITS}
    return (f"| {name} | " + " | ".join("" if gb is None else f"{gb:.1f}" for gb in need.values()) + " | "
            + " | ".join(models[-1] if models else "none" for models in fits.values()) + " |")


def fit_rows(models, needed):
    """Returns a table with a row for each technique of FIT. needed(model, keys) returns the GB that
    a model needs."""
    rows = ["| GB of memory | " + " | ".join(models) + " | " + " | ".join(f"in {n} GB" for n in LIMITS) + " |",
            "|---" * (1 + len(models) + len(LIMITS)) + "|"]
    return rows + [fit_row(name, {model: needed(model, keys) for model in models}) for name, keys in FIT]


def memory_gb():
    """Returns the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def steps_of(metrics):
    return [json.loads(line)["step"] for line in metrics.read_text().splitlines() if line.endswith("}") and '"loss"' in line]


def figures(run, tokens):
    """Returns the tokens per second and the last loss of a run, from its metrics."""
    lines = logged_steps(run)
    return 1e3 * tokens / statistics.median(line["step_ms"] for line in lines[1:]), lines[-1]["loss"]


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe", type=Path)
    p.add_argument("data", type=Path)
    p.add_argument("tables", nargs="*", default=["memory", "speed", "sizes", "llama", "walk"])
    p.add_argument("--peer")
    p.add_argument("--folder", help="the folder for runs, on the disk to be measured (default: the folder for temporary files)")
    p.add_argument("--steps", type=int, default=10)
    a = p.parse_args()
    with tempfile.TemporaryDirectory(dir=a.folder) as name:
        walk = Gpt2Bench(a, Path(name).resolve())
        for table in a.tables:
            write_table(PAGE, table, getattr(walk, table)())


if __name__ == "__main__":
    main()
