#include "train/step/stage_link.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "core/memory.h"
#include "core/timing.h"
#include "dist/group.h"
#include "dist/world.h"

namespace lathe {
namespace {

/// The number of int64 values that are sent before a tensor: its dtype, its number of dimensions,
/// and up to 8 sizes.
constexpr size_t header_size = 10;

at::Tensor header_of(const at::Tensor& t) {
  LATHE_CHECK(t.dim() + 2 <= static_cast<int64_t>(header_size), "blocks exchange a tensor of ",
              t.dim(), " dimensions, which is more than 8");
  at::Tensor header = at::zeros({static_cast<int64_t>(header_size)}, at::kLong);
  auto* const fields = header.mutable_data_ptr<int64_t>();
  fields[0] = static_cast<int64_t>(t.scalar_type());
  fields[1] = t.dim();
  std::copy(t.sizes().begin(), t.sizes().end(), fields + 2);
  return header;
}

}  // namespace

StageLink::StageLink(const StageParameters& stage) : stage_(stage), place_(world().pipeline()) {}

std::pair<size_t, size_t> StageLink::blocks(int part, size_t n) const {
  LATHE_CHECK(stage_.all_blocks() == static_cast<int64_t>(n), "dist.pipeline: the model runs ", n,
              " blocks, but the number of blocks with parameters is ", stage_.all_blocks());
  const ElementRange own = stage_.blocks(part);
  return {own.begin, own.end};
}

std::function<void()> StageLink::send_activations(const at::Tensor& y) const {
  if (DryWorld* const dry = world().dry()) dry->sent.push_back({y.sizes().vec(), y.scalar_type()});
  std::function<void()> wait;
  world().guarded([&] {
    Group& group = world().stages();
    const auto header = group.send(header_of(y), after());
    const auto values = group.send(y, after());
    wait = [header, values] {
      header();
      values();
    };
  });
  return wait;
}

at::Tensor StageLink::receive_activations(const at::Tensor& x) {
  const MemoryScope memory(Memory::activations);
  at::Tensor header = at::empty({static_cast<int64_t>(header_size)}, at::kLong);
  receive(header, before());

  TensorForm form;
  if (DryWorld* const dry = world().dry()) {
    // A dry run begins with the first stage, before any other stage has recorded what it sends. For
    // the next part of the first stage, assume that the input has the same form as the tensor that
    // the first stage sent last.
    form = place_.rank == 0 ? dry->sent.back() : dry->received.at(dry->received_count++);
  } else {
    const int64_t* const fields = header.const_data_ptr<int64_t>();
    form = {{fields + 2, fields + 2 + fields[1]}, static_cast<at::ScalarType>(fields[0])};
  }
  at::Tensor t = at::empty(form.sizes, x.options().dtype(form.dtype));
  receive(t, before());
  return t;
}

std::function<void()> StageLink::send_gradient(const at::Tensor& dx) const {
  std::function<void()> wait;
  world().guarded([&] { wait = world().stages().send(dx, before()); });
  return wait;
}

void StageLink::receive_gradient(at::Tensor& dy) { receive(dy, after()); }

void StageLink::receive(at::Tensor& t, int from) {
  const auto begin = Clock::now();
  world().guarded([&] { world().stages().receive(t, from); });
  waited_ += seconds_since(begin);
}

}  // namespace lathe
