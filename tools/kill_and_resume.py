#!/usr/bin/env python3
"""Draw the picture of README.md: a training run that is killed by `kill -9` and resumed on two processes, beside runs on
one process and on four.

    tools/kill_and_resume.py --record build/lathe   train, kill, resume, write
                                                    kill_and_resume.json, and draw
    tools/kill_and_resume.py                        draw kill_and_resume.svg from that record

Both files are in docs/assets/. Recording trains three short runs in a temporary folder, in one
bash. Each line of the picture is a command that ran there or a line that it printed. Drawing reads
only the record and always writes the same bytes. `./dev train configs/quickstart.toml` must have
prepared data/quickstart before a recording.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/assets/kill_and_resume.json"
PICTURE = ROOT / "docs/assets/kill_and_resume.svg"
STEPS = 300
KILL_AT = 230  # the run is killed when it reports this step or a later step
LAST = f"checkpoints/step-{STEPS:08d}/model.safetensors"


class Shell:
    """A bash with job control that runs one command at a time and keeps each output."""

    def __init__(self, folder, environment):
        self.bash = subprocess.Popen(
            ["bash", "--norc", "-m"], cwd=folder, env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        self.transcript = []

    def send(self, command):
        self.transcript.append({"command": command, "output": []})
        self.bash.stdin.write(command + "\n")
        self.bash.stdin.flush()

    def read_until(self, is_last):
        """Collect lines until is_last(line) is true. Return that line without keeping it."""
        for line in self.bash.stdout:
            line = line.rstrip("\n")
            if is_last(line):
                return line
            if not line.startswith("bash: "):  # bash warns about job control without a terminal
                self.transcript[-1]["output"].append(line)
        raise SystemExit("bash ended early:\n" + json.dumps(self.transcript, indent=1))

    def run(self, command):
        self.send(command)
        self.bash.stdin.write("echo exit code $?\n")
        last = self.read_until(lambda line: line.startswith("exit code "))
        if last != "exit code 0":
            raise SystemExit(f"{last}: {command}\n" + "\n".join(self.transcript[-1]["output"]))


def losses(run):
    """Return [step, loss] for each logged step of a run."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [[line["step"], round(line["loss"], 4)] for line in lines if "loss" in line]


def step_of(line):
    found = re.match(r"step (\d+)/", line)
    return int(found[1]) if found else -1


def record(lathe):
    # Use the global batch of the quickstart, divided into four micro-batches: one for each of four
    # processes.
    keys = f"quickstart.toml --train.steps={STEPS} --checkpoint.interval=100 --train.batch_size=4 --train.grad_accum=4"
    train = f"lathe train {keys}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        (folder / "data/quickstart").symlink_to(ROOT / "data/quickstart")
        shutil.copy(ROOT / "configs/quickstart.toml", folder)
        path = f"{lathe.resolve().parent}:{os.environ['PATH']}"
        shell = Shell(folder, {**os.environ, "PATH": path})

        shell.send(f"{train} --train.out_dir=runs/killed &")
        line = shell.read_until(lambda line: step_of(line) >= KILL_AT)
        shell.transcript[-1]["output"].append(line)
        shell.send("kill -9 %1")
        shell.bash.stdin.write("wait %1\n")
        shell.read_until(lambda line: "Killed" in line)
        before = losses(folder / "runs/killed")

        shell.run(f"lathe launch -n 2 -- train {keys} --train.out_dir=runs/killed")
        shell.run(f"{train} --train.out_dir=runs/straight")
        shell.run(f"lathe launch -n 4 -- train {keys} --train.out_dir=runs/four")
        shell.run(f"sha256sum runs/*/{LAST}")
        shell.bash.stdin.close()
        shell.bash.wait()

        result = {
            "date": datetime.date.today().isoformat(),
            "terminal": shell.transcript,
            "losses": {
                "straight": losses(folder / "runs/straight"),
                "before the kill": before,
                "resumed": losses(folder / "runs/killed"),
            },
        }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(result, indent=1) + "\n")


# Colors for a dark terminal, which is legible on a light page as well as on a dark one.
BACKGROUND, FRAME, TEXT, DIM = "#161b22", "#30363d", "#e6edf3", "#8b949e"
BLUE, GREEN, RED, GREY = "#79c0ff", "#56d364", "#ff7b72", "#6e7681"
WIDTH, MARGIN, LINE = 880, 24, 20
PLOT_TOP, PLOT_HEIGHT = 432, 150


