// Tests of the allocator of CPU tensors: it reserves little more memory than is needed, its blocks
// never overlap, and it counts bytes.
#include <ATen/core/Tensor.h>

#include <thread>

#include "core/memory.h"
#include "core/rng.h"
#include "tests/support/catch.h"

extern "C" int __asan_address_is_poisoned(const void*)
    __attribute__((weak));  // defined only under the address sanitizer

namespace {

using namespace lathe;

constexpr int64_t megabyte = 1 << 20;

at::Tensor bytes(int64_t n) { return at::empty({n}, at::kByte); }

/// Returns a random number below n that depends only on i.
int64_t draw(uint64_t i, int64_t n) {
  return static_cast<int64_t>(philox(counter(i, 0), make_key(1, hash_name("allocator")))[0] %
                              static_cast<uint64_t>(n));
}

double held_against_peak() {
  const MemoryStats s = memory_stats();
  return static_cast<double>(s.reserved) / static_cast<double>(s.total_peak);
}

TEST_CASE("tensors of growing size, one alive at a time, reserve less than 1.3 times the largest",
          "[allocator]") {
  reset_memory_peaks();
  for (int64_t i = 1; i <= 51; ++i) bytes(i * megabyte);
  CHECK(memory_stats().total_peak >= 51 * megabyte);
  CHECK(held_against_peak() < 1.3);
  for (int64_t i = 51; i >= 1; --i) bytes(i * megabyte - 12345);
  CHECK(held_against_peak() < 1.3);
}

TEST_CASE("shapes that change from step to step reserve less than 1.3 times the peak of live bytes",
          "[allocator]") {
  reset_memory_peaks();
  uint64_t n = 0;
  std::vector<at::Tensor> kept;  // weights, which stay alive
  for (int i = 0; i < 20; ++i) kept.push_back(bytes(megabyte + draw(n++, megabyte)));
  for (int step = 0; step < 60; ++step) {
    const int64_t rows = 200 + draw(n++, 800);  // the length of this step's batch
    std::vector<at::Tensor> activations;
    for (int layer = 0; layer < 12; ++layer) {
      for (const int64_t width : {768, 3072, 256, 64})
        activations.push_back(bytes(rows * width * 4));
      bytes(rows * 1024);
    }
    while (!activations.empty()) {
      const at::Tensor gradient = bytes(activations.back().numel());
      activations.pop_back();
    }
  }
  CHECK(held_against_peak() < 1.3);
}

TEST_CASE("a block slightly larger than its huge pages makes no further huge page resident",
          "[allocator]") {
  const DryRunMemory fresh;  // its first segments are as large as their blocks
  std::vector<at::Tensor> kept;
  const auto touched_by = [&](int64_t n) {
    const int64_t before = memory_stats().touched;
    kept.push_back(bytes(n));
    return memory_stats().touched - before;
  };
  CHECK(touched_by(4 * megabyte) == 4 * megabyte + 4096);  // includes the block's header
  CHECK(touched_by(6 * megabyte + 200000) == 6 * megabyte + 200704);
  // The next block in the same segment is also counted in small pages.
  CHECK(touched_by(100 * 4096 - 64) == 100 * 4096);
  CHECK(touched_by(6 * megabyte + megabyte / 2) == 8 * megabyte);  // rounded up to a huge page
  kept.clear();
}

TEST_CASE("memory of a dry run reads as 0 though an earlier tensor was written there",
          "[allocator]") {
  const DryRunMemory dry;
  // Sizes up to a page, of a few incomplete pages, and of several huge pages.
  for (const int64_t size : {100, 4000, 5000, 12345, 70000, 5000000}) {
    CAPTURE(size);
    const at::Tensor before = bytes(size).fill_(1);
    void* const place = bytes(size).fill_(7).mutable_data_ptr();  // freed at once
    const at::Tensor again = bytes(size), after = bytes(size).fill_(2);
    CHECK(again.const_data_ptr() == place);
    CHECK(again.eq(0).all().item<bool>());
    CHECK(before.eq(1).all().item<bool>());
    CHECK(after.eq(2).all().item<bool>());
  }
}

TEST_CASE("a repeated step takes no further memory from the system", "[allocator]") {
  const auto step = [] {
    std::vector<at::Tensor> live;
    for (uint64_t i = 0; i < 400; ++i) {
      live.push_back(bytes(1 + draw(i, i % 3 == 0 ? 3 * megabyte : 20000)));
      if (i % 5 == 4) live.erase(live.begin() + draw(1000 + i, static_cast<int64_t>(live.size())));
    }
  };
  for (int i = 0; i < 3; ++i) step();
  const MemoryStats before = memory_stats();
  for (int i = 0; i < 20; ++i) step();
  CHECK(memory_stats().reserved == before.reserved);
  CHECK(memory_stats().blocks == before.blocks);
}

TEST_CASE("blocks are aligned, do not overlap, and are counted in their category on any thread",
          "[allocator]") {
  const MemoryStats before = memory_stats();
  const auto work = [&before](uint64_t thread) {
    const MemoryScope scope(Memory::data);
    std::vector<at::Tensor> live;
    bool intact = true;
    for (uint64_t i = 0; i < 3000; ++i) {
      const int64_t size = 1 + draw(thread * 10000 + i, i % 2 == 0 ? 300 : 200000);
      live.push_back(bytes(size));
      intact = intact && reinterpret_cast<uintptr_t>(live.back().const_data_ptr()) % 64 == 0;
      live.back().fill_(static_cast<int64_t>(i % 251));
      if (live.size() < 40) continue;
      // A block with two different values was overwritten by another block.
      const auto victim = live.begin() + draw(thread * 10000 + i, 40);
      intact = intact && victim->eq((*victim)[0]).all().item<bool>();
      live.erase(victim);
    }
    // The bytes counted as data include at least the tensors that are alive.
    int64_t bytes_alive = 0;
    for (const at::Tensor& t : live) bytes_alive += t.numel();
    const int64_t counted = memory_stats().used[static_cast<size_t>(Memory::data)] -
                            before.used[static_cast<size_t>(Memory::data)];
    return intact && counted >= bytes_alive;
  };

  bool other = false;
  std::thread thread([&] { other = work(2); });
  CHECK(work(1));
  thread.join();
  CHECK(other);

  const MemoryStats after = memory_stats();
  CHECK(after.total == before.total);
  CHECK(after.used[static_cast<size_t>(Memory::data)] ==
        before.used[static_cast<size_t>(Memory::data)]);

  const at::Tensor t = bytes(5 * megabyte);
  CHECK(memory_stats().total == before.total + 5 * megabyte);
  recategorize(t.storage().data_ptr(), Memory::gradients);
  CHECK(memory_stats().used[static_cast<size_t>(Memory::gradients)] ==
        before.used[static_cast<size_t>(Memory::gradients)] + 5 * megabyte);
}

TEST_CASE("memory behind tensors and memory of freed tensors is poisoned for AddressSanitizer",
          "[allocator]") {
  if (__asan_address_is_poisoned == nullptr) {
    SUCCEED("built without the address sanitizer");
    return;
  }
  const auto closed = [](const char* p) { return __asan_address_is_poisoned(p) == 1; };
  for (const int64_t size :
       {int64_t{1}, int64_t{100}, int64_t{3000}, int64_t{100001}, 3 * megabyte}) {
    at::Tensor t = bytes(size);
    const at::Tensor next = bytes(size);  // keeps memory behind t within t's segment
    const char* const p = static_cast<const char*>(t.const_data_ptr());
    CHECK_FALSE(closed(p));
    CHECK_FALSE(closed(p + size - 1));
    for (const int64_t behind : {0, 1, 63}) CHECK(closed(p + size + behind));
    t.reset();
    CHECK(closed(p));
    CHECK(closed(p + size - 1));
  }
}

TEST_CASE("a tensor that fills its segment exactly does not overlap other tensors", "[allocator]") {
  // The size of a segment is a multiple of a huge page, 2 MiB. A block has some bytes in front of
  // its data. Each of these tensors is larger than all free memory of the allocator, so each gets a
  // separate segment.
  std::vector<at::Tensor> kept;
  for (int64_t overhead = 0; overhead <= 512; overhead += 64) {
    const int64_t size = (100 + 2 * std::ssize(kept)) * megabyte - overhead;
    kept.push_back(bytes(size));
    char* const data = static_cast<char*>(kept.back().mutable_data_ptr());
    data[0] = data[size - 1] = static_cast<char>(1 + std::ssize(kept));
  }
  // No tensor has written into another.
  for (size_t i = 0; i < kept.size(); ++i) {
    const char* const data = static_cast<const char*>(kept[i].const_data_ptr());
    CHECK(data[0] == static_cast<char>(2 + i));
    CHECK(data[kept[i].numel() - 1] == static_cast<char>(2 + i));
  }
}

}  // namespace
