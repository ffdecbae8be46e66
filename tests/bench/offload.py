#!/usr/bin/env python3
"""Compares steps with the optimizer's state on the disk and in memory.

usage: offload.py LATHE [--folder DIR] [--steps N] [--tokens N] [--limit MiB ...]

Trains GPT-2 124M (fp32, one sequence per step) with memory.offload off and on, each with updates
after and during the backward pass. Prints the milliseconds of a step, the peak resident memory, and
how much of the transfer was hidden behind computation. Measures the rate of the disk, without the
page cache, before and after the runs. With --limit, repeats the runs with offload in a control
group (version 1) that is limited to that many MiB, so that the page cache has no space for the
state. --limit needs root.
"""
import argparse
import mmap
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from metrics import logged_steps
from peak import resident

CONFIG = """[model]
n_layer = 12
n_head = 12
n_embd = 768
block_size = {tokens}
vocab_size = 50257
[data]
dir = "data"
[train]
steps = {steps}
batch_size = 1
grad_accum = 1
eval_interval = 0
log_interval = 1
[optim]
grad_clip = 0
[checkpoint]
interval = 0
"""
GROUP = Path("/sys/fs/cgroup/memory/lathe-bench-offload")


def disk_rate(folder, megabytes=512, part=16 << 20):
    """Returns MB/s of writing and reading without the page cache, in requests of 16 MiB."""
    path, buffer = folder / "rate", mmap.mmap(-1, part)
    buffer.write(os.urandom(part))
    rates = []
    for flags, call in ((os.O_CREAT | os.O_WRONLY, os.pwritev), (os.O_RDONLY, os.preadv)):
        fd = os.open(path, flags | os.O_DIRECT)
        begin = time.monotonic()
        for i in range(megabytes * (1 << 20) // part):
            call(fd, [buffer], i * part)
        os.fsync(fd)
        rates.append(megabytes * (1 << 20) / 1e6 / (time.monotonic() - begin))
        os.close(fd)
    path.unlink()
    return rates


def train(lathe, folder, words, limit):
    """Returns the milliseconds of a step, the peak MiB, and the line about the transfer that `lathe
    train` printed."""
    subprocess.run(["rm", "-rf", str(folder / "run")], check=True)
    command = [lathe, "train", "offload.toml", "--train.out_dir=run", "--force", "true", *words]
    if limit:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(limit << 20))
        command = ["sh", "-c", f'echo $$ > {GROUP}/cgroup.procs && exec "$@"', "sh", *command]
    out, peak = resident(command, folder)
    if limit:
        GROUP.rmdir()
    times = [line["step_ms"] for line in logged_steps(folder / "run")]
    transfer = re.search(r"^offload +(.*)$", out, re.MULTILINE)
    return statistics.median(times[1:]), peak, transfer[1] if transfer else ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lathe")
    p.add_argument("--folder", help="a folder on the disk to be measured (default: the folder for temporary files)")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--limit", type=int, nargs="*", default=[])
    a = p.parse_args()
    lathe = str(Path(a.lathe).resolve())
    with tempfile.TemporaryDirectory(dir=a.folder) as name:
        folder = Path(name)
        (folder / "data").mkdir()
        for split in ("train", "val"):
            tokens = bytes(i * i % 251 for i in range(1 << 20))
            (folder / "data" / f"{split}.bin").write_bytes(bytes(b for t in tokens for b in (t, 0)))
        (folder / "offload.toml").write_text(CONFIG.format(tokens=a.tokens, steps=a.steps))
        print("disk: %.0f MB/s written, %.0f MB/s read" % tuple(disk_rate(folder)))
        during, disk = "--memory.update_in_backward=true", "--memory.offload=optimizer"
        print("| state | updates | limit, MiB | ms a step | tokens/s | peak MiB | transfer |\n|---|---|---|---|---|---|---|")
        for limit in [0, *a.limit]:
            for words in ([], [during], [disk], [disk, during]):
                if limit and disk not in words:
                    continue
                ms, peak, transfer = train(lathe, folder, words, limit)
                print(f"| {'disk' if disk in words else 'memory'} | {'in' if during in words else 'after'} backward "
                      f"| {limit or ''} | {ms:.0f} | {1e3 * a.tokens / ms:.0f} | {peak:.0f} | {transfer} |", flush=True)
        print("disk: %.0f MB/s written, %.0f MB/s read" % tuple(disk_rate(folder)))


main()
