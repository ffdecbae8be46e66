// Tests of user-defined models whose forward pass updates a buffer.
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/running_statistic.h"
#include "nn/layers.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/session/session.h"
#include "train/step/stepper.h"

namespace {

using namespace lathe;
using namespace lathe::test;

struct MovingConfig {
  LATHE_FIELD(int64_t, block_size, 32, "Context length, in tokens.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, vocab_size, 0, "Size of the vocabulary.", between(0, 1000).fixed())
  LATHE_FIELD(bool, in_place, true, "Whether the buffer is changed in place.", anything().fixed())
};

/// A model that adds the running mean of its embeddings to them. Each forward pass of training
/// updates the mean, in the buffer `seen`.
struct Moving {
  bool in_place;
  Embedding tokens;
  std::vector<Linear> layers;
  Linear head;
  at::Tensor seen = new_buffer({16}, 0);

  explicit Moving(const MovingConfig& c)
      : in_place(c.in_place),
        tokens(c.vocab_size, 16),
        head(16, c.vocab_size, /*with_bias=*/false, Role::head) {
    for (int i = 0; i < 2; ++i) layers.emplace_back(16, 16, /*with_bias=*/true);
  }
  Variable operator()(const at::Tensor& ids) const {
    const Variable x = tokens(ids) * 2.0 + Variable(seen);
    if (is_training()) {
      const NoGrad no_grad;
      const at::Tensor mean = x.data().mean(at::IntArrayRef{0, 1});
      if (in_place)
        move_running(seen, mean, 0.5);
      else
        record_running({.running = seen, .value = mean, .momentum = 0.5});
    }
    const auto block = [this](size_t i, const Variable& h) { return h + tanh(layers[i](h)); };
    return head(run_blocks(layers.size(), x + Variable(seen), block));
  }
  void visit(Visit& v) {
    v("tokens", tokens);
    v.blocks("layers", layers);
    v("head", head);
    v.buffer("seen", seen);
  }
};

using Keys = std::vector<std::pair<std::string, std::string>>;

/// Trains the model for three steps, and returns the values of all its parameters and buffers.
at::Tensor trained(const TempFolder& f, Keys keys) {
  if (find_model_kind("moving") == nullptr)
    add_model_kind(model_kind<Moving, MovingConfig>("moving", "a model that moves a buffer"));
  const Keys all{{"model.kind", "moving"},     {"data.dir", (f / "data").string()},
                 {"train.batch_size", "32"},   {"train.threads", "1"},
                 {"train.grad_accum", "1"},    {"train.device", "cpu"},
                 {"train.eval_interval", "0"}, {"schedule.warmup_steps", "0"}};
  keys.insert(keys.end(), all.begin(), all.end());
  write_file(f / "moving.toml", "[train]\nsteps = 3\n");
  LoadedConfig loaded = load_config((f / "moving.toml").string(), keys);
  const RunData data = RunData::open(loaded);
  Session session = Session::make(data);
  Loader loader = training_loader(session, *data.data, 0);
  for (int64_t step = 0; step < 3; ++step) run_step(session, loader, step);

  std::vector<at::Tensor> values;
  for (const NamedParameter& p : parameters(*session.model)) values.push_back(p.parameter.data());
  for (const NamedBuffer& b : buffers(*session.model)) values.push_back(b.tensor);
  for (at::Tensor& t : values) t = t.reshape({-1});
  return torch::cat(values);
}

TEST_CASE("ops that read a buffer are not deferred, since the forward pass may change it",
          "[moved_buffers]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const at::Tensor off = trained(f, {{"train.fuse", "off"}});
  CHECK(trained(f, {{"train.fuse", "auto"}}).equal(off));
}

TEST_CASE("a buffer that is changed in place is refused if the config runs forward passes twice",
          "[moved_buffers]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Keys recorded{{"model.in_place", "false"}};
  const auto with = [&](Keys keys, const Keys& more) {
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  };
  const at::Tensor plain = trained(f, recorded);
  for (const Keys& twice :
       {Keys{{"memory.recompute", "blocks"}},
        Keys{{"memory.update_in_backward", "true"}, {"optim.grad_clip", "1"}}}) {
    INFO(twice[0].first);
    CHECK_THROWS_WITH(trained(f, twice),
                      ContainsSubstring("buffer seen") && ContainsSubstring(twice[0].first));
    CHECK(trained(f, with(recorded, twice)).equal(plain));
  }
}

}  // namespace
