// Implements Group. This is the only file that includes the Gloo part of c10d. ProcessGroupGloo.hpp
// is empty unless USE_C10D_GLOO is defined, and needs the names of Gloo, which dist/shim declares.
#define USE_C10D_GLOO
#include "dist/group.h"

#include <ATen/ops/empty.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/device.h"
#include "core/error.h"
#include "core/timing.h"

namespace lathe {
namespace {

/// Returns an address of this host that other hosts can probably reach; "" if there is none.
std::string non_loopback_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string address;
  for (const ifaddrs* i = all; i != nullptr && address.empty(); i = i->ifa_next) {
    const bool usable = i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET &&
                        (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0;
    char text[INET_ADDRSTRLEN + 1];
    if (usable && getnameinfo(i->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0,
                              NI_NUMERICHOST) == 0)
      address = text;
  }
  freeifaddrs(all);
  return address;
}

/// Returns the address from which this host reaches the host of the store. Other ranks can reach
/// this process at that address.
std::string own_address(const Placement& p) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(p.host.c_str(), std::to_string(p.port).c_str(), &hints, &found) != 0)
    return p.host;

  // Connecting a datagram socket sends nothing: it only chooses the route.
  std::string address = p.host;
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  char text[INET6_ADDRSTRLEN + 1];
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST) == 0)
    address = text;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);

  // Debian gives a host's own name the address 127.0.1.1, which no other host can reach.
  const bool is_loopback = address.starts_with("127.");
  const bool means_loopback = p.host.starts_with("127.") || p.host == "localhost";
  if (is_loopback && !means_loopback) {
    if (const std::string other = non_loopback_address(); !other.empty()) return other;
  }
  return address;
}

using Work = c10::intrusive_ptr<c10d::Work>;

/// Starts the exchange of Group::all_to_all() with c10d.
Work start_all_to_all(c10d::Backend& group, at::Tensor& out, at::Tensor& in,
                      std::span<const int64_t> cuts) {
  const auto rank = static_cast<size_t>(group.getRank());
  // c10d moves from the vectors of counts, so each call needs new ones.
  std::vector<int64_t> to, from(cuts.size() - 1, cuts[rank + 1] - cuts[rank]);
  for (size_t r = 0; r + 1 < cuts.size(); ++r) to.push_back(cuts[r + 1] - cuts[r]);
  return group.alltoall_base(out, in, from, to);
}

/// Returns the sizes [ranks, ...] of the stacked tensors of all ranks. `mine`: the tensor of this
/// rank.
std::vector<int64_t> sizes_of_all(int64_t ranks, const at::Tensor& mine) {
  std::vector<int64_t> sizes{ranks};
  sizes.insert(sizes.end(), mine.sizes().begin(), mine.sizes().end());
  return sizes;
}

/// Starts the exchange of Group::gather() with c10d. Makes `all` the tensor that receives the
/// result.
Work start_gather(c10d::Backend& group, const at::Tensor& mine, at::Tensor& all) {
  all = at::empty(sizes_of_all(group.getSize(), mine), mine.options());
  at::Tensor flat = all.view({-1}), input = mine.view({-1});
  return group._allgather_base(flat, input);
}

