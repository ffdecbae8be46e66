#include "core/cuda/linear_product.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <optional>

#include "core/error.h"

namespace lathe {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(Exit::internal, what, ": ", cublasLtGetStatusString(status));
}

cublasLtHandle_t handle() {
  static const cublasLtHandle_t one = [] {
    cublasLtHandle_t created{};
    check(cublasLtCreate(&created), "cublasLtCreate");
    return created;
  }();
  return one;
}

cudaDataType_t cuda_type(Element type) {
  switch (type) {
    case Element::f64: return CUDA_R_64F;
    case Element::f32: return CUDA_R_32F;
    case Element::bf16: return CUDA_R_16BF;
    case Element::f16: return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

/// Destroys a cuBLASLt descriptor.
template <class T, cublasStatus_t (*destroy)(T*)>
struct Destroy {
  void operator()(T* t) const { destroy(t); }
};
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t,
                                  Destroy<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t,
                               Destroy<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                    Destroy<cublasLtMatmulPreferenceOpaque_t, cublasLtMatmulPreferenceDestroy>>;

/// Returns the layout of a row-major matrix. cuBLASLt describes this matrix as its column-major
/// transpose.
Layout layout_of(Element type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout{};
  check(cublasLtMatrixLayoutCreate(&layout, cuda_type(type), static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

struct Algorithm {
  cublasLtMatmulAlgo_t chosen;
  size_t scratch_bytes;
};

/// The cuBLASLt descriptors of a matrix product, and the algorithm for the product if there is one.
/// In cuBLASLt's column-major terms, the product is y^T [out, rows] = W [out, in] x^T [in, rows],
/// where W is marked as transposed.
class Plan {
 public:
  explicit Plan(const LinearProduct& p)
      : weight_(layout_of(p.type, p.out, p.in)),
        x_(layout_of(p.type, p.rows, p.in)),
        y_(layout_of(p.y_type, p.rows, p.out)) {
    cublasLtMatmulDesc_t created{};
    check(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    operation_.reset(created);

    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    const bool has_bias = p.bias != nullptr, has_gelu = p.before != nullptr;
    const auto gelu = has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX,
               none = has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, has_gelu ? gelu : none);
    if (has_bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.y_type));
    if (has_gelu) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.out);

    // The heuristic reads the alignment of these addresses. By chance, the real addresses may have
    // a higher alignment, which must not influence the heuristic's choice.
    LinearProduct aligned = p;
    void* const least = reinterpret_cast<void*>(uintptr_t{product_vector_alignment});
    if (has_bias) aligned.bias = least;
    if (has_gelu) aligned.before = least;
    set_addresses(aligned);
    choose();
  }

  /// Runs the product. The tensors must have the same shapes as in the constructor's argument.
  /// Returns false if there is no algorithm.
  bool run(const LinearProduct& p, cudaStream_t stream) {
    if (!algorithm_) return false;
    set_addresses(p);
    const c10::DataPtr scratch =
        c10::cuda::CUDACachingAllocator::get()->allocate(algorithm_->scratch_bytes);
    const float one = 1, add = p.residual != nullptr ? 1 : 0;
    check(cublasLtMatmul(handle(), operation_.get(), &one, p.weight, weight_.get(), p.x, x_.get(),
                         &add, p.residual != nullptr ? p.residual : p.y, y_.get(), p.y, y_.get(),
                         &algorithm_->chosen, scratch.get(), algorithm_->scratch_bytes, stream),
          "cublasLtMatmul");
    return true;
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) {
    check(cublasLtMatmulDescSetAttribute(operation_.get(), what, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  void set_addresses(const LinearProduct& p) {
    if (p.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.before != nullptr) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.before);
  }

  void choose() {
    cublasLtMatmulPreference_t created{};
    check(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate");
    const Preference preference(created);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(created, what, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t{32} << 20);
    // If the algorithm splits the product, require it to add the parts in float32.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    // Promise the alignment that LinearProduct requires of its pointers.
    for (const auto what :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(what, uint32_t{16});

    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle(), operation_.get(), weight_.get(), x_.get(),
                                       y_.get(), y_.get(), preference.get(), 1, &best, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found > 0 && best.state == CUBLAS_STATUS_SUCCESS)
      algorithm_ = Algorithm{best.algo, best.workspaceSize};
  }

  Operation operation_;
  Layout weight_, x_, y_;
  std::optional<Algorithm> algorithm_;
};

}  // namespace

bool linear_product_cuda(const LinearProduct& p, cudaStream_t stream) {
  using Key = std::array<int64_t, 8>;
  const Key key{p.rows,
                p.in,
                p.out,
                static_cast<int64_t>(p.type),
                static_cast<int64_t>(p.y_type),
                p.bias != nullptr,
                p.residual != nullptr,
                p.before != nullptr};
  // A plan holds the addresses of the last product that it ran, so threads do not share plans.
  thread_local std::map<Key, Plan> plans;
  constexpr size_t most_plans = 256;  // a limit, since each new prompt length adds a plan
  if (plans.size() == most_plans && !plans.contains(key)) plans.clear();
  const auto known = plans.find(key);
  Plan& plan = known != plans.end() ? known->second : plans.emplace(key, p).first->second;
  return plan.run(p, stream);
}

}  // namespace lathe
