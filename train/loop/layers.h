// Declares a collector of statistics of the layers of a model in one step: norms of weights,
// gradients and updates, statistics of activations, and histograms.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/observer.h"
#include "nn/hooks.h"
#include "train/session/session.h"
#include "train/store/metrics.h"

namespace lathe {

/// Collects the statistics of one step. Construct it before the step and query it after the step;
/// it changes no bit of the step. A module counts as a layer if it directly holds trained
/// parameters, if its result is observed, or if an activation function in it is observed. Results
/// are observed for modules that make a ModuleCall, in the first micro-batch. The norm of an update
/// is exact for tensors of up to 16384 elements. For larger tensors, the norm is estimated from at
/// most 16384 evenly spaced elements, so that the collector needs neither a copy of the model nor a
/// pass over it.
class LayerStatsCollector {
 public:
  /// `histograms`: whether to also collect the histograms of the layers' results.
  LayerStatsCollector(Session& session, bool histograms);
  /// Returns the statistics of all layers after the step, in the order of the model's layers.
  std::vector<LayerStats> stats() const;
  /// Returns the histograms after the step: of every trained weight ("weights/PATH"), of the
  /// weight's unscaled gradient ("gradients/PATH"), and of each layer's result
  /// ("activations/LAYER"). Each histogram has 64 bins between the least and the largest finite
  /// value, or one bin if these are equal. A tensor without finite values is left out.
  std::vector<Histogram> histograms() const;

 private:
  struct Seen {
    std::vector<size_t> params;       // indices into Session::params
    at::Tensor least, largest, dead;  // scalars: least and largest result, share of dead units in
                                      // the activation
    bool has_histogram = false;       // whether the layer's result has a histogram
  };

  const Session& session_;
  std::vector<std::string> order_;
  std::map<std::string, Seen> layers_;
  std::vector<at::Tensor> before_;  // sampled elements of each parameter
  std::optional<ObserveOps> observe_;
  std::unique_ptr<ForwardHook> hook_;
  std::vector<Histogram> activations_;
};

}  // namespace lathe
