// Reads clusters.csv: training runs that others published, as input of the simulator.
#pragma once

#include <string>
#include <vector>

#include "train/simulate/search.h"

namespace lathe::test {

/// A published training run.
struct PublishedRow {
  std::string id, model, gpu, source;
  ClusterModel cluster;
  StepWorkload step;
  LayoutRequest request;    ///< the parts of the parallel layout that the row states
  double step_seconds = 0;  ///< seconds per step, as published
};

/// Reads all rows of the CSV file at `path`. `table` describes the GPUs and programs that the rows
/// name. Throws Exit::data if the number of cells in a row differs from that in the header.
std::vector<PublishedRow> read_published_rows(const std::string& path, const HardwareTable& table);

}  // namespace lathe::test
