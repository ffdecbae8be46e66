// Runs on several processes of this machine.
#pragma once

#include <string>
#include <vector>

#include "core/io/json.h"
#include "tests/support/process.h"

namespace lathe::test {

/// Returns keys, as --key=value, with those of `more` added or in their place.
inline std::vector<std::string> with_keys(std::vector<std::string> keys,
                                          const std::vector<std::string>& more) {
  for (const std::string& one : more) {
    const std::string name = one.substr(0, one.find('=') + 1);
    std::erase_if(keys, [&](const std::string& key) { return key.starts_with(name); });
    keys.push_back(one);
  }
  return keys;
}

/// Trains with `ranks` processes, or without a launcher for 1, in a run folder runs/NAME.
inline Finished train_on(const TempFolder& f, int ranks, const std::string& config,
                         const std::string& name, const std::vector<std::string>& keys) {
  std::vector<std::string> words;
  if (ranks > 1) words = {"launch", "-n", std::to_string(ranks), "--"};
  words.insert(words.end(), {"train", config, "--train.out_dir=runs/" + name});
  words.insert(words.end(), keys.begin(), keys.end());
  return run({.binary = "lathe",
              .args = words,
              .folder = f.path(),
              .environment = {},
              .apart = ranks > 1});
}

/// What a run computed: the lines of metrics.jsonl without times and memory, and the bytes of the
/// tensors in a checkpoint.
inline std::string results_of(const fs::path& run, const std::string& checkpoint) {
  std::string all;
  std::string text = slurp(run / "metrics.jsonl");
  for (size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
    Json line = Json::parse(text.substr(0, end));
    for (const char* measured : {"time", "step_ms", "tokens_per_sec", "samples_per_sec", "mfu",
                                 "data_wait_ms", "memory_bytes", "memory", "ranks"})
      line.erase(measured);
    all += line.dump() + "\n";
  }
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    all += slurp(run / "checkpoints" / checkpoint / file);
  return all;
}

}  // namespace lathe::test
