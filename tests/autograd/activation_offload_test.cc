// Tests of memory.offload = "activations": saved tensors that come back from the disk are bitwise
// unchanged, and memory holds only a window of them.
#include "autograd/activation_offload.h"

#include <fstream>

#include "autograd/engine.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/ops/math.h"
#include "autograd/pinned_activations.h"
#include "autograd/recompute.h"
#include "core/dry_run.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/op_case.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using lathe::test::TempFolder;

int64_t activation_bytes() { return memory_stats().used[static_cast<size_t>(Memory::activations)]; }

/// Returns the tensors that offloading must not change: results, gradients, and gradients of
/// gradients.
std::vector<at::Tensor> derivatives(const test::OpCase& row, ActivationOffloader* offload,
                                    size_t* packed, at::Device device = at::kCPU) {
  const TrainingStep step(test::step_random);
  std::vector<Variable> parameters, in;
  std::optional<OffloadActivations> guard;
  if (offload != nullptr) guard.emplace(*offload);
  const ObserveOps observe({.on_result = [&](const OpResult& result) {
    if (result.node != nullptr && result.node->packed) ++*packed;
  }});
  for (const at::Tensor& value : test::inputs_of(row)) {
    const bool is_trained = row.inputs[parameters.size()].grad;
    const at::Tensor there = value.to(device);
    parameters.push_back(is_trained ? Variable::parameter(there) : Variable(there));
    // Fused layers need their weights to be parameters.
    const bool is_weight = row.op.starts_with("linear") && !in.empty();
    in.push_back(is_trained && !is_weight ? parameters.back() * 1.0 : parameters.back());
  }
  const Variable y = row.ours(in);
  std::vector<at::Tensor> out{y.data()};
  if (!y.requires_grad()) return out;

  const Variable dy(torch::ones_like(y.data()));
  const auto first = grad(y, parameters, dy, /*create_graph=*/row.second);
  for (const Variable& g : first) {
    out.push_back(g.data());
    if (!g.defined() || !g.requires_grad()) continue;
    for (const Variable& gg : grad(sum(g * g), parameters, {}, false, /*retain=*/true))
      out.push_back(gg.data());
  }
  return out;
}

TEST_CASE("every op has bitwise the same derivatives with its saved tensors on the disk",
          "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  DiskOffloader offload(f.path(), /*window=*/0, /*least=*/1);
  size_t packed = 0, unpacked = 0;
  for (const test::OpCase& row : test::op_table()) {
    INFO(row.op << " (" << row.label << ")");
    const auto plain = derivatives(row, nullptr, &unpacked);
    const auto ours = derivatives(row, &offload, &packed);
    REQUIRE(ours.size() == plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      REQUIRE(ours[i].defined() == plain[i].defined());
      if (plain[i].defined()) CHECK(at::equal(ours[i].nan_to_num(7), plain[i].nan_to_num(7)));
    }
  }
  CHECK(packed > 300);
  CHECK(unpacked == 0);
  CHECK(offload.times().bytes > 0);
}

TEST_CASE("every op has the same derivatives on a GPU with its saved tensors on the host",
          "[activation_offload][gpu]") {
  if (test::skip_without_gpu()) return;
  PinnedOffloader offload(/*window=*/0, /*least=*/1);
  size_t packed = 0, unpacked = 0;
  for (const test::OpCase& row : test::op_table()) {
    INFO(row.op << " (" << row.label << ")");
    const auto plain = derivatives(row, nullptr, &unpacked, at::kCUDA);
    const auto ours = derivatives(row, &offload, &packed, at::kCUDA);
    REQUIRE(ours.size() == plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      REQUIRE(ours[i].defined() == plain[i].defined());
      // Some of ATen's ops are not deterministic on a GPU.
      if (plain[i].defined())
        CHECK(at::allclose(ours[i].nan_to_num(7), plain[i].nan_to_num(7), 1e-9, 1e-9));
    }
  }
  CHECK(packed > 300);
  CHECK(offload.times().bytes > 0);
}

/// Applies sin n times. Each of these ops keeps its input.
Variable long_chain(const Variable& x, int n) {
  Variable y = x * 1.0;
  for (int i = 0; i < n; ++i) y = sin(y);
  return y;
}

