#include "dist/world.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/timing.h"
#include "dist/group.h"

namespace lathe {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "unknown";
}

World& world() {
  static auto* const instance = new World;
  return *instance;
}

void join_world(const Placement& placement, const DistConfig& config) {
  world().join(placement, config);
}

void World::set_grid(const GridSizes& sizes) {
  const int replica = sizes.replica();
  LATHE_CHECK(size() % replica == 0, "dist.pipeline times dist.context times dist.tensor is ",
              replica, ", which does not divide the ", size(), " processes");
  const int groups = size() / replica;
  const int group = rank() / (sizes.context * sizes.tensor) % groups;
  context_ = {.rank = rank() / sizes.tensor % sizes.context, .size = sizes.context};
  data_ = {.rank = context_.rank * groups + group, .size = groups * sizes.context};
  pipeline_ = {.rank = rank() / (size() / sizes.pipeline), .size = sizes.pipeline};
  tensor_ = {.rank = rank() % sizes.tensor, .size = sizes.tensor};
}

/// Returns the name of a group of this rank's data axis.
std::string World::data_group(const char* name) const {
  return str(name, "/", pipeline_.rank, "/", tensor_.rank);
}

/// Returns the name of the group of this rank's tensor axis.
std::string World::tensor_group() const { return str("layers/", rank() / tensor_.size); }

/// Returns the name of the group of this rank's context axis.
std::string World::context_group() const {
  return str("contexts/", pipeline_.rank, "/", batches().rank, "/", tensor_.rank);
}

/// Makes a group of the ranks on an axis; `name` is the group's name.
std::unique_ptr<Group> World::make_group(const std::string& name, const RankAxis& axis) {
  return Group::make(*store_, name, placement_, axis, timeout_);
}

/// Wraps a group, if it exists, so that it can exchange GPU tensors.
void World::wrap_for_gpus(std::unique_ptr<Group>& group, const std::string& name,
                          const RankAxis& axis) {
  if (!group) return;
  if (!uses_nccl_) {
    group = Group::through_host(std::move(group));
    return;
  }
  group = Group::by_nccl(std::move(group), *store_, "nccl/" + name, axis, timeout_);
  // c10d connects the ranks during a group's first exchange. Run that exchange now, so that several
  // groups do not connect at the same time.
  guarded([&] { group->gather(at::zeros({1}, at::TensorOptions().device(at::kCUDA))); });
}

std::string World::use_gpus(const std::string& backend) {
  if (size() == 1) return "nothing";
  const std::vector<std::string> gpus = gather_texts(host_name() + " " + cuda_api().device_id());
  std::optional<std::pair<int, int>> sharing;  // two ranks that share a GPU
  for (int b = 0; b < size() && !sharing; ++b) {
    for (int a = 0; a < b && !sharing; ++a) {
      if (gpus[a] == gpus[b]) sharing = {a, b};
    }
  }
  if (backend == "nccl" && sharing) {
    fail(Exit::usage, "dist.backend = \"nccl\" needs a GPU for each process, but ranks ",
         sharing->first, " and ", sharing->second,
         " share one; start at most one process per GPU, or set dist.backend to \"gloo\"");
  }
  if (backend == "nccl" && cuda_api().make_nccl == nullptr) {
    fail(Exit::usage,
         "dist.backend = \"nccl\": liblathe_cuda.so was built without the header of NCCL 2.28; "
         "install the header and build again, or set dist.backend to \"gloo\"");
  }

  uses_gpus_ = true;
  uses_nccl_ = backend != "gloo" && !sharing && cuda_api().make_nccl != nullptr;
  // Ranks that meet on the loopback interface, such as the ranks of `lathe launch`, need no other
  // interface.
  if (uses_nccl_ && placement_.host.starts_with("127.")) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  wrap_for_gpus(gradients_, data_group("gradients"), data_);
  wrap_for_gpus(parameters_, data_group("parameters"), data_);
  wrap_for_gpus(layers_, tensor_group(), tensor_);
  wrap_for_gpus(contexts_, context_group(), context_);

  control_ = Group::through_host(std::move(control_));
  // Two stages send to each other at the same time, which would deadlock in an NCCL group.
  if (stages_) stages_ = Group::through_host(std::move(stages_));

  if (uses_nccl_) return "NCCL";
  std::string text = "Gloo, through the memory of the hosts";
  if (backend == "gloo") return text;
  text += sharing
              ? str(", because ranks ", sharing->first, " and ", sharing->second, " share a GPU")
              : ", because liblathe_cuda.so was built without NCCL's header";
  return text;
}

