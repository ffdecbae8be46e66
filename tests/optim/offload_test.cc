// Tests of optimizer state in a scratch file: reads return the written bytes in any order of use,
// and every optimizer gives the same bits as it does with its state in memory.
#include "optim/offload.h"

#include <ATen/Parallel.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "autograd/node.h"
#include "core/kernels/update.h"
#include "core/memory.h"
#include "tests/optim/optimizer_table.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns slots of many sizes: divisible slots with several pieces, indivisible slots, slots
/// without state, and slots of which this process owns only a part.
std::vector<OffloadedSlot> offload_slots(int64_t scale) {
  const int64_t chunk = grad_sum_chunk;
  const auto slot = [](int64_t n, ElementRange own, bool divisible,
                       std::vector<OffloadedTensor> tensors) {
    return OffloadedSlot{
        .tensors = std::move(tensors), .elements = n, .own = own, .is_divisible = divisible};
  };
  const auto adam = [](int64_t n) { return std::vector<OffloadedTensor>{{n, 4, 1}, {n, 4, 1}}; };
  std::vector<OffloadedSlot> slots{
      slot(5, {0, 5}, true, adam(5)),
      slot(scale * chunk + 17, {0, scale * chunk + 17}, true, adam(scale * chunk + 17)),
      slot(0, {0, 0}, true, adam(0)),
      slot(9 * chunk, {2 * chunk, 7 * chunk}, true, adam(9 * chunk)),
      slot(3 * chunk, {3 * chunk, 3 * chunk}, true, adam(3 * chunk)),
      slot(2 * chunk + 100, {0, 2 * chunk + 100}, false, {{130, 4, 1}, {70, 8, 1}}),
      slot(100, {0, 100}, false, {}),
      // This state has one byte per element, and a scale for each block of 256 elements.
      slot(2 * chunk + 300, {0, 2 * chunk + 300}, true,
           {{2 * chunk + 300, 1, 1}, {2 * chunk / 256 + 2, 4, 256}}),
      slot(4 * chunk, {0, 4 * chunk}, false, adam(4 * chunk)),
  };
  for (int64_t n = 1; n < 40; ++n) slots.push_back(slot(50 * n, {0, 50 * n}, true, adam(50 * n)));
  return slots;
}

TEST_CASE("units of a scratch file have the bytes that were written, in any order of use",
          "[offload]") {
  std::mt19937 random(5);
  for (const int64_t scale : {1, 40}) {
    const TempFolder f(fast_folder());
    const auto slots = offload_slots(scale);
    install_allocator();
    StateOffload offload(f.path(), slots);
    CHECK(names(f.path()).empty());
    const auto& units = offload.units();
    REQUIRE(units.size() > 8);

    // A unit is the part of a scratch file that use() reads. The oracle holds each unit's bytes,
    // which are zeros at first.
    std::vector<std::vector<unsigned char>> wanted;
    for (const auto& unit : units) wanted.emplace_back(unit.bytes);
    std::vector<size_t> order(units.size());
    std::iota(order.begin(), order.end(), size_t{0});

    for (int step = 0; step < 12; ++step) {
      // Use units in ascending, reverse and random order, with repetitions, and only some of them.
      if (step == 3) std::reverse(order.begin(), order.end());
      if (step >= 5) std::shuffle(order.begin(), order.end(), random);
      if (step == 7) order.insert(order.end(), {order[0], order[1], order[0], order[5]});
      if (step == 9) order.resize(order.size() / 2);
      bool is_equal = true;
      for (const size_t u : order) {
        std::byte* const memory = offload.use(u);
        is_equal = is_equal && std::memcmp(memory, wanted[u].data(), wanted[u].size()) == 0;
        for (size_t i = 0; i < wanted[u].size(); i += 1 + random() % 997)
          wanted[u][i] = static_cast<unsigned char>(random());
        std::memcpy(memory, wanted[u].data(), wanted[u].size());
      }
      CHECK(is_equal);
      offload.end_step();
    }
    CHECK(offload.times().bytes > 0);
  }
}

