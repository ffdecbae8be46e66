#!/usr/bin/env python3
"""Runs the commands of two pages of the guide in order, in a temporary folder and with fewer
training steps. The trained run, its export after `lathe import`, and transformers must generate the
same text. transformers is optional; LATHE_HF_PYTHON names a Python that has the package.

  tests/docs/guide_commands.py LATHE LIBTORCH [STEPS]

LIBTORCH is the LibTorch folder that contains include/. STEPS is the number of steps of each
training, 40 by default; 0 uses the steps of the configs.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The second page continues with the run that the first page trains.
PAGES = ("docs/guide/language-models.md", "docs/guide/fine-tuning.md")


def blocks(page):
    """Returns (language, text) of each code block of the page that must run, in order."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def has_transformers(python):
    probe = "import torch, transformers, safetensors"
    return bool(python) and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0


def main():
    lathe, libtorch = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    text = libtorch / "include/ATen/ops"
    if not text.is_dir():
        print(f"skipped: {text} is not there")
        return 77
    code_blocks = [block for page in PAGES for block in blocks((ROOT / page).read_text())]
    python = next((p for p in (sys.executable, os.environ.get("LATHE_HF_PYTHON")) if has_transformers(p)), None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "configs").symlink_to(ROOT / "configs")
        (folder / "bin").mkdir()
        (folder / "bin/lathe").symlink_to(lathe)
        environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "NO_COLOR": "1"}
        if steps:
            environment.update(LATHE_TRAIN_STEPS=str(steps), LATHE_TRAIN_EVAL_BATCHES="4", LATHE_SCHEDULE_WARMUP_STEPS="10")
        written, shown = [], []
        for language, code in code_blocks:
            if language == "python":
                if python is None:
                    print("not compared with transformers: neither this Python nor LATHE_HF_PYTHON's has it")
                    continue
                done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True,
                                      env={**environment, "HF_HUB_OFFLINE": "1"})
                assert done.returncode == 0, done.stderr
                written.append(("transformers", done.stdout.strip()))
                continue
            code = code.replace("${LATHE_CACHE:-$HOME/.cache/lathe}/libtorch-2.11.0/torch", str(libtorch))
            if code.startswith("TEXT="):
                environment["TEXT"] = code.strip().removeprefix("TEXT=")
                continue
            # One shell runs each block, and prints a marker before each `lathe` command.
            done = subprocess.run(["bash", "-euc", re.sub(r"^lathe ", "echo '# 'lathe; lathe ", code, flags=re.MULTILINE)],
                                  cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{code}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            shown.append(done.stdout)
            print(f"ran:\n{code}{done.stdout[-400:]}")
            commands = re.findall(r"^lathe (\w+)", code, re.MULTILINE)
            outputs = done.stdout.split("# lathe\n")[1:]
            written += [(code.split("generate ")[1].split()[0], out.strip())
                        for name, out in zip(commands, outputs) if name == "generate"]
        names = ", ".join(name for name, _ in written)
        assert len(written) >= 2 and len({out for _, out in written}) == 1, f"{names} wrote different texts: {written}"
        assert written[0][1].startswith("inline at::Tensor ") and len(written[0][1]) > 60, written[0]
        print(f"{names} generate the same text:\n{written[0][1]}")

        def figures(out):
            return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

        bits = next(f["bits_per_byte"] for out in shown for f in figures(out) if "bits_per_byte" in f)
        assert 0 < bits < 8, bits
        chat = next(out for out in shown if '"load_dtype":"int8"' in out)
        answers = figures(chat)[-1]
        assert answers["load_dtype"] == "int8" and answers["val_loss"] < 8, answers
        learned = json.loads((folder / "data/questions/manifest.json").read_text())["documents"]
        assert 0 < learned["learned_tokens"] < learned["bytes"], learned
        mixture = json.loads((folder / "data/mixture/manifest.json").read_text())
        assert [s["weight"] for s in mixture["sources"]] == [0.8, 0.2], mixture
        answer = chat.strip().splitlines()[-1]
        print(f"{bits:.3f} bits per byte; the answers' loss {answers['val_loss']:.3f}; 'Where is matmul?' {answer}")
        if steps == 0:
            assert answer == "In ATen/ops/matmul.h.", answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
