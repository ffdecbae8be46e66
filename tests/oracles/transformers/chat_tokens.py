#!/usr/bin/env python3
"""Compares the conversations of `lathe prepare --format instructions`, `lathe chat` and `lathe
serve` with transformers' apply_chat_template, on random models and tokenizers. The formats are
ChatML and Llama 3's, with and without a default system message. The template is either the model's
own, or the one that `lathe export` wrote because --chat-template selected it.

  tests/oracles/transformers/chat_tokens.py LATHE

- prepare: every id, and whether it is learned (part of the loss).
- chat and serve: the length of the prompt, and the greedy answer, which a random model gives only
  to this prompt.

Exits with 77 and prints the reason if a package is missing both in this interpreter and in the one
that LATHE_HF_PYTHON names. Each part also checks that it notices a fault.
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import packages  # noqa: E402
import smollm2  # noqa: E402

PACKAGES = ["torch", "transformers", "tokenizers", "safetensors"]
MARK, BEGIN = 1 << 31, 1 << 30
NEW = 12  # tokens in an answer
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
LLAMA3 = ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + "
          "m.content | trim + '<|eot_id|>' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
LLAMA3_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# Each case has a name, the arguments of make_folder(), and the value of --chat-template.
MODELS = [
    ("ChatML with a system message", {}, None),
    ("ChatML", dict(template=CHATML, begin="<|endoftext|>"), None),
    ("Llama 3, trimmed", dict(template=LLAMA3, special=LLAMA3_SPECIAL, begin="<|begin_of_text|>", end="<|eot_id|>"), None),
    ("--chat-template chatml", dict(template=None, begin="<|endoftext|>"), "chatml"),
    ("--chat-template llama3", dict(template=None, special=LLAMA3_SPECIAL, begin="<|begin_of_text|>", end="<|end_of_text|>"),
     "llama3"),
]


def conversation(*texts, system=None):
    roles = ["user", "assistant"] * len(texts)
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": role, "content": text} for role, text in zip(roles, texts)]


CONVERSATIONS = [
    conversation("Which drawer holds wood?", "Drawer 1 holds wood."),
    conversation("What is 12345?", "It's a number.", "And naïve 😀?", "Two\n\nlines, and\ttabs.", system="Answer."),
    conversation("  spaces around it \n", "x", "\nlines\n", "The end. \n"),
    conversation("a", "b", "c", "d", "e", "f"),
]
QUESTIONS = [
    conversation("Which drawer holds wood?"),
    conversation("And naïve 😀 12345?", system="You turn brass."),
    conversation("One", "Two", "Three"),
    conversation("One", "  Two\n", " Three ", "Four", "Five?", system="  Rule\n"),
]


class Bench:
    def __init__(self, lathe, folder):
        self.lathe, self.folder = lathe, folder

    def call(self, *words, text=None):
        done = subprocess.run([self.lathe, *map(str, words)], capture_output=True, input=text, cwd=self.folder)
        assert done.returncode == 0, f"lathe {words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


def ids_of(tokenizer, messages, asks):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
    ids = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=asks, return_dict=False)
    assert ids == tokenizer(text, add_special_tokens=False).input_ids
    return ids


def prepared(bench, run, name, conversations):
    """Returns the ids of the training split, and whether each is learned."""
    lines, out = bench.folder / f"{name}.jsonl", bench.folder / f"{name}-data"
    lines.write_text("".join(json.dumps({"messages": c}, ensure_ascii=False) + "\n" for c in conversations))
    bench.call("prepare", lines, "--format", "instructions", "--tokenizer", run, "--out", out, "--val", "0")
    ids = array("I")
    ids.frombytes((out / "train.bin").read_bytes())
    return [i & ~(MARK | BEGIN) for i in ids], [not i & MARK for i in ids]


def wanted_of(tokenizer, conversations, separator):
    """Returns the ids of all conversations, each followed by the separator, and whether each id is
    learned. Separators are not learned."""
    ids, learned = [], []
    for c in conversations:
        whole = ids_of(tokenizer, c, False)
        is_learned = [False] * len(whole)
        for i, message in enumerate(c):
            if message["role"] == "assistant":
                begin, end = len(ids_of(tokenizer, c[:i], True)), len(ids_of(tokenizer, c[:i + 1], False))
                last = max(j for j in range(begin, end) if whole[j] == tokenizer.eos_token_id)
                is_learned[begin:last + 1] = [True] * (last + 1 - begin)
        ids += [*whole, separator]
        learned += [*is_learned, False]
    return ids, learned


def check_prepare(bench, run, name, tokenizer):
    mine = prepared(bench, run, "chats", CONVERSATIONS)
    separator = mine[0][-1]
    assert separator in tokenizer.added_tokens_decoder, f"{name}: {separator} ends documents"
    wanted = wanted_of(tokenizer, CONVERSATIONS, separator)
    assert mine[0] == wanted[0], f"{name}: the ids of prepare\n{tokenizer.decode(mine[0])!r}\n{tokenizer.decode(wanted[0])!r}"
    assert mine[1] == wanted[1], f"{name}: which ids are learned"
    other = [CONVERSATIONS[0], *CONVERSATIONS[2:]]
    assert prepared(bench, run, "fewer", other)[0] != wanted[0], "the control agrees"
    # If a message contains the text of a special token, Lathe reads it as ordinary text, but
    # transformers reads it as the token.
    forged = [conversation(f"a{tokenizer.eos_token}b", "c")]
    ends = [ids.count(tokenizer.eos_token_id)
            for ids in (prepared(bench, run, "forged", forged)[0], wanted_of(tokenizer, forged, separator)[0])]
    assert ends[0] == ends[1] - 1, f"{name}: {ends}"
    print(f"{name}: {len(wanted[0])} ids of prepare, of which {sum(wanted[1])} are learned")


def byte_letters():
    """Returns the letter of each byte in GPT-2's vocabularies: the byte's own character if it is
    printable, else one with a code point of at least 256."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def greedy(model, tokenizer, ids):
    """Returns the bytes of the greedy answer before the EOS token."""
    import torch

    byte_of = {c: b for b, c in byte_letters().items()}
    out, ids = b"", list(ids)
    for _ in range(NEW):
        with torch.no_grad():
            ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
        if ids[-1] == tokenizer.eos_token_id:
            break
        token = tokenizer.convert_ids_to_tokens(ids[-1])
        out += token.encode() if token in tokenizer.all_special_tokens else bytes(byte_of[c] for c in token)
    return out


