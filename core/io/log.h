// Declares functions that write to the console and the log file. They use spdlog, which this header
// does not include. Debug and information lines go to standard output; warnings and errors go to
// standard error. The run's log.txt gets all lines, including up to 1000 lines that were logged
// before the file was opened. On a terminal, a progress line is rewritten in place. Elsewhere, it
// is omitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <streambuf>
#include <string>

#include "core/error.h"

namespace lathe {

/// The importance of a line. The console shows a line if the line's level is at least the level
/// that set_console_level() set.
enum class Level { debug, info, warn, error };

/// While this object exists, std::cout and std::cerr write to a terminal through printable()
/// (core/io/text.h), so that text from a file can't control the terminal. A file or a pipe gets
/// every byte unchanged.
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

/// Writes a line to the console, and to the log file if there is one. Warnings and errors pass
/// through printable() (core/io/text.h).
void log(Level level, const std::string& message);
/// Logs the concatenated arguments as a line.
template <class... Args>
void log_info(const Args&... args) {
  log(Level::info, str(args...));
}
/// Logs the concatenated arguments as a warning.
template <class... Args>
void log_warn(const Args&... args) {
  log(Level::warn, str(args...));
}

/// Opens /dev/null on each of standard input, output and error that is closed. Otherwise the next
/// file that is opened would get the descriptor of that stream, and console output would be written
/// into the file. Call this function before anything else. Throws Exit::io if /dev/null can't be
/// opened.
void open_standard_streams();

/// Sets the lowest level that the console shows: the value of the key log.level.
void set_console_level(Level level);
/// Prefixes each later line with `prefix`, such as "rank 3: ". Call this function before other
/// threads log.
void set_log_prefix(const std::string& prefix);
/// Makes every later line also go to the file `path`, with its time and level. The file first gets
/// up to 1000 lines that were logged earlier. Call this function while no other thread logs. Throws
/// Exit::io if the file can't be opened.
void open_log_file(const std::string& path);
/// Returns the number of lines that were lost so far because standard output or standard error was
/// closed or full.
int64_t lines_dropped();
/// Returns whether standard output is a terminal that accepts control sequences.
bool is_terminal();
/// Returns the width of the terminal on standard output, at least 20. Returns 80 if standard output
/// is not a terminal or its width is unknown.
size_t terminal_width();
/// Replaces the last progress line by `line`, which must fit on one line of the terminal. Does
/// nothing if standard output is not a terminal.
void progress(const std::string& line);
/// Removes the progress line. Call this function before writing anything else to standard output.
void clear_progress();

}  // namespace lathe
