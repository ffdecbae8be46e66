#include "dist/rendezvous.h"

#include <c10/util/Logging.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/timing.h"

namespace lathe {
namespace {

class StoreRendezvous final : public Rendezvous {
 public:
  StoreRendezvous(c10::intrusive_ptr<c10d::Store> base, std::string prefix)
      : base_(std::move(base)),
        prefix_(std::move(prefix)),
        store_(c10::make_intrusive<c10d::PrefixStore>(prefix_, base_)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& key) override {
    // get() would wait for a missing key.
    if (!store_->check({key})) return "";
    const auto bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::string> get_all(const std::vector<std::string>& keys) override {
    std::vector<std::string> values;
    for (const auto& bytes : store_->multiGet(keys))
      values.emplace_back(bytes.begin(), bytes.end());
    return values;
  }
  int64_t count(const std::string& key) override { return store_->add(key, 1); }
  std::unique_ptr<Rendezvous> connect(double timeout) override {
    auto other = base_->clone();
    other->setTimeout(milliseconds(timeout));
    return std::make_unique<StoreRendezvous>(std::move(other), prefix_);
  }
  const c10::intrusive_ptr<c10d::Store>& store() const override { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> base_;
  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::string plain_message(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  const std::string text = error != nullptr ? error->what_without_backtrace() : e.what();
  // Gloo's messages begin with a source location, such as "[/.../tcp/pair.cc:150] ".
  const size_t source = text.starts_with("[/") ? text.find("] ") : std::string::npos;
  const size_t begin = source == std::string::npos ? 0 : source + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::unique_ptr<Rendezvous> Rendezvous::open(const Placement& p, double timeout) {
  // By default, c10d prints warnings with stack traces.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();

  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(p.port);
  options.isServer = p.rank == 0 && !p.agent_hosts_store;
  options.waitWorkers = false;
  options.timeout = milliseconds(timeout);
  if (p.listen_fd >= 0) options.masterListenFd = p.listen_fd;

  // The constructor of TCPStore would block forever if the port accepts connections but never
  // answers, and for twice the timeout if the host does not exist. The constructor therefore runs
  // on a detached thread.
  auto made = std::make_shared<std::promise<c10::intrusive_ptr<c10d::Store>>>();
  auto result = made->get_future();
  std::thread([made, options, host = p.host] {
    try {
      made->set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      made->set_exception(std::current_exception());
    }
  }).detach();

  const std::string where = str(p.host, " port ", p.port);
  if (result.wait_for(milliseconds(timeout)) != std::future_status::ready) {
    fail(Exit::peer_lost, "the store at ", where, " did not answer within ", timeout,
         " s; check MASTER_ADDR and MASTER_PORT, and that rank 0 runs");
  }
  try {
    return std::make_unique<StoreRendezvous>(result.get(), "lathe/" + p.attempt);
  } catch (const std::exception& e) {
    if (options.isServer) {
      const std::string text = plain_message(e);
      const bool is_in_use = text.find("EADDRINUSE") != std::string::npos;
      fail(Exit::usage, "rank 0 can't serve the store at ", where, ": ",
           is_in_use ? "another process uses this port" : text, "; choose another MASTER_PORT");
    }
    fail(Exit::peer_lost, "can't reach the store at ", where, ": ", plain_message(e),
         "; check MASTER_ADDR and MASTER_PORT, and that rank 0 runs");
  }
}

}  // namespace lathe
