// Finds out which rank was lost: each rank reports on itself through the store, and the other ranks
// read these reports.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/timing.h"
#include "dist/group.h"
#include "dist/world.h"

namespace lathe {
namespace {

constexpr auto pulse_interval = std::chrono::milliseconds(500);

// The names of the phases, in the order of RankPhase.
constexpr std::string_view phases[]{
    "starting", "forward",    "backward", "exchange of gradients",
    "update",   "evaluation", "sample",   "wait for the sample of others",
    "saving"};

/// The last report of a rank about itself: "COUNT HOST STEP PHASE...".
struct Pulse {
  std::string count, host, step, phase;

  explicit Pulse(const std::string& text) {
    std::istringstream words(text);
    words >> count >> host >> step >> std::ws;
    std::getline(words, phase);
  }
};

/// Returns ", last seen in step 3: backward", or, before the first step, ", last seen starting".
std::string last_seen(const Pulse& last) {
  const std::string phase = printable_line(last.phase);
  if (phase.empty()) return "";
  return last.step == "0" ? ", last seen " + phase
                          : ", last seen in step " + printable_line(last.step) + ": " + phase;
}

}  // namespace

std::string World::pulse() const {
  static const std::string host = host_name();
  return str(pulses_.load(), " ", host, " ", step_.load(), " ",
             phases[static_cast<size_t>(phase_.load())]);
}

/// Reports every half second what this process is doing, until the store is gone. Also keeps the
/// last report of rank 0 and, if rank 0 ends with an error, the reason, since the store may end
/// with rank 0.
void World::send_pulses(Rendezvous& store) {
  try {
    while (true) {
      ++pulses_;
      store.set(Rendezvous::key("pulse", rank()), pulse());
      const std::string why = store.get(Rendezvous::key("failed", 0)),
                        last = store.get(Rendezvous::key("pulse", 0));
      {
        const std::lock_guard lock(failure_mutex_);
        rank0_failure_ = why;
        rank0_pulse_ = last;
      }
      std::this_thread::sleep_for(pulse_interval);
    }
  } catch (const std::exception&) {
    // Without a store, no rank can read a report. The next exchange fails, and its error is
    // reported.
  }
}

void World::guarded(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::resource_unavailable_try_again) throw;  // no more threads
    fail_for_lost_rank(plain_message(e));
  } catch (const std::exception& e) {
    fail_for_lost_rank(plain_message(e));
  }
}

/// Returns a sentence about the rank that was lost; "" if all ranks answer and none of them is
/// behind this rank.
std::string World::find_lost_rank() {
  const auto sentence = [&](int r, const Pulse& last, const std::string& what) {
    return str("rank ", r, " of ", size(), " on ", printable_line(last.host), " ", what,
               last_seen(last));
  };
  const auto read = [&] {
    // Read all reports with one request. All ranks search at the same time, so one request for each
    // report would overload the store.
    const std::vector<std::string> texts = monitor_->get_all(Rendezvous::keys("pulse", size()));
    return std::vector<Pulse>(texts.begin(), texts.end());
  };

  // A rank that ends with an error reports the error; a rank that was killed or stopped sends no
  // more reports. A rank that found the lost rank earlier may have ended since then, and would seem
  // to be lost as well. So use the answer of such a rank first.
  const std::vector<Pulse> before = read();
  std::this_thread::sleep_for(2 * pulse_interval + pulse_interval / 2);
  const std::vector<Pulse> now = read();
  if (const std::string found = monitor_->get("lost"); !found.empty()) return printable_line(found);
  const std::vector<std::string> failures = monitor_->get_all(Rendezvous::keys("failed", size()));
  for (int r = 0; r < size(); ++r) {
    const std::string& failure = failures[static_cast<size_t>(r)];
    if (r != rank() && !failure.empty())
      return sentence(r, now[r], "ended with an error (" + printable_line(failure) + ")");
  }
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && before[r].count == now[r].count)
      return sentence(r, now[r], "no longer answers");
  }

  // All ranks send reports, so the other ranks wait for the rank that is furthest behind.
  const auto progress = [&](const Pulse& p) {
    const auto phase = std::ranges::find(phases, p.phase) - std::begin(phases);
    return std::pair(std::strtoll(p.step.c_str(), nullptr, 10), phase);
  };
  const auto last = std::ranges::min_element(now, {}, progress);
  const auto r = static_cast<int>(last - now.begin());
  const auto own = progress(Pulse(pulse()));
  return r == rank() || progress(*last) == own
             ? ""
             : sentence(r, *last, "is alive but does not take part");
}

void World::fail_for_lost_rank(const std::string& why) {
  // A request to a store behind a broken link may block for longer than its timeout. A detached
  // thread therefore makes the request, and is abandoned if it blocks.
  auto asked = std::make_shared<std::promise<std::string>>();
  auto answer = asked->get_future();
  std::thread([this, asked] {
    try {
      LATHE_CHECK(monitor_, "no store");
      asked->set_value(find_lost_rank());
    } catch (...) {
      asked->set_exception(std::current_exception());
    }
  }).detach();

  const std::string remedy =
      "; once the cause is removed, the same command resumes from the newest checkpoint";
  std::string lost;
  try {
    if (answer.wait_for(4 * pulse_interval) != std::future_status::ready)
      fail(Exit::peer_lost, "no answer");
    lost = answer.get();
  } catch (const std::exception&) {
    const std::lock_guard lock(failure_mutex_);
    if (!rank0_failure_.empty()) {
      fail(Exit::peer_lost, "rank 0 of ", size(), " ended with an error (",
           printable_line(rank0_failure_), ")", remedy);
    }
    const Pulse last(rank0_pulse_);
    fail(Exit::peer_lost, "rank 0 of ", size(), " on ",
         last.host.empty() ? placement_.host : printable_line(last.host),
         " has ended or can't be reached, and with it the store at port ", placement_.port,
         last_seen(last), "; see what its process printed", remedy);
  }
  if (!lost.empty()) {
    store_answer(lost);
    fail(Exit::peer_lost, lost, remedy);
  }
  fail(Exit::peer_lost, "an exchange failed (", why, "), though every rank answers", remedy);
}

/// If the store ends with this process, waits long enough for the other ranks to read the store.
void World::wait_for_readers() const {
  if (rank() == 0 && !placement_.agent_hosts_store) std::this_thread::sleep_for(2 * pulse_interval);
}

/// Stores the sentence about the lost rank, for ranks that look for the lost rank later.
void World::store_answer(const std::string& lost) {
  try {
    monitor_->set("lost", lost);
  } catch (const std::exception&) {
    return;  // the store is gone, so no rank can read the answer
  }
  wait_for_readers();
}

void World::report_failure(const std::string& why) {
  if (!monitor_) return;
  try {
    monitor_->set(Rendezvous::key("failed", rank()), why);
  } catch (const std::exception&) {
    // The other ranks notice the failure by themselves, after dist.timeout at the latest.
    return;
  }
  wait_for_readers();
}

bool World::first_rank_reports(const std::string& why) {
  report_failure(why);
  if (!monitor_ || rank() == 0) return false;
  const auto begin = Clock::now();
  try {
    while (seconds_since(begin) < 1) {
      if (monitor_->get(Rendezvous::key("failed", 0)) == why) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (const std::exception&) {
    // The store is gone, so it is unknown what rank 0 printed.
  }
  return false;
}

}  // namespace lathe
