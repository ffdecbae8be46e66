#include "train/stepper.h"

#include <time.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "core/error.h"

namespace lathe {

StepResult run_step(Session& s, Loader& loader, int64_t step) {
  const TrainConfig& c = s.config.train;
  StepResult r;
  r.lr = learning_rate(s.config.schedule, s.config.optim.lr, step, c.steps);
  const double divisor =
      static_cast<double>(c.grad_accum * c.batch_size) * static_cast<double>(s.config.model.block_size);
  zero_grad(s.model);
  at::Tensor loss;
  for (int64_t micro = 0; micro < c.grad_accum; ++micro) {
    const Batch batch = loader.next();
    r.data_wait_s += loader.waited();
    const StepRandom random{static_cast<uint64_t>(c.seed), static_cast<uint64_t>(step), micro * c.batch_size};
    const at::Tensor part = run_micro_batch(s.model, batch, divisor, s.compute, random);
    loss = loss.defined() ? loss.add(part) : part;
  }
  r.grad_norm = global_grad_norm(s.optimizer);
  r.loss = loss.item().toDouble();
  if (!std::isfinite(r.loss) || !std::isfinite(r.grad_norm)) {
    fail(Exit::diverged, "step ", step + 1, " diverged: loss ", r.loss, ", gradient norm ", r.grad_norm,
         "; lower optim.lr or optim.grad_clip, or raise schedule.warmup_steps");
  }
  s.optimizer.step(r.lr, clip_scale(r.grad_norm, s.config.optim.grad_clip));
  return r;
}

double process_age() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // field 22 of the line: start time in clock ticks since boot
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace lathe