std::vector<unsigned char> offloaded_bytes(StateOffload& offload, size_t slot, size_t tensor) {
  std::vector<unsigned char> all;
  offload.read(slot, tensor, [&](std::span<const std::byte> part) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
    all.insert(all.end(), bytes, bytes + part.size());
  });
  return all;
}

TEST_CASE("complete tensors can be read from a scratch file and written to it", "[offload]") {
  const TempFolder f(fast_folder());
  const auto slots = offload_slots(5);
  StateOffload offload(f.path(), slots);
  std::mt19937 random(6);

  // The oracle holds the bytes of each state tensor. The second round replaces the bytes of the
  // first round.
  std::vector<std::vector<std::vector<unsigned char>>> wanted(slots.size());
  for (int round = 0; round < 2; ++round) {
    for (size_t s = 0; s < slots.size(); ++s) {
      wanted[s].resize(slots[s].tensors.size());
      for (size_t t = 0; t < slots[s].tensors.size(); ++t) {
        const OffloadedTensor& tensor = slots[s].tensors[t];
        const ElementRange part = slots[s].part(t, slots[s].own);
        if (slots[s].own.size() == 0) continue;
        auto& bytes = wanted[s][t];
        bytes.resize(static_cast<size_t>(part.size() * tensor.item));
        for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
        offload.write(s, t, bytes.data());
      }
    }

    // Each piece holds the elements of its range, and each element is in one piece.
    std::vector<int64_t> seen(slots.size());
    for (size_t u = 0; u < offload.units().size(); ++u) {
      std::byte* const memory = offload.use(u);
      for (const auto& piece : offload.units()[u].pieces) {
        const OffloadedSlot& slot = slots[piece.slot];
        seen[piece.slot] += piece.range.size();
        for (size_t t = 0; t < slot.tensors.size(); ++t) {
          const int64_t item = slot.tensors[t].item;
          const ElementRange part = slot.part(t, piece.range), own = slot.part(t, slot.own);
          std::byte* const here = memory + piece.offsets[t];
          unsigned char* const there =
              wanted[piece.slot][t].data() + (part.begin - own.begin) * item;
          const auto bytes = static_cast<size_t>(part.size() * item);
          CHECK(std::memcmp(here, there, bytes) == 0);
          // read() must return these changes although no step has ended.
          for (size_t i = 0; i < bytes; i += 100) there[i] = static_cast<unsigned char>(random());
          std::memcpy(here, there, bytes);
        }
      }
    }

    for (size_t s = 0; s < slots.size(); ++s) {
      CHECK(seen[s] == slots[s].own.size());
      for (size_t t = 0; t < wanted[s].size(); ++t) {
        CHECK(offloaded_bytes(offload, s, t) == wanted[s][t]);
      }
    }
  }
}

TEST_CASE("the buffers of a scratch file are a fraction of its size", "[offload]") {
  const auto buffers_of = [](std::vector<OffloadedSlot> slots) {
    install_allocator();
    const TempFolder f(fast_folder());
    const int64_t before = memory_stats().used[static_cast<size_t>(Memory::optimizer)];
    const StateOffload offload(f.path(), std::move(slots));
    return std::pair(memory_stats().used[static_cast<size_t>(Memory::optimizer)] - before,
                     offload.file_bytes());
  };
  const auto float_state = [](int64_t n) {
    return OffloadedTensor{.elements = n, .item = 4, .per = 1};
  };

  const int64_t large = int64_t{40} << 20;
  const auto [buffers, file] = buffers_of({{.tensors = {float_state(large), float_state(large)},
                                            .elements = large,
                                            .own = {0, large},
                                            .is_divisible = true}});
  CHECK(file == 8 * large);
  CHECK(buffers == (int64_t{64} << 20) + 4096);

  // A slot that can't be divided needs a buffer as large as the slot.
  const auto [whole, all] = buffers_of(
      {{.tensors = {float_state(large)},
        .elements = large,
        .own = {0, large},
        .is_divisible = false},
       {.tensors = {float_state(1000)}, .elements = 1000, .own = {0, 1000}, .is_divisible = true}});
  CHECK(whole >= 4 * large);
  CHECK(whole < 5 * large);
  CHECK(all > 4 * large);
}

