#!/usr/bin/env python3
"""Runs the commands and programs of docs/guide/chat-model.md in order, in a temporary folder, and
checks their output. The model is small and has random weights. Its folder has the same files as
SmolLM2-135M-Instruct.

  tests/docs/chat_model.py LATHE

Exits with 77 and prints the reason if a package is missing both in this interpreter and in the one
that LATHE_HF_PYTHON names. The imported model must answer differently before and after training.
"""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/oracles/support"))
import packages  # noqa: E402
import smollm2  # noqa: E402

PACKAGES = ["torch", "transformers", "tokenizers", "safetensors", "gguf", "openai"]
FOLDER = "downloads/SmolLM2-135M-Instruct"
FILES = ["config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
         "tokenizer_config.json"]
MARK = "=== block"
# The server starts in the background, so wait until it answers.
WAIT = 'for _ in $(seq 300); do curl -s -o server.txt "http://127.0.0.1:$PORT/health" && break; sleep 0.1; done\n'


def blocks(page):
    """Returns (language, text) of each code block of the page that must run, in order."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def script(page, port):
    """Returns all blocks as one bash program, which prints a mark before each one."""
    parts = ["set -eu\nset -m\n"]
    for i, (language, code) in enumerate(blocks(page)):
        code = code.replace("8000", str(port))
        parts.append(f"echo '{MARK} {i}'\n")
        parts.append(f"{sys.executable} - <<'END_OF_BLOCK'\n{code}END_OF_BLOCK\n" if language == "python" else code)
        if "serve" in code and language == "sh":
            parts.append(WAIT)
    return "".join(parts) + "wait\n"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_page(lathe, folder):
    """Runs the page, and returns what each block printed."""
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "bin").mkdir()
    (folder / "bin/lathe").symlink_to(lathe)
    port = free_port()
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "NO_COLOR": "1", "PORT": str(port),
                   "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "LATHE_TRAIN_THREADS": "1"}
    program = script((ROOT / "docs/guide/chat-model.md").read_text(), port)
    process = subprocess.Popen(["bash", "-c", program], cwd=folder, env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    try:
        out, error = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{error[-3000:]}"
    return [part.partition("\n")[2].strip() for part in out.split(MARK)[1:]]


def main():
    packages.require(PACKAGES)
    packages.quiet_transformers()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        smollm2.make_folder(folder / FOLDER)
        page = (ROOT / "docs/guide/chat-model.md").read_text()
        assert sorted(p.name for p in (folder / FOLDER).iterdir()) == FILES
        assert all(f"  {name} " in page for name in FILES), "the page lists other files"

        printed = run_page(Path(sys.argv[1]).resolve(), folder)
        assert len(printed) == len(blocks(page)), printed
        imported, _, trained, _, by_transformers, by_gguf, _, by_openai, _ = printed
        wanted = re.search(r"The model answers:\n\n```text\n(.*?)\n```", page)[1]
        assert wanted not in imported, f"before training: {imported}"
        answers = {"lathe chat": trained.splitlines()[-1], "transformers": by_transformers, "openai": by_openai}
        assert set(answers.values()) == {wanted}, answers
        assert by_gguf.splitlines()[-1] == "It has the chat template.", by_gguf
        assert f" {smollm2.CONTEXT} tokens of context" in by_gguf, by_gguf

        # The exported folder has the files of the original folder, and the same
        # generation_config.json.
        exported = folder / "exported/assistant"
        assert sorted(p.name for p in exported.iterdir()) == [f for f in FILES if f != "special_tokens_map.json"]
        kept = (exported / "generation_config.json").read_bytes()
        assert kept == (folder / FOLDER / "generation_config.json").read_bytes()
        print(f"{len(printed)} blocks ran; {', '.join(answers)} answer {wanted!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
