// Compares the simulator's times of collectives and kernels with formulas.
#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "train/simulate/collectives.h"
#include "train/simulate/estimate.h"
#include "train/simulate/kernels.h"

namespace {

using namespace lathe;

ClusterModel named_cluster(const std::string& gpu, int64_t nodes, const std::string& software) {
  const HardwareTable& table = known_hardware();
  return {table.gpu(gpu), table.link("400G"), table.program(software), table.constants, nodes, 8};
}

TEST_CASE("the time of a collective is its latency plus its bytes divided by the bandwidth",
          "[simulator_parts]") {
  const ClusterModel c = named_cluster("h100", 4, "compiled");
  const ExchangeModel links{c.gpu, c.link, c.constants};
  const double within = c.gpu.link_gb_per_second * 1e9 * c.constants.node_link_share;
  const double between = c.link.gb_per_second * 1e9 * c.constants.network_share;
  const double start = c.constants.collective_us * 1e-6, hop = c.constants.node_latency_us * 1e-6;
  const double network_hop = c.link.latency_us * 1e-6;

  const RankGroup node = rank_group(8, 1, 8), all = rank_group(32, 1, 8);
  const RankGroup strided = rank_group(4, 8, 8);
  CHECK((node.nodes() == 1 && all.nodes() == 4 && strided.nodes() == 4));
  CHECK(links.gather(node, 1e9) == Approx(start + 7 * hop + 7e9 / 8 / within));
  CHECK(links.gather(all, 1e9) ==
        Approx(start + 3 * network_hop + 28 * hop +
               std::max(1e9 * 31 / 32 / within, 1e9 * 3 / 4 / (8 * between))));
  CHECK(links.gather(strided, 1e9) == Approx(start + 3 * network_hop + 1e9 * 3 / 4 / between));
  CHECK(links.reduce(strided, 1e9) == Approx(start + 2 * 2 * network_hop + 2e9 * 3 / 4 / between));
  CHECK(links.gather(rank_group(1, 1, 8), 1e9) == 0);
  CHECK(links.send(true, 1e9) == Approx(network_hop + 1e9 / between));
}

TEST_CASE("kernels are not faster than the roofline, and larger sizes never take less time",
          "[simulator_parts]") {
  for (const char* name : {"v100", "a100-40", "h100", "l4", "rtx4090"}) {
    const ClusterModel c = named_cluster(name, 1, "compiled");
    const KernelModel kernels{c.gpu, c.software, c.constants};
    double before = 0;
    for (const double size : {16., 100., 128., 500., 1024., 3000., 8192., 20000.}) {
      INFO(name << " " << size);
      const double t = kernels.matmul(size, size, size, MatmulDtype::bf16);
      CHECK(t >= 2 * size * size * size / kernels.peak(MatmulDtype::bf16));
      CHECK(t >= 6 * size * size / (c.gpu.memory_gb_per_second * 1e9));
      CHECK(t >= before);
      before = t;
    }
    const double large =
        2 * std::pow(16384., 3) / kernels.matmul(16384, 16384, 16384, MatmulDtype::bf16);
    CHECK(large / kernels.peak(MatmulDtype::bf16) == Approx(c.gpu.matmul_share).epsilon(0.05));
  }

  // An A100 has 108 multiprocessors, so a 109th tile needs a second wave.
  const ClusterModel c = named_cluster("a100-80", 1, "compiled");
  const KernelModel kernels{c.gpu, c.software, c.constants};
  const auto wave = [&](double tiles) {
    return kernels.matmul(256, 128 * tiles, 8192, MatmulDtype::bf16);
  };
  CHECK(wave(109) > 1.2 * wave(108));
  CHECK(wave(108) < 1.2 * wave(90));

  // A matrix product with few rows takes at least as long as reading the weights.
  const ClusterModel h100 = named_cluster("h100", 1, "compiled");
  CHECK(KernelModel{h100.gpu, h100.software, h100.constants}.matmul(16, 16384, 16384,
                                                                    MatmulDtype::bf16) >=
        2 * 16384. * 16384 / (h100.gpu.memory_gb_per_second * 1e9));

  // Flash attention computes half of the scores. A sequence of twice the length takes four times as
  // long.
  TransformerShape s;
  s.head_width = 128;
  s.sequence = 32768;
  const MatmulDtype bf16 = MatmulDtype::bf16;
  const double once = kernels.attention(s, 1, 8, 1, bf16, false);
  CHECK(2 * 32768. * 32768 * 128 * 8 / once < kernels.peak(MatmulDtype::bf16));
  s.sequence *= 2;
  CHECK(kernels.attention(s, 1, 8, 1, bf16, false) == Approx(4 * once).epsilon(0.05));
  CHECK(kernels.attention(s, 1, 8, 4, bf16, false) == Approx(once).epsilon(0.05));
  CHECK(kernels.attention(s, 1, 8, 1, bf16, true) ==
        Approx(4 * once * 2.5 / c.constants.attention_backward_share).epsilon(0.05));

  // Unfused attention computes all scores.
  const KernelModel unfused{c.gpu, known_hardware().program("megatron-2021"), c.constants};
  CHECK(unfused.attention(s, 1, 8, 1, bf16, false) * unfused.peak(bf16) >
        4 * 65536. * 65536 * 128 * 8);

  // The time of attention is inversely proportional to the dtype's peak rate; fp8 computes in bf16.
  const double start = c.constants.kernel_us * 1e-6,
               whole = kernels.attention(s, 1, 8, 1, bf16, false);
  CHECK(kernels.attention(s, 1, 8, 1, MatmulDtype::fp32, false) - start ==
        Approx((whole - start) * c.gpu.bf16_tflops / c.gpu.fp32_tflops));
  CHECK(kernels.attention(s, 1, 8, 1, MatmulDtype::fp8, false) == whole);
}

TEST_CASE("a window reduces attention to the pairs of queries and keys within it",
          "[simulator_parts]") {
  TransformerShape s{.layers = 4, .head_width = 64, .sequence = 2048};
  const double causal = s.attended_pairs(), flops = s.flops_per_token();
  CHECK(causal == 2048. * 2048 / 2);

  // Count the pairs query by query. The formula omits half a pair on the diagonal for each query.
  s.window = 300;
  s.windowed = 1;
  double pairs = 0;
  for (int64_t query = 0; query < s.sequence; ++query)
    pairs += static_cast<double>(std::min(query + 1, s.window));
  CHECK(s.attended_pairs() == Approx(pairs).epsilon(1. / 300));
  CHECK(flops - s.flops_per_token() == Approx(12. * 4 * 64 * (2048 - 300)));

  s.windowed = 0.5;
  CHECK(s.attended_pairs() == Approx((pairs + causal) / 2).epsilon(1. / 300));

  // A window longer than the sequence changes nothing.
  s.window = 4096;
  CHECK(s.attended_pairs() == causal);
  CHECK(s.flops_per_token() == flops);

  const ClusterModel c = named_cluster("h100", 1, "compiled");
  const KernelModel kernels{c.gpu, c.software, c.constants};
  const double full = kernels.attention(s, 8, 8, 1, MatmulDtype::bf16, true);
  s.window = 256;
  CHECK(kernels.attention(s, 8, 8, 1, MatmulDtype::bf16, true) < 0.65 * full);
}

}  // namespace
