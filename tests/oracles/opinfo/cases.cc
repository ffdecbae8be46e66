// Compares Lathe's ops with PyTorch's on the samples of PyTorch's tests (OpInfo). This is the
// third oracle of ops, after LibTorch and central differences. tests/oracles/opinfo/opinfo.py
// writes the samples and PyTorch's results to the folder LATHE_OPINFO and runs this test. Without
// that folder, nothing is tested.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "autograd/einops.h"
#include "autograd/engine.h"
#include "autograd/ops.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/images.h"
#include "autograd/ops/losses.h"
#include "autograd/ops/math.h"
#include "autograd/ops/reductions.h"
#include "autograd/ops/shapes.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "tests/oracles/opinfo/calls.h"
#include "tests/support/catch.h"

namespace lathe::test {
namespace {

/// The results of PyTorch: one tensor for each output or leaf. A tensor is undefined if PyTorch
/// returned None.
using Tensors = std::vector<at::Tensor>;

class Cases {
 public:
  explicit Cases(const fs::path& folder)
      : file_(folder / "tensors.safetensors"), lines_(folder / "cases.jsonl") {}

  bool next(Json& record) {
    std::string line;
    if (!std::getline(lines_, line)) return false;
    record = parse_json(line, "cases.jsonl", Exit::data);
    return true;
  }
  at::Tensor tensor(const std::string& name) const {
    const TensorEntry& e = file_.at(name);
    const auto dtype = dtype_from_safetensors(e.dtype);
    return torch::from_blob(const_cast<std::byte*>(e.bytes.data()), e.shape, *dtype).clone();
  }
  Tensors list(const Json& record, const char* key) const {
    Tensors out;
    if (!record.contains(key) || record.at(key).is_null()) return out;
    for (const Json& name : record.at(key))
      out.push_back(name.is_null() ? at::Tensor() : tensor(name));
    return out;
  }

