#include "train/simulate/estimate.h"

#include <algorithm>
#include <cmath>

#include "train/simulate/collectives.h"
#include "train/simulate/kernels.h"

namespace lathe {
namespace {

/// Holds the seconds of one kind of work in the forward and the backward pass.
struct Passes {
  double forward = 0, backward = 0;
  double total() const { return forward + backward; }
};

/// Holds the seconds that one micro-batch takes in one layer, or in the embedding and the head.
struct LayerTimes {
  Passes matmul{}, attention{}, elementwise{}, tensor{}, context{};
  double recompute = 0;

  Passes compute() const {
    return {matmul.forward + attention.forward + elementwise.forward,
            matmul.backward + attention.backward + elementwise.backward + recompute};
  }
  double total() const { return compute().total() + tensor.total() + context.total(); }
};

class StepSimulator {
 public:
  StepSimulator(const ClusterModel& cluster, const StepWorkload& step, const ParallelLayout& layout)
      : cluster_(cluster),
        step_(step),
        shape_(step.shape),
        layout_(layout),
        kernels_{cluster.gpu, cluster.software, cluster.constants},
        links_{cluster.gpu, cluster.link, cluster.constants},
        e_(step.element_bytes()),
        tensor_(as_double(layout.tensor)),
        tokens_(as_double(layout.micro_batch) * as_double(step.shape.sequence) /
                as_double(layout.context)),
        micro_batches_(as_double(layout.micro_batches(step.global_batch))) {}

  StepEstimate run();

 private:
  Passes linear(double outputs, double inputs, MatmulDtype dtype) const;
  Passes elementwise() const;
  LayerTimes layer();
  LayerTimes head();
  /// Adds `forward` and `backward` sums of a micro-batch's activations over the tensor ranks to the
  /// times of a part of the model that a stage has `parts` times.
  void add_tensor_exchange(LayerTimes& times, double forward, double backward, double parts);
  void add_context_exchange(LayerTimes& times);
  void add_work(const LayerTimes& times, double layers);
  void add_pipeline(const LayerTimes& layer, const LayerTimes& head, const LayersPerStage& layers);
  void add_data_exchange(const LayerTimes& layer, double layers, double others);
  void add_optimizer(double own);
  /// Adds an exchange of `seconds`. If `allowed` is true, the exchange overlaps with `compute`
  /// seconds of independent work.
  void overlap(Exchange& exchange, double seconds, double compute, bool allowed = true) const;

