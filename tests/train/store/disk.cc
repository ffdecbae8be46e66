#include "tests/train/store/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "tests/support/process.h"

namespace lathe::test {
namespace {

using CallKind = DiskCall::Kind;

DiskRecord* recorder = nullptr;
FileCalls system_calls;
FaultHook hook_before = nullptr;
std::mutex one_at_a_time;

int on_open(const char* path, int flags, mode_t mode) {
  const std::lock_guard lock(one_at_a_time);
  const int before = recorder->find(path);
  const int fd = system_calls.open(path, flags, mode);
  if (fd < 0) return fd;
  int node = before;
  if (node < 0 && (flags & O_CREAT) != 0) {
    const auto [folder, name] = recorder->place(path);
    if (folder >= 0) {
      node = recorder->add(false);
      recorder->nodes[static_cast<size_t>(folder)].now[name] = node;
      recorder->calls_.push_back({CallKind::create, node, folder, name, "", 0, ""});
    }
  } else if (node >= 0 && (flags & O_TRUNC) != 0 &&
             recorder->nodes[static_cast<size_t>(node)].size_now > 0) {
    recorder->nodes[static_cast<size_t>(node)].size_now = 0;
    recorder->calls_.push_back({CallKind::cut, node, -1, "", "", 0, ""});
  }
  if (node >= 0) recorder->open_files[fd] = {node, (flags & O_APPEND) != 0, 0};
  return fd;
}

ssize_t on_write(int fd, const void* data, size_t bytes) {
  const std::lock_guard lock(one_at_a_time);
  const ssize_t n = system_calls.write(fd, data, bytes);
  const auto found = recorder->open_files.find(fd);
  if (n <= 0 || found == recorder->open_files.end()) return n;
  auto& [node, append, offset] = found->second;
  size_t& size = recorder->nodes[static_cast<size_t>(node)].size_now;
  if (append) offset = size;
  recorder->calls_.push_back({CallKind::write,
                              node,
                              -1,
                              "",
                              "",
                              offset,
                              {static_cast<const char*>(data), static_cast<size_t>(n)}});
  offset += static_cast<size_t>(n);
  size = std::max(size, offset);
  return n;
}

int on_fsync(int fd) {
  const std::lock_guard lock(one_at_a_time);
  const int status = system_calls.fsync(fd);
  const auto found = recorder->open_files.find(fd);
  if (status == 0 && found != recorder->open_files.end())
    recorder->calls_.push_back({CallKind::sync, found->second.node, -1, "", "", 0, ""});
  return status;
}

int on_close(int fd) {
  const std::lock_guard lock(one_at_a_time);
  recorder->open_files.erase(fd);
  return system_calls.close(fd);
}

int on_ftruncate(int fd, off_t length) {
  const std::lock_guard lock(one_at_a_time);
  const int status = system_calls.ftruncate(fd, length);
  const auto found = recorder->open_files.find(fd);
  if (status == 0 && found != recorder->open_files.end()) {
    recorder->nodes[static_cast<size_t>(found->second.node)].size_now = static_cast<size_t>(length);
    recorder->calls_.push_back(
        {CallKind::cut, found->second.node, -1, "", "", static_cast<size_t>(length), ""});
  }
  return status;
}

int on_rename(const char* from, const char* to) {
  const std::lock_guard lock(one_at_a_time);
  const int status = system_calls.rename(from, to);
  const auto [folder, name] = recorder->place(from);
  const auto [to_folder, to_name] = recorder->place(to);
  if (status != 0 || folder < 0) return status;
  if (folder != to_folder)
    fail(Exit::internal, "DiskRecord does not support a rename between folders: ", from);
  auto& names = recorder->nodes[static_cast<size_t>(folder)].now;
  const int node = names.at(name);
  names.erase(name);
  names[to_name] = node;
  recorder->calls_.push_back({CallKind::rename, node, folder, name, to_name, 0, ""});
  return status;
}

int on_mkdir(const char* path, mode_t mode) {
  const std::lock_guard lock(one_at_a_time);
  const int status = system_calls.mkdir(path, mode);
  const auto [folder, name] = recorder->place(path);
  if (status != 0 || folder < 0) return status;
  const int node = recorder->add(true);
  recorder->nodes[static_cast<size_t>(folder)].now[name] = node;
  recorder->calls_.push_back({CallKind::make_folder, node, folder, name, "", 0, ""});
  return status;
}

int remove(int (*call)(const char*), const char* path) {
  const std::lock_guard lock(one_at_a_time);
  const int status = call(path);
  const auto [folder, name] = recorder->place(path);
  if (status != 0 || folder < 0) return status;
  auto& names = recorder->nodes[static_cast<size_t>(folder)].now;
  recorder->calls_.push_back({CallKind::remove, names.at(name), folder, name, "", 0, ""});
  names.erase(name);
  return status;
}
int on_unlink(const char* path) { return remove(system_calls.unlink, path); }
int on_rmdir(const char* path) { return remove(system_calls.rmdir, path); }

void on_point(const char* point) {
  {
    const std::lock_guard lock(one_at_a_time);
    recorder->points_.emplace_back(recorder->calls_.size(), point);
  }
  if (hook_before != nullptr) hook_before(point);
}

void put(std::string& data, size_t offset, std::string_view bytes) {
  if (data.size() < offset + bytes.size()) data.resize(offset + bytes.size(), '\0');
  data.replace(offset, bytes.size(), bytes);
}

void apply(std::string& data, const DiskCall& call) {
  if (call.kind == CallKind::cut)
    data.resize(call.offset);
  else
    put(data, call.offset, call.data);
}

}  // namespace

DiskRecord::DiskRecord(const fs::path& folder) : root_(folder) {
  if (recorder != nullptr) fail(Exit::internal, "only one DiskRecord may record at a time");
  read(root_);
  recorder = this;
  system_calls = file_calls;
  hook_before = fault_hook;
  file_calls = {on_open,
                on_write,
                on_fsync,
                on_close,
                on_ftruncate,
                file_calls.flock,
                on_rename,
                on_mkdir,
                on_unlink,
                on_rmdir,
                file_calls.pread,
                file_calls.pwrite,
                file_calls.fallocate};
  fault_hook = on_point;
}

void DiskRecord::stop() {
  if (recorder != this) return;
  file_calls = system_calls;
  fault_hook = hook_before;
  recorder = nullptr;
}

int DiskRecord::add(bool is_folder) {
  nodes.emplace_back().is_folder = is_folder;
  return static_cast<int>(nodes.size()) - 1;
}

int DiskRecord::read(const fs::path& path) {
  const bool is_folder = fs::is_directory(path);
  const int node = add(is_folder);
  if (is_folder) {
    std::map<std::string, int> names;
    for (const auto& entry : fs::directory_iterator(path))
      names[entry.path().filename()] = read(entry.path());
    nodes[static_cast<size_t>(node)].names = nodes[static_cast<size_t>(node)].now = names;
  } else {
    Node& file = nodes[static_cast<size_t>(node)];
    file.data = slurp(path);
    file.size_now = file.data.size();
  }
  return node;
}

std::pair<int, std::string> DiskRecord::place(const fs::path& path) const {
  const fs::path inside = fs::absolute(path).lexically_normal().lexically_relative(root_);
  if (inside.empty() || *inside.begin() == "..") return {-1, ""};
  const int folder = find(root_ / inside.parent_path());
  return {folder, inside.filename().string()};
}

int DiskRecord::find(const fs::path& path) const {
  const fs::path inside = fs::absolute(path).lexically_normal().lexically_relative(root_);
  if (inside.empty() || *inside.begin() == "..") return -1;
  int node = 0;
  for (const auto& part : inside) {
    if (part == "." || part.empty()) continue;
    const auto& names = nodes[static_cast<size_t>(node)].now;
    const auto found = names.find(part);
    if (found == names.end()) return -1;
    node = found->second;
  }
  return node;
}

size_t DiskRecord::points_before(size_t n, const std::string& name) const {
  return static_cast<size_t>(std::count_if(points_.begin(), points_.end(), [&](const auto& p) {
    return p.first <= n && p.second == name;
  }));
}

void DiskRecord::drop_syncs(bool of_folders) {
  for (auto& call : calls_) {
    if (call.kind == CallKind::sync &&
        nodes[static_cast<size_t>(call.node)].is_folder == of_folders)
      call.kind = CallKind::none;
  }
}

void DiskRecord::crash(size_t n, Keep keep, std::mt19937& random, const fs::path& into) const {
  const auto draw = [&](size_t most) {
    return std::uniform_int_distribution<size_t>(0, most)(random);
  };

  // For each file or folder: the calls on it, and how many of these calls were synced.
  struct Own {
    std::vector<const DiskCall*> calls;
    size_t synced = 0;
  };
  std::vector<Own> own(nodes.size());
  for (size_t i = 0; i < n; ++i) {
    const DiskCall& call = calls_[i];
    if (call.kind == CallKind::none) continue;
    Own& of = own[static_cast<size_t>(call.folder >= 0 ? call.folder : call.node)];
    if (call.kind == CallKind::sync)
      of.synced = of.calls.size();
    else
      of.calls.push_back(&call);
  }

  const auto write = [&](size_t node, const fs::path& path, const auto& self) -> void {
    const Own& of = own[node];
    const bool folder = nodes[node].is_folder;
    const size_t pending = of.calls.size() - of.synced;
    const bool all =
        keep == Keep::all || (folder && (keep == Keep::folders_alone || keep == Keep::zeros));
    const size_t kept = of.synced + (all ? pending : keep == Keep::random ? draw(pending) : 0);

    // A folder keeps its first `kept` changes.
    if (folder) {
      std::map<std::string, int> names = nodes[node].names;
      for (size_t i = 0; i < kept; ++i) {
        const DiskCall& call = *of.calls[i];
        if (call.kind == CallKind::rename || call.kind == CallKind::remove) names.erase(call.name);
        if (call.kind != CallKind::remove)
          names[call.kind == CallKind::rename ? call.to : call.name] = call.node;
      }
      fs::create_directory(path);
      for (const auto& [name, inside] : names) self(static_cast<size_t>(inside), path / name, self);
      return;
    }

    std::string data = nodes[node].data;
    for (size_t i = 0; i < kept; ++i) apply(data, *of.calls[i]);

    // Some bytes of the later writes may have reached the disk, or only the new length of the file.
    if (kept < of.calls.size() && (keep == Keep::random || keep == Keep::zeros)) {
      std::string whole = data;
      for (size_t i = kept; i < of.calls.size(); ++i) apply(whole, *of.calls[i]);
      const size_t way = keep == Keep::zeros ? 1 : draw(3),
                   had = std::min(data.size(), whole.size());
      const size_t torn = keep == Keep::zeros ? had : had + draw(whole.size() - had);
      if (way == 1) {  // keep the new length, with zeros after the first `torn` bytes
        data = whole.substr(0, torn) + std::string(whole.size() - torn, '\0');
      } else if (way == 2) {  // keep all bytes, except a range of zeros that begins at `torn`
        data = whole;
        const size_t zeros = draw(whole.size() - torn);
        data.replace(torn, zeros, std::string(zeros, '\0'));
      } else if (way == 3) {  // keep only the first `torn` bytes
        data = whole.substr(0, torn);
      }
    }
    write_file(path, data);
  };

  write(0, into, write);
}

}  // namespace lathe::test
