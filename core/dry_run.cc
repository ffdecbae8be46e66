#include "core/dry_run.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "core/mode.h"

// Implements dry runs with a dispatch key, called `key` below. While a thread includes this key,
// ATen's dispatcher calls the function that is registered for the key before all other functions.
// LibTorch provides the key for modes such as this one, and registers no functions for it.
namespace lathe {
namespace {

constexpr c10::DispatchKey key = c10::DispatchKey::TESTING_ONLY_GenericMode;
using Values = std::vector<c10::IValue>;

thread_local bool dry = false;

/// Returns a tensor on the meta device, without memory, with the sizes and strides of t. Returns t
/// itself if t is undefined or not on a CPU.
at::Tensor shape_of(const at::Tensor& t) {
  if (!t.defined() || !t.is_cpu()) return t;
  at::Tensor shape = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    shape.unsafeGetTensorImpl()->set_wrapped_number(true);
  return shape;
}

/// Returns a copy of `value` in which each tensor is replaced by its shape.
c10::IValue shape_of(const c10::IValue& value) {
  if (value.isTensor()) return shape_of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> shapes;
    for (const at::Tensor& t : value.toTensorVector()) shapes.push_back(shape_of(t));
    return shapes;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> shapes;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      shapes.push_back(t ? std::optional(shape_of(*t)) : std::nullopt);
    return shapes;
  }
  return value;
}

/// Returns an uninitialized CPU tensor with the sizes and strides of a meta tensor.
at::Tensor tensor_of(const at::Tensor& shape) {
  if (!shape.defined()) return shape;
  return at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(at::kCPU));
}

bool has_tensor(const Values& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& v) {
    return (v.isTensor() && v.toTensor().defined()) || v.isTensorList() || v.isOptionalTensorList();
  });
}

/// Returns whether ATen can infer the shapes of the op's results, and each result is either a new
/// tensor or an argument that the op writes to.
bool can_be_inferred(const c10::OperatorHandle& op, const Values& arguments) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta) || !has_tensor(arguments)) return false;
  const auto& name = op.schema().name();
  if (name == "aten::resize_" || name == "aten::set_" || name == "aten::as_strided") return false;
  return std::all_of(op.schema().returns().begin(), op.schema().returns().end(),
                     [](const c10::Argument& r) {
                       return r.type()->kind() == c10::TypeKind::TensorType &&
                              (r.alias_info() == nullptr || r.alias_info()->isWrite());
                     });
}

/// Returns whether an op makes a tensor on the meta device, as under MetaInit (core/mode.h).
bool creates_meta_tensor(const c10::FunctionSchema& schema, const Values& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& v = arguments[i];
    if (schema.arguments()[i].name() == "device" && v.isDevice() && v.toDevice().is_meta())
      return true;
  }
  return false;
}

/// Returns the argument that a result aliases.
const c10::IValue& aliased(const c10::FunctionSchema& schema, const c10::Argument& result,
                           const Values& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && *alias == *result.alias_info()) return arguments[i];
  }
  fail(Exit::internal, "dry run: ", schema.name(),
       " returns an alias of a tensor that is not one of its arguments");
}

/// Allocates as much memory as oneDNN does for its copies of image tensors [B, C, H, W] while it
/// computes a convolution. oneDNN works on blocks of 16 channels. Its memory use was measured with
/// LibTorch 2.11 on AVX-512 and AVX2. `arguments` are the arguments of aten::convolution:
/// arguments[6] is `transposed`, and arguments[8] is `groups`.
class BlockedCopies {
 public:
  BlockedCopies(const at::Tensor& weight, const Values& arguments)
      : options_(weight.options()),
        is_used_(weight.dim() == 4 && weight.scalar_type() != at::kDouble &&
                 !arguments[6].toBool() && arguments[8].toInt() == 1),
        is_one_by_one_(weight.dim() == 4 && weight.size(2) == 1 && weight.size(3) == 1) {}

  /// Returns the copy of an input; undefined if oneDNN reads the input in place. oneDNN does that
  /// if the input has fewer than 16 channels and the kernel is not 1 x 1.
  at::Tensor of_input(at::IntArrayRef sizes) const {
    return is_used_ && (sizes[1] >= 16 || is_one_by_one_) ? of_output(sizes) : at::Tensor();
  }
  /// Returns the copy of an output or of its gradient; undefined if oneDNN makes no copies.
  at::Tensor of_output(at::IntArrayRef sizes) const {
    if (!is_used_) return {};
    constexpr int64_t block = 16;
    const int64_t channels = (sizes[1] + block - 1) / block * block;
    return at::empty({sizes[0], channels, sizes[2], sizes[3]}, options_);
  }

 private:
  at::TensorOptions options_;
  bool is_used_, is_one_by_one_;
};

/// Returns the result of aten::convolution for its arguments.
at::Tensor convolution_result(const Values& arguments) {
  const at::Tensor in = arguments[0].toTensor(), weight = arguments[1].toTensor();
  const auto list = [&](size_t i) {  // a single number applies to all dims
    auto values = arguments[i].toIntVector();
    if (values.size() == 1) values.resize(static_cast<size_t>(in.dim() - 2), values[0]);
    return values;
  };
  const auto stride = list(3), padding = list(4), dilation = list(5);
  const std::vector<int64_t> sizes =
      arguments[6].toBool()  // transposed
          ? at::native::conv_input_size(in.sizes(), weight.sizes(), padding, list(7), stride,
                                        dilation, arguments[8].toInt())
          : at::native::conv_output_size(in.sizes(), weight.sizes(), padding, stride, dilation);

  const BlockedCopies copies(weight, arguments);
  at::Tensor x = copies.of_input(in.sizes());
  const at::Tensor y = copies.of_output(sizes);
  x.reset();
  return at::empty(sizes, in.options());
}

