"""Compares the results of `lathe eval` on texts and multiple-choice questions with sums of
transformers' log-probabilities."""
import json
import math
import random

TOKENS = 48  # tokens per window
WORDS = "the lathe turns wood and tool cuts what slowly under it naïve 42 round deep".split()


def log_probabilities(model, ids):
    """Returns the log-probability of each of ids[1:] given the ids before it: [len(ids) - 1]."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def loss_of_text(model, tokenizer, text, stride):
    """Returns the summed loss of a text that follows <|endoftext|>, and the text's number of
    tokens. Windows of TOKENS tokens begin `stride` tokens apart."""
    ids = [tokenizer.token_to_id("<|endoftext|>")] + tokenizer.encode(text, add_special_tokens=False).ids
    loss, scored = 0.0, 0
    while scored < len(ids) - 1:
        begin = max(0, scored - (TOKENS - stride))
        window = ids[begin:begin + TOKENS + 1]
        loss -= log_probabilities(model, window)[scored - begin:].sum().item()
        scored = begin + len(window) - 1
    return loss, len(ids) - 1


def best_endings(model, tokenizer, question):
    """Returns the indices of two endings: the likeliest by total log-probability, and the likeliest
    by log-probability per byte."""
    def score(ending):
        apart = question["context"].endswith(" ") or ending.startswith(" ")
        behind = tokenizer.encode(ending if apart else " " + ending, add_special_tokens=False).ids
        ids = tokenizer.encode(question["context"], add_special_tokens=False).ids + behind
        return log_probabilities(model, ids[-TOKENS - 1:])[-len(behind):].sum().item()

    sums = [score(e) for e in question["endings"]]
    by_byte = [s / len(e.encode()) for s, e in zip(sums, question["endings"])]
    return sums.index(max(sums)), by_byte.index(max(by_byte))


def scores(bench, name, folder, run):
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(bench.tokenizer))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = random.Random(7)
    words = lambda least, most: " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))
    texts = [words(150, 200) + "\n", words(3, 9), "ünï😀 <|endoftext" + words(60, 70)]
    paths = []
    for text in texts:
        paths.append(bench.path("text.txt"))
        paths[-1].write_text(text)
    for stride in (TOKENS, 20):
        said = json.loads(bench.call("eval", run, *paths, "--stride", stride, "--batch-size", 3).stdout.splitlines()[-1])
        sums = [loss_of_text(model, tokenizer, text, stride) for text in texts]
        loss, tokens, size = sum(s[0] for s in sums), sum(s[1] for s in sums), sum(len(t.encode()) for t in texts)
        assert said["tokens"] == tokens and said["bytes"] == size, said
        assert math.isclose(said["loss"], loss / tokens, rel_tol=1e-5), (said, loss / tokens)
        assert math.isclose(said["bits_per_byte"], loss / math.log(2) / size, rel_tol=1e-5), said
        for one, (own, n) in zip(said["files"], sums):
            assert math.isclose(one["perplexity"], math.exp(own / n), rel_tol=1e-4), (one, own / n)
    print(f"{name}: loss, perplexity and bits per byte of {len(texts)} texts agree, {said['bits_per_byte']:.4f} bits per byte")

    questions, right, right_by_byte = [], 0, 0
    for i in range(200):
        q = {"context": words(1, 60) + rng.choice(["", " "]), "endings": [words(1, 6) for _ in range(4)]}
        whole, by_byte = best_endings(model, tokenizer, q)
        q["label"] = [whole, by_byte, rng.randrange(4)][i % 3]
        right += whole == q["label"]
        right_by_byte += by_byte == q["label"]
        questions.append(q)
    file = bench.path("questions.jsonl")
    file.write_text("".join(json.dumps(q) + "\n" for q in questions))
    said = json.loads(bench.call("eval", run, "--choices", file).stdout.splitlines()[-1])
    assert said["questions"] == 200 and said["accuracy"] == right / 200, (said, right)
    assert said["accuracy_by_byte"] == right_by_byte / 200 and right != right_by_byte, (said, right_by_byte)
    print(f"{name}: 200 questions answered alike: {right} right, {right_by_byte} by byte")
