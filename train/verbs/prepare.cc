#include <algorithm>
#include <iostream>

#include "data/prepare.h"
#include "train/run/stop.h"
#include "train/verbs/verbs.h"

namespace lathe {
namespace {

Exit run_prepare(const Arguments& arguments) {
  PrepareOptions o{.inputs = arguments.words, .out = arguments.get("out", "")};
  if (o.out.empty()) fail(Exit::usage, "lathe prepare needs --out FOLDER");
  o.tokenizer = arguments.get("tokenizer", "byte");
  if (o.tokenizer != "byte" && o.tokenizer != "char")
    fail(Exit::usage, "command line: --tokenizer must be byte or char, not ", o.tokenizer);
  o.val_share = arguments.number("val", 0.1, between(0, 0.9), false);
  o.shard_tokens = static_cast<int64_t>(arguments.number("shard-tokens", 1e8, at_least(1), true));
  take_stop_signals("the preparation; nothing of it is kept");
  o.stop = [] { return stop_signal() != 0; };
  prepare(o);
  return Exit::done;
}

}  // namespace

Verb prepare_verb() {
  return {"prepare",
          "IN... --out FOLDER",
          "turn text files, or folders of them, into token shards",
          "prepare my.txt --out data/my --tokenizer char",
          {{"out", "folder for the shards"},
           {"tokenizer", "byte (default) or char"},
           {"val", "share of the text for validation, from its tail (0.1)"},
           {"shard-tokens", "most tokens in one file (100000000)"}},
          false,
          1,
          1000000,
          run_prepare};
}

}  // namespace lathe