/// Returns the results of aten::convolution_backward, which have the shapes of input, weight and
/// bias. A result that is not requested is undefined.
std::vector<at::Tensor> convolution_gradients(const Values& arguments) {
  const at::Tensor dy = arguments[0].toTensor();
  const auto asked = arguments[10].toBoolList();
  const at::Tensor x = arguments[1].toTensor(), weight = arguments[2].toTensor();
  std::vector<at::Tensor> gradients(3);
  // The arguments after dy are in the same order as the arguments of aten::convolution.
  const BlockedCopies copies(weight, {arguments.begin() + 1, arguments.end()});
  if (asked[0]) {
    at::Tensor blocked_dy = copies.of_output(dy.sizes());
    const at::Tensor dx = copies.of_output(x.sizes());
    const auto strides = arguments[4].toIntVector();
    const bool is_strided =
        std::any_of(strides.begin(), strides.end(), [](int64_t s) { return s > 1; });
    const at::Tensor scratch = is_strided ? copies.of_output(x.sizes()) : at::Tensor();
    blocked_dy.reset();
    gradients[0] = at::empty(x.sizes(), dy.options());
  }
  if (asked[1]) {
    const at::Tensor blocked_x = copies.of_input(x.sizes()),
                     blocked_dy = copies.of_output(dy.sizes());
    gradients[1] = at::empty(weight.sizes(), dy.options());
  }
  if (asked[2]) gradients[2] = at::empty({dy.size(1)}, dy.options());
  return gradients;
}

/// Returns the results of an op whose shapes follow directly from its arguments; nullopt for other
/// ops.
std::optional<std::vector<at::Tensor>> results_of(const std::string& name,
                                                  const Values& arguments) {
  if (name == "aten::embedding") {
    const at::Tensor weight = arguments[0].toTensor();
    std::vector<int64_t> sizes = arguments[1].toTensor().sizes().vec();
    sizes.push_back(weight.size(1));
    return {{at::empty(sizes, weight.options())}};
  }
  if (name == "aten::bucketize" && arguments[0].isTensor()) {
    const at::Tensor values = arguments[0].toTensor();
    const bool is_narrow = arguments[2].toBool();
    return {{at::empty(values.sizes(), values.options().dtype(is_narrow ? at::kInt : at::kLong))}};
  }
  if (name == "aten::convolution") return {{convolution_result(arguments)}};
  if (name == "aten::convolution_backward") return convolution_gradients(arguments);
  return std::nullopt;
}

/// Infers the shapes of an op's results on the meta device, and puts CPU tensors of these shapes on
/// the stack.
void infer(const c10::OperatorHandle& op, const Values& arguments, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard outside(key);
  const auto first = stack->end() - std::ssize(arguments);
  std::transform(first, stack->end(), first, [](const c10::IValue& v) { return shape_of(v); });
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);

  const auto& returns = op.schema().returns();
  const auto result = stack->end() - static_cast<std::ptrdiff_t>(returns.size());
  for (size_t i = 0; i < returns.size(); ++i) {
    c10::IValue& value = *(result + static_cast<std::ptrdiff_t>(i));
    const at::Tensor shape = value.toTensor();
    if (returns[i].alias_info() == nullptr) {
      value = tensor_of(shape);
      continue;
    }
    // An in-place or out= op returns its argument, which an out= op may have to resize.
    value = aliased(op.schema(), returns[i], arguments);
    const at::Tensor given = value.toTensor();
    if (given.sizes() != shape.sizes()) given.resize_(shape.sizes());
  }
}

void run_dry(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(count);
  const Values arguments(first, stack->end());

  // While fused() records a chain, the chain's placeholders are meta tensors, as in a real run. Ops
  // on placeholders run as usual, so that reading a placeholder fails as in a real run.
  const bool is_recorded =
      mode().chain != nullptr &&
      std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& v) {
        return v.isTensor() && v.toTensor().defined() && v.toTensor().is_meta();
      });
  if (is_recorded || creates_meta_tensor(op.schema(), arguments)) {
    const c10::impl::ExcludeDispatchKeyGuard outside(key);
    op.callBoxed(stack);
    return;
  }

  const std::string& name = op.schema().name();
  if (name == "aten::copy_") {  // the destination already has its shape
    stack->erase(first + 1, stack->end());
    return;
  }

  // Tensors of one element are really filled. One of them is the gradient that a backward pass
  // begins with, and ops check whether it is 1.
  if (name == "aten::fill_" && arguments[0].toTensor().is_cpu() &&
      arguments[0].toTensor().numel() == 1) {
    const c10::impl::ExcludeDispatchKeyGuard outside(key);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }

  if (std::optional<std::vector<at::Tensor>> results = results_of(name, arguments)) {
    stack->erase(first, stack->end());
    for (at::Tensor& result : *results) stack->emplace_back(std::move(result));
    return;
  }

  if (!can_be_inferred(op, arguments)) {
    // Run the op for real. The ops that it calls are dispatched to this function again.
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }

  infer(op, arguments, stack);
}

void register_once() {
  static torch::Library library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  static const bool done = [] {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_dry>());
    return true;
  }();
  (void)done;
}

}  // namespace

bool is_dry_run() { return dry; }

struct DryRun::Guards {
  DryRunMemory memory;
  c10::impl::IncludeDispatchKeyGuard mode{key};
};

DryRun::DryRun() {
  LATHE_CHECK(!dry, "a dry run can't start within another dry run");
  register_once();
  guards_ = std::make_unique<Guards>();
  dry = true;
}

DryRun::~DryRun() { dry = false; }

}  // namespace lathe
