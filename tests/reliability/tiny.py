"""Helpers of the scripts in this folder: train a tiny run, compare runs, and skip a test."""
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77  # CTest's SKIP_RETURN_CODE

CONFIG = """[model]
n_layer = 1
n_head = 2
n_embd = {width}
block_size = 16
dropout = 0.1
[data]
dir = "{data}"
[train]
steps = {steps}
batch_size = 2
eval_interval = 10
eval_batches = 1
log_interval = 1
threads = 1
[checkpoint]
interval = {interval}
[log]
level = "debug"
"""


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def need(*tools):
    missing = [t for t in tools if shutil.which(t) is None]
    if missing:
        skip(f"this machine has no {', '.join(missing)}")


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def control(what, trial):
    """Checks that `trial` ends with a failed check. This shows that the test notices a fault."""
    try:
        trial()
    except SystemExit as noticed:
        if noticed.code == 77:  # skipped, so nothing was tried
            raise
        print(f"control, {what}: {str(noticed).splitlines()[0]}", flush=True)
    else:
        sys.exit(f"FAILED: {what}, and nothing noticed it")


class Tiny:
    """Creates data and a config in a temporary folder and trains an uninterrupted reference run.
    The folder is deleted when this object is deleted. `interval` is the number of steps between
    checkpoints. `words` are further arguments of each `lathe train` command."""

    binary = None  # the path of `lathe` in the newest object

    def __init__(self, lathe, steps, interval, width=8, words=()):
        self.words = list(words)
        self.lathe, self.temporary = str(Path(lathe).resolve()), tempfile.TemporaryDirectory(prefix="lathe-")
        Tiny.binary = self.lathe
        self.folder = Path(self.temporary.name)
        words = "the lathe turns wood and a tool cuts what turns slowly under it".split()
        text = " ".join(words[i * i * 7 % 13 % len(words)] for i in range(3000))
        (self.folder / "text.txt").write_text(text)
        self.run("prepare", "text.txt", "--out", "data", "--tokenizer", "char")
        config = CONFIG.format(data=self.folder / "data", steps=steps, interval=interval, width=width)
        (self.folder / "tiny.toml").write_text(config)
        self.reference = self.folder / "reference"
        self.train(self.reference)

    def command(self, run):
        return [self.lathe, "train", str(self.folder / "tiny.toml"), f"--train.out_dir={run}", *self.words]

    def start(self, run):
        """Starts a training run and returns its process. The caller must read the output."""
        return subprocess.Popen(self.command(run), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def run(self, *words, code=0):
        done = subprocess.run([self.lathe, *words], cwd=self.folder, capture_output=True, text=True, timeout=300)
        check(done.returncode == code,
              f"{words} exited with {done.returncode}, not {code}: {done.stdout}{done.stderr}")
        return done

    def train(self, run, code=0):
        return self.run(*self.command(run)[1:], code=code)


def resumed_from(output):
    """Returns the step of the checkpoint from which a process resumed, or 0 for a new run. If the
    run had already ended, returns the step of its last checkpoint. Reads the step from the
    process's output."""
    line = next((line for line in output.splitlines()
                 if line.startswith(("run       ", "nothing to do: the run ended with "))), None)
    check(line is not None, f"no line reports what the run resumes from: {output}")
    return int(re.search(r"step-(\d+)(;|$)", line)[1]) if ", resuming from " in line or line[0] == "n" else 0


def checkpoints(run):
    """Returns the steps of the checkpoints in a run folder, in ascending order."""
    return sorted(int(p.name[5:]) for p in (run / "checkpoints").glob("step-*"))


def unfinished(run):
    return [p.name for p in (run / "checkpoints").glob(".unfinished-*")]


def difference(a, b):
    """Returns how two runs differ (docs/internals/randomness.md), or '' if they agree."""
    keys = ("step", "loss", "lr", "grad_norm", "tokens", "loss_scale", "val_loss")

    def lines(run):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        # Skip lines that record changed config keys.
        return [{k: row[k] for k in keys if k in row} for row in rows if "changed" not in row]

    if lines(a) != lines(b):
        return "the metrics differ"
    if checkpoints(a)[-1:] != checkpoints(b)[-1:]:
        return "the newest checkpoints differ"
    with tempfile.TemporaryDirectory(prefix="lathe-") as folder:
        newest = [complete(run, Path(folder) / name) for run, name in ((a, "a"), (b, "b"))]
        for name in ("model.safetensors", "optimizer.safetensors"):
            if (newest[0] / name).read_bytes() != (newest[1] / name).read_bytes():
                return f"{name} differs"
    return ""


def complete(run, out):
    """Returns the newest checkpoint of a run. If several processes wrote its tensors, returns a
    copy in `out` with complete tensors."""
    newest = f"checkpoints/step-{checkpoints(run)[-1]:08}"
    if (run / newest / "model.safetensors").exists():
        return run / newest
    merged = subprocess.run([Tiny.binary, "merge", run, "--out", out], capture_output=True, text=True)
    check(merged.returncode == 0, merged.stderr)
    return out / newest
