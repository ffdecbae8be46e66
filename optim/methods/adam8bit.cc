#include "core/kernels/adam8bit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <optional>

#include "core/dry_run.h"
#include "core/dtype.h"
#include "core/kernels/rules.h"
#include "core/parallel.h"
#include "optim/methods/pieces.h"
#include "optim/methods/table.h"
#include "optim/methods/tensors.h"

namespace lathe {
namespace {

/// The levels of a moment on a device, and the bounds between them.
struct Levels {
  at::Tensor values, bounds;

  Levels(bool with_sign, at::Device device)
      : values(on(device, dynamic_levels(with_sign))),
        bounds(on(device, level_bounds(with_sign))) {}

 private:
  template <size_t n>
  static at::Tensor on(at::Device device, const std::array<float, n>& values) {
    return at::from_blob(const_cast<float*>(values.data()), {n}, at::kFloat).to(device);
  }
};

/// The codes of a moment, and the scale of each block of codes.
class Moment {
 public:
  Moment(void* codes, float* scales, const Levels& levels, int64_t n, int64_t block)
      : n_(n), block_(block), blocks_(divide_up(n, block)), levels_(levels) {
    const auto on_device = at::TensorOptions().device(levels.values.device());
    codes_ = at::from_blob(codes, {n}, on_device.dtype(at::kByte));
    scales_ = at::from_blob(scales, {blocks_, 1}, on_device.dtype(at::kFloat));
  }

  /// Returns the decoded moment, float32 [n].
  at::Tensor values() const {
    // A dry run has no codes to look up.
    const at::Tensor of_codes = is_dry_run() ? at::empty(codes_.sizes(), levels_.values.options())
                                             : levels_.values.index_select(0, codes_.to(at::kInt));
    return (in_blocks(of_codes) * scales_).view({-1}).narrow(0, 0, n_).contiguous();
  }

  /// Encodes `values` [n], rounded to the nearest levels, unless the step is skipped.
  void round(const at::Tensor& values, const SlotTensors& of) {
    const at::Tensor blocks = in_blocks(values);
    const at::Tensor largest = blocks.abs().amax(1, /*keepdim=*/true);
    // A block of zeros has the scale 0 and the code of 0.
    const at::Tensor relative = blocks / largest.masked_fill(largest.eq(0), 1);
    const at::Tensor codes = at::bucketize(relative, levels_.bounds, /*out_int32=*/true);
    of.set(codes_, codes.view({-1}).narrow(0, 0, n_).to(at::kByte));
    of.set(scales_, largest);
  }

 private:
  /// Returns numbers [n] as [blocks, block], with zeros at the end.
  at::Tensor in_blocks(const at::Tensor& t) const {
    return at::constant_pad_nd(t, {0, blocks_ * block_ - n_}).view({blocks_, block_});
  }

  int64_t n_, block_, blocks_;
  const Levels& levels_;
  at::Tensor codes_, scales_;
};

/// Adam and AdamW with moments in 8 bits, see core/kernels/adam8bit.h. Tensors of fewer than 4096
/// elements keep their moments in the dtype that adam and adamw use.
class Adam8bit final : public Method {
 public:
  explicit Adam8bit(const OptimConfig& config)
      : rule_(rule_of(config)), decoupled_(config.kind == "adamw8bit"), block_(config.state_block) {
    rule_.kind = decoupled_ ? rule_kind<AdamW> : rule_kind<Adam>;
  }
  UpdateRule rule() const override { return rule_; }

  MethodState state(const NamedParameter& p) const override {
    constexpr int64_t least = 4096;
    const at::Tensor& t = p.parameter.data();
    if (t.numel() < least) {
      MethodState state = state_of_rule(rule_, t);
      state.divisible = true;
      return state;
    }

    const int64_t blocks = (t.numel() + block_ - 1) / block_;
    return {.tensors =
                {{.name = "exp_avg", .sizes = t.sizes().vec(), .dtype = at::kByte, .place = 0},
                 {.name = "exp_avg_sq", .sizes = t.sizes().vec(), .dtype = at::kByte, .place = 1},
                 {.name = "exp_avg_scale",
                  .sizes = {blocks},
                  .dtype = at::kFloat,
                  .place = 2,
                  .start = 0,
                  .per = block_},
                 {.name = "exp_avg_sq_scale",
                  .sizes = {blocks},
                  .dtype = at::kFloat,
                  .place = 3,
                  .start = 0,
                  .per = block_}},
            .whole = true,
            .divisible = grad_sum_chunk % block_ == 0};
  }

  bool runs_on_gpu() const override { return true; }

  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
              bool cuda) const override {
    // Copy the levels once. Otherwise each use of the levels on a GPU would copy the levels there,
    // and wait for the copy.
    std::optional<std::array<Levels, 2>> levels;
    if (const auto device = device_of_tensors(cuda))
      levels = {Levels(/*with_sign=*/true, *device), Levels(/*with_sign=*/false, *device)};

    for (const SlotUpdate& slot : slots) {
      if (!slot.whole) {
        update_elements({slot}, rule, control, cuda);
        continue;
      }
      if (levels) {
        update_by_tensors(slot.args, rule, control, *levels);
        continue;
      }
      const Adam8bitArgs args{.update = slot.args, .block = block_, .decoupled = decoupled_};
      const int64_t blocks = (slot.args.n + block_ - 1) / block_, grain = 1 + (1 << 14) / block_;
      parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
        adam8bit_cpu(args, rule, control, begin, end);
      });
    }
  }

 private:
  /// Does the same as adam8bit_cpu(), by ATen's ops. Processes several blocks at a time: converts
  /// their moments to numbers, updates them by the rule of adam or adamw, and rounds them to codes.
  void update_by_tensors(const UpdateArgs& all, const UpdateRule& rule, StepControl* control,
                         const std::array<Levels, 2>& levels) const {
    const at::Device device = levels[0].values.device();
    const int64_t at_once = std::max<int64_t>(block_, (int64_t{4} << 20) / block_ * block_);
    for (int64_t begin = 0; begin < all.n; begin += at_once) {
      UpdateArgs args = part_of(all, begin, std::min(all.n, begin + at_once));
      const auto moment = [&](size_t which) {
        return Moment(static_cast<uint8_t*>(all.state[which]) + begin,
                      static_cast<float*>(all.state[2 + which]) + begin / block_, levels[which],
                      args.n, block_);
      };
      Moment moments[2] = {moment(0), moment(1)};
      const at::ScalarType dtype = dtype_of(state_type(args.param_type));
      at::Tensor values[2];
      for (int which : {0, 1}) {
        values[which] = moments[which].values().to(dtype);
        args.state[which] = values[which].mutable_data_ptr();
        args.state[2 + which] = nullptr;
      }
      const SlotUpdate slot{.args = args, .sizes = {}, .whole = false};
      update_elements({slot}, rule, control, device.is_cuda());
      const SlotTensors of(slot, rule, control, device);
      for (int which : {0, 1}) moments[which].round(values[which].to(at::kFloat), of);
    }
  }

  UpdateRule rule_;
  bool decoupled_;
  int64_t block_;
};

}  // namespace

std::unique_ptr<Method> make_adam8bit(const OptimConfig& config) {
  return std::make_unique<Adam8bit>(config);
}

}  // namespace lathe