class GlooGroup final : public Group {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::Backend> group, int rank, int size)
      : Group(rank), group_(std::move(group)), size_(static_cast<size_t>(size)) {}

  void all_to_all(at::Tensor& out, at::Tensor& in, std::span<const int64_t> cuts) override {
    check(in);
    check(out);
    count_all_to_all(in, cuts);
    start_all_to_all(*group_, out, in, cuts)->wait();
  }

  void all_gather(at::Tensor& flat, std::span<const int64_t> cuts) override {
    check(flat);
    count_all_gather(flat, cuts);
    // Gloo's own all-gather is five to seven times slower than sending this rank's share to each
    // other rank.
    Works works;
    for (size_t other = 0; other < size_; ++other) receive_share(flat, cuts, other, works);
    const at::Tensor mine = flat.narrow(0, cuts[rank_], share(cuts, rank_));
    for (size_t step = 1; step < size_; ++step) send_share(mine, (rank_ + step) % size_, works);
    wait(works);
  }

  std::function<void()> send(const at::Tensor& t, int to) override {
    check(t);
    count_send(t);
    std::vector<at::Tensor> tensors{t};
    const auto work = group_->send(tensors, to, next_tag(sent_[to]));
    return [work, t] { work->wait(); };
  }

  void receive(at::Tensor& t, int from) override {
    check(t);
    std::vector<at::Tensor> tensors{t};
    group_->recv(tensors, from, next_tag(received_[from]))->wait();
  }

  void all_reduce_of_c10d(at::Tensor& flat) override {
    check(flat);
    std::vector<at::Tensor> tensors{flat};
    group_->allreduce(tensors)->wait();
  }

  void reduce_scatter_of_c10d(at::Tensor& out, at::Tensor& in) override {
    check(in);
    check(out);
    group_->_reduce_scatter_base(out, in)->wait();
  }

  at::Tensor gather(const at::Tensor& mine) override {
    check(mine);
    at::Tensor all;
    start_gather(*group_, mine, all)->wait();
    return all;
  }

 private:
  using Works = std::vector<Work>;

  /// Returns the tag of the next tensor that is sent to, or received from, a rank. `count` counts
  /// these tensors. Tags of collectives are smaller.
  static int next_tag(int& count) {
    const int tag = 0x40000000 | count;
    count = (count + 1) & 0x3fffffff;
    return tag;
  }
  void send_share(const at::Tensor& mine, size_t to, Works& works) {
    if (mine.numel() == 0) return;
    std::vector<at::Tensor> tensors{mine};
    works.push_back(group_->send(tensors, static_cast<int>(to), tag_));
  }
  /// Starts to receive the share of another rank.
  void receive_share(const at::Tensor& flat, std::span<const int64_t> cuts, size_t from,
                     Works& works) {
    if (from == rank_ || share(cuts, from) == 0) return;
    std::vector<at::Tensor> tensors{flat.narrow(0, cuts[from], share(cuts, from))};
    works.push_back(group_->recv(tensors, static_cast<int>(from), tag_));
  }
  /// Waits for all messages of a collective. The next collective uses another tag.
  void wait(const Works& works) {
    tag_ = (tag_ + 1) & 0x3fffffff;
    for (const auto& work : works) work->wait();
  }
  static void check(const at::Tensor& t) {
    LATHE_CHECK(t.is_contiguous() && t.is_cpu(),
                "a collective of a tensor that is not contiguous or not on the CPU");
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  size_t size_;
  int tag_ = 0;
  std::map<int, int> sent_, received_;  // number of tensors sent to and received from each rank
};

/// Exchanges GPU tensors by copying them to the CPU. `host` is a group for CPU tensors, which
/// exchanges these copies and the tensors that are already on the CPU.
class HostGroup : public Group {
 public:
  HostGroup(std::unique_ptr<Group> host, int rank) : Group(rank), host_(std::move(host)) {}

  void all_to_all(at::Tensor& out, at::Tensor& in, std::span<const int64_t> cuts) override {
    at::Tensor sent = in.cpu(), received = on_host(out);
    host_->all_to_all(received, sent, cuts);
    copy_back(out, received);
  }

  void all_gather(at::Tensor& flat, std::span<const int64_t> cuts) override {
    at::Tensor all = with_own_share(flat, cuts);
    host_->all_gather(all, cuts);
    copy_back(flat, all);
  }

  at::Tensor gather(const at::Tensor& mine) override {
    return host_->gather(mine.cpu()).to(mine.device());
  }

  std::function<void()> send(const at::Tensor& t, int to) override {
    return host_->send(t.cpu(), to);
  }

  void receive(at::Tensor& t, int from) override {
    at::Tensor received = on_host(t);
    host_->receive(received, from);
    copy_back(t, received);
  }

  void all_reduce_of_c10d(at::Tensor& flat) override {
    at::Tensor sum = flat.cpu();
    host_->all_reduce_of_c10d(sum);
    copy_back(flat, sum);
  }

  void reduce_scatter_of_c10d(at::Tensor& out, at::Tensor& in) override {
    at::Tensor all = in.cpu(), sum = on_host(out);
    host_->reduce_scatter_of_c10d(sum, all);
    copy_back(out, sum);
  }

  int64_t bytes_sent() const override { return Group::bytes_sent() + host_->bytes_sent(); }

 protected:
  const std::unique_ptr<Group> host_;

 private:
  /// Returns `t` if it is on the CPU, otherwise an uninitialized CPU tensor of the same sizes.
  static at::Tensor on_host(const at::Tensor& t) {
    return t.is_cpu() ? t : at::empty(t.sizes(), t.options().device(at::kCPU));
  }
  at::Tensor with_own_share(const at::Tensor& flat, std::span<const int64_t> cuts) const {
    const at::Tensor all = on_host(flat);
    const int64_t begin = cuts[rank_], own = share(cuts, rank_);
    if (!flat.is_cpu()) all.narrow(0, begin, own).copy_(flat.narrow(0, begin, own));
    return all;
  }
  static void copy_back(at::Tensor& t, const at::Tensor& values) {
    if (!t.is_cpu()) t.copy_(values);
  }
};

/// Exchanges GPU tensors by NCCL, except in send() and receive(), which copy them to the CPU.
class NcclGroup final : public HostGroup {
 public:
  NcclGroup(std::unique_ptr<Group> host, c10::intrusive_ptr<c10d::Backend> group,
            const RankAxis& axis, double timeout)
      : HostGroup(std::move(host), axis.rank),
        group_(std::move(group)),
        size_(static_cast<size_t>(axis.size)),
        timeout_(timeout) {}

