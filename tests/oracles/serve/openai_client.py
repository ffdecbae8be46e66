#!/usr/bin/env python3
"""Calls `lathe serve` with the package openai: openai_client.py LATHE. Exits with 77 if the package
is missing both in this interpreter and in the one that LATHE_OPENAI_PYTHON names.

The package must be able to read completions, chats, streams, log probabilities and errors. The
answers must equal those of `lathe generate`, `lathe chat` and `lathe eval --choices`. Another seed
must give another text. The server must refuse a wrong API key.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from served import WORDS, Server, call, train


def client_of(server, key="none"):
    import openai

    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def completions(client, lathe, run):
    prompt = "Number 3 is"
    wanted = call(lathe, "generate", run, "--prompt", prompt, "--tokens", 9, "--temperature", 0).stdout
    done = client.completions.create(model="assistant", prompt=prompt, max_tokens=9, temperature=0)
    assert prompt + done.choices[0].text + "\n" == wanted, (done, wanted)
    assert done.usage.prompt_tokens + done.usage.completion_tokens == done.usage.total_tokens

    seeded = call(lathe, "generate", run, "--prompt", prompt, "--tokens", 20, "--temperature", 1.5, "--seed", 5, "--samples", 2)
    same = client.completions.create(model="assistant", prompt=prompt, max_tokens=20, temperature=1.5, seed=5, n=2)
    texts = [prompt + c.text for c in same.choices]
    assert "\n----\n".join(texts) + "\n" == seeded.stdout, (texts, seeded.stdout)
    other = client.completions.create(model="assistant", prompt=prompt, max_tokens=20, temperature=1.5, seed=6, n=2)
    assert [prompt + c.text for c in other.choices] != texts, "another seed gives the same text"

    parts = list(client.completions.create(model="assistant", prompt=prompt, max_tokens=9, temperature=0, stream=True))
    assert prompt + "".join(c.text for p in parts for c in p.choices) + "\n" == wanted

    scored = client.completions.create(model="assistant", prompt=prompt, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert scored.text == prompt and "".join(scored.logprobs.tokens) == prompt
    assert scored.logprobs.token_logprobs[0] is None and all(x < 0 for x in scored.logprobs.token_logprobs[1:])
    assert [prompt[at:at + 1] for at in scored.logprobs.text_offset] == [t[:1] for t in scored.logprobs.tokens]


def chats(client, lathe, run):
    asked = [{"role": "user", "content": "What is number 4?"}]
    answer = subprocess.run([lathe, "chat", run, "--temperature", "0", "--tokens", "40"], input="What is number 4?\n",
                            capture_output=True, text=True).stdout
    done = client.chat.completions.create(model="assistant", messages=asked, temperature=0, max_completion_tokens=40)
    choice = done.choices[0]
    assert choice.message.content + "\n" == answer, (choice, answer)
    assert "chalk" in answer and "\N{GRINNING FACE}" in answer, f"the model has learned nothing: {answer}"
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"

    with client.chat.completions.create(model="assistant", messages=asked, temperature=0, stream=True, logprobs=True,
                                        top_logprobs=3, stream_options={"include_usage": True}) as stream:
        parts = list(stream)
    assert "".join(c.delta.content or "" for p in parts for c in p.choices) + "\n" == answer
    assert parts[-1].usage.completion_tokens > 5 and parts[0].choices[0].delta.role == "assistant"
    tokens = [t for p in parts for c in p.choices if c.logprobs for t in c.logprobs.content]
    assert bytes(b for t in tokens for b in t.bytes).decode() + "\n" == answer
    for token in tokens:
        assert len(token.top_logprobs) == 3 and math.isclose(token.logprob, token.top_logprobs[0].logprob)

    with client.chat.completions.create(model="assistant", messages=asked, temperature=2, stream=True) as stream:
        next(iter(stream))  # disconnects before the end


def choices(client, lathe, run, folder):
    """Scores questions with several endings by the log-probabilities of an echoed context and
    ending, as lm_eval's local-completions does. The accuracies must equal those of `lathe eval
    --choices`."""
    lines, whole, by_byte = [], 0, 0
    for i in range(50):
        endings = [f" is {WORDS[(i + j * (1 + i % 2)) % 6]}, na\u00efve." + " And more." * (j * i % 3) for j in range(3)]
        lines.append({"context": f"Number {i % 6}", "endings": endings, "label": i % 5 % 3})
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(x) + "\n" for x in lines))
    for line in lines:
        sums = []
        for ending in line["endings"]:
            scored = client.completions.create(model="assistant", prompt=line["context"] + ending, max_tokens=1, echo=True,
                                               logprobs=1, temperature=0, seed=1234).choices[0].logprobs
            inside = [p for p, at in zip(scored.token_logprobs, scored.text_offset) if at >= len(line["context"])]
            sums.append(sum(inside[:-1]))  # the last token is generated, not echoed
        whole += max(range(3), key=sums.__getitem__) == line["label"]
        by_byte += max(range(3), key=lambda j: sums[j] / len(line["endings"][j].encode())) == line["label"]
    done = json.loads(call(lathe, "eval", run, "--choices", questions).stdout.splitlines()[-1])
    assert (done["accuracy"], done["accuracy_by_byte"]) == (whole / 50, by_byte / 50), (done, whole, by_byte)
    assert 0 < whole < 50, "every question has the same result"
    print(f"50 questions: accuracy {whole / 50}, by byte {by_byte / 50}, as lathe eval")


def errors(client, openai):
    refused = [(openai.NotFoundError, {"model": "other", "prompt": "a"}),
               (openai.BadRequestError, {"model": "assistant", "prompt": "a", "presence_penalty": 1}),
               (openai.BadRequestError, {"model": "assistant", "prompt": "a", "max_tokens": 1000})]
    for kind, words in refused:
        try:
            client.completions.create(**words)
        except kind as e:
            assert e.body["message"] and e.type == "invalid_request_error", e
            continue
        raise AssertionError(f"{words} is not refused")
    assert [m.id for m in client.models.list()] == ["assistant"]
    assert client.models.retrieve("assistant").owned_by == "lathe"


def main():
    try:
        import openai
    except ImportError:
        other = os.environ.pop("LATHE_OPENAI_PYTHON", None)
        if other and Path(other).exists():
            return subprocess.call([other, *sys.argv])
        print("skipped: the package openai is not here; install it, or name a Python that has it in LATHE_OPENAI_PYTHON")
        return 77
    print("openai", openai.__version__)
    lathe = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        run = train(lathe, folder)
        with Server(lathe, run) as server:
            client = client_of(server)
            completions(client, lathe, run)
            chats(client, lathe, run)
            choices(client, lathe, run, Path(folder))
            errors(client, openai)
        with Server(lathe, run, key="secret") as server:
            assert client_of(server, "secret").models.list().data
            try:
                client_of(server, "wrong").models.list()
                raise AssertionError("a wrong key is taken")
            except openai.AuthenticationError:
                pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
