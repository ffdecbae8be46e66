// Tests of background saves: a save writes the state at its start, only one is in progress at a
// time, errors are thrown by the next call of the saver, and a run always completes its save before
// it ends.
#include "train/loop/saver.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <semaphore>
#include <thread>

#include "autograd/node.h"
#include "core/io/json.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/small.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Calls `at` at each fault point until destroyed. `in_background` is true if the point is not on
/// the thread that created this object.
class Hook {
 public:
  explicit Hook(std::function<void(const std::string& point, bool in_background)> at) {
    called = std::move(at);
    own = std::this_thread::get_id();
    fault_hook = [](const char* point) { called(point, std::this_thread::get_id() != own); };
  }
  ~Hook() { fault_hook = nullptr; }
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

 private:
  static inline std::function<void(const std::string&, bool)> called;
  static inline std::thread::id own;
};

CheckpointConfig config(const std::string& dtype = "auto", int64_t keep = 2) {
  CheckpointConfig c;
  c.async_save = true;
  c.dtype = dtype;
  c.keep = keep;
  return c;
}

RunState at_step(int64_t step) {
  RunState state;
  state.step = step;
  state.updates = step - 1;
  state.tokens = 9 * step;
  state.metrics_bytes = 5;
  state.config = "c";
  return state;
}

void save(CheckpointSaver& saver, const Small& s, int64_t step) {
  saver.save(at_step(step), s.params, s.optimizer, [] {}, /*now=*/false);
}

/// Changes every tensor that a checkpoint contains.
void change_all(Small& s) {
  for (auto& group : s.optimizer.groups()) {
    for (auto& slot : group.slots) {
      slot.param.data().add_(1);
      for (auto& state : slot.state) state.add_(1);
    }
  }
  for (const NamedParameter& p : s.params) {
    if (p.parameter.as_leaf() == nullptr) p.parameter.data().add_(1);
  }
}

