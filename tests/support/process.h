// Running the binaries and small data for them, in a temporary folder.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe::test {

/// Where the project's files are, and the binaries of this build.
fs::path source_folder();
fs::path binary_folder();

/// A folder of the test's own, removed at the end.
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

/// The bytes of words as they are in memory.
template <class T>
std::string packed(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Where small files are made fastest: memory, where there is such a folder, else the place for
/// temporary files.
fs::path fast_folder();

struct Finished {
  int code = -1;    ///< exit code; 128 + the signal that ended it
  std::string out;  ///< standard output
  std::string err;  ///< standard error
  double seconds = 0;
};

struct Invocation {
  std::string
      binary;  ///< "lathe", "lathe_faults" with fault points, or the path of another program
  std::vector<std::string> args;
  fs::path folder;  ///< where it runs
  std::map<std::string, std::string> environment;
  double kill_after_s = -1;                         ///< kill -9 after so long; < 0: never
  int signal = 0;                                   ///< sent once standard output has said...
  std::string signal_after = "step 0  validation";  ///< ...this, or,
  double signal_after_s = -1;                       ///< where this is 0 or more, after so long
  std::string close_output_after{};  ///< standard output loses its reader once it has said this;
                                     ///< empty: never
  /// In a process that loads LibTorch itself, as a user's does; else in a fork of one that has
  /// (tests/support/faults/serve.h): the same program in a fifth of the time, but what is measured
  /// of its memory differs.
  bool apart = false;
};
Finished run(const Invocation& command);
/// `lathe` with `args`, in the folder.
Finished lathe_in(const TempFolder& folder, std::vector<std::string> args,
                  double kill_after_s = -1);
/// The same, apart.
Finished lathe_apart(const TempFolder& folder, std::vector<std::string> args);

/// Text with some structure, for data that needs no download.
std::string sample_text(size_t bytes);
void write_file(const fs::path& path, const std::string& text);
std::string slurp(const fs::path& path);
/// Names of what a folder holds.
std::set<std::string> names(const fs::path& folder);

/// `folder`/data (char tokens of sample_text) and `folder`/tiny.toml: a model that takes a
/// millisecond a step, with prefetching, dropout and accumulation.
void make_tiny_run(const fs::path& folder, const std::string& extra = "");

/// Whether two runs agree as docs/internals/randomness.md defines it: step, loss, lr, grad_norm,
/// tokens, loss_scale and val_loss (or other figures) of every metrics line, each step once, and
/// the bytes of the newest model and optimizer.
/// "" or what differs.
std::string difference(const fs::path& a, const fs::path& b);

}  // namespace lathe::test
