#include "train/session/peak.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "autograd/ops.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/kernels/gemm.h"
#include "core/timing.h"

namespace lathe {
namespace {

fs::path peaks_file() {
  if (const char* cache = std::getenv("LATHE_CACHE"); cache != nullptr && *cache != 0)
    return fs::path(cache) / "peaks.json";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0)
    return fs::path(home) / ".cache/lathe/peaks.json";
  return {};
}

std::string key_of(int threads, at::ScalarType dtype) {
  return str(device_model("cpu"), " ", cpu_isa(), ", ", threads, " threads, ", dtype_name(dtype),
             ", best of ATen's and our own");
}

/// Reads the file of ceilings. A damaged or missing file counts as empty, since the file is only a
/// cache.
Json read_peaks() {
  try {
    const fs::path path = peaks_file();
    if (std::error_code error; !path.empty() && fs::exists(path, error)) {
      const Json peaks = parse_json(read_file(path, Exit::io), path.string(), Exit::io);
      if (peaks.is_object()) return peaks;
    }
  } catch (const Error&) {
  }
  return Json::object();
}

/// Returns the stored ceiling of a key; nullopt if there is none.
std::optional<MatmulCeiling> kept(const Json& peaks, const std::string& key) {
  const auto found = peaks.find(key);
  if (found == peaks.end()) return std::nullopt;
  if (found->is_number())
    return MatmulCeiling{found->get<double>(), 1};  // the format of earlier versions
  const bool usable = found->is_object() && found->contains("flops") &&
                      (*found)["flops"].is_number() && found->contains("measurements") &&
                      (*found)["measurements"].is_number_integer();
  if (!usable) return std::nullopt;
  return MatmulCeiling{(*found)["flops"].get<double>(), (*found)["measurements"].get<int>()};
}

}  // namespace

std::optional<MatmulCeiling> known_peak(const std::string& device, int threads,
                                        at::ScalarType dtype) {
  if (device == "cuda") {
    const double peak = cuda_api().peak_bf16_flops();
    return peak > 0 ? std::optional(MatmulCeiling{peak, 0}) : std::nullopt;
  }
  return kept(read_peaks(), key_of(threads, cpu_product_dtype(dtype)));
}

MatmulCeiling measure_peak(int threads, at::ScalarType compute) {
  const at::ScalarType dtype = cpu_product_dtype(compute);
  constexpr int64_t n = 2048;
  const at::Tensor a = at::full({n, n}, 0.5, dtype), b = at::full({n, n}, 0.25, dtype),
                   c = at::empty_like(a);

  const bool own = gemm_possible(element_of(dtype));
  const auto matrix = [&](const at::Tensor& t) {
    return Matrix{t.const_data_ptr(), n, element_of(dtype)};
  };

  // Measure Lathe's and ATen's kernel in turn; the faster one determines the ceiling.
  const auto begin = Clock::now();
  double best = 0;
  for (int i = 0; i < 6 || Clock::now() - begin < std::chrono::seconds(1); ++i) {
    const auto start = Clock::now();
    if (own && i % 2 == 1)
      gemm(matrix(a), matrix(b), n, n, n, {.out = matrix(c)});
    else
      at::mm(a, b);

    const double seconds = seconds_since(start);
    // The first call of each kernel only warms up.
    if (i > 1) best = std::max(best, 2.0 * n * n * n / seconds);
  }

  // On a busy machine the measured rate is too low, so keep an earlier rate that is higher.
  MatmulCeiling ceiling{best, 1};
  if (const fs::path path = peaks_file(); !path.empty()) {
    Json peaks = read_peaks();
    const std::string key = key_of(threads, dtype);
    if (const auto before = kept(peaks, key)) {
      ceiling = {std::max(best, before->rate), std::min(before->measurements, 1000000) + 1};
    }
    peaks[key] = {{"flops", ceiling.rate}, {"measurements", ceiling.measurements}};

    // A ceiling that can't be stored is still valid for this run.
    try {
      make_folders(path.parent_path());
      write_file_durably(path, json_text(peaks, 1) + "\n");
    } catch (const FileError& e) {
      log_warn("the matmul ceiling was not saved: ", e.cause(),
               "; set LATHE_CACHE to another folder");
    }
  }
  return ceiling;
}

MfuMeter::MfuMeter(std::string device, int threads, at::ScalarType dtype)
    : device_(std::move(device)),
      threads_(threads),
      dtype_(dtype),
      known_(known_peak(device_, threads, dtype)) {}

std::optional<double> MfuMeter::mfu(double rate) {
  if (!known_) return std::nullopt;
  if (rate > known_->rate && !measured_again_) {
    measured_again_ = true;
    if (device_ != "cuda") {
      const MatmulCeiling now = measure_peak(threads_, dtype_);
      log_info("the matmul ceiling was ", format("%.0f", known_->rate / 1e9),
               " GFLOP/s, and this run is above it; ", "measured again, it is ",
               format("%.0f", now.rate / 1e9));
      known_ = now;
    }
  }
  return rate / known_->rate;
}

void MfuMeter::measure_for_next_run(double run_seconds) const {
  if ((!known_ || known_->is_provisional()) && device_ != "cuda" && run_seconds > 60)
    measure_peak(threads_, dtype_);
}

}  // namespace lathe
