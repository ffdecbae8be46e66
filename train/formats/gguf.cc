#include "train/formats/gguf.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/io/gguf_types.h"
#include "core/io/log.h"
#include "train/config/path_kind.h"
#include "train/formats/exported.h"
#include "train/formats/gguf_tokenizer.h"

namespace lathe {
namespace {

/// Returns the value of --dtype that names a type.
std::string dtype_of(const GGUFType& type) {
  std::string name = type.name;
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c | 32 : c; });
  return name;
}

/// Returns the quantized type that --dtype names; null for a float dtype.
const GGUFType* quantized_type(const std::string& dtype) {
  for (const GGUFType& type : gguf_types()) {
    if (type.write != nullptr && dtype_of(type) == dtype) return &type;
  }
  return nullptr;
}

/// Reorders the rows of each head from halves to pairs: row i of the first half is followed by row
/// i of the second half.
at::Tensor to_interleaved(const at::Tensor& t, int64_t heads) {
  const int64_t width = t.size(0) / heads;
  const at::Tensor halves = t.reshape({heads, 2, width / 2, -1});
  return halves.transpose(1, 2).reshape(t.sizes());
}

/// Converts a float32 matrix to quantized blocks of `type`. llama.cpp's converter makes bitwise the
/// same blocks.
at::Tensor in_blocks(const GGUFType& type, const std::string& name, const at::Tensor& t) {
  if (!at::isfinite(t).all().item<bool>())
    fail(Exit::usage, "the matrix ", name, " has values that are not finite; give --dtype fp32");

  const at::Tensor values = t.contiguous();
  const int64_t blocks = values.numel() / type.elements;
  at::Tensor bytes = at::empty({blocks, static_cast<int64_t>(type.bytes)}, at::kByte);
  auto* block = static_cast<std::byte*>(bytes.mutable_data_ptr());
  const float* from = values.const_data_ptr<float>();
  for (int64_t i = 0; i < blocks; ++i, from += type.elements, block += type.bytes) {
    if (!type.write(from, block))
      fail(Exit::usage, "the matrix ", name, " has values beyond the range of ", dtype_of(type),
           "; give --dtype bf16");
  }
  return bytes;
}

/// Collects the tensors of a GGUF file. Reads the values of a tensor only when the tensor is
/// written.
class Entries {
 public:
  /// `type`: the quantized type of matrices, or null if each matrix keeps its dtype.
  explicit Entries(const GGUFType* type) : type_(type) {}

  void add(const std::string& name, at::ScalarType dtype, const std::vector<int64_t>& sizes,
           std::function<at::Tensor()> make) {
    entries_.push_back(make_entry(name, dtype, sizes, std::move(make)));
  }
  /// Adds a matrix, which is quantized if the constructor got a quantized type. If the row length
  /// is not a multiple of the type's block size, writes the matrix in float16, or in float32 if a
  /// value exceeds float16's range.
  void add_matrix(const std::string& name, at::ScalarType dtype, const std::vector<int64_t>& sizes,
                  std::function<at::Tensor()> make) {
    if (type_ == nullptr) return add(name, dtype, sizes, std::move(make));
    if (sizes.back() % type_->elements != 0) {
      const bool fits = at::isfinite(make().to(at::kHalf)).all().item<bool>();
      const at::ScalarType kept = fits ? at::kHalf : at::kFloat;
      kept_.push_back(name);
      return add(name, kept, sizes, [kept, make = std::move(make)] { return make().to(kept); });
    }

    add(name, at::kByte, sizes,
        [name, type = type_, make = std::move(make)] { return in_blocks(*type, name, make()); });
    entries_.back().dtype = type_->name;
  }
  const std::vector<TensorEntry>& all() const { return entries_; }
  /// Logs how many matrices are not quantized, and why.
  void report() const {
    if (kept_.empty()) return;
    log_info(kept_.size(), kept_.size() == 1 ? " matrix is" : " matrices are",
             " written in float16, or in float32 if a value exceeds float16's range, since the row "
             "length is not a multiple of ",
             type_->elements, ": ", kept_.front(), kept_.size() == 1 ? "" : ", ...");
  }

 private:
  const GGUFType* type_;
  std::vector<TensorEntry> entries_;
  std::vector<std::string> kept_;
};

}  // namespace

std::vector<std::string> gguf_dtypes() {
  std::vector<std::string> names;
  for (const GGUFType& type : gguf_types()) {
    if (type.write != nullptr) names.push_back(dtype_of(type));
  }
  return names;
}

void export_gguf(const ExportOptions& o) {
  const GGUFType* type = quantized_type(o.dtype);
  ExportOptions read = o;
  if (type != nullptr) read.dtype = "fp32";  // add_matrix() quantizes the float32 values
  const ExportedModel m(read);
  const AnyConfig& own = m.config.model.own;
  const std::string arch = m.family->gguf_name;
  if (arch.empty())
    fail(Exit::usage, "this build can't write GGUF files of models of type ", m.family->model_type,
         "; export to Hugging Face's format (leave --format out)");

  const GGUFType& most =
      type != nullptr ? *type : *find_gguf_type(safetensors_dtype(dtype_from_config(m.dtype)));
  GGUFMetadata metadata{{"general.architecture", arch},
                        {"general.type", std::string("model")},
                        {"general.name", without_trailing_slash(o.run).filename().string()},
                        {"general.file_type", most.of_file},
                        {"general.quantization_version", uint32_t{2}}};

  for (auto& [key, value] : m.family->gguf(own))
    metadata.emplace_back(arch + "." + key, std::move(value));

  if (m.state.tokenizer && m.state.tokenizer->bpe() != nullptr) {
    add_gguf_tokenizer(*m.state.tokenizer, value_of<int64_t>(own, "vocab_size"), metadata);
  } else {
    metadata.emplace_back("tokenizer.ggml.model", std::string("none"));
    log_warn(
        "no tokenizer is written, because other programs read only BPE tokenizers, and the run's "
        "tokenizer is ",
        m.state.tokenizer ? m.state.tokenizer->kind() : "unknown");
  }

  NewFolder out(o.out, o.stop);
  Entries entries(type);
  for (const ExportedTensor& t : m.tensors()) {
    const std::string name = with_block(t.rule->gguf, t.block);
    const auto make = [&out, &own, t] {
      out.check_stop();
      return t.rule->gguf_rows == TensorRule::Rows::as_they_are
                 ? t.read()
                 : to_interleaved(t.read(), heads_of_rows(*t.rule, own));
    };
    if (t.sizes.size() >= 2 && !t.rule->is_float32_in_gguf)
      entries.add_matrix(name, t.dtype, t.sizes, make);
    else
      entries.add(name, at::kFloat, t.sizes, [make] { return make().to(at::kFloat); });
  }
  entries.report();

  if (m.family->gguf_tensors) {
    for (const auto& [name, values] : m.family->gguf_tensors(own)) {
      entries.add(name, at::kFloat, {std::ssize(values)},
                  [values = values] { return at::tensor(values, at::kFloat); });
    }
  }

  write_gguf(out.path() / "model.gguf", metadata, entries.all());
  out.publish();
}

}  // namespace lathe