  void all_to_all(at::Tensor& out, at::Tensor& in, std::span<const int64_t> cuts) override {
    if (in.is_cpu()) return HostGroup::all_to_all(out, in, cuts);
    count_all_to_all(in, cuts);
    finish(start_all_to_all(*group_, out, in, cuts));
  }

  void all_gather(at::Tensor& flat, std::span<const int64_t> cuts) override {
    if (flat.is_cpu()) return HostGroup::all_gather(flat, cuts);
    count_all_gather(flat, cuts);

    // Gather directly into `flat`. Shares of different sizes are sent one by one.
    std::vector<std::vector<at::Tensor>> shares(1);
    for (size_t r = 0; r < size_; ++r) shares[0].push_back(flat.narrow(0, cuts[r], share(cuts, r)));
    std::vector<at::Tensor> mine{shares[0][rank_]};
    const bool are_equal =
        std::all_of(shares[0].begin(), shares[0].end(),
                    [&](const at::Tensor& t) { return t.numel() == mine[0].numel(); });
    finish(are_equal ? group_->_allgather_base(flat, mine[0]) : group_->allgather(shares, mine));
  }

  at::Tensor gather(const at::Tensor& mine) override {
    if (mine.is_cpu()) return HostGroup::gather(mine);
    at::Tensor all;
    finish(start_gather(*group_, mine, all));
    return all;
  }

  void all_reduce_of_c10d(at::Tensor& flat) override {
    if (flat.is_cpu()) return HostGroup::all_reduce_of_c10d(flat);
    std::vector<at::Tensor> tensors{flat};
    finish(group_->allreduce(tensors));
  }

  void reduce_scatter_of_c10d(at::Tensor& out, at::Tensor& in) override {
    if (in.is_cpu()) return HostGroup::reduce_scatter_of_c10d(out, in);
    finish(group_->_reduce_scatter_base(out, in));
  }

 private:
  /// Makes the current stream wait for `work`, then makes this thread wait, at most timeout_
  /// seconds. NCCL itself has no time limit: everything that reads its result would wait for a lost
  /// rank forever.
  void finish(const Work& work) {
    work->wait();
    const auto begin = Clock::now();
    while (!work->isCompleted()) {
      if (seconds_since(begin) > timeout_) {
        group_->abort();
        // World::guarded() finds out which rank was lost.
        throw std::runtime_error(str("NCCL did not end within ", timeout_, " s"));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    if (work->exception()) std::rethrow_exception(work->exception());
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  size_t size_;
  double timeout_;
};

/// A group for dry runs. Sends nothing, and counts the bytes that it would send.
class DryGroup final : public Group {
 public:
  DryGroup(int ranks, int rank) : Group(rank), ranks_(ranks) {}
  void all_to_all(at::Tensor&, at::Tensor& in, std::span<const int64_t> cuts) override {
    count_all_to_all(in, cuts);
  }
  void all_gather(at::Tensor& flat, std::span<const int64_t> cuts) override {
    count_all_gather(flat, cuts);
  }
  std::function<void()> send(const at::Tensor& t, int) override {
    count_send(t);
    return [t] {};
  }
  void receive(at::Tensor&, int) override {}
  void all_reduce_of_c10d(at::Tensor&) override {}
  void reduce_scatter_of_c10d(at::Tensor&, at::Tensor&) override {}
  at::Tensor gather(const at::Tensor& mine) override {
    return mine.unsqueeze(0).expand(sizes_of_all(ranks_, mine)).contiguous();
  }

 private:
  int64_t ranks_;
};

}  // namespace

std::unique_ptr<Group> Group::through_host(std::unique_ptr<Group> host) {
  const auto rank = static_cast<int>(host->rank_);
  return std::make_unique<HostGroup>(std::move(host), rank);
}

std::unique_ptr<Group> Group::by_nccl(std::unique_ptr<Group> host, Rendezvous& store,
                                      const std::string& name, const RankAxis& axis,
                                      double timeout) {
  const auto keys = c10::make_intrusive<c10d::PrefixStore>(name, store.store());
  return std::make_unique<NcclGroup>(
      std::move(host), cuda_api().make_nccl(keys, axis.rank, axis.size, timeout), axis, timeout);
}

std::unique_ptr<Group> Group::make_dry(int ranks, int rank) {
  return std::make_unique<DryGroup>(ranks, rank);
}

std::unique_ptr<Group> Group::make(Rendezvous& store, const std::string& name, const Placement& p,
                                   const RankAxis& axis, double timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout));
  options->threads = 1;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface != nullptr && *interface != '\0'
                                 ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                 : c10d::ProcessGroupGloo::createDeviceForHostname(own_address(p)));
  const auto keys = c10::make_intrusive<c10d::PrefixStore>(name, store.store());
  return std::make_unique<GlooGroup>(
      c10::make_intrusive<c10d::ProcessGroupGloo>(keys, axis.rank, axis.size, options), axis.rank,
      axis.size);
}

}  // namespace lathe
