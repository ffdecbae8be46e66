// Ranks of a dry run.
#include "dist/group.h"
#include "dist/world.h"

namespace lathe {

DryWorld::DryWorld(int ranks, const GridSizes& sizes, int stage) {
  World& w = world();
  LATHE_CHECK(w.size() == 1, "a dry world within a run of several processes");
  w.placement_.size = ranks;
  w.placement_.rank = stage * (ranks / sizes.pipeline);
  w.set_grid(sizes);
  groups_.emplace();
}

DryWorld::~DryWorld() {
  groups_.reset();
  World& w = world();
  w.placement_.rank = 0;
  w.placement_.size = 1;
  w.set_grid({});
}

DryGroups::DryGroups() {
  const auto dry = [](const RankAxis& axis) { return Group::make_dry(axis.size, axis.rank); };
  const World& w = world();
  control_ = dry({w.rank(), w.size()});
  for (auto* group : {&gradients_, &parameters_, &ops_}) *group = dry(w.data());
  layers_ = dry(w.tensor());
  contexts_ = dry(w.context());
  stages_ = dry(w.pipeline());
  swap_with_world();
}

DryGroups::~DryGroups() { swap_with_world(); }

void DryGroups::swap_with_world() {
  World& w = world();
  control_.swap(w.control_);
  gradients_.swap(w.gradients_);
  parameters_.swap(w.parameters_);
  ops_.swap(w.ops_);
  layers_.swap(w.layers_);
  contexts_.swap(w.contexts_);
  stages_.swap(w.stages_);
}

}  // namespace lathe
