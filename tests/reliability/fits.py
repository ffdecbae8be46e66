#!/usr/bin/env python3
"""Trains with the config keys that `lathe plan --fit` proposes for a memory limit: fits.py LATHE
[TRIALS] [SEED]

Each trial draws a config and a limit below what the config needs, and trains with the proposed keys
for 3 steps in a cgroup with that memory limit. The kernel must not kill any of these runs. Configs
for which --fit finds no keys are skipped. In addition, the last config is trained without the
proposed keys in half of its limit. The kernel must kill this run. Needs root and memory cgroups;
exits with 77 if they are missing.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = """[model]
kind = "{kind}"
n_layer = {layers}
n_head = 4
n_embd = {width}
block_size = {context}
vocab_size = {vocab}
[data]
dir = "data"
[optim]
kind = "{optim}"
grad_clip = {clip}
[train]
batch_size = {batch}
grad_accum = {accum}
steps = 3
eval_interval = 0
threads = 2
[amp]
dtype = "{dtype}"
[checkpoint]
interval = 0
"""


class Group:
    """A cgroup of version 1 or 2 that limits memory."""

    def __init__(self):
        first = Path("/sys/fs/cgroup/memory")
        self.path = (first if first.exists() else Path("/sys/fs/cgroup")) / f"lathe-fits-{os.getpid()}"
        self.file = "memory.limit_in_bytes" if first.exists() else "memory.max"
        try:
            self.path.mkdir()
            (self.path / self.file).write_text("max" if self.file == "memory.max" else "-1")
        except OSError as e:
            print(f"skipped: can't create a memory cgroup ({e})")
            sys.exit(77)

    def run(self, limit, command, folder):
        (self.path / self.file).write_text(str(limit))
        script = f'echo $$ > {self.path}/cgroup.procs && exec "$@"'
        return subprocess.run(["sh", "-c", script, "sh", *command], cwd=folder, capture_output=True, text=True)


def draw(rng):
    return CONFIG.format(kind=rng.choice(["gpt", "llama"]), layers=rng.randint(2, 10), width=64 * rng.randint(2, 8),
                         context=64 * rng.randint(1, 8), vocab=rng.choice([256, 8192, 50257]),
                         batch=rng.randint(1, 12), accum=rng.choice([1, 1, 2]), optim=rng.choice(["adamw", "muon", "lion"]),
                         clip=rng.choice([0, 1]), dtype=rng.choice(["fp32", "bf16"]))


def main():
    lathe = str(Path(sys.argv[1]).resolve())
    trials, seed = int(sys.argv[2]) if len(sys.argv) > 2 else 30, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rng, group, done, drawn = random.Random(seed), Group(), 0, 0
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "data").mkdir()
            for split in ("train", "val"):
                (folder / "data" / f"{split}.bin").write_bytes(bytes(b for i in range(1 << 15) for b in (i * i % 251, 0)))
            while done < trials:
                drawn += 1
                (folder / "c.toml").write_text(draw(rng))

                def plan(*words):
                    return subprocess.run([lathe, "plan", "c.toml", *words], cwd=folder, capture_output=True, text=True)

                whole = plan("--json")
                if whole.returncode != 0:
                    sys.exit(f"FAILED: plan ended with {whole.returncode}: {whole.stderr}")
                needs = json.loads(whole.stdout)["peak_rss_mb"] * 2**20
                limit = int(needs * rng.uniform(0.55, 0.98))
                fit = plan("--fit", f"{limit / 1e6:.0f}MB")
                if fit.returncode == 10:
                    continue
                keys = re.search(r" with( --.*)$", fit.stdout, re.MULTILINE)
                if not keys:
                    sys.exit(f"FAILED: plan --fit printed {fit.stdout}{fit.stderr}")
                train = [lathe, "train", "c.toml", f"--train.out_dir=run{drawn}"]
                run = group.run(limit, [*train, *keys[1].split()], folder)
                if run.returncode != 0:
                    sys.exit(f"FAILED: {(folder / 'c.toml').read_text()}{limit / 1e6:.0f} MB,{keys[1]}: "
                             f"{run.returncode} {run.stderr}")
                done += 1
                print(f"{limit / 1e6:.0f} of {needs / 1e6:.0f} MB:{keys[1]}", flush=True)
            control = group.run(limit // 2, [lathe, "train", "c.toml", "--train.out_dir=control", "--force", "true"], folder)
            if control.returncode not in (-9, 137):
                sys.exit(f"FAILED: the control was not killed but ended with {control.returncode}")
            print(f"{done} runs of {drawn} configs stayed within their limits; the control was killed")
    finally:
        group.path.rmdir()


main()