const FileCalls offload_calls = file_calls;
int offload_calls_left = 0;

TEST_CASE("a failing disk gives an error at a later use of the state, and none at its destruction",
          "[offload]") {
  for (const bool reads : {false, true}) {
    INFO(reads);
    const TempFolder f(fast_folder());
    StateOffload offload(f.path(), offload_slots(5));

    // The disk fails after five calls, while later steps use the state.
    offload_calls_left = 5;
    if (reads) {
      file_calls.pread = [](int fd, void* data, size_t n, off_t offset) -> ssize_t {
        errno = EIO;
        return --offload_calls_left < 0 ? -1 : offload_calls.pread(fd, data, n, offset);
      };
    } else {
      file_calls.pwrite = [](int fd, const void* data, size_t n, off_t offset) -> ssize_t {
        errno = ENOSPC;
        return --offload_calls_left < 0 ? -1 : offload_calls.pwrite(fd, data, n, offset);
      };
    }

    const std::string error = error_of([&] {
      for (int step = 0; step < 3; ++step) {
        for (size_t u = 0; u < offload.units().size(); ++u) offload.use(u);
        offload.end_step();
      }
      offloaded_bytes(offload, 0, 0);
    });
    file_calls = offload_calls;
    CHECK_THAT(error, ContainsSubstring(f.path().string()));
    CHECK_THAT(error, ContainsSubstring(std::strerror(reads ? EIO : ENOSPC)));
  }
}

/// Returns parameters with several roles. Some are divided into pieces, and some are small.
std::vector<NamedParameter> offload_parameters(at::ScalarType dtype) {
  torch::manual_seed(3);
  std::vector<NamedParameter> all;
  const auto add = [&](std::vector<int64_t> sizes, Role role) {
    all.push_back({.path = "p" + std::to_string(all.size()),
                   .parameter = Variable::parameter(torch::randn(sizes).to(dtype)),
                   .role = role});
  };
  add({400, 100}, Role::embedding);
  add({130, 260}, Role::weight);
  add({130, 70}, Role::residual_weight);
  add({2 * grad_sum_chunk + 100}, Role::bias);
  add({0}, Role::bias);
  add({}, Role::scale);
  for (int i = 0; i < 8; ++i) {
    add({60, 50}, Role::weight);
    add({60}, Role::bias);
  }
  return all;
}

struct OffloadCase {
  at::ScalarType dtype = at::kFloat;
  bool in_stages = false, has_copies = false;
  std::vector<ElementRange> shares{};
};

/// Returns parameters, working copies and state after 4 steps. The state is in a file in `folder`,
/// or in memory if `folder` is empty.
std::vector<at::Tensor> offload_after_steps(const OptimConfig& c, const OffloadCase& how,
                                            const fs::path& folder) {
  const auto params = offload_parameters(how.dtype);
  if (how.has_copies) {
    for (const auto& p : params)
      p.parameter.leaf().precision.copy_low(p.parameter.data(), at::kBFloat16);
  }
  Optimizer optimizer(c, params, 9, {}, how.shares, folder);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(static_cast<uint64_t>(step) + 100);
    std::vector<at::Tensor> own;
    for (size_t i = 0; i < params.size(); ++i) {
      const Variable& p = params[i].parameter;
      at::Tensor g = torch::randn(p.sizes()).to(how.dtype);
      // One step is skipped because of a NaN. Some parameters have no gradient.
      if (step == 2 && i == 3) g[5] = NAN;
      if (step != 0 && i % 7 == 6) g = at::Tensor();
      if (how.shares.empty()) {
        p.leaf().grad = g;
      } else {
        own.push_back(
            g.defined() ? g.view({-1}).narrow(0, how.shares[i].begin, how.shares[i].size()).clone()
                        : g);
      }
    }
    const StepOptions options{.own_gradients = own, .sum_over_processes = [](at::Tensor&) {}};
    if (how.in_stages && step != 2) {
      optimizer.begin_stages();
      for (size_t i = 0; i < params.size(); ++i) {
        if (params[i].parameter.grad().defined()) optimizer.sum_gradient(i);
      }
      optimizer.decide(0.01, options);
      // Update the slots in another order than in the file.
      for (size_t i = params.size(); i-- > 0;) {
        const size_t other = (i * 5 + static_cast<size_t>(step)) % params.size();
        if (params[other].parameter.grad().defined()) optimizer.update_parameter(other, options);
      }
      optimizer.end_stages(options);
    } else {
      optimizer.step(0.01, options);
    }
    if (step == 2) optimizer.set_updates(optimizer.control().updates);
  }

  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.groups()) {
    for (const auto& slot : group.slots) {
      all.push_back(slot.param.data());
      if (how.has_copies) all.push_back(slot.param.leaf().precision.low);
      for (size_t i = 0; i < slot.state.size(); ++i) {
        CHECK(slot.state[i].is_meta() == !folder.empty());
        all.push_back(optimizer.read_state(slot.state[i], slot.parts[i]));
      }
    }
  }
  return all;
}

