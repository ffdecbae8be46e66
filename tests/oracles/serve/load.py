#!/usr/bin/env python3
"""Sends many requests to `lathe serve` from several clients at a time: load.py LATHE [REQUESTS
[CLIENTS [FUZZED]]].

For a fifth of the requests the client disconnects before the answer is complete. Each remaining
request must get the same text as when it is sent alone. A request with status 429 is sent again.
The server must answer afterwards, and its memory must stay bounded. Then each of FUZZED damaged
bodies must get a status of 4xx, or 200 if the body is still valid. The check must notice an
additional character in an expected text.
"""
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from served import Server, train

# There is a request of each kind. Each request is sent many times.
KINDS = [("/v1/completions", {"prompt": f"Number {i % 6} is", "max_tokens": 4 + 3 * i, "seed": i, "temperature": i % 3 / 2,
                              "n": 1 + i % 2, "stop": ["naï"] if i % 4 == 0 else None}) for i in range(12)]
KINDS += [("/v1/chat/completions", {"messages": [{"role": "user", "content": f"What is number {i}?"}], "seed": i,
                                    "max_tokens": 30}) for i in range(6)]


def texts_of(answer):
    return [c["text"] if "text" in c else c["message"]["content"] for c in answer["choices"]]


def stream(server, path, body, leave_after=None):
    """Returns the texts of a stream. Returns None if the client disconnects after `leave_after`
    bytes, or gets status 429."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status == 429:
            return None
        assert response.status == 200, response.status
        if leave_after is not None:
            response.read(leave_after)
            return None
        data = response.read().decode()
    finally:
        connection.close()
    assert data.endswith("data: [DONE]\n\n"), f"a stream was cut off: {data[-200:]}"
    texts = {}
    for line in data.split("\n\n")[:-2]:
        for c in json.loads(line.removeprefix("data: "))["choices"]:
            texts[c["index"]] = texts.get(c["index"], "") + (c["text"] if "text" in c else c["delta"].get("content", ""))
    return [texts[i] for i in sorted(texts)]


class Load:
    def __init__(self, server, wanted, requests):
        self.server, self.wanted, self.left = server, wanted, list(range(requests))
        self.lock, self.counts, self.faults = threading.Lock(), {"answered": 0, "left": 0, "again": 0}, []

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def one(self, number, draw):
        path, body = KINDS[number % len(KINDS)]
        if draw.random() < 0.2:
            stream(self.server, path, body, leave_after=draw.choice([0, 1, 200]))
            return self.count("left")
        while True:
            if draw.random() < 0.5:
                texts = stream(self.server, path, body)
            else:
                status, answer = self.server.post(path, body)
                assert status in (200, 429), (status, answer)
                texts = texts_of(answer) if status == 200 else None
            if texts is not None:
                break
            self.count("again")
            time.sleep(0.02)
        if texts != self.wanted[number % len(KINDS)]:
            raise AssertionError(f"request {number} got {texts}, alone {self.wanted[number % len(KINDS)]}")
        self.count("answered")

    def client(self, seed):
        draw = random.Random(seed)
        while True:
            with self.lock:
                if not self.left:
                    return
                number = self.left.pop()
            try:
                self.one(number, draw)
            except Exception as e:
                with self.lock:
                    self.faults.append(f"request {number}: {type(e).__name__}: {e}")

    def run(self, clients):
        threads = [threading.Thread(target=self.client, args=(seed,)) for seed in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.faults, self.faults[:3]


def fuzz(server, trials):
    """Sends damaged bodies from eight clients."""
    bodies = [json.dumps(body).encode() for _, body in KINDS]

    def client(seed):
        draw = random.Random(seed)
        for _ in range(trials // 8):
            path, body = draw.choice(KINDS)[0], bytearray(draw.choice(bodies))
            for _ in range(draw.randint(1, 4)):
                at = draw.randrange(len(body))
                body[at:at + draw.randint(0, 6)] = draw.choice([b"", b"{", b"[[", b'"', b"9", b",", b"\xff", b"\x00", b"null"])
                body = body or bytearray(b" ")
            status, answer = server.post(path, bytes(body))
            with lock:
                statuses[status] = statuses.get(status, 0) + 1
                if not (status == 200 or (400 <= status < 500 and answer["error"]["message"])):
                    faults.append((status, bytes(body)))

    lock, statuses, faults = threading.Lock(), {}, []
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]
    print(f"{trials} damaged bodies: statuses {dict(sorted(statuses.items()))}")
    assert statuses.get(400, 0) > trials // 2, "fewer than half of the bodies got status 400"


def main():
    lathe = str(Path(sys.argv[1]).resolve())
    requests, clients, fuzzed = [*map(int, sys.argv[2:]), *[200, 8, 800][len(sys.argv) - 2:]][:3]
    with tempfile.TemporaryDirectory() as folder:
        run = train(lathe, folder, steps=60)
        # The server lets at most four requests wait, so some get status 429 and are sent again.
        with Server(lathe, run, "--batch", 4, "--queue", 4, "--threads", 1) as server:
            wanted = [texts_of(server.post(path, body)[1]) for path, body in KINDS]
            warm = Load(server, wanted, min(requests, 100))
            warm.run(clients)
            before = server.memory_kb()
            load = Load(server, wanted, requests)
            load.run(clients)
            grown = server.memory_kb() - before
            print(f"{requests} requests of {clients} clients: {load.counts}, memory {before} kB and {grown} more")
            assert load.counts["answered"] + load.counts["left"] == requests
            assert load.counts["left"] > requests // 10
            assert grown < 20_000, f"memory has grown by {grown} kB"
            fuzz(server, fuzzed)
            assert server.memory_kb() - before < 20_000, "memory has grown with damaged bodies"
            assert texts_of(server.post(*KINDS[0])[1]) == wanted[0]
            try:  # the check must notice an additional character
                Load(server, [[t + "!" for t in texts] for texts in wanted], 10).run(2)
            except AssertionError:
                return 0
            raise AssertionError("a different text is not noticed")


if __name__ == "__main__":
    sys.exit(main())