def ask_server(port, messages):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"messages": messages, "temperature": 0, "max_tokens": NEW, "logprobs": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    tokens = answer["choices"][0]["logprobs"]["content"]
    return answer["usage"]["prompt_tokens"], b"".join(bytes(t["bytes"]) for t in tokens)


def check_answers(bench, run, name, model, tokenizer):
    server = subprocess.Popen([bench.lathe, "serve", run, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, cwd=bench.folder)
    different = set()
    try:
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
        for messages in QUESTIONS:
            ids = ids_of(tokenizer, messages, True)
            wanted = greedy(model, tokenizer, ids)
            different.add(wanted)
            length, text = ask_server(port, messages)
            assert length == len(ids), f"{name}: serve's prompt has {length} ids, transformers' {len(ids)}: {messages}"
            assert text == wanted, f"{name}: serve answers {text!r}, transformers {wanted!r}: {messages}"
            if len(messages) > 2 or messages[-1]["content"].strip() != messages[-1]["content"]:
                continue
            system = ["--system", messages[0]["content"]] if messages[0]["role"] == "system" else []
            text = bench.call("chat", run, "--temperature", 0, "--tokens", NEW, *system,
                              text=(messages[-1]["content"] + "\n").encode())
            assert text == wanted + b"\n", f"{name}: chat answers {text!r}, transformers {wanted!r}: {messages}"
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        server.stdout.close()
    assert len(different) == len(QUESTIONS), f"{name}: the answers do not depend on the question"
    print(f"{name}: {len(QUESTIONS)} answers of serve and chat are those of transformers")


def main():
    packages.require(PACKAGES)
    packages.quiet_transformers()
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes of Lathe
    with tempfile.TemporaryDirectory() as temporary:
        for i, (name, options, choice) in enumerate(MODELS):
            bench = Bench(str(Path(sys.argv[1]).resolve()), Path(temporary) / str(i))
            folder, run, exported = (bench.folder / part for part in ("model", "run", "exported"))
            smollm2.make_folder(folder, dtype="float32", seed=i, **options)
            bench.call("import", folder, "--out", run, *(["--chat-template", choice] if choice else []))
            bench.call("export", run, "--out", exported)
            theirs = exported if choice else folder
            tokenizer = PreTrainedTokenizerFast.from_pretrained(theirs)
            again = PreTrainedTokenizerFast.from_pretrained(exported)
            assert (again.chat_template, again.eos_token) == (tokenizer.chat_template, tokenizer.eos_token), name
            model = AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.float32).eval()
            check_prepare(bench, run, name, tokenizer)
            check_answers(bench, run, name, model, tokenizer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
