// Runs Lathe's binaries in temporary folders, and creates small data for them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe::test {

/// Return the folder of the sources and the folder of this build's binaries.
fs::path source_folder();
fs::path binary_folder();

/// A temporary folder, which is removed with its contents on destruction.
class TempFolder {
 public:
  TempFolder() : TempFolder(fs::temp_directory_path()) {}
  explicit TempFolder(const fs::path& in);
  ~TempFolder();
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

/// Returns the bytes of the values as they are in memory.
template <class T>
std::string packed(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Returns the fastest folder for small files: /dev/shm, which is in memory, if this process can
/// write to it, else the folder for temporary files.
fs::path fast_folder();

/// The results of a command that has ended.
struct Finished {
  int code = -1;    ///< the exit code, or 128 + the number of the signal that ended the process
  std::string out;  ///< standard output
  std::string err;  ///< standard error
  double seconds = 0;
};

/// A command to run.
struct Invocation {
  std::string
      binary;  ///< "lathe", "lathe_faults" with fault points, or the path of another program
  std::vector<std::string> args;
  fs::path folder;  ///< the working directory
  std::map<std::string, std::string> environment;
  double kill_after_s = -1;  ///< seconds after which the process gets SIGKILL; negative: never
  int signal = 0;            ///< a signal to send once, at the time given below; 0: none
  std::string signal_after = "step 0  validation";  ///< sent once standard output has this text
  double signal_after_s = -1;        ///< if not negative: sent after so many seconds instead
  std::string close_output_after{};  ///< close the pipe's reading end once standard output has this
                                     ///< text; empty: never
  /// True: run in a new process, which loads LibTorch itself, as in normal use. False: run in a
  /// fork of a process that has already loaded LibTorch (tests/support/faults/serve.h). A fork
  /// takes a fifth of the time of a new process, but changes measurements of memory.
  bool apart = false;
};
/// Runs a command and waits for its end; kills it after 120 s. The command inherits the environment
/// except LATHE_ variables. LATHE_CACHE is `folder`/cache unless `environment` sets it.
Finished run(const Invocation& command);
/// Runs `lathe` with `args` in the folder.
Finished lathe_in(const TempFolder& folder, std::vector<std::string> args,
                  double kill_after_s = -1);
/// Runs `lathe` with `args` in the folder, in a new process (Invocation::apart).
Finished lathe_in_new_process(const TempFolder& folder, std::vector<std::string> args);

/// Returns `bytes` bytes of random English words in short sentences, always the same, so that tests
/// need no download.
std::string sample_text(size_t bytes);
/// Replaces a file's contents.
void write_file(const fs::path& path, const std::string& text);
/// Writes the current sizes and checksums of a checkpoint's files into its manifest. Tests call
/// this function after they have changed a file.
void update_manifest(const fs::path& checkpoint);
/// Returns a file's contents.
std::string slurp(const fs::path& path);
/// Returns the names of the entries of a folder.
std::set<std::string> names(const fs::path& folder);

/// Creates `folder`/data (char tokens of sample_text) and `folder`/tiny.toml, the config of a model
/// that takes a millisecond per step, with prefetching, dropout and gradient accumulation. `extra`
/// is appended to the config.
void make_tiny_run(const fs::path& folder, const std::string& extra = "");

/// Returns "" if two runs agree (docs/internals/randomness.md), else what differs. Compares the
/// step, loss, lr, grad_norm, tokens or samples, loss_scale and validation metrics of every line of
/// metrics.jsonl, and the bytes of the newest model and optimizer. Each step must occur once.
std::string difference(const fs::path& a, const fs::path& b);

}  // namespace lathe::test
