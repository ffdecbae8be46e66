#!/usr/bin/env python3
"""Sends malformed bodies to `lathe serve` from four clients. A client keeps its connection open
until the server closes it. The server must answer each malformed body with a status from 400 to 499
and an error in OpenAI's form. It must answer correct requests in between, and stop with exit code
0. The server's memory must grow by less than 24 MiB.

A body is malformed if Python's json refuses it, if it is not a request at all, or if a field of a
correct request has an invalid value. Correct bodies must get status 200. To show that the check for
malformed bodies notices a fault, the script also applies this check to a correct body. The check
must then fail.

usage: fuzz_http.py LATHE [BODIES [SEED]]
"""
import collections
import json
import random
import socket
import sys
import tempfile
import threading
from pathlib import Path

from tiny import check, control

sys.path.append(str(Path(__file__).resolve().parents[1] / "oracles/serve"))
from served import Server, train  # noqa: E402

CLIENTS, GROWTH_KB, TIMEOUT = 4, 24 << 10, 60
PATHS = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}
CORRECT = {
    "completion": {"model": "assistant", "prompt": "Number 3", "max_tokens": 1, "temperature": 0, "n": 1, "stop": ["x"],
                   "seed": 3, "echo": True, "logprobs": 2, "top_p": 0.9, "user": "somebody"},
    "chat": {"model": "assistant", "messages": [{"role": "system", "content": "Answer."}, {"role": "user", "content": "A\u00e9"}],
             "max_tokens": 1, "temperature": 0.5, "logprobs": True, "top_logprobs": 1, "top_k": 3, "tools": []},
}
NO_NUMBER = ["1", "", True, [], {}, [1], {"a": 1}]
WRONG = {
    "model": [1, [], {}, True, "other", "assistant\u0000"],
    "temperature": [*NO_NUMBER, -1, 2.1, 1e300, -1e-3], "top_p": [*NO_NUMBER, -0.1, 1.1], "min_p": [*NO_NUMBER, 2],
    "repetition_penalty": [*NO_NUMBER, 0, -1, 101], "top_k": [*NO_NUMBER, -1, 1.5, 1 << 40],
    "seed": [*NO_NUMBER, 1.5, 1 << 70], "n": [*NO_NUMBER, 0, -1, 129, 1 << 63], "max_tokens": [*NO_NUMBER, -1, 1.5, 1 << 31, 100000],
    "stop": [1, {}, [""], "", [1], ["a"] * 17, [["a"]]], "stream": [1, "true", [], {}], "stream_options": [{"include_usage": True}, 1],
    "presence_penalty": [1, "0"], "logit_bias": [{"1": 2}], "unknown": [1, "x", []], "\u0000": [1], "suffix": ["x"],
}
WRONG_OF = {
    "completion": {"prompt": [None, 1, True, {}, [], [[]], [None], [1, "a"], ["a", 1], [1.5], [-1], [1 << 40], [[1], "a", {}],
                              "a" * 5000, [3] * 5000, ["a"] * 500, [[[1]]]],
                   "echo": [1, "x"], "logprobs": [*NO_NUMBER, 21, -1, 1.5], "best_of": [2, 0, "1"], "messages": [[]]},
    "chat": {"messages": [None, 1, "a", {}, [], [1], [[]], [{}], [{"role": "user"}], [{"content": "a"}], [{"role": 1, "content": "a"}],
                          [{"role": "robot", "content": "a"}], [{"role": "user", "content": 1}], [{"role": "user", "content": [1]}],
                          [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                          [{"role": "user", "content": "a", "name": "b"}], [{"role": "user", "content": "a" * 5000}]],
             "logprobs": [1, "x", {}], "top_logprobs": [*NO_NUMBER, 21, -1], "tools": [[{}], 1], "prompt": ["a"],
             "max_completion_tokens": [2, 0, -1, "1"], "response_format": [{"type": "json_object"}]},
}


def is_json(body):
    try:
        json.loads(body.decode())
    except (UnicodeDecodeError, ValueError):
        return False
    except RecursionError:
        pass
    return True


def cut(draw, body):
    return body[:draw.randrange(len(body))]


def changed(draw, body):
    """Returns the body with some bytes replaced, removed, repeated or added."""
    body = bytearray(body)
    for _ in range(draw.choice([1, 1, 2, 5, 20])):
        at = draw.randrange(len(body) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            body[at:at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            del body[at:at + draw.choice([1, 3, 30])]
        elif kind == 2:
            body[at:at] = body[at:at + draw.choice([1, 10, 100])]
        else:
            body[at:at] = bytes(draw.randrange(256) for _ in range(draw.choice([1, 2, 4])))
        if not body:
            break
    return bytes(body)


def noise(draw, _):
    return draw.randbytes(draw.choice([0, 1, 2, 10, 100, 3000]))


def deep(draw, _):
    n, (opens, closes) = draw.choice([5, 100, 5000, 100000]), draw.choice([("[", "]"), ('{"prompt":', "}"), ('{"a":[', "]}")])
    return (opens * n + "1" + closes * draw.choice([0, n - 1, n])).encode()


def other_value(draw, _):
    return draw.choice([b"null", b"1", b'"x"', b"[]", b"{}", b"[{}]", b"true", b"-", b"1e999", b"\xef\xbb\xbf{}"])


def wrong_field(draw, kind):
    body = dict(CORRECT[kind])
    field, values = draw.choice(list({**WRONG, **WRONG_OF[kind]}.items()))
    body[field] = draw.choice(values)
    for name in draw.sample(list(body), draw.choice([0, 0, 1, 3])):
        if name not in (field, "prompt", "messages", "max_tokens", "logprobs"):
            del body[name]
    return json.dumps(body, ensure_ascii=draw.random() < 0.5).encode()


def malformed(draw):
    """Returns the kind of a request, and a body that must be refused."""
    kind = draw.choice(list(PATHS))
    if draw.random() < 0.5:
        return kind, wrong_field(draw, kind)
    make = draw.choice([cut, cut, changed, changed, changed, noise, deep, other_value])
    if make in (deep, other_value):
        return kind, make(draw, kind)
    while True:
        body = make(draw, json.dumps(CORRECT[kind], ensure_ascii=draw.random() < 0.5).encode())
        if not is_json(body):
            return kind, body


class Connection:
    """Represents one connection, which is opened again after the server has closed it."""

    def __init__(self, port):
        self.port, self.socket, self.opened = port, None, 0

    def post(self, path, body):
        """Sends a request, and returns the status and the body of the answer."""
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)
            self.opened += 1
        self.socket.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                            % (path.encode(), len(body)) + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.receive()
        head, _, data = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(data) < int(fields[b"content-length"]):
            data += self.receive()
        if fields.get(b"connection") == b"close":
            self.close()
        return int(head.split()[1]), data

    def receive(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection without an answer")
        return data

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket = None


def check_refused(connection, kind, body):
    status, answer = connection.post(PATHS[kind], body)
    check(400 <= status < 500, f"{kind}: status {status} for {body[:2000]!r}")
    error = json.loads(answer)["error"]
    check(error["message"] and error["type"] == "invalid_request_error", f"{kind}: {answer[:500]!r} for {body[:2000]!r}")
    return status


def check_answered(connection):
    for kind, body in CORRECT.items():
        status, answer = connection.post(PATHS[kind], json.dumps(body).encode())
        check(status == 200 and len(json.loads(answer)["choices"]) == 1, f"{kind}: status {status}: {answer[:500]!r}")


class Client(threading.Thread):
    def __init__(self, port, bodies, seed):
        super().__init__()
        self.connection, self.bodies, self.draw = Connection(port), bodies, random.Random(seed)
        self.statuses, self.failure = collections.Counter(), ""

    def run(self):
        try:
            for i in range(self.bodies):
                self.statuses[check_refused(self.connection, *malformed(self.draw))] += 1
                if i % 500 == 0:
                    check_answered(self.connection)
        except (SystemExit, Exception) as e:
            self.failure = f"{type(e).__name__}: {e}"


def send(server, bodies, seed):
    """Sends malformed bodies. Returns the statuses of the answers and the number of opened
    connections."""
    clients = [Client(server.port, bodies // CLIENTS, f"{seed} {i}") for i in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
        client.connection.close()
    for client in clients:
        check(not client.failure, client.failure)
    return sum((c.statuses for c in clients), collections.Counter()), sum(c.connection.opened for c in clients)


def main():
    lathe, bodies = str(Path(sys.argv[1]).resolve()), int(sys.argv[2]) if len(sys.argv) > 2 else 4000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with tempfile.TemporaryDirectory() as folder:
        run = train(lathe, folder, steps=1)
        with Server(lathe, run, "--threads", 1) as server:
            connection = Connection(server.port)
            check_answered(connection)
            control("a correct body as a malformed one",
                    lambda: check_refused(connection, "chat", json.dumps(CORRECT["chat"]).encode()))
            send(server, max(bodies // 5, 400), f"{seed} warm")
            before = server.memory_kb()
            statuses, opened = send(server, bodies, seed)
            growth = server.memory_kb() - before
            check_answered(connection)
            connection.close()
        check(growth < GROWTH_KB, f"the server's memory grew by {growth} kB in {bodies} bodies")
        print(f"{sum(statuses.values())} malformed bodies over {opened} connections: {dict(sorted(statuses.items()))}; "
              f"the server's memory changed by {growth} kB")


if __name__ == "__main__":
    main()