Group& World::ops() {
  if (!ops_) {
    guarded([&] { ops_ = make_group(data_group("ops"), data_); });
    if (uses_gpus_) wrap_for_gpus(ops_, data_group("ops"), data_);
  }
  return *ops_;
}

void World::open_saving_group() {
  if (size() == 1 || saving_) return;
  guarded([&] { saving_ = make_group("saving", {.rank = rank(), .size = size()}); });
}

int64_t World::bytes_sent() const {
  int64_t bytes = 0;
  for (const Group* group : {gradients_.get(), parameters_.get(), ops_.get(), layers_.get(),
                             contexts_.get(), stages_.get()})
    bytes += group != nullptr ? group->bytes_sent() : 0;
  return bytes;
}

void World::join(const Placement& p, const DistConfig& config) {
  placement_ = p;
  timeout_ = config.timeout;
  set_grid(config.grid());
  store_ = Rendezvous::open(p, timeout_);
  guarded([&] {
    meet();
    control_ = make_group("control", {p.rank, p.size});
    if (data_.size > 1) {
      gradients_ = make_group(data_group("gradients"), data_);
      parameters_ = make_group(data_group("parameters"), data_);
    }
    if (tensor_.size > 1) layers_ = make_group(tensor_group(), tensor_);
    if (context_.size > 1) contexts_ = make_group(context_group(), context_);
    if (pipeline_.size > 1)
      stages_ = make_group(str("stages/", data_.rank, "/", tensor_.rank), pipeline_);
    share_cores();
  });
}

/// Divides the cores of this machine among the processes that may use the same cores. torchrun and
/// Slurm do not always bind each process to separate cores. This call is a collective.
void World::share_cores() {
  const std::string mine = host_name() + " " + usable_core_set();
  const std::vector<std::string> all = gather_texts(mine);
  lathe::share_cores(static_cast<int>(std::count(all.begin(), all.end(), mine)));
}

/// Waits until all ranks have stored the text that meet() makes of WORLD_SIZE and the sizes of the
/// rank axes, and returns these texts. Throws Exit::peer_lost if a rank does not connect in time.
std::vector<std::string> World::grids_of_all() const {
  try {
    return store_->get_all(Rendezvous::keys("grid", size()));
  } catch (const std::exception&) {
    for (int r = 0; r < size(); ++r) {
      if (!store_->get(Rendezvous::key("grid", r)).empty()) continue;
      fail(Exit::peer_lost, "rank ", r, " of ", size(), " did not connect within ", timeout_,
           " s (dist.timeout); see what its process printed");
    }
    throw;
  }
}