def shorten(line):
    """Shorten a line for the picture, and mark most cuts with an ellipsis."""
    line = re.sub(r"  lr \S+.*", "", line)
    line = re.sub(r"train quickstart.toml .* (?=--train.out_dir)", "train quickstart.toml … ", line)
    line = re.sub(r"^([0-9a-f]{32})[0-9a-f]{32}  (runs/[a-z]+/).*/", r"\1…  \2…/", line)
    return re.sub(r"^finished.*steps, .*tokens, ", "finished  … ", line)


def terminal_lines(terminal):
    """Return (text, color) of each line to show: commands and important output, shortened."""
    killed, kill, resumed, straight, four, hashes = terminal
    lines = []

    def add(entry, wanted, color):
        lines.append(("$ " + shorten(entry["command"]), TEXT))
        kept = [line for line in entry["output"] if wanted(line)]
        lines.extend((shorten(line), color) for line in kept)

    last_steps = [line for line in killed["output"] if step_of(line) >= 0][-2:]
    add(killed, lambda line: line in last_steps, DIM)
    add(kill, lambda line: False, DIM)
    lines[-1] = (lines[-1][0], RED)
    add(resumed, lambda line: line.startswith(("run    ", "finished")) or step_of(line) >= 0, DIM)
    add(straight, lambda line: line.startswith("finished"), DIM)
    add(four, lambda line: line.startswith("finished"), DIM)
    add(hashes, lambda line: True, GREEN)
    return lines


def draw(record):
    losses = record["losses"]
    highest = max(loss for points in losses.values() for _, loss in points)
    left, right, bottom = MARGIN + 40, WIDTH - MARGIN - 10, PLOT_TOP + PLOT_HEIGHT
    x = lambda step: left + (right - left) * step / STEPS
    y = lambda loss: bottom - PLOT_HEIGHT * loss / (1.05 * highest)

    parts = []

    def text(at_x, at_y, content, color, extra=""):
        parts.append(f'<text x="{at_x:g}" y="{at_y:g}" fill="{color}"{extra}>{escape(content)}</text>')

    def curve(points, color, width, extra=""):
        path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"{extra}/>')

    # The terminal.
    at = 62
    for content, color in terminal_lines(record["terminal"]):
        text(MARGIN, at, content, color, ' xml:space="preserve"')
        at += LINE

    # The axes.
    for loss in range(0, int(highest) + 1):
        parts.append(f'<path d="M{left} {y(loss):.1f}H{right}" stroke="{FRAME}"/>')
        text(left - 8, y(loss) + 4, str(loss), DIM, ' text-anchor="end"')
    for step in range(0, STEPS + 1, 100):
        text(x(step), bottom + 18, f"step {step}", DIM, f' text-anchor="{"end" if step == STEPS else "middle"}"')

    text(MARGIN, PLOT_TOP + 14, "loss", DIM)

    # The curves. Each curve is narrower than the curve under it, so that both are visible.
    resumed_from = next(step for step, _ in losses["resumed"] if step > losses["before the kill"][-1][0]) // 100 * 100
    curve(losses["straight"], GREY, 8, ' stroke-opacity="0.7"')
    curve(losses["before the kill"], RED, 4)
    curve([point for point in losses["resumed"] if point[0] >= resumed_from], GREEN, 2)
    killed_at, loss = losses["before the kill"][-1]
    parts.append(f'<circle cx="{x(killed_at):.1f}" cy="{y(loss):.1f}" r="5" fill="{RED}"/>')
    text(x(killed_at), y(loss) - 14, "kill -9", RED, ' text-anchor="middle"')

    # The legend.
    legend = [("without a kill", GREY, 8), ("until the kill", RED, 4), ("resumed on two processes", GREEN, 2)]
    at = PLOT_TOP + 14
    parts.append(f'<rect x="{right - 300}" y="{at - 18}" width="300" height="{3 * LINE + 6}" fill="{BACKGROUND}"/>')
    for label, color, width in legend:
        parts.append(f'<path d="M{right - 290} {at - 4}h28" stroke="{color}" stroke-width="{width}"/>')
        text(right - 252, at, label, TEXT)
        at += LINE

    dots = "".join(f'<circle cx="{MARGIN + 6 + 18 * i}" cy="22" r="5" fill="{FRAME}"/>' for i in range(3))
    title = f"Killed, resumed, on 1, 2 or 4 processes: the same bits ({record['date']})"
    height = bottom + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="13">\n'
        f"<title>{title}</title>\n"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="{BACKGROUND}" stroke="{FRAME}"/>\n'
        f"{dots}\n"
        f'<text x="{WIDTH / 2:g}" y="27" fill="{DIM}" text-anchor="middle">{title}</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="LATHE", type=pathlib.Path, help="train with this binary first")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record)
    PICTURE.write_text(draw(json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
