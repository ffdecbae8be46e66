// Console and log file (spdlog behind plain strings). Information goes to standard output, warnings
// and errors to standard error; all of it also to the run's log.txt once that is open. A progress
// line is rewritten in place on a terminal and absent otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <streambuf>
#include <string>

#include "core/error.h"

namespace lathe {

/// How much a line matters; the log shows those at or above its own.
enum class Level { debug, info, warn, error };

/// While one lives, what std::cout and std::cerr write to a terminal is printable()
/// (core/io/text.h): the texts and names of a file can't give it commands. A file or a pipe gets
/// every byte as it is.
class PrintableStreams {
 public:
  PrintableStreams();
  ~PrintableStreams();
  PrintableStreams(const PrintableStreams&) = delete;
  PrintableStreams& operator=(const PrintableStreams&) = delete;

 private:
  std::unique_ptr<std::streambuf> out_, err_;
  std::streambuf *before_out_, *before_err_;
};

/// Writes a line with its time to standard error and to the log file, if there is one.
void log(Level level, const std::string& message);
/// The arguments put together as a line.
template <class... Args>
void log_info(const Args&... args) {
  log(Level::info, str(args...));
}
/// The arguments put together as a line that a person should see.
template <class... Args>
void log_warn(const Args&... args) {
  log(Level::warn, str(args...));
}

/// Opens /dev/null on each of standard input, output and error that is closed: the first file
/// opened would otherwise take its number, and what is said to the console would be written into
/// it. Call it before anything else. Exit::io where it can't.
void open_standard_streams();

/// The least level that the console shows (log.level).
void set_console_level(Level level);
/// Also write everything to this file, appended, with time and level. Exit::io where it can't be
/// opened.
void open_log_file(const std::string& path);
/// Lines so far that nobody could be shown, since standard output or standard error is closed or
/// full.
int64_t lines_dropped();
/// Whether standard output is a terminal that takes control sequences.
bool is_terminal();
/// Columns of the terminal that standard output is, 80 where it is none or does not say; 20 at
/// least.
size_t terminal_width();
/// Shows `line`, which must fit into the terminal, in place of the last progress line; nothing when
/// standard output is no terminal.
void progress(const std::string& line);
/// Takes the progress line away, before something else is written to standard output.
void clear_progress();

}  // namespace lathe
