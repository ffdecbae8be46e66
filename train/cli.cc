#include "train/cli.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>

#include "core/io/log.h"
#include "train/run_config.h"
#include "train/verbs.h"

namespace lathe {
namespace {

constexpr const char* version = "lathe 0.1.0";

void print_help(const Verb* verb) {
  if (verb == nullptr) {
    std::cout << version << ": trains language models from config files\n\nusage: lathe VERB ...\n\n";
    for (const auto& v : verbs())
      std::cout << "  " << v.name << std::string(11 - std::string(v.name).size(), ' ') << v.doc << "\n";
    std::cout << "\n`lathe VERB --help` says more. Exit codes: 0 done, 2 usage or config, 3 data, 4 no usable "
                 "checkpoint, 5 diverged,\n"
                 "6 input/output, 8 run folder in use, 9 out of memory, 75 stopped with a checkpoint (run it again to "
                 "go on), 1 internal.\n";
    return;
  }
  std::cout << "usage: lathe " << verb->name << " " << verb->usage << "\n\n" << verb->doc << "\n";
  if (!verb->flags.empty()) std::cout << "\n";
  for (const auto& [name, doc] : verb->flags)
    std::cout << "  --" << name << std::string(16 - std::string(name).size(), ' ') << doc << "\n";
  if (!verb->config_keys) return;
  std::cout << "\nConfig keys (also as LATHE_SECTION_KEY in the environment):\n";
  for (const auto& f : run_schema().fields()) {
    const std::string allowed = rule_text(f.rule);
    std::cout << "  --" << f.key << "=" << toml_text(f.initial) << "\n        " << f.doc
              << (allowed.empty() ? "" : " (" + allowed + ")") << "\n";
  }
}

/// Parses the words behind the verb. Flags are strings for cxxopts; their values are checked where they are used.
Words parse_words(const Verb& verb, int argc, char** argv) {
  std::vector<std::string> known;
  for (const auto& [name, doc] : verb.flags) known.emplace_back(name);
  if (verb.config_keys) {
    for (const auto& f : run_schema().fields()) known.push_back(f.key);
  }
  // --name=value becomes two words: cxxopts matches words with std::regex, which breaks on long values and line breaks.
  std::vector<std::string> split{argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("-") || word == "-") {
      split.push_back(word);
      continue;
    }
    const auto equals = word.find('=');
    const std::string name =
        word.starts_with("--") ? word.substr(2, equals == std::string::npos ? equals : equals - 2) : word;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::string near = nearest(name, known);
      fail(Exit::usage, "command line: lathe ", verb.name, " has no option ", word,
           near.empty() ? "" : "; did you mean --" + near + "?");
    }
    split.push_back("--" + name);
    if (equals != std::string::npos)
      split.push_back(word.substr(equals + 1));
    else if (i + 1 < argc)
      split.emplace_back(argv[++i]);
  }
  std::vector<char*> pointers;
  for (auto& word : split) pointers.push_back(word.data());

  cxxopts::Options options("lathe");
  options.allow_unrecognised_options();
  auto add = options.add_options();
  for (const auto& name : known) add(name, "", cxxopts::value<std::string>());
  Words words;
  try {
    const auto result = options.parse(static_cast<int>(pointers.size()), pointers.data());
    for (const auto& name : known) {
      if (result.count(name) > 1) {
        fail(Exit::usage, "command line: --", name, " stands ", result.count(name), " times; give it once");
      }
      if (result.count(name) == 1) words.flags[name] = result[name].as<std::string>();
    }
    words.rest = result.unmatched();
  } catch (const cxxopts::exceptions::exception& e) {
    fail(Exit::usage, "command line: ", e.what());
  }
  if (words.rest.size() < verb.min_words || words.rest.size() > verb.max_words) {
    fail(Exit::usage, "usage: lathe ", verb.name, " ", verb.usage);
  }
  return words;
}

Exit dispatch(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto asks_help = [](const std::string& a) { return a == "--help" || a == "-h" || a == "help"; };
  if (args.empty() || asks_help(args[0])) {
    print_help(nullptr);
    return args.empty() ? Exit::usage : Exit::done;
  }
  if (args[0] == "--version") {
    std::cout << version << "\n";
    return Exit::done;
  }
  const auto verb = std::find_if(verbs().begin(), verbs().end(), [&](const Verb& v) { return v.name == args[0]; });
  if (verb == verbs().end()) {
    std::vector<std::string> names;
    for (const auto& v : verbs()) names.emplace_back(v.name);
    const std::string near = nearest(args[0], names);
    fail(Exit::usage, "lathe has no verb ", args[0],
         near.empty() ? "; `lathe --help` lists them" : "; did you mean " + near + "?");
  }
  if (std::any_of(args.begin() + 1, args.end(), [](const std::string& a) { return a == "--help" || a == "-h"; })) {
    print_help(&*verb);
    return Exit::done;
  }
  return verb->run(parse_words(*verb, argc - 1, argv + 1));
}

}  // namespace

int run_cli(int argc, char** argv) {
  try {
    open_standard_streams();
    const Exit code = dispatch(argc, argv);
    std::cout.flush();
    if (lines_dropped() > 0) return static_cast<int>(code);  // counted, and in the log
    if (!std::cout || std::fflush(stdout) != 0) fail(Exit::io, "standard output can't be written");
    return static_cast<int>(code);
  } catch (const Error& e) {
    log(Level::error, e.what());
    return static_cast<int>(e.code());
  } catch (const c10::Error& e) {
    log(Level::error, std::string("internal: ") + e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    log(Level::error, "out of memory; make batch_size, block_size or the model smaller");
    return static_cast<int>(Exit::memory);
  } catch (const fs::filesystem_error& e) {
    log(Level::error, e.what());
    return static_cast<int>(Exit::io);
  } catch (const std::exception& e) {
    log(Level::error, std::string("internal: ") + e.what());
  }
  return static_cast<int>(Exit::internal);
}

}  // namespace lathe
