// Gives a session's parameters their values, one after another.
#include "train/session/values.h"

#include <algorithm>
#include <map>

#include "autograd/node.h"
#include "autograd/tensor_cut.h"
#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/io/checksum.h"
#include "core/mapped_memory.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/storage.h"
#include "dist/world.h"
#include "train/session/session.h"

namespace lathe {

WriteValues initial_values(const LoadedConfig& loaded, size_t count) {
  if (!loaded.source.empty()) return read_source(loaded, count);
  const auto draw = [own = loaded.config.model.own,
                     seed = static_cast<uint64_t>(loaded.config.train.seed)](
                        const NamedParameter& p) { initialize({p}, own, seed); };
  return [draw](const NamedParameter& p) {
    if (p.parameter.as_leaf() != nullptr) write_part(p, draw);
  };
}

namespace {

std::string checksum_line(const NamedParameter& p) {
  const TensorCut* const cut = cut_of(p.parameter);
  const at::Tensor t = p.parameter.data().cpu().contiguous();
  Checksum sum;
  sum.update(t.const_data_ptr(), t.nbytes());
  return str(p.path, cut != nullptr ? str(":", cut->part) : "", " ", describe(t), " with checksum ",
             sum.hex(), "\n");
}

}  // namespace

void Session::begin(const LoadedConfig& loaded) {
  // In a single process, the model was created with its values.
  const bool has_values = std::all_of(saved.begin(), saved.end(), [](const NamedParameter& p) {
    return has_memory(p.parameter.data());
  });
  if (has_values) return give_values({}, /*is_loading=*/false);
  give_values(initial_values(loaded, saved.size()), /*is_loading=*/false);
  optimizer.start_averages();
}

void Session::load(const fs::path& checkpoint, const RunState& state) {
  const SavedParameters all(checkpoint, saved.size(), SavedParameters::Values::for_training);
  give_values([&](const NamedParameter& p) { all.read(p); }, /*is_loading=*/true);
  load_optimizer(checkpoint, optimizer);
  optimizer.set_updates(state.updates);
  if (scaler && state.scaler) scaler->load(*state.scaler);
  if (spikes && state.spikes) spikes->load(*state.spikes);
}

/// Calls `write` for each parameter and buffer that this process needs, and shards the parameters.
/// If `is_loading` is false, parameters that already have values keep them. `write` may be empty if
/// all parameters have values.
void Session::give_values(const WriteValues& write, bool is_loading) {
  const NoGrad no_grad;
  const MemoryScope memory(Memory::parameters);
  const MapParameters from_disk(mapped.get());
  std::map<const Leaf*, size_t> local;
  for (size_t i = 0; i < local_params().size(); ++i)
    local.emplace(local_params()[i].parameter.as_leaf(), i);

  for (const NamedParameter& p : saved) {
    const Leaf* const leaf = p.parameter.as_leaf();
    if (stage && !stage->needs(leaf)) continue;
    if (write && (is_loading || leaf == nullptr || !has_memory(p.parameter.data()))) {
      allocate_storage(p.parameter.data());
      write(p);
    }
    if (world().size() > 1 && !is_dry_run()) checksums += checksum_line(p);
    if (leaf == nullptr) continue;

    Precision& precision = p.parameter.leaf().precision;
    if (precision.low.defined()) allocate_storage(precision.low);
    precision.refresh_low(p.parameter.data());
    for (const at::Tensor& t : {p.parameter.data(), precision.low}) release_pages(t);
    const auto found = local.find(leaf);
    if (shards && found != local.end()) shards->shard(found->second);
  }
  if (stage) stage->free_foreign_parameters();
  if (mapped) pages = std::make_unique<ParameterPages>(parameters(*model));
}

}  // namespace lathe
