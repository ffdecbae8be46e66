// Prints Variables.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "autograd/node.h"
#include "autograd/variable.h"
#include "core/dtype.h"

namespace lathe {
namespace {

constexpr int64_t most = 1000;  // tensors of up to this many elements are printed in full
constexpr int64_t edge = 3;     // number of elements at each end of a dim of larger tensors

/// Prints a tensor of any shape. In a large tensor, only the positions at the ends of each dim are
/// shown.
class Printer {
 public:
  Printer(std::ostream& out, const at::Tensor& t)
      : out_(out), t_(t), whole_(t.numel() <= most), is_integer_(!t.is_floating_point()) {
    each(t, [&](const at::Tensor& x) { width_ = std::max(width_, text(x).size()); });
  }
  void print() { print(t_, 0); }

 private:
  template <class F>
  void each(const at::Tensor& t, F&& f) {
    if (t.dim() == 0) return f(t);
    for (int64_t i = 0; i < t.size(0); ++i) {
      if (is_shown(i, t.size(0))) each(t.select(0, i), f);
    }
  }
  bool is_shown(int64_t i, int64_t n) const { return whole_ || i < edge || i >= n - edge; }

  std::string text(const at::Tensor& x) const {
    if (x.scalar_type() == at::kBool) return x.item<bool>() ? "true" : "false";
    if (is_integer_) return std::to_string(x.item<int64_t>());
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.4g", x.item<double>());
    return buffer;
  }

  void print(const at::Tensor& t, size_t depth) {
    if (t.dim() == 0) {
      const std::string s = text(t);
      out_ << (depth > 0 ? std::string(width_ - s.size(), ' ') : "") << s;
      return;
    }
    const std::string line = t.dim() > 1 ? ",\n" + std::string(depth + 1, ' ') : ", ";
    out_ << "[";
    bool left_out = false;
    for (int64_t i = 0; i < t.size(0); ++i) {
      if (!is_shown(i, t.size(0))) {
        if (!left_out) out_ << line << "...";
        left_out = true;
        continue;
      }
      if (i > 0) out_ << line;
      print(t.select(0, i), depth + 1);
    }
    out_ << "]";
  }

  std::ostream& out_;
  const at::Tensor& t_;
  bool whole_, is_integer_;
  size_t width_ = 0;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const Variable& x) {
  if (!x.defined()) return out << "undefined";
  if (x.data().is_meta()) {
    out << "without values, ";
  } else {
    const at::Tensor values = x.data().to(at::kCPU);
    Printer(out, values).print();
    out << " ";
  }
  out << describe(x.data());
  if (!x.data().is_cpu() && !x.data().is_meta()) out << " on " << x.data().device().str();
  if (const Leaf* leaf = x.as_leaf()) {
    out << (leaf->frozen ? ", frozen parameter" : ", parameter") << (leaf->label.empty() ? "" : " ")
        << leaf->label;
  } else if (x.node()) {
    out << " from " << x.node()->name();
  }
  return out;
}

}  // namespace lathe
