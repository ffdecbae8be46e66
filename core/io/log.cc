#include "core/io/log.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/io/file.h"
#include "core/io/progress.h"
#include "core/io/text.h"

namespace lathe {
namespace {

bool progress_shown = false;

/// Passes text through printable() and forwards the result to another buffer. The bytes of an
/// incomplete UTF-8 character wait until the character is complete.
class PrintableBuffer final : public std::streambuf {
 public:
  explicit PrintableBuffer(std::streambuf* to) : to_(to) {}
  ~PrintableBuffer() override { forward_bytes(waiting_.size()); }

 private:
  int_type overflow(int_type c) override {
    const char one = traits_type::to_char_type(c);
    return traits_type::eq_int_type(c, traits_type::eof()) || xsputn(&one, 1) == 1
               ? traits_type::not_eof(c)
               : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    waiting_.append(text, static_cast<size_t>(size));
    return forward_bytes(waiting_.size() - incomplete_bytes(waiting_)) ? size : 0;
  }
  int sync() override { return to_->pubsync(); }

  /// Forwards the first bytes of the waiting text.
  bool forward_bytes(size_t bytes) {
    const std::string shown = printable(std::string_view(waiting_).substr(0, bytes));
    waiting_.erase(0, bytes);
    const auto size = static_cast<std::streamsize>(shown.size());
    return to_->sputn(shown.data(), size) == size;
  }

  std::streambuf* to_;
  std::string waiting_;
};

/// Writes log lines to the console. If the terminal shows a progress line, clears it first.
class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void show_progress(const std::string& line) {
    std::lock_guard lock(mutex_);
    // Overwrite the last progress line, then clear what remains of it. If the line were cleared
    // first, it would flicker.
    std::fprintf(stdout, "\r%s\033[K", line.c_str());
    std::fflush(stdout);
    progress_shown = true;
  }
  void clear_progress() {
    std::lock_guard lock(mutex_);
    if (!std::exchange(progress_shown, false)) return;
    std::fputs("\r\033[K", stdout);
    std::fflush(stdout);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (progress_shown) {
      std::fputs("\r\033[K", stdout);
      progress_shown = false;
    }

    // Flush the other stream first, so that lines keep their order if both streams go to one
    // terminal.
    const bool problem = message.level >= spdlog::level::warn;
    FILE* out = problem ? stderr : stdout;
    std::fflush(problem ? stdout : stderr);

    const bool is_terminal = isatty(fileno(out)) != 0,
               is_error = message.level > spdlog::level::warn;
    const bool is_colored = is_terminal && wants_color();

    // Write a line with a single call, since standard error is unbuffered and the processes of a
    // run may share it.
    std::string shown;
    if (problem) {
      const char* color = is_error ? "\033[31m" : "\033[33m";
      if (is_colored) shown += color;
      shown += is_error ? "error: " : "warning: ";
      if (is_colored) shown += "\033[39m";
    }

    // Only a terminal interprets control characters, so a file or pipe gets every byte.
    const std::string_view line(message.payload.data(), message.payload.size());
    shown += is_terminal ? printable(line) : line;
    shown += '\n';
    std::fwrite(shown.data(), 1, shown.size(), out);

    // A closed or full stream must not end the run. Count the lost line, and try again with the
    // next line.
    if (std::fflush(out) != 0 || std::ferror(out) != 0) {
      ++dropped;
      std::clearerr(out);
    }
  }
  void flush_() override {}

 public:
  std::atomic<int64_t> dropped{0};
};

struct Log {
  std::shared_ptr<ConsoleSink> console = std::make_shared<ConsoleSink>();
  spdlog::logger logger{"lathe", console};
  std::mutex mutex;                                        // held by log() and set_log_prefix()
  std::vector<std::pair<Level, std::string>> before_file;  // lines that were logged before log.txt
                                                           // was opened
  std::string prefix;
  bool has_file = false;
  bool has_failed = false;
  Log() {
    logger.set_level(spdlog::level::trace);
    console->set_level(spdlog::level::info);
    logger.set_error_handler([this](const std::string& what) {
      if (std::exchange(has_failed, true)) return;
      std::fprintf(stderr, "warning: %s; later lines are missing from the log file\n",
                   printable(what).c_str());
    });
  }
};
Log& instance() {
  static auto* log = new Log;
  return *log;
}

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warn: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_log_prefix(const std::string& prefix) {
  const std::lock_guard lock(instance().mutex);
  instance().prefix = prefix;
}

void log(Level level, const std::string& text) {
  auto& log = instance();
  // A warning or error may quote anything from a file or a command line, and log.txt must stay
  // readable text.
  std::string message = level >= Level::warn ? printable(text) : text;
  {
    const std::lock_guard lock(log.mutex);
    message.insert(0, log.prefix);
    if (!log.has_file && log.before_file.size() < 1000)
      log.before_file.emplace_back(level, message);
  }
  log.logger.log(level_of(level), spdlog::string_view_t(message));
}

PrintableStreams::PrintableStreams()
    : before_out_(std::cout.rdbuf()), before_err_(std::cerr.rdbuf()) {
  if (isatty(STDOUT_FILENO) != 0)
    std::cout.rdbuf((out_ = std::make_unique<PrintableBuffer>(before_out_)).get());
  if (isatty(STDERR_FILENO) != 0)
    std::cerr.rdbuf((err_ = std::make_unique<PrintableBuffer>(before_err_)).get());
}

PrintableStreams::~PrintableStreams() {
  std::cout.rdbuf(before_out_);
  std::cerr.rdbuf(before_err_);
}

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() returns the lowest free descriptor, which must be `fd`. Standard output is opened for
    // reading only, so that writing to it still fails: otherwise, results would be lost without an
    // error.
    const int mode = fd == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", mode) != fd)
      fail(Exit::io, "cannot open /dev/null instead of a closed standard stream");
  }
}

void set_console_level(Level level) { instance().console->set_level(level_of(level)); }

void open_log_file(const std::string& path) {
  // If the path is a pipe without a reader, spdlog would block. OutputFile fails instead.
  OutputFile(path, OutputFile::Open::append).close();
  try {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    auto& log = instance();
    const std::lock_guard lock(log.mutex);
    log.logger.sinks().resize(1);  // a second run in one process gets another file
    log.logger.sinks().push_back(file);
    log.logger.flush_on(spdlog::level::info);
    for (const auto& [level, message] : log.before_file) {
      file->log({spdlog::source_loc(), "lathe", level_of(level), message});
    }
    log.before_file.clear();
    log.has_file = true;
  } catch (const spdlog::spdlog_ex& e) {
    fail(Exit::io, "cannot write ", path, ": ", e.what());
  }
}

int64_t lines_dropped() { return instance().console->dropped; }

bool is_terminal() {
  static const bool terminal = [] {
    const char* term = std::getenv("TERM");
    return isatty(STDOUT_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
  }();
  return terminal;
}

size_t terminal_width() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::max<size_t>(size.ws_col, 20) : 80;
}

void progress(const std::string& line) {
  if (is_terminal()) instance().console->show_progress(line);
}

void clear_progress() { instance().console->clear_progress(); }

}  // namespace lathe
