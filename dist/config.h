// Keys of [dist]: how the processes of a run exchange gradients.
#pragma once

#include "core/config.h"

namespace lathe {

struct DistConfig {
  LATHE_FIELD(double, timeout, 300.0,
              "several processes: seconds after which a process that does not answer ends the run "
              "(exit 7)",
              between(1, 86400))
  LATHE_FIELD(double, bucket_mb, 25.0,
              "several processes: megabytes of gradients that are exchanged together; changes no "
              "bit",
              between(0.001, 4096))
};

}  // namespace lathe