TEST_CASE("memory holds a window of the activations, forward and backward",
          "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  constexpr int64_t each = 256 << 10, n = 40;
  const Variable x = Variable::parameter(torch::randn({256, 256}));
  const at::Tensor plain = grad(sum(long_chain(x, n)), {x})[0].data();

  for (const int64_t window : {0, 8}) {
    INFO(window);
    DiskOffloader offload(f.path(), static_cast<size_t>(window * each));
    const OffloadActivations guard(offload);
    const int64_t before = activation_bytes();
    const Variable y = sum(long_chain(x, n));
    // The window has space for at least three of the largest tensors.
    const int64_t most = std::max<int64_t>(window, 3);
    CHECK(activation_bytes() - before <= (most + 2) * each);
    CHECK(activation_bytes() - before >= most * each);
    CHECK(offload.file_bytes() >= n * each);

    reset_memory_peaks();
    CHECK(at::equal(grad(y, {x})[0].data(), plain));
    const int64_t peak = memory_stats().peak[static_cast<size_t>(Memory::activations)];
    CHECK(peak - before <= (most + 6) * each);
    // All tensors are written and read, except the tensors that are still in memory. The latter are
    // not read, and some of them were never written. How many tensors are still in memory depends
    // on the disk's speed.
    const int64_t transferred = offload.times().bytes / each;
    CHECK(transferred >= 2 * (n - most - 6));
    CHECK(transferred <= 2 * n + 2);
  }
}

TEST_CASE("tensors that share memory are written once, and come back with their strides",
          "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  const Variable x = Variable::parameter(torch::randn({64, 192}));
  const auto heads = [](const Variable& v) {
    const Variable q = slice(v, 1, 0, 64), k = slice(v, 1, 64, 128), t = transpose(v, 0, 1);
    return sum(sin(q) * cos(k)) + sum(sin(t)) + sum(v * v);
  };
  const auto gradient = [&](DiskOffloader* offload) {
    std::optional<OffloadActivations> guard;
    if (offload != nullptr) guard.emplace(*offload);
    const Variable y = heads(x * 1.0);
    return grad(y, {x})[0].data();
  };
  DiskOffloader offload(f.path(), 0, 1);
  CHECK(at::equal(gradient(&offload), gradient(nullptr)));

  // Test the strides of a transposed tensor that sin() saves.
  std::vector<std::vector<int64_t>> strides;
  {
    const OffloadActivations guard(offload);
    const Variable h = transpose(x * 1.0, 0, 1);
    for (int i = 0; i < 8; ++i) long_chain(x, 1);  // saves and frees other tensors
    const Variable y = sin(h);
    y.node()->visit_saved([&](Saved& saved) {
      if (saved.packed() != nullptr) strides.push_back(saved.packed()->unpacked().strides().vec());
    });
  }
  CHECK((strides == std::vector<std::vector<int64_t>>{{1, 192}}));
}

TEST_CASE("recomputed parts keep their inputs on the disk", "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  const Variable x = Variable::parameter(torch::randn({256, 256}));
  constexpr int64_t each = 256 << 10, blocks = 12;
  const auto block = [](const Variable& v) { return sin(cos(v)) + v; };
  const auto model = [&](const Variable& v) {
    Variable y = v * 1.0;
    for (int i = 0; i < blocks; ++i) y = recompute(block, y);
    return sum(y);
  };
  const at::Tensor plain = grad(model(x), {x})[0].data();
  const int64_t kept = [&] {
    const MemoryScope scope(Memory::activations);
    const int64_t before = activation_bytes();
    const Variable y = model(x);
    return activation_bytes() - before;
  }();
  CHECK(kept >= blocks * each);

  DiskOffloader offload(f.path(), 0);
  const OffloadActivations guard(offload);
  const int64_t before = activation_bytes();
  const Variable y = model(x);
  CHECK(activation_bytes() - before <= 5 * each);
  CHECK(at::equal(grad(y, {x})[0].data(), plain));
  // An in-place change of an input is still noticed if the input is in memory at the time of the
  // change.
  const Variable h = x * 1.0, z = recompute(block, h);
  h.data().add_(1);
  CHECK_THAT(error_of([&] { grad(sum(z), {x}); }),
             ContainsSubstring("disk") && ContainsSubstring("in place"));
}