  const ClusterModel& cluster_;
  const StepWorkload& step_;
  const TransformerShape& shape_;
  const ParallelLayout& layout_;
  KernelModel kernels_;
  ExchangeModel links_;
  double e_, tensor_, tokens_, micro_batches_;
  StepEstimate out_{};
};

Passes StepSimulator::linear(double outputs, double inputs, MatmulDtype dtype) const {
  Passes p{kernels_.matmul(tokens_, outputs, inputs, dtype),
           kernels_.matmul(tokens_, inputs, outputs, dtype) +
               kernels_.matmul(inputs, outputs, tokens_, dtype)};

  // In fp8, inputs, weights and gradients are read to find their largest value, and again for the
  // cast. The cast writes the two memory layouts that the three matrix products of a layer need.
  // Cast weights are kept for all micro-batches, unless ZeRO 3 gathers the weights again.
  if (dtype == MatmulDtype::fp8) {
    const double uses = layout_.shard == 3 && layout_.pipeline == 1 ? 1 : micro_batches_;
    p.forward += kernels_.traffic(6 * (tokens_ * inputs + inputs * outputs / uses), 2);
    p.backward += kernels_.traffic(6 * tokens_ * outputs, 1);
  }
  return p;
}

Passes StepSimulator::elementwise() const {
  const double c = as_double(shape_.width) / (cluster_.software.sequence_parallel ? tensor_ : 1);
  const double hidden = as_double(shape_.hidden) / tensor_;
  const double rotated =
      shape_.positions > 0
          ? 0
          : as_double((shape_.heads + shape_.kv_heads) * shape_.head_width) / tensor_;

  // Count the tensors that are read and written. Forward pass: each of two norms reads one and
  // writes one. Each of two residual additions reads two and writes one. The activation reads one
  // (two if it is gated) and writes one. Backward pass: each norm and each addition reads two and
  // writes one. The activation reads two (three if it is gated) and writes one (two if it is
  // gated). In both passes, rotary positions read one and write one.
  const double forward = 10 * c + (shape_.gated ? 3 : 2) * hidden + 2 * rotated;
  const double backward = 12 * c + (shape_.gated ? 5 : 3) * hidden + 2 * rotated;
  const double passes = cluster_.software.elementwise_passes;
  return {kernels_.traffic(passes * tokens_ * e_ * forward, 6 * passes),
          kernels_.traffic(passes * tokens_ * e_ * backward, 8 * passes)};
}

LayerTimes StepSimulator::layer() {
  const double c = as_double(shape_.width), d = as_double(shape_.head_width);
  const double queries = as_double(shape_.heads) * d / tensor_;
  const double keys = as_double(std::max(shape_.kv_heads, layout_.tensor)) * d / tensor_;
  const double hidden = as_double(shape_.hidden) / tensor_;

  LayerTimes t;
  for (const Passes& p :
       {linear(queries + 2 * keys, c, step_.dtype), linear(c, queries, step_.dtype),
        linear((shape_.gated ? 2 : 1) * hidden, c, step_.dtype), linear(c, hidden, step_.dtype)}) {
    t.matmul.forward += p.forward;
    t.matmul.backward += p.backward;
  }

  const double sequences = as_double(layout_.micro_batch),
               heads = as_double(shape_.heads) / tensor_;
  const auto attention = [&](bool backward) {
    return kernels_.attention(shape_, sequences, heads, as_double(layout_.context), step_.dtype,
                              backward);
  };
  t.attention = {attention(false), attention(true)};
  t.elementwise = elementwise();
  // Fully recomputed layers repeat the sums of the forward pass.
  const double again = layout_.recompute == Recompute::full ? 2 : 0;
  add_tensor_exchange(t, 2, 2 + again, as_double(shape_.layers) / as_double(layout_.pipeline));
  add_context_exchange(t);

  // Gradient accumulation over micro-batches reads and writes the gradients.
  const double own = shape_.layer_parameters() / tensor_;
  if (micro_batches_ > 1)
    t.elementwise.backward += kernels_.traffic(2 * own * cluster_.software.gradient_bytes, 0);

  if (layout_.recompute == Recompute::full)
    t.recompute = t.matmul.forward + t.attention.forward + t.elementwise.forward;
  if (layout_.recompute == Recompute::selective) {
    t.recompute = cluster_.software.selective == "attention"
                      ? t.attention.forward
                      : t.matmul.forward / 2 + t.elementwise.forward;
  }
  return t;
}

LayerTimes StepSimulator::head() {
  const double vocab = as_double(shape_.vocab) / tensor_, c = as_double(shape_.width);
  const MatmulDtype dtype = step_.dtype == MatmulDtype::fp8 ? MatmulDtype::bf16 : step_.dtype;

  LayerTimes t;
  t.matmul = linear(vocab, c, dtype);
  const double loss = kernels_.traffic(tokens_ * vocab * cluster_.software.logit_bytes, 6);
  t.elementwise = {loss / 2, loss / 2 + kernels_.traffic(tokens_ * e_ * 6 * c, 3)};
  // Each rank has a part of the vocabulary, so the result of the embedding and the gradient of the
  // head's input are sums over the tensor ranks.
  add_tensor_exchange(t, 1, 1, 1);
  return t;
}

void StepSimulator::add_tensor_exchange(LayerTimes& t, double forward, double backward,
                                        double parts) {
  if (layout_.tensor == 1) return;
  const RankGroup group = rank_group(layout_.tensor, 1, cluster_.gpus_per_node);
  const double element = cluster_.software.tensor_bytes;
  const double bytes = tokens_ * as_double(shape_.width) * (element > 0 ? element : e_);

  // With sequence parallelism, each all-reduce is a reduce-scatter and an all-gather of the same
  // volume.
  const double seconds = links_.reduce(group, bytes);
  const double exposed = seconds * (1 - cluster_.software.tensor_overlap);
  t.tensor = {forward * exposed, backward * exposed};

  const double all = micro_batches_ * parts * (forward + backward);
  out_.tensor.bytes += all * ExchangeModel::reduce_bytes(group, bytes);
  out_.tensor.seconds += all * seconds;
}

void StepSimulator::add_context_exchange(LayerTimes& t) {
  if (layout_.context == 1) return;
  const double ranks = as_double(layout_.context);
  const bool leaves_node = layout_.tensor * layout_.context > cluster_.gpus_per_node;
  const double keys = as_double(std::max(shape_.kv_heads, layout_.tensor)) / tensor_;
  const double bytes = 2 * tokens_ * keys * as_double(shape_.head_width) * e_;

  // A ring passes keys and values, and in the backward pass also their gradients. Meanwhile, each
  // GPU computes attention to the keys that it has (Liu et al. 2023).
  const auto pass = [&](double size, double attention) {
    const double seconds = links_.send(leaves_node, size);
    out_.context.bytes += (ranks - 1) * size * micro_batches_ * as_double(shape_.layers) /
                          as_double(layout_.pipeline);
    out_.context.seconds += (ranks - 1) * seconds * micro_batches_ * as_double(shape_.layers) /
                            as_double(layout_.pipeline);
    return (ranks - 1) *
           std::max(cluster_.constants.collective_us * 1e-6, seconds - attention / ranks);
  };
  t.context.forward = pass(bytes, t.attention.forward);
  t.context.backward = pass(2 * bytes, t.attention.backward);
  if (layout_.recompute == Recompute::full) t.context.backward += pass(bytes, t.attention.forward);
}

void StepSimulator::add_work(const LayerTimes& t, double layers) {
  const double count = micro_batches_ * layers;
  out_.matmul += count * t.matmul.total();
  out_.attention += count * t.attention.total();
  out_.elementwise += count * t.elementwise.total();
  out_.recompute += count * t.recompute;
  out_.tensor.exposed += count * t.tensor.total();
  out_.context.exposed += count * t.context.total();
}

void StepSimulator::overlap(Exchange& exchange, double seconds, double compute,
                            bool allowed) const {
  const double hidden = allowed ? std::min(seconds, compute) : 0;
  exchange.seconds += seconds;
  exchange.exposed += seconds - hidden * (1 - cluster_.constants.contention);
}

void StepSimulator::add_data_exchange(const LayerTimes& layer, double layers, double others) {
  const int64_t ranks = layout_.data * layout_.context;
  if (ranks == 1) return;
  const SoftwareModel& software = cluster_.software;
  const RankGroup group = rank_group(ranks, layout_.tensor, cluster_.gpus_per_node);
  const double own = shape_.layer_parameters() / tensor_;
  const double all = layers * own + others;
  const double x = software.exchange_bytes;
  const Passes compute = {layers * layer.compute().forward, layers * layer.compute().backward};

  // Layers are exchanged one by one; the embedding and the head are exchanged together.
  const auto gather = [&](double bytes) {
    return layers * links_.gather(group, own * bytes) + links_.gather(group, others * bytes);
  };
  const auto each = [&](double count, double bytes, double window) {
    out_.data.bytes += count * ExchangeModel::gather_bytes(group, all * bytes);
    overlap(out_.data, count * gather(bytes), count * window, software.gradient_overlap);
  };

  // In a pipeline, ZeRO 2 and 3 exchange once in a step, as ZeRO 1 does.
  const int64_t stage = layout_.pipeline > 1 ? std::min<int64_t>(layout_.shard, 1) : layout_.shard;
  if (stage == 3) {
    each(micro_batches_, e_, compute.forward);
    each(micro_batches_, e_ + x, compute.backward);
  } else if (stage == 2) {
    each(1, e_, compute.forward);
    each(micro_batches_, x, compute.backward);
  } else if (stage == 1) {
    each(1, e_, compute.forward);
    each(1, x, compute.backward);
  } else {
    const double seconds =
        layers * links_.reduce(group, own * x) + links_.reduce(group, others * x);
    out_.data.bytes += ExchangeModel::reduce_bytes(group, all * x);
    overlap(out_.data, seconds, compute.backward, software.gradient_overlap);
  }
}

void StepSimulator::add_optimizer(double own) {
  const double g = cluster_.software.gradient_bytes;
  const double share = layout_.shard >= 1 ? as_double(layout_.data * layout_.context) : 1;

  // The norm and the update each read the gradients. The update reads and writes the state. If
  // there is a master, the update also reads and writes the master, and writes the weight. If there
  // is no master, the update reads and writes the weight.
  const double weight = step_.has_master() ? 2 * 4 + e_ : 2 * e_;
  out_.optimizer = kernels_.traffic(own / share * (2 * g + weight + 2 * step_.state_bytes), 100);
}

void StepSimulator::add_pipeline(const LayerTimes& layer, const LayerTimes& head,
                                 const LayersPerStage& layers) {
  const double stages = as_double(layout_.pipeline), parts = as_double(layout_.virtual_stages);
  const double first = layers.first * layer.total(), middle = layers.middle * layer.total();
  const double last = layers.last * layer.total() + head.total();

  // In 1F1B, every micro-batch takes the slowest stage's time. The times of the other stages count
  // once. If stages are interleaved, the times of the other stages count in part (Narayanan et al.
  // 2021: (p - 1) / (v m) of the step).
  const double slowest = std::max({first, last, stages > 2 ? middle : 0.0});
  const double all = as_double(shape_.layers) * layer.total() + head.total();
  out_.bubble = (all - slowest) / parts;

  // Stages send each other the activations of a micro-batch; each tensor rank sends its part.
  const bool leaves_node =
      layout_.tensor * layout_.context * layout_.data * layout_.pipeline > cluster_.gpus_per_node;
  const double bytes = tokens_ * as_double(shape_.width) * e_ / tensor_;
  const double sends = 2 * micro_batches_ * parts;
  out_.pipeline.bytes = sends * bytes;
  out_.pipeline.seconds = sends * links_.send(leaves_node, bytes);
  out_.pipeline.exposed = out_.pipeline.seconds * (1 - cluster_.software.tensor_overlap);

  // Report the work of the slowest stage.
  const bool is_last = slowest == last;
  add_work(layer, is_last ? layers.last : slowest == first ? layers.first : layers.middle);
  if (is_last) add_work(head, 1);
}

StepEstimate StepSimulator::run() {
  const LayerTimes one = layer(), output = head();
  const LayersPerStage layers = stage_layers(shape_.layers, layout_);
  const double table = as_double(shape_.vocab) * as_double(shape_.width) / tensor_;
  double others = table;

  if (layout_.pipeline > 1) {
    add_pipeline(one, output, layers);
  } else {
    add_work(one, layers.first);
    add_work(output, 1);
    others *= shape_.tied ? 1 : 2;
  }
  const double most = std::max(layers.first, layers.middle);
  add_data_exchange(one, most, others);
  add_optimizer(most * shape_.layer_parameters() / tensor_ + others);

  StepEstimate& s = out_;
  s.memory = gpu_memory(step_, layout_, cluster_.gpu, cluster_.software, cluster_.constants);
  s.memory_bytes = cluster_.gpu.memory_gb * 1e9;
  s.seconds = s.matmul + s.attention + s.elementwise + s.recompute + s.optimizer + s.bubble +
              s.data.exposed + s.tensor.exposed + s.context.exposed + s.pipeline.exposed;
  s.tokens_per_second = step_.tokens() / s.seconds;
  s.mfu = s.tokens_per_second * shape_.flops_per_token() /
          (as_double(layout_.gpus()) * kernels_.peak(step_.dtype));
  return s;
}

}  // namespace

StepEstimate estimate_step(const ClusterModel& cluster, const StepWorkload& step,
                           const ParallelLayout& layout) {
  return StepSimulator(cluster, step, layout).run();
}

}  // namespace lathe
