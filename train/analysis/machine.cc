#include "train/analysis/machine.h"

#include <sys/resource.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/device.h"
#include "core/io/text.h"
#include "core/kernels/isa.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

std::string first_word(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

fs::path core_folder(int core) { return "/sys/devices/system/cpu/cpu" + std::to_string(core); }

int numa_nodes() {
  int n = 0;
  while (fs::exists("/sys/devices/system/node/node" + std::to_string(n))) ++n;
  return std::max(n, 1);
}

Json json_or_null(double x) { return x < 0 ? Json() : Json(x); }

}  // namespace

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  double seconds = 0;
  for (const timeval& t : {usage.ru_utime, usage.ru_stime})
    seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  return seconds;
}

MachineSample MachineSample::now() {
  MachineSample s;
  s.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  s.own_cpu = process_cpu_seconds();

  // The first line has the clock ticks of these states: user nice system idle iowait irq softirq
  // steal.
  std::ifstream stat("/proc/stat");
  std::string cpu;
  std::array<double, 8> ticks{};
  stat >> cpu;
  for (double& t : ticks) stat >> t;

  if (stat) {
    const auto per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
    s.all_cpu = (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / per_second;
    s.steal = ticks[7] / per_second;
  }

  // Cores may run at different clock rates. The mean changes if the rate of any core changes.
  double mhz = 0;
  int reported = 0;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    mhz += std::stod(line.substr(line.find(':') + 1));
    ++reported;
  }
  if (reported > 0) s.mhz = mhz / reported;

  // The counter stays at -1 if no core reports it.
  for (int core = 0; core < cores(); ++core) {
    const std::string n = first_word(core_folder(core) / "thermal_throttle/core_throttle_count");
    if (!n.empty()) s.throttled = std::max<int64_t>(s.throttled, 0) + std::stoll(n);
  }

  if (const std::string load = first_word("/proc/loadavg"); !load.empty()) s.load = std::stod(load);
  return s;
}

std::vector<std::string> measurement_warnings(const MachineSample& begin, const MachineSample& end,
                                              int cores, const std::string& governor) {
  std::vector<std::string> why;
  const double core_seconds = std::max(1e-9, (end.seconds - begin.seconds) * cores);
  const double others =
      ((end.all_cpu - begin.all_cpu) - (end.own_cpu - begin.own_cpu)) / core_seconds;

  // A difference of one clock tick does not mean that another process ran.
  if (begin.all_cpu >= 0 && others > 0.05 && others * core_seconds > 0.05)
    why.push_back(format("other processes took %.0f%% of the cores", 100 * others));

  if (begin.steal >= 0 && (end.steal - begin.steal) / core_seconds > 0.02)
    why.push_back(format("the hypervisor took %.0f%% of the cores",
                         100 * (end.steal - begin.steal) / core_seconds));

  if (begin.mhz > 0 && std::abs(end.mhz / begin.mhz - 1) > 0.1)
    why.push_back(format("the clock changed from %.0f to %.0f MHz", begin.mhz, end.mhz));

  if (end.throttled > begin.throttled) why.push_back("cores were throttled because of heat");
  if (governor == "powersave" || governor == "conservative")
    why.push_back("the frequency governor is \"" + governor + "\"");
  return why;
}

Json MachineWatch::facts() const {
  const MachineSample end = MachineSample::now();
  const std::string governor = first_word(core_folder(0) / "cpufreq/scaling_governor");
  const std::vector<std::string> why = measurement_warnings(begin_, end, cores(), governor);
  const double core_seconds = std::max(1e-9, (end.seconds - begin_.seconds) * cores());
  return {
      {"cpu", device_model("cpu")},
      {"isa", isa_name(active_isa())},
      {"cores", cores()},
      {"numa_nodes", numa_nodes()},
      {"governor", governor.empty() ? Json() : Json(governor)},
      {"mhz", {json_or_null(begin_.mhz), json_or_null(end.mhz)}},
      {"load", {json_or_null(begin_.load), json_or_null(end.load)}},
      {"steal", json_or_null(begin_.steal < 0 ? -1 : (end.steal - begin_.steal) / core_seconds)},
      {"throttled", end.throttled < 0 ? Json() : Json(end.throttled - begin_.throttled)},
      {"versions", {{"libtorch", TORCH_VERSION}, {"compiler", __VERSION__}}},
      {"trusted", why.empty()},
      {"why", why}};
}

}  // namespace lathe
