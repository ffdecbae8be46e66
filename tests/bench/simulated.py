#!/usr/bin/env python3
"""Compares training steps on several processes of this machine with the cluster simulator.

usage: simulated.py LATHE [--rounds N] [--dtype bf16|fp32]

Measures a GPT with 6 layers of width 384 on one process, and on 2 and 4 processes that divide the
work in several ways. Each process has one thread. Describes a core of this machine as a GPU in a
file that `lathe plan` reads: the bandwidth of the link, and the time to start a collective, are
measured by `lathe bench collectives`. The rate is chosen so that the simulated step of one process
takes as long as the measured step. One process is measured while each other core runs a copy of it,
because a core is slower while other cores work. If there are more processes than cores, the rate and
the bandwidths are divided by the number of processes per core. Prints the file and a table of
measured and simulated seconds. The measured seconds are medians over the rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from small_model import prepare, train, write_config

SIZES = dict(kind="gpt", layers=6, heads=6, width=384, tokens=256, vocabulary=4096, batch=4, accum=4, steps=8)
LAYOUTS = [  # processes, the simulator's layout, keys of the config
    (1, "data=1", []),
    (2, "data=2", []),
    (2, "data=2,shard=2", ["--dist.shard=gradients"]),
    (2, "pipeline=2", ["--dist.pipeline=2"]),
    (2, "tensor=2", ["--dist.tensor=2"]),
    (4, "data=4", []),
    (4, "data=4,shard=2", ["--dist.shard=gradients"]),
    (4, "data=2,tensor=2", ["--dist.tensor=2"]),
]
CARDS = """[[cluster.gpu]]
name = "core"
like = "a100-40"
memory_gb = 32
memory_gb_per_second = {memory}
bf16_tflops = {rate}
fp32_tflops = {rate}
multiprocessors = 1
link_gb_per_second = {link}
matmul_share = 0.95

[[cluster.software]]
name = "lathe-cpu"
like = "eager"
elementwise_passes = 1.0
logit_bytes = 8
sequence_parallel = false

[constants]
memory_share = 1
matmul_ramp = 20
attention_ramp = 20
attention_head_ramp = 0
flash2_share = 0.45
kernel_us = 1
node_link_share = 1
node_latency_us = 0
collective_us = {start}
contention = 1
reserved_gb = 0.2
"""


def measure_link(lathe):
    """Fits a line to the times in which two processes with one thread each sum 1 and 64 MB.
    Returns its slope as GB/s, and its time for 0 bytes in microseconds."""
    out = subprocess.run([lathe, "launch", "-n", "2", "--", "bench", "collectives"], check=True, capture_output=True,
                         text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
    rows = json.loads(out.strip().splitlines()[-1])["collectives"]
    sums = {r["mb"]: r for r in rows if r["collective"].startswith("sum")}
    small, large = sums[1], sums[64]
    ms_per_byte = (large["ms"] - small["ms"]) / (large["bytes_sent"] - small["bytes_sent"])
    return 1 / ms_per_byte / 1e6, max(0, 1e3 * (small["ms"] - ms_per_byte * small["bytes_sent"]))


def simulate(lathe, folder, ranks, layout, rate, memory, link):
    """Returns the simulated seconds of a step. `link`: the result of measure_link()."""
    share = max(1, ranks / os.cpu_count())
    text = CARDS.format(rate=rate / share, memory=memory / share, link=link[0] / share, start=link[1] * share)
    (folder / "cards.toml").write_text(text)
    command = ["plan", "model.toml", "--card", "core", "--gpus", ranks, "--layout", f"{layout},micro=4,recompute=none", "--software",
               "lathe-cpu", "--cards", "cards.toml", "--json"]
    out = subprocess.run([lathe, *map(str, command)], cwd=folder, check=True, capture_output=True, text=True).stdout
    plan = json.loads(out.strip().splitlines()[-1])
    return plan["fastest"][0]["step_s"], text


def train_on_each_core(lathe, folders):
    """Trains model.toml in each folder at the same time. Returns the median seconds of a step."""
    with ThreadPoolExecutor(len(folders)) as pool:
        runs = list(pool.map(lambda folder: train(lathe, folder, "--train.threads=1"), folders))
    return statistics.median(step["step_ms"] for steps in runs for step in steps[2:]) / 1e3


def rate_of_core(lathe, folder, seconds, memory, link):
    """Returns the TFLOP/s with which a simulated step of one process takes this time."""
    low, high = 0.001, 100.0
    for _ in range(40):
        rate = (low * high) ** 0.5
        if simulate(lathe, folder, 1, "data=1", rate, memory, link)[0] > seconds:
            low = rate
        else:
            high = rate
    return high


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    p.add_argument("--memory", type=float, default=12, help="the memory bandwidth of a core in GB/s")
    a = p.parse_args()
    lathe = str(Path(a.lathe).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cores = [folder] + [folder / f"core{i}" for i in range(1, os.cpu_count())]
        for core in cores:
            core.mkdir(exist_ok=True)
            prepare(lathe, core)
            write_config(core, dtype=a.dtype, **SIZES)
        measured = {layout: [] for _, layout, _ in LAYOUTS}
        links = []
        for _ in range(a.rounds):
            links.append(measure_link(lathe))
            for ranks, layout, keys in LAYOUTS:
                if ranks == 1:
                    measured[layout].append(train_on_each_core(lathe, cores))
                    continue
                steps = train(lathe, folder, "--train.threads=1", *keys, ranks=ranks)
                measured[layout].append(statistics.median(step["step_ms"] for step in steps[2:]) / 1e3)

        link = tuple(map(statistics.median, zip(*links)))
        rate = rate_of_core(lathe, folder, statistics.median(measured["data=1"]), a.memory, link)
        print(simulate(lathe, folder, 1, "data=1", rate, a.memory, link)[1])
        print("| processes | layout | measured, s | simulated, s | error |\n|---|---|---|---|---|")
        for ranks, layout, _ in LAYOUTS:
            seconds = statistics.median(measured[layout])
            error = simulate(lathe, folder, ranks, layout, rate, a.memory, link)[0] / seconds - 1
            print(f"| {ranks} | {layout} | {seconds:.3f} | {seconds * (1 + error):.3f} | "
                  + ("chosen |" if ranks == 1 else f"{100 * error:+.1f}%{' **miss**' if abs(error) > 0.15 else ''} |"))


main()
