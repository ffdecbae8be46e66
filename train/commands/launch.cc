#include "dist/launch.h"

#include <set>

#include "core/io/text.h"
#include "train/commands/commands.h"
#include "train/formats/source.h"
#include "train/step/shares.h"

namespace lathe {
namespace {

constexpr int most_ranks = 1024;

/// The arguments before `--`, and in `command` the words after it.
struct LaunchArguments {
  int ranks = 0, max_restarts = 0, min_ranks = 0;
  std::vector<std::string> command;
};

int whole_number(const std::string& name, const std::string& text, int least, int most) {
  if (const auto value = integer_between(text, least, most)) return *value;
  fail(Exit::usage, "command line: ", name, " = ", text, " must be a whole number from ", least,
       " to ", most);
}

/// Returns whether the words after the `--` at words[i] are `bench collectives`.
bool is_benchmark(const std::vector<std::string>& words, size_t i) {
  return words[i + 1] == "bench" && words[i + 2] == "collectives";
}

LaunchArguments parse(const Arguments& arguments) {
  LaunchArguments parsed;
  const auto& words = arguments.positionals;
  std::set<std::string> given;
  size_t i = 0;
  for (; i < words.size() && words[i] != "--"; ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    if (!name.starts_with('-')) {
      fail(Exit::usage, "command line: lathe launch needs -- before the command \"", words[i],
           "\", as in lathe launch -n 2 -- train CONFIG");
    }
    if (name != "-n" && name != "--max-restarts" && name != "--min-ranks") {
      fail(Exit::usage, "command line: lathe launch has no option ", words[i],
           "; it takes -n, --max-restarts and --min-ranks, then -- and the command");
    }
    if (!given.insert(name).second)
      fail(Exit::usage, "command line: ", name, " is given 2 times; give it once");
    if (equals == std::string::npos && i + 1 == words.size())
      fail(Exit::usage, "command line: ", name, " needs a number");
    const std::string text = equals == std::string::npos ? words[++i] : words[i].substr(equals + 1);
    if (name == "-n") parsed.ranks = whole_number(name, text, 1, most_ranks);
    if (name == "--max-restarts") parsed.max_restarts = whole_number(name, text, 0, 1000000);
    if (name == "--min-ranks") parsed.min_ranks = whole_number(name, text, 1, most_ranks);
  }

  const bool is_known = i + 2 < words.size() && (words[i + 1] == "train" || is_benchmark(words, i));
  if (!is_known || parsed.ranks == 0)
    fail(Exit::usage, "usage: lathe launch ", find_command("launch").usage);
  if (parsed.min_ranks == 0) parsed.min_ranks = parsed.ranks;
  if (parsed.min_ranks > parsed.ranks) {
    fail(Exit::usage, "command line: --min-ranks = ", parsed.min_ranks,
         " is more than -n = ", parsed.ranks);
  }
  parsed.command.assign(words.begin() + static_cast<ptrdiff_t>(i) + 1, words.end());
  return parsed;
}

Exit run_launch(const Arguments& arguments) {
  const LaunchArguments parsed = parse(arguments);

  if (parsed.command[0] == "bench") {
    if (parsed.max_restarts > 0 || parsed.min_ranks < parsed.ranks)
      fail(Exit::usage, "command line: --max-restarts and --min-ranks are for runs, not for bench");
    return launch({.ranks = parsed.ranks, .command = parsed.command, .ranks_after_loss = {}});
  }

  // Check the config in this process, so that an error is reported only once and not by every
  // process.
  const Command& train = find_command("train");
  const LoadedConfig given = load_config_argument(parse_arguments(
      train, std::vector<std::string>(parsed.command.begin() + 1, parsed.command.end())));
  check_process_count(given, parsed.ranks);
  const LoadedConfig loaded = resolve_sources(given);
  check_tensor_ranks(loaded, parsed.ranks);

  // Start the largest number of processes that can divide a step evenly, at most the number that
  // remain but at least --min-ranks. If there is no such number, start the original number again.
  const auto ranks_after_loss = [&](int left) {
    for (int n = std::max(left, parsed.min_ranks); n >= parsed.min_ranks; --n) {
      if (can_divide_micro_batches(loaded.config, n)) return n;
    }
    return parsed.ranks;
  };
  return launch({.ranks = parsed.ranks,
                 .max_restarts = parsed.max_restarts,
                 .command = parsed.command,
                 .ranks_after_loss = ranks_after_loss});
}

}  // namespace

Command launch_command() {
  return {
      .name = "launch",
      .usage =
          "-n N [--max-restarts K] [--min-ranks M] -- train CONFIG [--section.key=value ...] | -n "
          "N -- bench collectives",
      .doc =
          "Train with N processes that share this machine's cores and the micro-batches of each "
          "step (train.grad_accum); under the conditions in docs/guide/distributed.md, the result "
          "is bitwise equal to that of a single process.",
      .examples =
          {"launch -n 2 -- train configs/quickstart.toml --train.grad_accum=2",
           "launch -n 4 --max-restarts 3 -- train configs/quickstart.toml --train.grad_accum=4"},
      .flags =
          {{"n", "Start this many processes."},
           {"max-restarts",
            "Resume from the newest checkpoint up to this many times after a process was lost. "
            "Default: 0."},
           {"min-ranks",
            "Resume with fewer processes if some were killed, but with at least this many. "
            "Default: N."}},
      .min_positionals = 0,
      .max_positionals = 0,
      .run = run_launch,
      .is_raw = true};
}

}  // namespace lathe
