// A closer look at the layers of a model in one step: norms, the size of the update, activations;
// and histograms.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/op.h"
#include "nn/hooks.h"
#include "train/run/session.h"
#include "train/store/metrics.h"

namespace lathe {

/// Made before a step and asked after it; it changes no bit of the step. A layer is a module that
/// has parameters of its own that are trained, or whose result or activation is seen; results are
/// those of modules that make a ModuleCall. Activations are the first micro-batch's. An update's
/// size is exact for tensors of up to 16384 elements, and of a larger one taken from so many,
/// evenly spaced, which costs neither a copy of the model nor a pass over it.
class LayerStatsCollector {
 public:
  /// `histograms`: of what layers return too.
  LayerStatsCollector(Session& session, bool histograms);
  /// After the step, in the order of the model.
  std::vector<LayerFigures> figures() const;
  /// After the step, of every trained weight ("weights/PATH"), its gradient, unscaled
  /// ("gradients/PATH"), and what each layer returned ("activations/LAYER"): 64 bins between the
  /// least and the largest value that is finite. One without any is left out.
  std::vector<Histogram> histograms() const;

 private:
  struct Seen {
    std::vector<size_t> params;       // of the session's
    at::Tensor least, largest, dead;  // []: of what it returned; of its activation
  };

  const Session& session_;
  std::vector<std::string> order_;
  std::map<std::string, Seen> layers_;
  std::vector<at::Tensor> before_;  // of each parameter some elements
  ModeGuard guard_;
  std::function<void(const OpResult&)> on_result_;
  std::unique_ptr<ForwardHook> hook_;
  std::vector<Histogram> activations_;
};

}  // namespace lathe
