#include "core/kernels/adam8bit.h"

#include "core/kernels/rules.h"
#include "core/parallel.h"
#include "optim/methods/pieces.h"
#include "optim/methods/table.h"

namespace lathe {
namespace {

/// Adam and AdamW with moments in 8 bits, see core/kernels/adam8bit.h. Tensors of less than 4096
/// elements keep their moments in the dtype of adam and adamw.
class Adam8bit final : public Method {
 public:
  explicit Adam8bit(const OptimConfig& config)
      : rule_(rule_of(config)), decoupled_(config.kind == "adamw8bit"), block_(config.state_block) {
    rule_.kind = decoupled_ ? rule_kind<AdamW> : rule_kind<Adam>;
  }
  UpdateRule rule() const override { return rule_; }

  StateOf state(const NamedParameter& p) const override {
    constexpr int64_t least = 4096;
    const at::Tensor& t = p.parameter.data();
    if (t.numel() < least) {
      StateOf state = state_of_rule(rule_, t);
      state.divisible = true;
      return state;
    }

    const int64_t blocks = (t.numel() + block_ - 1) / block_;
    return {.tensors = {{"exp_avg", t.sizes().vec(), at::kByte, 0},
                        {"exp_avg_sq", t.sizes().vec(), at::kByte, 1},
                        {"exp_avg_scale", {blocks}, at::kFloat, 2, 0, block_},
                        {"exp_avg_sq_scale", {blocks}, at::kFloat, 3, 0, block_}},
            .whole = true,
            .divisible = grad_sum_chunk % block_ == 0};
  }

  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
              bool) const override {
    for (const SlotUpdate& slot : slots) {
      if (!slot.whole) {
        update_elements({slot}, rule, control, false);
        continue;
      }
      const Adam8bitArgs args{slot.args, block_, decoupled_};
      const int64_t blocks = (slot.args.n + block_ - 1) / block_, grain = 1 + (1 << 14) / block_;
      parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
        adam8bit_cpu(args, rule, control, begin, end);
      });
    }
  }

 private:
  UpdateRule rule_;
  bool decoupled_;
  int64_t block_;
};

}  // namespace

std::unique_ptr<Method> make_adam8bit(const OptimConfig& config) {
  return std::make_unique<Adam8bit>(config);
}

}  // namespace lathe
