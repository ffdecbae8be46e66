#!/usr/bin/env python3
"""Opens report pages in headless Chromium: page.py LATHE [--long] [--keep DIR]. Exits with 77 if
Chromium or libjs-dygraphs is missing.

The page must draw its charts, log nothing to the console and send no request (its
Content-Security-Policy forbids requests, so each would be a console error). --long: also open a run
of 10^6 lines and print how long that takes. --keep: save screenshots and pages in DIR. The test
must notice an error in the page's script, and a request.
"""
import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("lathe", type=Path)
parser.add_argument("--long", action="store_true")
parser.add_argument("--keep", type=Path)
args = parser.parse_args()
LATHE = str(args.lathe.resolve())
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    print("skipped: there is no Chromium")
    sys.exit(77)
if not Path("/usr/share/javascript/dygraphs/dygraph.min.js").exists():
    print("skipped: libjs-dygraphs is not installed")
    sys.exit(77)


def lathe(*words):
    done = subprocess.run([LATHE, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"


def browser(page, *more):
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--hide-scrollbars", f"--user-data-dir={profile}", "--enable-logging=stderr",
             "--virtual-time-budget=10000", *more, page.resolve().as_uri()],
            capture_output=True, text=True, timeout=120)


def look(page, dark=False):
    """Returns the DOM after the script has run, and the console messages."""
    done = browser(page, "--dump-dom", *(["--force-dark-mode"] if dark else []))
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def check(page, charts, name):
    dom, console = look(page)
    assert not console, f"{name}: the console has {console}"
    ready = re.search(r'data-ready-ms="(\d+)"', dom)
    assert ready, f"{name}: the script did not finish"
    drawn = len(re.findall(r"<canvas", dom)) // 2
    assert drawn == charts, f"{name}: {drawn} charts are drawn instead of {charts}"
    assert not re.search(r"(src|href)=\"(https?:)?//", dom), f"{name}: the page names another host"
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, args.keep / f"{name}.html")
        browser(page, f"--screenshot={(args.keep / (name + '.png')).resolve()}", "--window-size=1400,2600")
    return int(ready[1]), dom


def write_run(run, steps, shift=0.0, every=1):
    """Writes the files of a run whose loss has one spike, which downsampling must keep."""
    run.mkdir(parents=True)
    (run / "config.toml").write_text(f"[train]\nsteps = {steps}\nseed = {int(shift * 10)}\n[optim]\nlr = {1e-3 + shift}\n")
    with open(run / "metrics.jsonl", "w") as out:
        for step in range(every, steps + 1, every):
            loss = 4 * math.exp(-3 * step / steps) + 0.1 * math.sin(step) + shift
            if step == steps // 2 // every * every:
                loss = 77.125
            out.write(json.dumps({"step": step, "updates": step, "loss": loss, "lr": 1e-3 * step / steps,
                                  "grad_norm": 1 + 0.5 * math.cos(step), "tokens": 512 * step, "tokens_per_sec": 1e4,
                                  "step_ms": 51.2, "mfu": 0.4, "data_wait_ms": 0.1, "memory_bytes": 100000000,
                                  "loss_scale": 1.0, "time": 1.7e9 + 0.05 * step}) + "\n")
            if step % max(every, steps // 20 // every * every) == 0:
                out.write(json.dumps({"step": step, "val_loss": loss + 0.1, "time": 1.7e9}) + "\n")


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    text, config = folder / "text.txt", folder / "tiny.toml"
    text.write_text("the lathe turns wood and a tool cuts what turns slowly under it.\n" * 300)
    lathe("prepare", text, "--out", folder / "data", "--tokenizer", "char")
    config.write_text(f'[model]\nn_layer = 2\nn_head = 2\nn_embd = 16\nblock_size = 16\n[data]\ndir = "{folder}/data"\n'
                      "[train]\nsteps = 30\nbatch_size = 3\neval_interval = 10\nlog_interval = 1\nsample_interval = 10\n"
                      "threads = 1\n[log]\nlayers = 2\n")
    run = folder / "runs/one"
    subprocess.run([LATHE, "train", config, f"--train.out_dir={run}", "--train.pause_at=12"], capture_output=True)
    lathe("train", config, f"--train.out_dir={run}", "--optim.lr=2e-3")
    lathe("profile", run, "--steps", "1:3")
    lathe("report", run)
    # The page has 9 charts of the run (loss, val_loss, lr, grad_norm, tokens/s, step_ms, two of
    # memory, data wait), 4 charts of layers, and one of MFU if the peak FLOP/s are known.
    has_mfu = '"mfu":null' not in (run / "metrics.jsonl").read_text()
    _, dom = check(run / "report.html", 13 + has_mfu, "one")
    for wanted in ["resumed from", "optim.lr: 0.001", "after step 30", "blocks.0.attn.qkv", "at its peak, by category", "<polyline"]:
        assert wanted in dom, f"the page does not contain {wanted!r}"

    # A memory category has the same color in each run, although the second run lacks one. The
    # titles of charts do not contain the keys of the metrics.
    for name, categories in [("x", ["activations", "weights"]), ("y", ["weights"])]:
        write_run(folder / "memory" / name, 50)
        with open(folder / "memory" / name / "metrics.jsonl", "a") as out:
            out.write(json.dumps({"step": 50, "loss": 1.0, "memory": {c: 1e6 for c in categories}, "memory_bytes": 2e6,
                                  "val_loss_docs": 2.0, "time": 1.7e9}) + "\n")
    lathe("report", folder / "memory/x", folder / "memory/y", "--out", folder / "memory.html")
    _, dom = check(folder / "memory.html", 11, "memory")
    assert "Validation loss on docs" in dom and ">val_loss_docs<" not in dom
    legend = re.findall(r'bold; color: (#\w+);">(?:<div[^>]*></div>)*[\s\xa0]*(?:&nbsp;)?([xy])(?:\s|&nbsp;)(weights|activations)<', dom)
    color = {f"{name} {category}": found for found, name, category in legend}
    assert color["x weights"] == color["y weights"] != color["x activations"], color

    (run / "profile.json").write_text("{}")
    refused = subprocess.run([LATHE, "report", run], capture_output=True, text=True)
    assert refused.returncode == 6 and "is not as `lathe profile` writes it" in refused.stderr, refused

    write_run(folder / "runs/a", 5000)
    write_run(folder / "runs/b", 4000, 0.2)
    both = folder / "both.html"
    lathe("report", folder / "runs/a", folder / "runs/b", "--out", both)
    _, dom = check(both, 9, "both")
    assert "optim.lr" in dom and "smallest to the largest value" in dom
    values = json.loads(re.search(r'id="data">(.*?)</script>', both.read_text(), re.S)[1])["runs"][0]["curves"]["loss"]
    assert len(values["v"]) == 1500 and max(values["hi"]) == 77.125, "a spike is lost"

    broken = folder / "broken.html"
    broken.write_text(both.read_text().replace("const charts = [];", "const charts = nothing;"))
    _, console = look(broken)
    assert console, "an error in the script went unnoticed"
    broken.write_text(both.read_text().replace("<body>", '<body><img src="http://127.0.0.1:9/x.png">'))
    _, console = look(broken)
    assert console, "a request went unnoticed"

    if args.long:
        write_run(folder / "runs/long", 1000000)
        lathe("report", folder / "runs/long")
        ready, _ = check(folder / "runs/long/report.html", 9, "long")
        print(f"a run of 10^6 lines opens in {ready} ms")  # printed only: a busy machine must not fail the test
print("report pages are drawn, with an empty console and without requests")
