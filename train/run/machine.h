// The machine while something is measured: whether a figure is to be trusted.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace lathe {

/// Seconds of CPU that all threads of this process took so far.
double process_cpu_seconds();

/// What the system counts, at one moment; -1 where it does not tell.
struct MachineSample {
  double seconds = 0;      ///< of a steady clock
  double own_cpu = 0;      ///< seconds of CPU that this process took
  double all_cpu = -1;     ///< and all processes of the machine
  double steal = -1;       ///< seconds that the machine's host took for others
  double mhz = -1;         ///< mean clock of the cores
  int64_t throttled = -1;  ///< times that a core was slowed down for its heat
  double load = -1;        ///< processes that wanted to run, over the last minute

  /// Read from the kernel; what it does not say keeps its default.
  static MachineSample now();
};

/// Why figures measured between two moments on `cores` cores are not to be trusted; empty where
/// they are.
std::vector<std::string> measurement_warnings(const MachineSample& begin, const MachineSample& end,
                                              int cores, const std::string& governor);

/// From its making on.
class MachineWatch {
 public:
  MachineWatch() : begin_(MachineSample::now()) {}
  /// {"cpu", "cores", "numa_nodes", "governor", "mhz": [before, after], "load": [...], "steal":
  /// share, "others": share of the cores that other processes took, "throttled", "versions": {...},
  /// "trusted", "why": [...]}.
  Json facts() const;

 private:
  MachineSample begin_;
};

}  // namespace lathe
