// Implements DryWorld, which simulates the ranks of a run in a dry run.
#include "dist/group.h"
#include "dist/world.h"

namespace lathe {

DryWorld::DryWorld(int ranks, const GridSizes& sizes, int stage, int data_rank)
    : is_alone_(world().size() == 1), pipeline_(world().pipeline()) {
  World& w = world();
  LATHE_CHECK(is_alone_ || ranks == w.size(), "a dry world of ", ranks, " ranks in a run of ",
              w.size(), " ranks");
  if (is_alone_) {
    const int groups = ranks / sizes.replica();
    const int group = data_rank % groups, context = data_rank / groups;
    w.placement_.size = ranks;
    w.placement_.rank =
        ((stage * groups + group) * sizes.context + context) * sizes.tensor;  // as in world.h
    w.set_grid(sizes);
  }
  w.pipeline_.rank = stage;
  w.dry_ = this;

  const auto dry = [](const RankAxis& axis) { return Group::make_dry(axis.size, axis.rank); };
  control_ = dry({w.rank(), w.size()});
  for (auto* group : {&gradients_, &parameters_, &ops_}) *group = dry(w.data());
  layers_ = dry(w.tensor());
  contexts_ = dry(w.context());
  stages_ = dry(w.pipeline());
  swap_groups();
}

DryWorld::~DryWorld() {
  World& w = world();
  swap_groups();
  w.dry_ = nullptr;
  w.pipeline_ = pipeline_;
  if (!is_alone_) return;
  w.placement_.rank = 0;
  w.placement_.size = 1;
  w.set_grid({});
}

void DryWorld::swap_groups() {
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
