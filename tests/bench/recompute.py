#!/usr/bin/env python3
"""Measures memory.recompute: recompute.py LATHE [--rounds N] [--steps N] [--threads N]

Trains small models with each policy in turn. Prints the peak memory of activations (from `lathe
plan`) and the time of a step (the median of the medians of the rounds). Also prints both numbers
relative to those of a run without recomputation.
"""
import argparse
import json
import statistics
import tempfile
from pathlib import Path

from peak import resident
from small_model import prepare, train, write_config

MODELS = {
    "A": dict(kind="gpt", layers=16, heads=4, width=128, tokens=256, batch=8),
    "B": dict(kind="gpt", layers=6, heads=8, width=512, tokens=512, batch=1),
    "C": dict(kind="llama", layers=6, heads=8, width=512, tokens=512, batch=1),
}
POLICIES = ["none", "selective", "blocks", "sqrt"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--threads", type=int, default=1)
    a = p.parse_args()
    lathe, threads = str(Path(a.lathe).resolve()), f"--train.threads={a.threads}"
    print("| model | dtype | policy | activations, MB | of none | ms a step | of none |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(lathe, folder)
        for model, sizes in MODELS.items():
            for dtype in ("fp32", "bf16"):
                write_config(folder, dtype=dtype, steps=a.steps, **sizes)
                times = {policy: [] for policy in POLICIES}
                for _ in range(a.rounds):
                    for policy in POLICIES:
                        steps = train(lathe, folder, threads, f"--memory.recompute={policy}")
                        times[policy].append(statistics.median(line["step_ms"] for line in steps[2:]))
                for policy in POLICIES:
                    out, _ = resident([lathe, "plan", "model.toml", "--json", threads, f"--memory.recompute={policy}"], folder)
                    plan = json.loads(out)
                    megabytes, ms = plan["memory_mb"]["activations"], statistics.median(times[policy])
                    if policy == "none":
                        all_mb, all_ms = megabytes, ms
                    print(f"| {model} | {dtype} | `{policy}` | {megabytes:.1f} | {megabytes / all_mb:.2f} | {ms:.1f} "
                          f"| {ms / all_ms:.2f} |", flush=True)


main()
