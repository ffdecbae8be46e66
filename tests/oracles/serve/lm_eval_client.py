#!/usr/bin/env python3
"""Evaluates `lathe serve` with the package lm_eval: lm_eval_client.py LATHE. lm_eval answers 50
generated questions with three endings each (`--model local-completions`). lm_eval's acc and
acc_norm must equal the accuracies of `lathe eval --choices`. Other questions must have another
accuracy. Exits with 77 and prints the reason if lm_eval is missing both in this interpreter and in
the one that LATHE_LM_EVAL_PYTHON names.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from served import WORDS, Server, call, train

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import packages  # noqa: E402

TASK = """task: lathe_questions
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: endings
doc_to_target: label
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
metadata:
  version: 1
"""


def write_questions(path, seed):
    """Writes questions whose ending with the highest probability rarely has the highest probability
    per byte. The short ending has only a number, which is hard to predict. In one of the two longer
    endings, the correct word follows, which is easy to predict. The text is ASCII, since lm_eval's
    acc_norm counts characters."""
    draw = random.Random(seed)
    lines = []
    for _ in range(50):
        n = draw.randrange(6)
        endings = [f" {n}", f" {n} is {WORDS[n]},", f" {n} is {WORDS[n - draw.randint(1, 5)]},"]
        draw.shuffle(endings)
        lines.append({"context": "Number", "endings": endings, "label": draw.randrange(3)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def by_lathe(lathe, run, questions):
    found = json.loads(call(lathe, "eval", run, "--choices", questions).stdout.splitlines()[-1])
    return found["accuracy"], found["accuracy_by_byte"]


def by_lm_eval(folder, server, tokenizer, questions):
    tasks = folder / (questions.stem + "-tasks")
    tasks.mkdir()
    (tasks / "lathe_questions.yaml").write_text(TASK.format(questions=questions))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache"),
                   "TOKENIZERS_PARALLELISM": "false"}
    model = f"base_url={server.url}/v1/completions,model=assistant,tokenizer={tokenizer},num_concurrent=2,max_retries=1"
    done = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", model, "--tasks",
                           "lathe_questions", "--include_path", tasks, "--output_path", tasks / "out", "--batch_size", "4"],
                          capture_output=True, text=True, env=environment, cwd=folder)
    written = list(tasks.glob("out/**/results_*.json"))
    assert done.returncode == 0 and len(written) == 1, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    found = json.loads(written[0].read_text())["results"]["lathe_questions"]
    return found["acc,none"], found["acc_norm,none"]


def main():
    packages.require(["lm_eval", "datasets", "transformers", "tenacity"], "LATHE_LM_EVAL_PYTHON")
    lathe = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = train(lathe, folder)
        call(lathe, "export", run, "--out", folder / "exported")
        questions, others = folder / "questions.jsonl", folder / "others.jsonl"
        write_questions(questions, 0)
        write_questions(others, 1)
        ours, control = by_lathe(lathe, run, questions), by_lathe(lathe, run, others)
        with Server(lathe, run) as server:
            theirs = by_lm_eval(folder, server, folder / "exported", questions)
    assert ours == theirs, f"lathe eval has {ours}, lm_eval {theirs}"
    assert ours != control and ours[0] != ours[1] and 0 < ours[0] < 1, f"the questions show nothing: {ours}, {control}"
    print(f"50 questions: accuracy {ours[0]}, by length {ours[1]}, as lm_eval's local-completions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