/// Announces this process in the store and waits for the other processes.
void World::meet() {
  const Placement& p = placement_;
  if (store_->count(Rendezvous::key("rank", p.rank)) != 1) {
    fail(Exit::usage, "rank ", p.rank, " of ", p.size,
         " was started twice; give each process a different RANK");
  }
  const std::string mine =
      str(p.size, " ", pipeline_.size, ", ", context_.size, " and ", tensor_.size);
  store_->set(Rendezvous::key("pulse", p.rank), pulse());
  store_->set(Rendezvous::key("failed", p.rank), "");  // no failure
  store_->set(Rendezvous::key("grid", p.rank), mine);
  monitor_ = store_->connect(/*timeout=*/1);
  std::thread([this, store = std::shared_ptr(store_->connect(timeout_))] {
    send_pulses(*store);
  }).detach();

  const std::vector<std::string> grids = grids_of_all();
  const auto found = std::ranges::find_if(grids, [&](const auto& grid) { return grid != mine; });
  store_->set(Rendezvous::key("met", p.rank), "yes");
  if (found == grids.end()) return;
  const std::string& its_grid = *found;
  const auto other = found - grids.begin();

  // The store may be in the process of rank 0 and end with it. Rank 0 therefore waits, for up to
  // 2 s, until the other ranks have read the store.
  const auto begin = Clock::now();
  for (int rank = 1; p.rank == 0 && rank < p.size; ++rank) {
    while (store_->get(Rendezvous::key("met", rank)).empty() && seconds_since(begin) < 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const size_t space = its_grid.find(' ');
  if (const std::string size = its_grid.substr(0, space); size != std::to_string(p.size)) {
    fail(Exit::usage, "rank ", other, " was started with WORLD_SIZE = ", size, " and rank ", p.rank,
         " with ", p.size, "; start all ranks with the same number");
  }
  fail(Exit::usage, "dist.pipeline, dist.context and dist.tensor are ", its_grid.substr(space + 1),
       " in the config of rank ", other, ", but ", mine.substr(mine.find(' ') + 1),
       " in that of rank ", p.rank, "; start all ranks with the same config");
}

at::Tensor World::gather_over(const RankAxis& axis, Group* group, const at::Tensor& mine) {
  if (axis.size == 1) return mine;
  at::Tensor all;
  guarded([&] { all = group->gather(mine); });
  return all.flatten(0, 1);
}

/// Returns the texts of all ranks. `group` must contain all ranks.
std::vector<std::string> World::gather_texts_over(Group* group, const std::string& mine) {
  if (size() == 1) return {mine};
  const RankAxis axis{.rank = rank(), .size = size()};
  const at::Tensor sizes =
      gather_over(axis, group, at::full({1}, static_cast<int64_t>(mine.size()), at::kLong));
  const int64_t* size_of = sizes.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(*std::max_element(size_of, size_of + size()), 1);

  at::Tensor padded = at::zeros({1, longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr<uint8_t>(), mine.data(), mine.size());
  const at::Tensor all = gather_over(axis, group, padded);
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    const auto* bytes = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
    texts.emplace_back(bytes + r * longest, static_cast<size_t>(size_of[r]));
  }
  return texts;
}

bool World::any(bool mine) {
  if (size() == 1) return mine;
  const at::Tensor all = gather(at::full({1}, mine ? 1 : 0, at::kByte));
  const uint8_t* flags = all.const_data_ptr<uint8_t>();
  return std::any_of(flags, flags + size(), [](uint8_t f) { return f != 0; });
}

namespace {

[[noreturn]] void fail_because_different(const std::string& what, int rank,
                                         const std::string& theirs, int other,
                                         const std::string& others) {
  fail(Exit::usage, what, " of rank ", rank, " differs from that of rank ", other, ": ",
       printable_line(theirs), " instead of ", printable_line(others),
       "; it must be the same on all ranks");
}

}  // namespace

void World::check_same(const std::string& what, const std::string& mine) {
  if (size() == 1) return;
  const std::vector<std::string> all = gather_texts(mine);
  const std::string& first = all[0];
  for (int r = 1; r < size(); ++r) {
    const std::string& theirs = all[r];
    if (theirs == first) continue;
    // Show only the first line that differs.
    std::istringstream a(first), b(theirs);
    std::string of_first, of_other;
    do {
      if (!std::getline(a, of_first)) of_first.clear();
      if (!std::getline(b, of_other)) of_other.clear();
    } while (of_first == of_other && (a || b));
    fail_because_different(what, r, of_other, 0, of_first);
  }
}

void World::check_same_lines(const std::string& what, const std::string& mine) {
  if (size() == 1) return;
  // Map each key to the first rank that has the key, and to the line of that rank.
  std::map<std::string, std::pair<int, std::string>> known;
  const std::vector<std::string> all = gather_texts(mine);
  for (int r = 0; r < size(); ++r) {
    std::istringstream lines(all[r]);
    for (std::string line; std::getline(lines, line);) {
      const auto& [rank, first] =
          known.try_emplace(line.substr(0, line.find(' ')), r, line).first->second;
      if (line != first) fail_because_different(what, r, line, rank, first);
    }
  }
}

}  // namespace lathe
