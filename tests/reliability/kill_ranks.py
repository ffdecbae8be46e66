#!/usr/bin/env python3
"""Kills ranks of runs on several processes at random moments: kill_ranks.py LATHE [KILLS [SEED]]

A run begins on 1, 2 or 4 processes. A random rank gets SIGKILL at a random moment. The run is
started again until it ends. Each start draws the number of processes, dist.shard or updates in the
backward pass, memory.offload, the number of pipeline stages (1 or 2), and whether checkpoints are
saved in the background. Then the metrics and the newest checkpoint must equal those of an
uninterrupted run on one process. No start may lose the newest checkpoint. A start that takes more
than a minute counts as a hang.

Tensor and context parallelism change the order of sums, and with it the bits of a run. So a tenth
of the kills strike runs that keep one of the layouts in LAYOUTS. The results of such a run must
equal those of an uninterrupted run with the same layout.
"""
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tiny import Tiny, check, checkpoints, control, difference

STEPS, SAVED, TIMEOUT, MICRO_BATCHES = 40, 5, 5, 4
SHARDS = ["none", "optimizer", "gradients", "parameters"]
# A run on pipeline stages is bitwise equal to a run on one process only if embeddings are not tied.
WORDS = [f"--train.grad_accum={MICRO_BATCHES}", "--memory.recompute=blocks", "--model.tie_weights=false",
         "--model.n_layer=2",
         f"--dist.timeout={TIMEOUT}"]
# Each entry has a number of processes, and the keys that divide a run among them.
LAYOUTS = [(2, ["--dist.tensor=2"]),
           (4, ["--dist.tensor=2", "--dist.sequence_parallel=true"]),
           (4, ["--dist.context=2"]),
           (4, ["--dist.tensor=2", "--dist.context=2"]),
           (4, ["--dist.tensor=2", "--dist.pipeline=2"])]


def ranks_of(launcher):
    """Returns the child processes of a launcher by rank. Reads each rank from the environment of
    the child."""
    found = {}
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    for pid in children.read_text().split() if children.exists() else []:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in environment:
            if entry.startswith(b"RANK="):
                found[int(entry[5:])] = int(pid)
    return found


class Kills:
    """Starts runs and kills them. If `layout` is set, all runs keep this layout."""

    def __init__(self, tiny, seed, layout=None):
        self.tiny, self.draw, self.layout = tiny, random.Random(seed), layout
        self.name = "run" if layout is None else "run" + "".join(layout[1])
        self.reference = tiny.reference
        self.runs, self.struck = 0, 0
        if layout is not None:
            self.reference = tiny.folder / f"{self.name}-reference"
            ranks, words = layout
            self.end(self.launch(ranks, [*tiny.command(self.reference)[1:], *words]), ranks, killed=False)

    def ranks(self):
        return self.draw.choice([1, 2, 4]) if self.layout is None else self.layout[0]

    def launch(self, ranks, words):
        launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
        return subprocess.Popen([self.tiny.lathe, *launch, *words], cwd=self.tiny.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def start(self, run, ranks):
        # The keys drawn here may differ between the starts of a run. They change no bit of the
        # results.
        words = self.tiny.command(run)[1:]
        if self.layout is not None:
            return self.launch(ranks, [*words, *self.layout[1],
                                       f"--dist.shard={self.draw.choice(['none', 'optimizer', 'gradients'])}",
                                       f"--checkpoint.async_save={self.draw.choice(['true', 'false'])}"])
        pipeline = self.draw.choice([1, 2]) if ranks > 1 else 1
        offload = ["none", "optimizer"] + (["activations", "optimizer+activations"] if pipeline == 1 else [])
        if ranks == MICRO_BATCHES and pipeline == 1 and self.draw.random() < 0.5:
            words.append("--memory.update_in_backward=true")
            offload += ["parameters", "optimizer+parameters"]
        else:
            words.append(f"--dist.shard={self.draw.choice(SHARDS)}")
        kept = self.draw.choice(offload)
        # A save in the background would copy state from the disk into memory.
        saves = ["true", "false"] if kept in ("none", "activations") else ["false"]
        words += [f"--memory.offload={kept}", f"--checkpoint.async_save={self.draw.choice(saves)}",
                  f"--dist.pipeline={pipeline}"]
        return self.launch(ranks, words)

    def end(self, process, ranks, killed):
        try:
            out, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            sys.exit(f"a start on {ranks} ranks hangs:\n{process.communicate()[0][-3000:]}")
        allowed = (0, 7) if ranks > 1 else (0, -signal.SIGKILL)
        check(process.returncode in (allowed if killed else (0,)), f"code {process.returncode}: {out[-1500:]}")
        check("frame #" not in out and "terminate called" not in out, out[-1500:])
        return process.returncode == 0

    def trial(self):
        run = self.tiny.folder / f"{self.name}-{self.runs}"
        self.runs += 1
        newest, ended = 0, False
        for _ in range(self.draw.randint(1, 3)):
            ranks = self.ranks()
            process = self.start(run, ranks)
            time.sleep(self.draw.uniform(0.05, 1.2))
            pids = list(ranks_of(process).values()) if ranks > 1 else [process.pid]
            killed = bool(pids) and process.poll() is None
            if killed:
                try:
                    os.kill(self.draw.choice(pids), signal.SIGKILL)
                    self.struck += 1
                except ProcessLookupError:
                    pass
            ended = self.end(process, ranks, killed)
            there = checkpoints(run) if (run / "checkpoints").is_dir() else []
            check((there[-1] if there else 0) >= newest, f"the checkpoint of step {newest} is lost: {there}")
            newest = there[-1] if there else 0
            if ended:
                break
        ranks = self.ranks()
        if not ended:
            self.end(self.start(run, ranks), ranks, killed=False)
        check(difference(self.reference, run) == "", f"{difference(self.reference, run)}, {run.name}")

    def strike(self, kills):
        while self.struck < kills:
            self.trial()
            check(self.runs < 3 * kills + 10, "the runs end before they are struck")


def main():
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    tiny = Tiny(sys.argv[1], steps=STEPS, interval=SAVED, words=WORDS)
    all_ = Kills(tiny, seed)
    all_.strike(kills - kills // 10)
    # With few kills, only some of the layouts are tried, beginning with a random one.
    begin, tried = all_.draw.randrange(len(LAYOUTS)), min(len(LAYOUTS), kills // 10)
    kept = [Kills(tiny, seed + i, LAYOUTS[(begin + i) % len(LAYOUTS)]) for i in range(tried)]
    for i, runs in enumerate(kept):
        runs.strike((kills // 10 + i) // len(kept))
    struck, runs = sum(k.struck for k in [all_, *kept]), sum(k.runs for k in [all_, *kept])

    # The test must notice a run with a wrong seed.
    other = Tiny(sys.argv[1], steps=STEPS, interval=SAVED, words=[*WORDS, "--train.seed=7"])

    def compare():
        check(difference(tiny.reference, other.reference) == "", "another seed has other bits")

    control("a run of another seed", compare)
    print(f"{struck} kills of ranks in {runs} runs: none lost, all bitwise equal to uninterrupted runs")


main()
