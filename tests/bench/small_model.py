"""Prepares the data and the config of a small language model for measurements, and trains it."""
import shutil

from metrics import logged_steps
from peak import resident

CONFIG = """[model]
kind = "{kind}"
n_layer = {layers}
n_head = {heads}
n_embd = {width}
block_size = {tokens}
vocab_size = {vocabulary}
[data]
dir = "data"
[train]
steps = {steps}
batch_size = {batch}
grad_accum = {accum}
eval_interval = 0
log_interval = 1
[amp]
dtype = "{dtype}"
[checkpoint]
interval = 0
"""


def prepare(lathe, folder, repeats=2000):
    """Prepares folder/data from a sentence that is repeated the given number of times."""
    (folder / "text.txt").write_text("the lathe turns wood and a tool cuts what turns under it " * repeats)
    resident([lathe, "prepare", "text.txt", "--out", "data", "--tokenizer", "byte"], folder)


def write_config(folder, **sizes):
    """Writes folder/model.toml. `sizes` has a value for each placeholder of CONFIG. By default, the
    model has the vocabulary of the data, and a step has one micro-batch."""
    (folder / "model.toml").write_text(CONFIG.format(**{"vocabulary": 0, "accum": 1, **sizes}))


def train(lathe, folder, *flags, ranks=1):
    """Trains model.toml in a new folder; returns the lines of its steps in metrics.jsonl."""
    return train_and_measure(lathe, folder, *flags, ranks=ranks)[0]


def train_and_measure(lathe, folder, *flags, ranks=1):
    """Does the same as train(); also returns the peak MiB of the largest process."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
    _, peak = resident([lathe, *launch, "train", "model.toml", "--train.out_dir=run", *flags], folder)
    return logged_steps(folder / "run"), peak