TEST_CASE("graphs may be retained, run backward again, freed, or never run backward",
          "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  const Variable x = Variable::parameter(torch::randn({256, 256}));
  DiskOffloader offload(f.path(), 0);
  const OffloadActivations guard(offload);
  const Variable kept = sum(long_chain(x, 10));
  for (int i = 0; i < 5; ++i) sum(long_chain(x, 10));  // these graphs never run backward
  const auto gradient = [&](bool retain) { return grad(kept, {x}, {}, false, retain)[0].data(); };
  const at::Tensor first = gradient(true), second = gradient(true), third = gradient(false);
  CHECK(at::equal(first, second));
  CHECK(at::equal(first, third));

  // The file space of freed graphs is reused, even while another graph is alive and holds an
  // earlier part of the file.
  const Variable stays = sum(long_chain(x, 10));
  const int64_t bytes = offload.file_bytes();
  for (int i = 0; i < 400; ++i) grad(sum(long_chain(x, 10)), {x});
  CHECK(offload.file_bytes() == bytes);
  CHECK(at::equal(grad(stays, {x})[0].data(), first));
}

TEST_CASE("changing a tensor in place after an op saved it is an error", "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  const Variable x = Variable::parameter(torch::randn({256, 256}));
  DiskOffloader offload(f.path(), 0);
  const OffloadActivations guard(offload);
  const Variable h = x * 1.0;
  const Variable y = sum(sin(h));
  CHECK(error_of([&] { grad(y, {x}, {}, false, true); }).empty());  // no error before the change
  h.data().add_(1);
  CHECK_THAT(error_of([&] { grad(y, {x}); }), ContainsSubstring("in place"));
}

TEST_CASE("a disk error ends the pass with an error that names the scratch file",
          "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  const Variable x = Variable::parameter(torch::randn({256, 256}));
  const FileCalls calls = file_calls;
  static int left = 0;  // number of calls that still succeed

  for (const char* call : {"fallocate", "pwrite", "pread"}) {
    for (const int n : {0, 3}) {
      INFO(call << " " << n);
      DiskOffloader offload(f.path(), 0);
      const OffloadActivations guard(offload);
      const auto step = [&] { grad(sum(long_chain(x, 12)), {x}); };
      CHECK(error_of(step).empty());  // no error while all calls succeed

      left = call == std::string("fallocate") ? 0 : n;
      if (call == std::string("fallocate")) {
        file_calls.fallocate = [](int, int, off_t, off_t) { return errno = ENOSPC, -1; };
      } else if (call == std::string("pwrite")) {
        file_calls.pwrite = [](int fd, const void* data, size_t size, off_t at) -> ssize_t {
          return left-- > 0 ? ::pwrite(fd, data, size, at) : (errno = ENOSPC, -1);
        };
      } else {
        file_calls.pread = [](int fd, void* data, size_t size, off_t at) -> ssize_t {
          return left-- > 0 ? ::pread(fd, data, size, at) : (errno = EIO, -1);
        };
      }

      // The file has space for another step of this size, so only a longer chain makes the file
      // grow.
      const bool must_grow = call == std::string("fallocate");
      const std::string error = error_of([&] {
        if (must_grow)
          grad(sum(long_chain(x, 400)), {x});
        else
          step();
      });

      file_calls = calls;
      CHECK_THAT(error, ContainsSubstring("scratch file") && ContainsSubstring(f.path().string()));
    }
  }
}

TEST_CASE("a dry run has the same peak of activations as a real run", "[activation_offload]") {
  install_allocator();
  const TempFolder f;
  const auto peak_of_step = [&] {
    const MemoryScope scope(Memory::activations);
    const Variable x = Variable::parameter(torch::ones({256, 256}));
    DiskOffloader offload(f.path(), 1 << 20);
    const OffloadActivations guard(offload);
    reset_memory_peaks();
    const int64_t before = activation_bytes();
    for (int i = 0; i < 3; ++i) grad(sum(long_chain(x, 30)), {x});
    CHECK(offload.file_bytes() > 0);
    return memory_stats().peak[static_cast<size_t>(Memory::activations)] - before;
  };
  const auto real = static_cast<double>(peak_of_step());
  const DryRun dry;
  const auto planned = static_cast<double>(peak_of_step());
  // A thread that writes or reads an activation holds it a little longer than the graph does. A
  // real step may therefore need memory for one more activation per thread.
  constexpr double activation = 256 * 256 * sizeof(float);
  CHECK(real >= 0.97 * planned);
  CHECK(real <= 1.03 * planned + 2 * activation);
}

}  // namespace
