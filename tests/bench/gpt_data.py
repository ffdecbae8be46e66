"""Makes the data and the config of a GPT model that the benchmarks of several processes train."""
import subprocess

TEXT = bytes(32 + i * i * 7 % 91 for i in range(400000))
CONFIG = """[model]
n_layer = {layers}
n_head = {heads}
n_embd = {dim}
block_size = {context}
vocab_size = {vocabulary}
[data]
dir = "data"
[train]
steps = {steps}
batch_size = {batch}
grad_accum = {accum}
eval_interval = 0
log_interval = 1
[checkpoint]
interval = 0
[amp]
dtype = "bf16"
"""


def prepare(lathe, folder, name, **sizes):
    """Writes the data to `folder`/data, and a config with these sizes to `folder`/`name`."""
    (folder / "text.txt").write_bytes(TEXT)
    (folder / name).write_text(CONFIG.format(**sizes))
    subprocess.run([lathe, "prepare", "text.txt", "--out", "data"], cwd=folder, check=True, capture_output=True)
