// Defines counter-based random numbers. Every number is a pure function of the seed, the purpose,
// the index and the step. There is no hidden generator state, so a resumed run needs only the step,
// and a dropout mask does not depend on how the batch is split. The generator is Philox4x32-10
// (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lathe {

/// The four numbers of a Philox4x32 block (Salmon et al. 2011).
using Philox4 = std::array<uint32_t, 4>;

/// The key of a Philox4x32 generator, which selects a stream of random numbers.
struct RngKey {
  uint32_t k0 = 0, k1 = 0;
};

/// Applies ten rounds of Philox4x32 to the counter `c` with a key. Returns four independent,
/// uniformly distributed 32-bit numbers.
inline Philox4 philox(Philox4 c, RngKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key.k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key.k1, static_cast<uint32_t>(a)};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return c;
}

/// Returns the counter of block `index` at a step. A block has four numbers.
inline Philox4 counter(uint64_t index, uint64_t step) {
  return {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
          static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
}

/// Returns the 64-bit FNV-1a hash of the name of a purpose or a module path.
constexpr uint64_t hash_name(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

/// Returns the key of a stream, which is the run's seed mixed with the purpose of the numbers. The
/// bits are mixed by the finalizer of splitmix64 (Steele et al. 2014).
constexpr RngKey make_key(uint64_t seed, uint64_t purpose) {
  uint64_t z = (seed + 0x9e3779b97f4a7c15u) ^ (purpose * 0xbf58476d1ce4e5b9u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

/// Converts 32 random bits to a uniform number in (0, 1), which is never 0 or 1.
inline double unit(uint32_t x) { return (x + 0.5) * 0x1p-32; }

/// A keyed permutation of [0, n) in O(1) memory. It is a balanced Feistel network of four rounds
/// over the next power of four. Each round calls philox(). The network is applied repeatedly until
/// the value is below n (cycle walking, Black and Rogaway 2002).
class Permutation {
 public:
  /// Creates a permutation of [0, n), where n >= 1.
  Permutation(uint64_t n, RngKey key);
  /// Returns the position to which i moves. i must be below n.
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t n_;
  int half_bits_;
  RngKey key_;
};

}  // namespace lathe
