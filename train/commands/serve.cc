#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "core/io/log.h"
#include "train/commands/commands.h"
#include "train/loop/stop.h"
#include "train/serve/access.h"
#include "train/serve/http.h"
#include "train/serve/scheduler.h"
#include "train/serve/service.h"

namespace lathe {
namespace {

constexpr double grace_for_texts_s = 10, grace_for_answers_s = 5;

/// Returns the API key that requests must send, or an empty string if they need no key. Throws
/// Exit::usage if other machines could reach the server without a key.
std::string key_for(const std::string& host) {
  const char* const set = std::getenv("LATHE_API_KEY");
  const std::string key = set == nullptr ? "" : set;
  // A header can't carry such a key unchanged, so every request would be refused.
  const auto is_sendable = [](char c) { return c > ' ' && c < 127; };
  if (!std::ranges::all_of(key, is_sendable)) {
    fail(Exit::usage,
         "environment: LATHE_API_KEY contains white space or other characters that a header can't "
         "carry; use printable ASCII characters");
  }
  if (key.empty() && !is_loopback(host)) {
    fail(Exit::usage, "command line: --host ", host,
         " can be reached from other machines, and LATHE_API_KEY is not set; set it to a key that "
         "clients must send, or leave --host out");
  }
  return key;
}

/// Returns the last non-empty component of a path, such as "a" for "runs/a/".
std::string name_of(const fs::path& path) {
  fs::path full = fs::absolute(path).lexically_normal();
  if (!full.has_filename()) full = full.parent_path();
  return full.filename().string();
}

Exit run_serve(const Arguments& arguments) {
  // Make malloc use a single arena. Otherwise each connection thread gets an arena of its own,
  // which keeps memory that is freed there, and memory grows by 4 MB for each thousand requests.
  mallopt(M_ARENA_MAX, 1);

  const auto whole = [&](const char* name, double otherwise, double least, double most) {
    return static_cast<int64_t>(arguments.number(name, otherwise, between(least, most), true));
  };
  HttpOptions http{.host = arguments.get("host", "127.0.0.1")};
  http.port = static_cast<int>(whole("port", 8000, 0, 65535));
  http.key = key_for(http.host);
  http.max_body = static_cast<size_t>(whole("max-body", 1, 1, 1024)) << 20;
  const int64_t batch = whole("batch", 8, 1, 1024), queue = whole("queue", 64, 1, 10000),
                max_tokens = whole("max-tokens", 0, 0, 1e9);
  const double max_time = arguments.number("max-time", 600, between(0.001, 1e8), false);
  http.max_answer_seconds = max_time + 90;
  // Each request has a thread: those that wait, those in the batch, and some that will be refused.
  http.connections = static_cast<size_t>(queue + batch + 64);

  const LoadedModel m = load_model_argument(arguments);
  const Tokenizer& tokenizer = text_tokenizer(arguments, m);
  const int64_t context = model_context(m.config);
  Scheduler scheduler(*m.model, {.batch = {.texts = batch,
                                           .capacity = context,
                                           .context = context,
                                           .compute = m.compute,
                                           .device = m.device},
                                 .queue = static_cast<size_t>(queue)});
  const Service service({.name = arguments.get("name", name_of(arguments.positionals[0])),
                         .tokenizer = tokenizer,
                         .context = context,
                         .max_tokens = max_tokens,
                         .max_time = max_time},
                        scheduler);
  HttpServer server(service, http);

  install_stop_handlers("after the answers in progress");
  server.start();
  const bool is_v6 = http.host.find(':') != std::string::npos;
  log_info("serving   http://", is_v6 ? "[" + http.host + "]" : http.host, ":", server.port(),
           http.key.empty() ? "" : ", with the key of LATHE_API_KEY");
  scheduler.run([] { return stop_signal() != 0; }, grace_for_texts_s);
  server.stop(grace_for_answers_s);
  return Exit::done;
}

}  // namespace

Command serve_command() {
  return {
      .name = "serve",
      .usage = "RUN|CHECKPOINT",
      .doc =
          "Serve a language model over HTTP with OpenAI's interface (/v1/models, /v1/completions, "
          "/v1/chat/completions) and a page for chats, until Ctrl-C.",
      .examples = {"serve runs/assistant --port 8000",
                   "serve runs/assistant --batch 4 --load-dtype int8"},
      .flags = with_load_flags(
          {{"host",
            "Listen on this address; any but a loopback address needs the environment variable "
            "LATHE_API_KEY, the key that clients must send. Default: 127.0.0.1."},
           {"port", "Listen on this port; 0 takes any free port. Default: 8000."},
           {"name", "Call the model by this name in requests. Default: the name of the folder."},
           {"batch", "Generate this many texts together. Default: 8."},
           {"queue",
            "Let this many requests wait, and refuse others with status 429. Default: 64."},
           {"max-tokens",
            "Refuse requests for more tokens than this; 0 sets no limit but the model's context. "
            "Default: 0."},
           {"max-time",
            "End a request after this many seconds, including the time that it waits. Default: "
            "600."},
           {"max-body", "Refuse requests of more than this many MiB. Default: 1."}}),
      .run = run_serve,
      .switches = {"double-quant"}};
}

}  // namespace lathe
