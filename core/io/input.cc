#include "core/io/input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>

#include "core/io/file.h"

namespace lathe {

struct InputStream::State {
  enum class Form { plain, gzip, zstd };
  static constexpr size_t room = size_t{1} << 18;

  std::string path;
  int fd = -1;
  bool owned = false, at_end = false;
  uint64_t consumed = 0;
  std::string packed;  // bytes of the file; the bytes at position `at` and later are not used yet
  size_t at = 0;
  Form form = Form::plain;
  z_stream gzip{};
  ZSTD_DStream* zstd = nullptr;
  bool within = false;  // whether the position is inside a gzip member or Zstandard frame
  // Whether the last output filled its buffer. If so, the decoder may hold more output.
  bool full = false;

  explicit State(const std::string& name) : path(name) {}
  ~State() {
    if (form == Form::gzip) inflateEnd(&gzip);
    ZSTD_freeDStream(zstd);
    if (owned) ::close(fd);
  }
  State(const State&) = delete;

  /// Reads more of the file. Returns false at the end of the file.
  bool fill() {
    if (at_end) return false;
    packed.erase(0, at);
    at = 0;
    const size_t had = packed.size();
    packed.resize(had + room);
    const ssize_t n = retry_interrupted([&] { return ::read(fd, packed.data() + had, room); });
    packed.resize(had + static_cast<size_t>(n > 0 ? n : 0));
    if (n < 0) fail(Exit::data, path, " can't be read: ", std::strerror(errno));
    at_end = n == 0;
    consumed += static_cast<uint64_t>(n);
    return n > 0;
  }
  size_t left() const { return packed.size() - at; }

  void find_form() {
    while (left() < 4 && fill()) {
    }
    const auto starts = [&](const char* magic, size_t n) {
      return left() >= n && std::memcmp(packed.data(), magic, n) == 0;
    };
    // The program pzstd begins its files with a frame that decoders skip (RFC 8878, 3.1.2).
    const bool is_skippable = starts("\x50\x2a\x4d\x18", 4);
    if (starts("\x1f\x8b", 2)) {
      form = Form::gzip;
      if (inflateInit2(&gzip, 15 + 16) != Z_OK) fail(Exit::memory, "no memory to unpack ", path);
    } else if (starts("\x28\xb5\x2f\xfd", 4) || is_skippable) {
      form = Form::zstd;
      zstd = ZSTD_createDStream();
      if (zstd == nullptr) fail(Exit::memory, "no memory to unpack ", path);
    }
  }

  [[noreturn]] void damaged(const std::string& what) const {
    fail(Exit::data, path, " is damaged: ", what, "; compress it again");
  }

  /// Decompresses into `to` and returns the number of bytes.
  size_t unpack(char* to, size_t most) {
    for (;;) {
      // At the end of the file the decoder may still hold output.
      const bool more = left() > 0 || fill();
      if (!more && !full) {
        if (within) damaged("it ends within its compressed data");
        return 0;
      }
      if (more) within = true;

      size_t made = 0;
      if (form == Form::gzip) {
        gzip.next_in = reinterpret_cast<Bytef*>(packed.data() + at);
        gzip.avail_in = static_cast<uInt>(left());
        gzip.next_out = reinterpret_cast<Bytef*>(to);
        gzip.avail_out = static_cast<uInt>(most);
        // Z_BUF_ERROR only means that inflate() needs more input or more space for output.
        const int code = inflate(&gzip, Z_NO_FLUSH);
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
          damaged(gzip.msg != nullptr ? gzip.msg : "no gzip data");
        at = packed.size() - gzip.avail_in;
        made = most - gzip.avail_out;
        // Another gzip member may follow. Its text belongs to the same stream.
        if (code == Z_STREAM_END) {
          within = false;
          inflateReset(&gzip);
        }
      } else {
        ZSTD_inBuffer in{packed.data(), packed.size(), at};
        ZSTD_outBuffer out{to, most, 0};
        const size_t code = ZSTD_decompressStream(zstd, &out, &in);
        if (ZSTD_isError(code)) damaged(ZSTD_getErrorName(code));
        at = in.pos;
        made = out.pos;
        if (code == 0) within = false;
      }

      // Some input, such as a header, gives no output. That is not the end of the stream, so
      // continue.
      full = made == most;
      if (made > 0) return made;
    }
  }
};

InputStream::InputStream(const std::string& path) : state_(std::make_unique<State>(path)) {
  if (path == "-") {
    state_->path = "standard input";
    state_->fd = STDIN_FILENO;
  } else {
    struct stat info{};
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    state_->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    state_->owned = state_->fd >= 0;
    if (state_->fd < 0 || fstat(state_->fd, &info) != 0)
      fail(Exit::data, path, " can't be read: ", std::strerror(errno));
    if (!S_ISREG(info.st_mode))
      fail(Exit::data, path, " is not a regular file; give - to read standard input");
  }
  state_->find_form();
}

InputStream::~InputStream() = default;

bool InputStream::read(std::string& out, size_t most) {
  State& s = *state_;
  const size_t had = out.size();
  if (s.form == State::Form::plain) {
    if (s.left() == 0 && !s.fill()) return false;
    const size_t n = std::min(most, s.left());
    out.append(s.packed, s.at, n);
    s.at += n;
    return true;
  }
  out.resize(had + most);
  const size_t n = s.unpack(out.data() + had, most);
  out.resize(had + n);
  return n > 0;
}

uint64_t InputStream::consumed() const { return state_->consumed; }

}  // namespace lathe
