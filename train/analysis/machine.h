// Observes the machine during a measurement, to decide whether its result can be trusted.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace lathe {

/// Returns the seconds of CPU time that all threads of this process have taken.
double process_cpu_seconds();

/// Counters of the system at one moment; -1 where the system does not report one.
struct MachineSample {
  double seconds = 0;      ///< of a steady clock
  double own_cpu = 0;      ///< CPU seconds that this process took
  double all_cpu = -1;     ///< CPU seconds that all processes of the machine took
  double steal = -1;       ///< seconds that the machine's host took for others
  double mhz = -1;         ///< mean clock of the cores
  int64_t throttled = -1;  ///< times that a core was slowed down because of its heat
  double load = -1;        ///< mean number of runnable processes in the last minute

  /// Reads the counters from the kernel; those that it does not report keep their defaults.
  static MachineSample now();
};

/// Returns the reasons not to trust numbers that were measured between two samples on `cores`
/// cores; none where they can be trusted.
std::vector<std::string> measurement_warnings(const MachineSample& begin, const MachineSample& end,
                                              int cores, const std::string& governor);

/// Observes the machine from its construction on.
class MachineWatch {
 public:
  MachineWatch() : begin_(MachineSample::now()) {}
  /// Returns {"cpu", "isa", "cores", "numa_nodes", "governor", "mhz": [before, after], "load":
  /// [before, after], "steal": share of the cores that the machine's host took, "throttled",
  /// "versions": {...}, "trusted", "why": [...]}.
  Json facts() const;

 private:
  MachineSample begin_;
};

}  // namespace lathe
