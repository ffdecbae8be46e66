// Computes bytes and times of collectives between GPUs by the alpha-beta model (Hockney 1994;
// Thakur et al. 2005). Collectives use ring algorithms, and all-reduces use a tree if a tree has a
// lower latency.
#pragma once

#include <cstdint>

#include "train/simulate/hardware.h"

namespace lathe {

/// Describes `size` GPUs that exchange data, of which `per_node` are on each node.
struct RankGroup {
  double size = 1, per_node = 1;
  /// Returns the number of nodes.
  double nodes() const { return size / per_node; }
};

/// Returns the group of `size` ranks whose neighbors are `stride` ranks apart, on nodes of
/// `gpus_per_node` ranks.
RankGroup rank_group(int64_t size, int64_t stride, int64_t gpus_per_node);

/// Describes links, and the shares of their bandwidth that collectives reach.
struct ExchangeModel {
  const GpuModel& gpu;
  const LinkModel& link;
  const SimulatorConstants& constants;

  /// Returns the bytes that each GPU sends in an all-gather of `bytes` in total. In a
  /// reduce-scatter of `bytes`, each GPU sends the same number.
  static double gather_bytes(const RankGroup& group, double bytes);
  /// Returns the bytes that each GPU sends in an all-reduce of `bytes`: twice gather_bytes().
  static double reduce_bytes(const RankGroup& group, double bytes);

  /// Returns the time of an all-gather or a reduce-scatter of `bytes` in total, in seconds.
  double gather(const RankGroup& group, double bytes) const;
  /// Returns the time of an all-reduce of `bytes`, in seconds.
  double reduce(const RankGroup& group, double bytes) const;
  /// Returns the time of a message of `bytes` between neighbors, in seconds. `between_nodes`:
  /// whether the neighbors are on different nodes.
  double send(bool between_nodes, double bytes) const;

 private:
  /// Returns the time of gather() without its latency, in seconds.
  double transfer_seconds(const RankGroup& group, double bytes) const;
};

}  // namespace lathe
