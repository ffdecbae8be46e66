// Rows of clusters.csv: training runs that others published, as input of the simulator.
#pragma once

#include <string>
#include <vector>

#include "train/simulate/search.h"

namespace lathe::test {

/// A published run.
struct PublishedRow {
  std::string id, model, gpu, source;
  ClusterModel cluster;
  StepWorkload step;
  LayoutRequest request;    ///< the parts of the parallel layout that the row states
  double step_seconds = 0;  ///< as published
};

/// Reads all rows of a table. Throws Exit::data if a row has another number of cells than the
/// header.
std::vector<PublishedRow> read_published_rows(const std::string& path, const HardwareTable& table);

}  // namespace lathe::test
