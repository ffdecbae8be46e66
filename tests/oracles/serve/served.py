"""Trains a small chat model and runs a server of it, for the tests of `lathe serve`."""
import http.client
import json
import os
import re
import signal
import subprocess
from pathlib import Path

CONFIG = """
[model]
kind = "llama"
n_layer = 2
n_head = 4
n_kv_head = 2
n_embd = 64
block_size = 128
vocab_size = 384
[data]
dir = "{folder}/data"
[schedule]
warmup_steps = 10
[optim]
lr = 5e-3
[train]
steps = {steps}
batch_size = 8
eval_interval = 0
threads = 1
out_dir = "{folder}/assistant"
[checkpoint]
interval = 0
"""
WORDS = ["wood", "steel", "brass", "bone", "chalk", "slate"]


def call(lathe, *words):
    done = subprocess.run([lathe, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"lathe {words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def train(lathe, folder, steps=250):
    """Trains a model with ChatML tokens that answers one kind of question, and returns its run
    folder."""
    folder = Path(folder)
    lines = [{"messages": [{"role": "user", "content": f"What is number {i % 6}?"},
                           {"role": "assistant", "content": f"Number {i % 6} is {WORDS[i % 6]}, naïve \N{GRINNING FACE}."}]}
             for i in range(300)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in lines))
    text = "".join(m["content"] + "\n" for x in lines for m in x["messages"])
    (folder / "text.txt").write_text(text)
    call(lathe, "tokenizer", "train", folder / "text.txt", "--out", folder / "bpe", "--vocab-size", 384, "--special",
         "<|endoftext|>,<|im_start|>,<|im_end|>")
    call(lathe, "prepare", folder / "chats.jsonl", "--format", "instructions", "--tokenizer", folder / "bpe", "--out",
         folder / "data")
    (folder / "c.toml").write_text(CONFIG.format(folder=folder, steps=steps))
    call(lathe, "train", folder / "c.toml")
    return folder / "assistant"


class Server:
    """Runs `lathe serve` as a context manager. After SIGTERM, the server must exit with 0."""

    def __init__(self, lathe, run, *flags, key=None):
        environment = {**os.environ, **({"LATHE_API_KEY": key} if key else {})}
        self.process = subprocess.Popen([lathe, "serve", run, "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, env=environment)
        line = self.process.stdout.readline()
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "none after 30 s"
        self.process.stdout.close()
        assert kind is not None or code == 0, f"lathe serve ended with exit code {code}"

    def memory_kb(self):
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1])

    def post(self, path, body, timeout=60):
        """Sends a POST request and returns the status and the JSON of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data)
