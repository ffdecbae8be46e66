// Observes the machine during a measurement, to decide whether the result can be trusted.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace lathe {

/// Returns the seconds of CPU time that all threads of this process have taken.
double process_cpu_seconds();

/// Counters of the system at one moment. A counter that the system does not report is -1.
struct MachineSample {
  double seconds = 0;      ///< time of a steady clock
  double own_cpu = 0;      ///< CPU seconds that this process took
  double all_cpu = -1;     ///< CPU seconds that all processes of the machine took
  double steal = -1;       ///< CPU seconds that the hypervisor gave to other virtual machines
  double mhz = -1;         ///< mean clock rate of the cores
  int64_t throttled = -1;  ///< number of times that a core was slowed down because of its heat
  double load = -1;        ///< mean number of runnable processes in the last minute

  /// Reads the counters from the kernel. Counters that the kernel does not report keep their
  /// defaults.
  static MachineSample now();
};

/// Returns the reasons not to trust numbers that were measured between two samples on `cores`
/// cores; empty if they can be trusted. `governor` is the name of the CPU frequency governor.
std::vector<std::string> measurement_warnings(const MachineSample& begin, const MachineSample& end,
                                              int cores, const std::string& governor);

/// Observes the machine from the construction of this object until facts() is called.
class MachineWatch {
 public:
  MachineWatch() : begin_(MachineSample::now()) {}
  /// Returns {"cpu", "isa", "cores", "numa_nodes", "governor", "mhz": [before, after], "load":
  /// [before, after], "steal": share of the cores' time that the hypervisor gave to other virtual
  /// machines, "throttled", "versions": {...}, "trusted", "why": [...]}.
  Json facts() const;

 private:
  MachineSample begin_;
};

}  // namespace lathe