 private:
  SafetensorsFile file_;
  std::ifstream lines_;
};

/// Returns how `ours_` differs from `wanted_`, or "" if they agree. NaN and infinities must be at
/// the same positions. Finite values may differ by at most `allowed`.
std::string differs(const at::Tensor& ours_, const at::Tensor& wanted_, double allowed) {
  if (ours_.sizes() != wanted_.sizes())
    return str("shape ", describe(ours_), " instead of ", describe(wanted_));
  if (ours_.numel() == 0) return "";
  const at::Tensor ours = ours_.to(at::kDouble), wanted = wanted_.to(at::kDouble);
  if (!ours.isnan().equal(wanted.isnan())) return "NaN at other positions";
  const at::Tensor finite = wanted.isfinite();
  if (!ours.isfinite().equal(finite)) return "infinities at other positions";
  const at::Tensor infinite = finite.logical_not().logical_and(wanted.isnan().logical_not());
  if (!ours.masked_select(infinite).equal(wanted.masked_select(infinite)))
    return "infinities of another sign";
  const double error =
      (ours - wanted).masked_fill(finite.logical_not(), 0).abs().max().item<double>();
  return error <= allowed ? "" : str("off by ", error, ", allowed ", allowed);
}

double largest(const at::Tensor& t) {
  const at::Tensor v = t.to(at::kDouble);
  return t.numel() == 0 ? 0
                        : v.masked_fill(v.isfinite().logical_not(), 0).abs().max().item<double>();
}

/// Returns how a result differs from PyTorch's result, or "" if the difference is allowed. In
/// float64, `exact` is undefined, only the order of summation may differ, and `float64` is the
/// relative tolerance. In lower dtypes the result is compared with the exact one, and the tolerance
/// is about 8 units of the dtype's precision plus twice PyTorch's error. A result within one unit
/// of PyTorch's result is also accepted.
std::string compare(const at::Tensor& ours, const at::Tensor& torch_, const at::Tensor& exact,
                    double float64) {
  if (!ours.defined() || !torch_.defined()) {  // an undefined tensor counts as zeros
    const at::Tensor& other = ours.defined() ? ours : torch_;
    return other.defined() ? differs(other, torch::zeros_like(other), float64 * 1e-2) : "";
  }
  if (!exact.defined()) return differs(ours, torch_, float64 * (1e-2 + largest(torch_)));
  const double spacing = torch_.scalar_type() == at::kBFloat16 ? 0x1p-7 : 0x1p-22;
  const at::Tensor off = (torch_.to(at::kDouble) - exact).abs();
  const std::string problem =
      differs(ours, exact, spacing * (0.05 + 8 * largest(exact)) + 2 * largest(off));
  return problem.empty() || differs(ours, torch_, spacing * largest(torch_)).empty() ? "" : problem;
}

/// Returns a sentence for each difference in a case. Throws Unsupported if Lathe has no equivalent
/// call.
std::vector<std::string> check_case(const Cases& cases, const Json& record) {
  std::vector<std::string> problems;
  Call call(record.at("args"), record.at("kwargs"),
            [&](const std::string& name) { return cases.tensor(name); });
  const std::vector<Variable> all = call_ours(record.at("op"), call);
  call.all_used();
  const Tensors outs = cases.list(record, "outs"), exact = cases.list(record, "exact_outs");
  const Tensors dys = cases.list(record, "dys");
  const auto at = [](const Tensors& t, size_t i) { return i < t.size() ? t[i] : at::Tensor(); };
  const auto note = [&](const std::string& what, const std::string& problem) {
    if (!problem.empty()) problems.push_back(str(what, ": ", problem));
  };
  if (all.size() != outs.size()) return {str(all.size(), " results instead of ", outs.size())};
  std::vector<Variable> outputs;
  std::vector<at::Tensor> cotangents;
  for (size_t i = 0; i < all.size(); ++i) {
    note(str("result ", i),
         compare(all[i].data(), outs[i], outs[i].is_floating_point() ? at(exact, i) : at::Tensor(),
                 1e-12));
    if (!outs[i].is_floating_point()) continue;
    outputs.push_back(all[i]);
    cotangents.push_back(dys.at(outputs.size() - 1));
  }
  if (!problems.empty() || record.at("grads").is_null()) return problems;
  const Tensors grads = cases.list(record, "grads"),
                exact_grads = cases.list(record, "exact_grads");
  const Tensors weights = cases.list(record, "weights"), second = cases.list(record, "second");
  // Sum all outputs, each multiplied by its cotangent, so that one backward pass covers them all.
  Variable root;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Variable term =
        sum(cast(outputs[i], at::kDouble) * Variable(cotangents[i].to(at::kDouble)));
    root = root.defined() ? root + term : term;
  }
  const std::vector<Variable>& leaves = call.leaves();
  REQUIRE(leaves.size() == grads.size());
  if (!root.requires_grad()) return {"no gradient flows"};
  bool has_second = record.contains("second");
  std::vector<Variable> first;
  try {
    first = grad(root, leaves, {}, has_second, /*retain=*/true);
  } catch (const Error& e) {
    if (std::string(e.what()).find("without second derivatives") == std::string::npos) throw;
    has_second = false;
    first = grad(root, leaves);
  }
  for (size_t i = 0; i < leaves.size(); ++i)
    note(str("gradient ", i), compare(first[i].data(), grads[i], at(exact_grads, i), 1e-11));
  if (!has_second || !problems.empty()) return problems;
  Variable s;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!first[i].defined() || !weights[i].defined()) continue;
    const Variable term = sum(first[i] * Variable(weights[i]));
    s = s.defined() ? s + term : term;
  }
  const std::vector<Variable> more =
      s.defined() && s.requires_grad() ? grad(s, leaves) : std::vector<Variable>(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i)
    note(str("second gradient ", i), compare(more[i].data(), second[i], {}, 1e-9));
  return problems;
}

TEST_CASE("ops agree with PyTorch's on the samples of PyTorch's tests", "[.opinfo]") {
  const char* folder = std::getenv("LATHE_OPINFO");
  if (folder == nullptr) {
    WARN(
        "skipped: no cases; run tests/oracles/opinfo/opinfo.py, which needs PyTorch and runs this "
        "test");
    return;
  }
  Cases cases(folder);
  std::map<std::string, int> skipped, explained;
  std::set<std::string> ops;
  int n = 0, second = 0;
  Json record;
  while (cases.next(record)) {
    const std::string op = record.at("op"), dtype = record.at("dtype");
    std::vector<std::string> problems;
    try {
      problems = check_case(cases, record);
      ++n;
      second += record.contains("second");
      ops.insert(op);
    } catch (const Unsupported& e) {
      ++skipped[op + ": " + e.what()];
    } catch (const std::exception& e) {
      problems.push_back(e.what());
    }
    if (problems.empty()) continue;
    if (const std::string why = known_difference(op, record, problems[0]); !why.empty()) {
      ++explained[op + ": " + why];
      continue;
    }
    UNSCOPED_INFO(op << " in " << dtype << ", " << record.at("args").dump().substr(0, 200) << " "
                     << record.at("kwargs").dump());
    FAIL_CHECK(problems[0]);
  }
  std::cout << n << " cases of " << ops.size() << " ops agree, " << second
            << " of them in second derivatives too\n";
  for (const auto& [what, times] : explained)
    std::cout << "  different by design, " << times << ": " << what << "\n";
  for (const auto& [what, times] : skipped)
    std::cout << "  skipped, " << times << ": " << what << "\n";
  CHECK(n > 3000);
  CHECK(ops.size() > 100);
}

}  // namespace
}  // namespace lathe::test
