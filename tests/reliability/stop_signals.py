#!/usr/bin/env python3
"""Stops runs by signals, one or two at a time, at random moments of each phase: start, training,
evaluation, sampling, saving. Every run must end as documented: with exit code 75, with 130 after a
second SIGINT, or by the signal itself if it arrives before the program can handle signals. Then the
run must resume from the step at which it stopped, and end bitwise equal to an uninterrupted run.

In addition, a byte of a checkpoint is changed before a resume, and a run is compared with a run of
another seed. The checks must notice both differences.

usage: stop_signals.py LATHE [STOPS [SEED]]
"""
import collections
import json
import random
import re
import signal
import sys
import time

from tiny import Tiny, check, checkpoints, control, difference, unfinished, resumed_from

STEPS, EVALUATED, SAMPLED, SAVED = 40, 10, 7, 3
# The steps after which each phase runs. Several phases may follow one step, for example step 30.
STEPS_OF = {"training": range(1, STEPS), "evaluation": range(EVALUATED, STEPS + 1, EVALUATED),
            "sampling": range(SAMPLED, STEPS, SAMPLED), "saving": range(SAVED, STEPS, SAVED)}
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # lathe must not inherit an ignored SIGHUP
TERM, INT, HUP, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1
KINDS = [[TERM], [INT], [HUP], [USR1], [TERM, TERM], [HUP, HUP], [HUP, TERM], [TERM, INT], [INT, TERM], [INT, INT]]


def step_of(line):
    match = re.match(r"step (\d+)/", line)
    return int(match[1]) if match else -1


def times(tiny):
    """Returns the longest duration of each phase. The start takes until the first line of output.
    Another phase takes from a step's line to the next line."""
    begin, process = time.monotonic(), tiny.start(tiny.folder / "timed")
    lines = [(time.monotonic() - begin, line) for line in process.stdout]
    check(process.wait() == 0, process.stderr.read())
    process.stderr.close()
    seconds = {"start": lines[0][0]}
    for phase, steps in STEPS_OF.items():
        behind = [later - at for (at, line), (later, after) in zip(lines, lines[1:])
                  if step_of(line) in steps and line != after]
        seconds[phase] = max(behind)
    return seconds


class Stops:
    def __init__(self, tiny, seed):
        self.tiny, self.draw, self.seconds = tiny, random.Random(seed), times(tiny)
        self.stopped, self.codes = collections.Counter(), collections.Counter()
        self.cut_evaluations, self.runs = 0, 0

    def stop(self, run, have):
        """Starts `run`, whose newest checkpoint is `have` (-1: none), and sends one or two signals.
        Returns whether the signals stopped the run before its end."""
        phase = self.draw.choice(["start", *STEPS_OF])
        steps = [] if phase == "start" else [s for s in STEPS_OF[phase] if s > have]
        kind = self.draw.choice(KINDS)
        process, out = self.tiny.start(run), ""
        if steps:
            at = self.draw.choice(steps)
            for line in process.stdout:
                out += line
                if step_of(line) == at:
                    break
        else:
            phase = "start"
        time.sleep(self.draw.uniform(0, self.seconds[phase]))
        for i, which in enumerate(kind):
            if i > 0:
                time.sleep(self.draw.choice([0, 0.002, 0.02]))
            process.send_signal(which)
        rest, err = process.communicate(timeout=300)
        out, code, there = out + rest, process.returncode, checkpoints(run)
        newest = there[-1] if there else -1
        what = f"{[k.name for k in kind]} in {phase}, {run.name}, code {code}: {out[-500:]}{err}"
        began = re.search(r"^run       .*\n", out, re.M)
        if began:
            check(resumed_from(out) == max(have, 0), f"resumed from another step than {have}: {what}")
        if code == 75:
            said = re.search(r"^stopped by a signal after step (\d+); run the same command again to resume$", out, re.M)
            check(said and int(said[1]) == newest, f"{newest} is the newest checkpoint: {what}")
            check("stopping after this step" in err, what)
            state = json.loads((run / f"checkpoints/step-{newest:08}/state.json").read_text())
            self.cut_evaluations += state.get("eval_due", False) and newest > 0
        elif code == 130:
            check(kind == [INT, INT] and "stopped immediately: " in err, what)
        elif code == 0:
            check("\nfinished  " in out and newest == STEPS, what)
            return False
        else:
            check(code == -kind[0] and not began and out == err == "" and newest == have, what)
        check(newest >= have, what)
        self.stopped[phase] += 1
        self.codes[code if code > 0 else "by the signal"] += 1
        return True

    def trial(self, stops):
        """Stops a run several times, then lets it finish. Returns the number of stops."""
        run, n = self.tiny.folder / f"run{self.runs}", 0
        self.runs += 1
        newest = lambda: checkpoints(run)[-1] if (run / "checkpoints").is_dir() and checkpoints(run) else -1
        while n < stops and newest() < STEPS and self.stop(run, newest()):
            n += 1
        if n == 0:
            return 0
        have = max(newest(), 0)
        out = self.tiny.train(run).stdout
        check(resumed_from(out) == have, f"resumed from {resumed_from(out)}, not {have}")
        check(difference(self.tiny.reference, run) == "", f"{difference(self.tiny.reference, run)}, {run.name}")
        check(unfinished(run) == [], f"{unfinished(run)} is left")
        return n


def change_a_byte(run):
    newest = run / f"checkpoints/step-{checkpoints(run)[-1]:08}/model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)


def main():
    stops = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    for which in (TERM, INT, HUP, USR1):
        signal.signal(which, signal.SIG_DFL)  # children inherit ignored signals
    tiny = Tiny(sys.argv[1], steps=STEPS, interval=SAVED,
                words=[f"--train.eval_interval={EVALUATED}", "--train.eval_batches=60",
                       f"--train.sample_interval={SAMPLED}"])
    all_ = Stops(tiny, seed)
    n = 0
    while n < stops:
        n += all_.trial(min(all_.draw.randint(1, 3), stops - n))
        check(all_.runs < 2 * stops + 10, "the runs end before they are stopped")
    check(stops < 100 or (all_.cut_evaluations > 0 and len(all_.stopped) == 5), "not every phase was met")

    stopped = tiny.folder / "control"
    process = tiny.start(stopped)
    for line in process.stdout:
        if step_of(line) == 20:
            process.send_signal(TERM)
    process.communicate()
    have = checkpoints(stopped)[-1]
    change_a_byte(stopped)

    def goes_on():
        went = resumed_from(tiny.train(stopped).stdout)
        check(went == have, f"resumed from {went}, not {have}")

    def agrees():
        other = tiny.folder / "other"
        tiny.run(*tiny.command(other)[1:], "--train.seed=7")
        check(difference(tiny.reference, other) == "", difference(tiny.reference, other))

    control("a byte of the newest checkpoint is changed", goes_on)
    control("a run of another seed", agrees)
    print(f"{n} stops in {all_.runs} runs, {dict(all_.stopped)}, exit codes {dict(all_.codes)}, "
          f"{all_.cut_evaluations} evaluations cut short; all resumed from where they stopped and ended with the same bits")


main()
