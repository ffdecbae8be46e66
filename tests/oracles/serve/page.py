#!/usr/bin/env python3
"""Uses the page of `lathe serve` in headless Chromium: page.py LATHE [--keep DIR]. Exits with 77 if
Chromium is missing.

A script added to the page types a message, sends it with the keyboard, stops an answer, and begins
a new conversation. The page must show the model's answer, show markup as text, and log nothing to
the console except the refused request. The page's Content-Security-Policy is in force, so a request
to another host would be a console error. --keep: save screenshots in DIR. The test must notice a
page with an error in its script.
"""
import argparse
import http.client
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from served import Server, train

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ATTACK = "<img src=x onerror=alert(1)><script>document.title='bad'</script>"

# This script acts as a user. Until the server sends the image, the page counts as loading, so
# Chromium does not exit before the script has sent its results.
DRIVER = """<img src="/hold" alt="" hidden><script>
const sleep = ms => new Promise(done => setTimeout(done, ms));
const until = async ready => { for (let i = 0; i < 600 && !ready(); ++i) await sleep(50); };
const press = (element, key, more = {}) =>
  element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
const bodies = () => [...document.querySelectorAll(".message p")].map(p => p.textContent);
const notes = () => [...document.querySelectorAll(".message small")].map(p => p.textContent);
(async () => {
  const seen = {}, text = document.getElementById("text"), send = document.getElementById("send");
  const say = async what => { text.value = what; press(text, "Enter"); await until(() => send.textContent === "Stop"); };
  const ended = () => until(() => send.textContent === "Send");
  await until(() => document.getElementById("title").textContent !== "Lathe");
  seen.title = document.title;
  seen.focus = document.activeElement.id;
  text.value = "a line"; press(text, "Enter", { shiftKey: true });
  await sleep(100); seen.not_sent = bodies();
  document.getElementById("temperature").value = 0;
  await say("What is number 4?"); await ended();
  seen.first = bodies(); seen.first_notes = notes();
  await say("What is number 5?"); await ended();
  await say(ATTACK); await ended();
  seen.attack = bodies()[4]; seen.shorter = notes().at(-1); seen.images = document.querySelectorAll("#log img, #log script").length;
  document.getElementById("system").value = "long";
  await say("SLOW"); await sleep(300);
  press(document, "Escape"); await ended(); seen.stopped = notes().includes("stopped");
  document.getElementById("max_tokens").value = 100000;
  await say("What is number 1?"); await ended();
  seen.error = notes().at(-1); seen.returned = text.value;
  document.getElementById("open").click(); seen.open = !document.getElementById("settings").hidden;
  if (NEW) { document.getElementById("new").click(); seen.left = bodies().length; }
  await fetch("/seen", { method: "POST", body: JSON.stringify(seen) });
})();
</script></body>"""


def proxy(server, change, seen):
    """Starts and returns a proxy of `server`. The proxy applies `change` to the page, forwards
    other requests, and stores the driver's results in `seen`."""
    is_seen = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def pass_on(self, body=None):
            slow = body is not None and b"SLOW" in body
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k not in ("Host", "Accept-Encoding")})
            response = connection.getresponse()
            self.send_response(response.status)
            for name in ("Content-Type", "Content-Security-Policy"):
                if response.getheader(name):
                    self.send_header(name, response.getheader(name).replace("img-src data:", "img-src data: 'self'"))
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                while part := response.read1(65536):
                    self.wfile.write(change(part) if self.path == "/" else part)
                    self.wfile.flush()
                    while slow and response.status == 200:  # until the client disconnects
                        threading.Event().wait(0.05)
                        self.wfile.write(b": wait\n\n")
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                connection.close()

        def do_GET(self):
            if self.path != "/hold":
                return self.pass_on()
            is_seen.wait(100)
            self.send_error(404)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/seen":
                return self.pass_on(body)
            seen.update(json.loads(body))
            self.send_response(204)
            self.end_headers()
            is_seen.set()

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    return httpd


def look(server, change, *flags):
    """Returns the driver's results and the console messages."""
    seen = {}
    httpd = proxy(server, change, seen)
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--hide-scrollbars", f"--user-data-dir={profile}", "--enable-logging=stderr", *flags, f"http://127.0.0.1:{httpd.server_address[1]}/"],
            capture_output=True, text=True, timeout=180)
    httpd.shutdown()
    return seen, [line for line in done.stderr.splitlines() if "CONSOLE" in line and "/hold" not in line]


def driven(keeps_log):
    script = DRIVER.replace("ATTACK", json.dumps(ATTACK).replace("</", "<\\/")).replace("NEW", "false" if keeps_log else "true")
    return lambda page: page.replace(b"</body>", script.encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lathe", type=Path)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    if CHROMIUM is None:
        print("skipped: there is no Chromium")
        return 77
    lathe = str(args.lathe.resolve())
    with tempfile.TemporaryDirectory() as folder:
        run = train(lathe, folder)
        with Server(lathe, run) as server:
            seen, console = look(server, driven(False), "--dump-dom")
            assert seen, f"the script did not finish: {console}"
            status, answer = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "What is number 4?"}], "temperature": 0})
            assert status == 200
            assert seen["first"] == ["What is number 4?", answer["choices"][0]["message"]["content"]], seen
            assert re.search(r"\d+ tokens in \d", seen["first_notes"][0]), seen
            assert seen["title"] == "assistant - Lathe" and seen["focus"] == "text" and seen["not_sent"] == [], seen
            assert seen["attack"] == ATTACK and seen["images"] == 0, seen
            assert "left out" in seen["shorter"], seen  # three questions exceed the context
            assert seen["stopped"] and seen["open"] and seen["left"] == 0, seen
            assert "max_tokens is 100000" in seen["error"] and seen["returned"] == "What is number 1?", seen
            # The browser itself logs a refused request as a console error.
            assert all("status of 400" in line for line in console), f"the console has {console}"
            _, console = look(server, lambda page: page.replace(b"let model = null", b"let model = nothing"), "--dump-dom")
            assert any("nothing" in line for line in console), "a broken page is not noticed"
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                for name, flags in {"wide": ["--window-size=1280,900"], "narrow": ["--window-size=500,850"],
                                    "dark": ["--window-size=1280,900", "--force-dark-mode",
                                             "--blink-settings=preferredColorScheme=0"]}.items():
                    look(server, driven(True), f"--screenshot={(args.keep / (name + '.png')).resolve()}", *flags)
    return 0


if __name__ == "__main__":
    sys.exit(main())