std::string files_of(const fs::path& checkpoint) {
  std::string all;
  for (const char* name :
       {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"})
    all += slurp(checkpoint / name);
  return all;
}

TEST_CASE("a background save writes exactly the state at the time of the call",
          "[background_saves]") {
  for (const char* dtype : {"auto", "bf16"}) {
    INFO(dtype);
    const TempFolder f(fast_folder());
    const auto as = save_dtype(config(dtype));
    Small s;
    // This buffer is a running statistic. A forward pass changes it, so a save copies it
    // immediately.
    s.params.push_back(
        {.path = "mean", .parameter = Variable(torch::ones({3})), .role = Role{.name = "buffer"}});
    std::binary_semaphore trained(0);
    const Hook hook([&](const std::string& point, bool in_background) {
      if (in_background && point == "save: begun") trained.acquire();
    });
    CheckpointSaver saver(f / "run", config(dtype), -1);

    // The second and the third save copy into the memory of the first save.
    for (const int64_t step : {10, 20, 30}) {
      const fs::path wanted = save_checkpoint(f / "at once", at_step(step), s.params, s.optimizer,
                                              Retention{.newest = 3}, as);
      const Snapshot view = view_state(s.params, s.optimizer, as);

      save(saver, s, step);
      saver.before_update();
      change_all(s);
      CHECK(saver.saved_step() == (step == 10 ? -1 : step - 10));
      trained.release();
      saver.wait();
      CHECK(saver.saved_step() == step);

      CHECK(files_of(f / "run/checkpoints" / checkpoint_name(step)) == files_of(wanted));
      // A save that writes without copying the state first gives other bytes.
      CHECK(files_of(store_checkpoint(f / "shared", at_step(step), view, {})) != files_of(wanted));
    }
  }
}

TEST_CASE("at most one save is in progress: the next one waits, and the wait is counted",
          "[background_saves]") {
  const TempFolder f(fast_folder());
  const Small s;
  std::counting_semaphore<3> may_continue(0);
  std::mutex mutex;
  std::vector<std::string> points;
  const Hook hook([&](const std::string& point, bool in_background) {
    if (in_background && point == "save: begun") may_continue.acquire();
    if (point == "save: waiting") may_continue.release();
    const std::lock_guard lock(mutex);
    points.push_back(point);
  });
  CheckpointSaver saver(f.path(), config(), -1);
  save(saver, s, 1);
  CHECK(saver.times().waits == 0);

  save(saver, s, 2);
  CHECK(saver.times().waits == 1);
  CHECK(saver.saved_step() == 1);
  saver.wait();

  save(saver, s, 3);
  CHECK(saver.times().waits == 1);
  saver.wait();
  CHECK(saver.times().saves == 3);
  CHECK(saver.times().wait_s > 0);
  CHECK(saver.times().copy_s > 0);
  CHECK(saver.times().write_s == 0);
  int writing = 0;
  for (const auto& point : points) {
    writing += point == "save: copied" ? 1 : point == "save: parent synced" ? -1 : 0;
    CHECK((writing == 0 || writing == 1));
  }
  CHECK(list_checkpoints(f.path()).size() == 2);
}

const FileCalls saver_calls = file_calls;
int failing = 0;  // errno of each write

struct FailWrites {
  explicit FailWrites(int number) {
    failing = number;
    file_calls.write = [](int, const void*, size_t) -> ssize_t {
      errno = failing;
      return -1;
    };
  }
  ~FailWrites() { file_calls = saver_calls; }
};

TEST_CASE("the next call throws an error of a background save, as a synchronous save would",
          "[background_saves]") {
  for (const int number : {ENOSPC, EIO, EDQUOT}) {
    const TempFolder f(fast_folder());
    const Small s;
    const auto problem = [](const std::function<void()>& body) {
      try {
        body();
      } catch (const FileError& e) {
        CHECK(e.code() == Exit::io);
        const std::string what = e.what();
        return str(e.number(),
                   what.substr(0, what.find(", and ")));  // the number of free bytes varies
      }
      return std::string("nothing");
    };

    const auto save_two = [&](CheckpointSaver& saver) {
      save(saver, s, 10);
      save(saver, s, 20);
      saver.wait();
    };

    std::string synchronous;
    {
      CheckpointSaver saver(f / "run", config(), -1);
      save_two(saver);
      const FailWrites fail(number);
      synchronous =
          problem([&] { saver.save(at_step(30), s.params, s.optimizer, [] {}, /*now=*/true); });
      CHECK_THAT(synchronous, ContainsSubstring("step-00000030"));
    }

    const std::vector<std::function<void(CheckpointSaver&)>> calls{
        [](CheckpointSaver& saver) { saver.wait(); },
        [](CheckpointSaver& saver) {
          for (;;) saver.saved_step();
        },
        [&](CheckpointSaver& saver) { save(saver, s, 40); }};
    for (const auto& call : calls) {
      CheckpointSaver saver(f / "run", config(), 20);
      const FailWrites fail(number);
      save(saver, s, 30);
      CHECK(problem([&] { call(saver); }) == synchronous);
      CHECK(saver.saved_step() == 20);
    }

    {  // if there is no further call, the destructor waits for the save
      CheckpointSaver saver(f / "run", config(), 20);
      const FailWrites fail(number);
      save(saver, s, 30);
    }

    CHECK(list_folder(f / "run/checkpoints").size() == 2);
    for (const auto& path : list_checkpoints(f / "run")) CHECK_NOTHROW(verify_checkpoint(path));
  }
}

TEST_CASE(
    "an error of the callback `before` ends a save, and weights that are not finite are refused "
    "before any copy",
    "[background_saves]") {
  const TempFolder f(fast_folder());
  Small s;
  CheckpointSaver saver(f.path(), config(), -1);
  saver.save(
      at_step(10), s.params, s.optimizer, [] { fail(Exit::io, "the folder is gone"); }, false);
  CHECK(error_of([&] { saver.wait(); }) == "the folder is gone");
  CHECK(list_folder(f / "checkpoints").empty());
  save(saver, s, 20);
  s.params[1].parameter.data()[1] = std::nan("");
  CHECK_THAT(error_of([&] { save(saver, s, 30); }),
             ContainsSubstring("parameter b ") && ContainsSubstring("finite"));
  saver.wait();
  REQUIRE(list_checkpoints(f.path()).size() == 1);
  CHECK(step_of(list_checkpoints(f.path())[0]) == 20);
}

TEST_CASE("an older checkpoint is kept until the new one is complete", "[background_saves]") {
  const TempFolder f(fast_folder());
  const Small s;
  CheckpointSaver saver(f.path(), config("auto", 1), -1);
  save(saver, s, 10);
  saver.wait();
  std::string faults;
  int points = 0;
  const Hook hook([&](const std::string& point, bool in_background) {
    if (!in_background) return;
    ++points;
    const auto found = newest_checkpoint(f.path());
    if (!found) faults += point + " ";
    if (point == "save: deleting an old one" && step_of(*found) != 20) faults += point + " ";
  });
  save(saver, s, 20);
  saver.wait();
  CHECK(faults.empty());
  CHECK(points == 10);
  REQUIRE(list_folder(f / "checkpoints").size() == 1);
}

TEST_CASE("a background save copies only what is not yet written when an update comes",
          "[background_saves]") {
  const auto held = [] { return memory_stats().used[static_cast<size_t>(Memory::checkpoints)]; };
  const int64_t before = held();
  for (const char* place : {"save: begun", "save: model written", "save: optimizer written"}) {
    CAPTURE(place);
    const TempFolder f(fast_folder());
    Small s;
    std::binary_semaphore reached(0), may_continue(0);
    const Hook hook([&](const std::string& point, bool in_background) {
      if (!in_background || point != place) return;
      reached.release();
      may_continue.acquire();
    });
    CheckpointSaver saver(f / "run", config(), -1);
    const Snapshot view = view_state(s.params, s.optimizer, std::nullopt);
    const fs::path wanted =
        save_checkpoint(f / "immediately", at_step(1), s.params, s.optimizer, Retention{});
    save(saver, s, 1);
    reached.acquire();
    CHECK(held() == before);

    saver.before_update();
    uint64_t left = 0;
    if (std::string(place) == "save: begun")
      for (const TensorEntry& entry : view.model) left += entry.size();
    if (std::string(place) != "save: optimizer written")
      for (const TensorEntry& entry : view.optimizer) left += entry.size();
    CHECK(static_cast<uint64_t>(held() - before) == left);
    change_all(s);
    may_continue.release();
    saver.wait();
    CHECK(held() == before);
    CHECK(files_of(f / "run/checkpoints" / checkpoint_name(1)) == files_of(wanted));
  }
}

TEST_CASE("an update waits for the tensor that is being written", "[background_saves]") {
  const auto live = std::make_shared<LiveTensors>();
  const at::Tensor first = torch::ones({8}), second = torch::ones({8});
  const TensorEntry first_entry = live->add("first", first),
                    second_entry = live->add("second", second);

  std::binary_semaphore writing(0), may_continue(0);
  std::atomic<bool> may_update = false;
  std::string bytes;
  const auto append = [&](std::span<const std::byte> part) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  };

  {
    const std::jthread writer([&] {
      first_entry.write([&](std::span<const std::byte> part) {
        writing.release();
        may_continue.acquire();
        append(part);
      });
      second_entry.write(append);
    });
    writing.acquire();
    const std::jthread trainer([&] {
      live->copy_rest();
      may_update = true;
      first.fill_(2);
      second.fill_(2);
    });

    // The writer holds the first tensor, so the trainer must still wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(!may_update);
    may_continue.release();
  }

  const auto* const values = reinterpret_cast<const float*>(bytes.data());
  REQUIRE(bytes.size() == 16 * sizeof(float));
  CHECK(std::all_of(values, values + 16, [](float x) { return x == 1; }));
  CHECK(first[0].item<float>() == 2);
}

/// Trains a tiny run with `lathe_faults`. If `slow` ("POINT MS") is not empty, saves run in the
/// background and sleep that long at the fault point.
Finished train(const TempFolder& f, const std::string& out, std::vector<std::string> args,
               const std::string& slow, std::map<std::string, std::string> environment = {},
               int signal = 0) {
  args.insert(args.begin(), {"train", "tiny.toml", "--train.device=cpu", "--train.out_dir=" + out});
  if (!slow.empty()) {
    args.emplace_back("--checkpoint.async_save=true");
    environment["LATHE_TEST_SLOW"] = slow;
  }
  return run({.binary = "lathe_faults",
              .args = args,
              .folder = f.path(),
              .environment = environment,
              .signal = signal,
              .signal_after = "step 10  validation"});
}

TEST_CASE("background saves change no bit of a run, and each checkpoint has the state of its step",
          "[background_saves]") {
  const TempFolder f;
  make_tiny_run(f.path());

  const std::vector<std::string> often{"--checkpoint.interval=3", "--checkpoint.keep=20"};
  REQUIRE(train(f, "at_once", often, "").code == 0);
  const Finished r = train(f, "background", often, "save: begun 20");
  INFO(r.out << r.err);
  REQUIRE(r.code == 0);

  CHECK_THAT(r.out, ContainsSubstring("checkpoint.interval"));
  CHECK_THAT(r.out, ContainsSubstring("saved     14 checkpoints"));
  CHECK(difference(f / "at_once", f / "background") == "");

  const std::string metrics = slurp(f / "background/metrics.jsonl");
  const auto all = list_checkpoints(f / "background");
  REQUIRE(all.size() == 14);
  for (const auto& path : all) {
    const fs::path other = f / "at_once/checkpoints" / path.filename();
    for (const char* name : {"model.safetensors", "optimizer.safetensors"})
      CHECK(slurp(path / name) == slurp(other / name));
    const RunState a = read_state(path), b = read_state(other);
    CHECK((a.step == b.step && a.updates == b.updates && a.tokens == b.tokens &&
           a.val_loss == b.val_loss));

    // The part of metrics.jsonl that the checkpoint covers ends with this step.
    const std::string lines = metrics.substr(0, a.metrics_bytes);
    const size_t last = lines.rfind('\n', lines.size() - 2) + 1;
    CHECK(parse_json(lines.substr(last), "metrics", Exit::internal)["step"] == a.step);
  }
}

TEST_CASE("a signal, a divergence or a full disk during a background save loses no checkpoint",
          "[background_saves]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(train(f, "whole", {}, "").code == 0);

  const Finished stopped =
      train(f, "stopped", {"--checkpoint.interval=1"}, "save: begun 30", {}, SIGTERM);
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 75);
  REQUIRE(!list_checkpoints(f / "stopped").empty());
  const fs::path newest = list_checkpoints(f / "stopped")[0];
  CHECK_NOTHROW(verify_checkpoint(newest));
  CHECK_THAT(stopped.out, ContainsSubstring("after step " + std::to_string(step_of(newest)) + ";"));
  CHECK(list_folder(f / "stopped/checkpoints").size() == 2);
  CHECK(train(f, "stopped", {}, "save: begun 5").code == 0);
  CHECK(difference(f / "whole", f / "stopped") == "");

  const Finished diverged =
      train(f, "diverged", {"--checkpoint.interval=1", "--optim.lr=1e30"}, "save: begun 100");
  INFO(diverged.out << diverged.err);
  CHECK(diverged.code == 5);
  CHECK(list_folder(f / "diverged/checkpoints").size() == list_checkpoints(f / "diverged").size());
  REQUIRE(!list_checkpoints(f / "diverged").empty());
  CHECK_NOTHROW(verify_checkpoint(list_checkpoints(f / "diverged")[0]));

  const auto fill = [&](const std::string& out, const std::string& slow) {
    const Finished full = train(f, out, {}, slow, {{"LATHE_TEST_FAIL", "write ENOSPC 3 2"}});
    INFO(full.out << full.err);
    CHECK(full.code == 6);
    CHECK(std::count(full.err.begin(), full.err.end(), '\n') == 1);
    REQUIRE(list_folder(f / out / "checkpoints").size() == 1);
    CHECK(step_of(list_checkpoints(f / out)[0]) == 10);
    CHECK(train(f, out, {}, slow).code == 0);
    CHECK(difference(f / "whole", f / out) == "");
    std::string refusal = full.err.substr(0, full.err.find(", and "));
    return refusal.replace(refusal.find(out), out.size(), "RUN");
  };
  CHECK(fill("full_background", "save: begun 5") == fill("full_at_once", ""));
}

TEST_CASE("checkpoint.async_save is refused where it has no effect, and the plan shows its memory",
          "[background_saves]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto lathe = [&](std::vector<std::string> args) { return lathe_in(f, std::move(args)); };
  const Finished refused =
      lathe({"train", "tiny.toml", "--checkpoint.async_save=true", "--checkpoint.interval=0"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("checkpoint.async_save") &&
                              ContainsSubstring("checkpoint.interval = 0"));
  CHECK_THAT(lathe({"plan", "tiny.toml", "--checkpoint.async_save=true"}).out,
             ContainsSubstring("memory: checkpoints"));
  CHECK(lathe({"plan", "tiny.toml"}).out.find("memory: checkpoints") == std::string::npos);
}

}  // namespace
