#include "train/simulate/collectives.h"

#include <algorithm>
#include <cmath>

namespace lathe {

RankGroup rank_group(int64_t size, int64_t stride, int64_t gpus_per_node) {
  const int64_t in_node = std::clamp<int64_t>(gpus_per_node / stride, 1, size);
  // Assume that all nodes have the same number of members of the group, except that the last node
  // may have fewer. The last node then counts as a fraction of a node.
  return {static_cast<double>(size), static_cast<double>(in_node)};
}

double ExchangeModel::gather_bytes(const RankGroup& g, double bytes) {
  return bytes * (g.size - 1) / g.size;
}

double ExchangeModel::reduce_bytes(const RankGroup& g, double bytes) {
  return 2 * gather_bytes(g, bytes);
}

double ExchangeModel::transfer_seconds(const RankGroup& g, double bytes) const {
  const double node_rate = gpu.link_gb_per_second * 1e9 * constants.node_link_share;
  const double within = g.per_node > 1 ? gather_bytes(g, bytes) / node_rate : 0;
  if (g.nodes() <= 1) return within;

  // Each node receives the data of the other nodes through its members' network adapters.
  const double network_rate = link.gb_per_second * 1e9 * constants.network_share * g.per_node;
  const double between = bytes * (g.nodes() - 1) / g.nodes() / network_rate;
  return std::max(within, between);
}

double ExchangeModel::gather(const RankGroup& g, double bytes) const {
  if (g.size <= 1) return 0;
  const double nodes = std::max(g.nodes(), 1.0);
  const double hops = (nodes - 1) * link.latency_us + (g.size - nodes) * constants.node_latency_us;
  return (constants.collective_us + hops) * 1e-6 + transfer_seconds(g, bytes);
}

double ExchangeModel::reduce(const RankGroup& g, double bytes) const {
  if (g.size <= 1) return 0;
  const double nodes = std::max(g.nodes(), 1.0);
  const double ring =
      2 * ((nodes - 1) * link.latency_us + (g.size - nodes) * constants.node_latency_us);
  const double tree = 2 * (std::ceil(std::log2(nodes)) * link.latency_us +
                           (g.per_node - 1) * constants.node_latency_us);
  return (constants.collective_us + std::min(ring, tree)) * 1e-6 + 2 * transfer_seconds(g, bytes);
}

double ExchangeModel::send(bool between_nodes, double bytes) const {
  const double rate = between_nodes ? link.gb_per_second * constants.network_share
                                    : gpu.link_gb_per_second * constants.node_link_share;
  const double latency = between_nodes ? link.latency_us : constants.node_latency_us;
  return latency * 1e-6 + bytes / (rate * 1e9);
}

}  // namespace lathe
