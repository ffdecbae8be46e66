#!/usr/bin/env python3
"""Measures the fraction of the gradient exchange that is hidden behind the backward pass.

usage: overlap.py LATHE [--rounds N] [--accum N] [--rate 10gbit]

Trains GPT-2 124M (config c of performance.py, in bfloat16) on two processes with one thread each:
first over the loopback interface, and then, if the system can create network namespaces, over a
link with the given rate. "Alone" is the time of the exchange without computation: `lathe bench
collectives` over the same network, scaled from one bucket to all gradients. "Waited" is the time
per step for which a process waits for gradients; of the two processes, the longer time counts. The
remaining part of the exchange is hidden. Prints medians over the rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "reliability"))
from metrics import logged_steps
from networks import ADDRESSES, NAMES, Networks
from small_model import prepare, write_config

BUCKET_MB, STEPS, PORT = 25, 6, 29547


def on_loopback(words, folder):
    done = subprocess.run([words[0], "launch", "-n", "2", "--", *words[1:]], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def on_link(words, folder):
    """Runs rank 0 and rank 1 in the two namespaces, and returns what rank 0 printed."""
    ranks = []
    for rank, name in enumerate(NAMES):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT),
                       "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen(["ip", "netns", "exec", name, *words], cwd=folder, env=environment,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    out = [rank.communicate(timeout=600)[0] for rank in ranks]
    for rank, process in enumerate(ranks):
        if process.returncode != 0:
            sys.exit(f"rank {rank} ended with code {process.returncode}: {out[rank][-2000:]}")
    return out[0]


def measure(start, lathe, folder, rounds):
    """Returns medians over the rounds: the MB of gradients that a process sends in a step, and the
    ms of a step, of the exchange alone, and of waiting."""
    found = []
    for _ in range(rounds):
        table = start([lathe, "bench", "collectives", "--mb", str(BUCKET_MB)], folder)
        rows = json.loads(table.strip().splitlines()[-1])["collectives"]
        bucket = next(row for row in rows if row["mb"] == BUCKET_MB and row["collective"].startswith("sum"))
        subprocess.run(["rm", "-rf", str(folder / "run")], check=True)
        start([lathe, "train", "model.toml", "--train.out_dir=run", "--train.threads=1"], folder)
        steps = logged_steps(folder / "run")[2:]
        sent = steps[-1]["ranks"][0]["sent_bytes"]
        alone = bucket["ms"] * sent / bucket["bytes_sent"]
        waited = statistics.median(max(rank["wait_ms"] for rank in step["ranks"]) for step in steps)
        found.append((sent / 1e6, statistics.median(step["step_ms"] for step in steps), alone, waited))
    return [statistics.median(column) for column in zip(*found)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--rate", default="10gbit")
    a = p.parse_args()
    lathe = str(Path(a.lathe).resolve())

    def print_row(network, start):
        sent, step, alone, waited = measure(start, lathe, folder, a.rounds)
        print(f"| {network} | {sent:.0f} | {step:.0f} | {alone:.0f} | {waited:.0f} | {100 * (1 - waited / alone):.0f}% |", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(lathe, folder)
        write_config(folder, kind="gpt", layers=12, heads=12, width=768, tokens=256, vocabulary=50304, steps=STEPS, batch=4,
                     accum=a.accum, dtype="bf16")
        print("| network | MB sent per step | ms per step | exchange alone, ms | waited, ms | hidden |\n|---|---|---|---|---|---|")
        print_row("loopback", on_loopback)
        with Networks() as networks:
            if networks.limit(a.rate):
                print_row(f"a link of {a.rate}", on_link)
            else:
                print("the rate of a link can't be limited here", file=sys.stderr)


main()