TEST_CASE("every optimizer gives the same bits with its state in a file as in memory",
          "[offload]") {
  std::vector<ElementRange> second_half;
  for (const auto& p : offload_parameters(at::kFloat)) {
    const int64_t n = p.parameter.numel();
    second_half.push_back({n / 2 / grad_sum_chunk * grad_sum_chunk, n});
  }
  const std::vector<OffloadCase> cases{{},
                                       {.in_stages = true},
                                       {.dtype = at::kBFloat16},
                                       {.has_copies = true},
                                       {.dtype = at::kDouble},
                                       {.shares = second_half}};
  const TempFolder f(fast_folder());
  std::set<std::string> seen;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const Row& row : optimizer_rows()) {
    if (row.kind == "sgd") continue;  // sgd has no state
    // Later rows of the same kind only change its formula, so they run only one case.
    const size_t count = seen.insert(row.kind).second ? cases.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      INFO(row.kind << " " << row.label << ", case " << i);
      OptimConfig c;
      c.kind = row.kind;
      c.grad_clip = 0.5;
      c.weight_decay = 0.1;
      row.set(c);
      c.ema_decay = i % 2 == 0 ? 0.9 : 0;
      if (i == 3) c.grad_clip_by = "parameter";
      const bool divides = row.kind != "lamb" && row.kind != "muon" && row.kind != "adafactor";
      if (!cases[i].shares.empty() && !divides) continue;

      const auto memory = offload_after_steps(c, cases[i], {}),
                 file = offload_after_steps(c, cases[i], f.path());
      REQUIRE(memory.size() == file.size());
      bool is_equal = true;
      for (size_t t = 0; t < memory.size(); ++t) is_equal = is_equal && file[t].equal(memory[t]);
      CHECK(is_equal);
    }
  }
  at::set_num_threads(threads);

  // The comparison notices another beta1.
  OptimConfig c;
  const auto memory = offload_after_steps(c, {}, {});
  c.beta1 = 0.91;
  CHECK(!offload_after_steps(c, {}, f.path())[0].equal(memory[0]));
  CHECK(names(f.path()).empty());
}

TEST_CASE("an EMA of parameters counts as state, and an optimizer without state is refused",
          "[offload]") {
  const TempFolder f(fast_folder());
  OptimConfig c;
  c.kind = "sgd";
  const auto make = [&] { Optimizer(c, offload_parameters(at::kFloat), {}, {}, {}, f.path()); };
  CHECK_THAT(error_of(make), ContainsSubstring("memory.offload") && ContainsSubstring("sgd"));
  c.ema_decay = 0.9;
  CHECK(error_of(make) == "");
  const auto memory = offload_after_steps(c, {}, {}), file = offload_after_steps(c, {}, f.path());
  for (size_t t = 0; t < memory.size(); ++t) CHECK(file[t].equal(memory[t]));
}

}  // namespace
