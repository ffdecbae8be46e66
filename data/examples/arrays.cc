#include "data/examples/arrays.h"

#include <map>

#include "core/error.h"
#include "core/io/file.h"

namespace lathe {
namespace {

ArrayType from_safetensors(const std::string& dtype, const std::string& where) {
  static const std::map<std::string, ArrayType> types{
      {"F64", ArrayType::f64},     {"F32", ArrayType::f32}, {"F16", ArrayType::f16},
      {"BF16", ArrayType::bf16},   {"I64", ArrayType::i64}, {"I32", ArrayType::i32},
      {"I16", ArrayType::i16},     {"I8", ArrayType::i8},   {"U8", ArrayType::u8},
      {"BOOL", ArrayType::boolean}};
  const auto found = types.find(dtype);
  if (found == types.end())
    fail(Exit::data, where, " has elements of type ", dtype, ", which this build does not read");
  return found->second;
}

}  // namespace

ExampleArray::ExampleArray(const fs::path& path, const std::string& tensor) : path_(path) {
  const std::string name = path.string();

  if (lower_extension(path) == ".safetensors") {
    try {
      safetensors_.emplace(path);
      const auto& all = safetensors_->tensors();
      const TensorEntry& entry = tensor.empty() && all.size() == 1
                                     ? all[0]
                                     : safetensors_->at(tensor.empty() ? "inputs" : tensor);
      type_ = from_safetensors(entry.dtype, str(name, ": tensor \"", entry.name, "\""));
      sizes_ = entry.shape;
      bytes_ = entry.bytes;
    } catch (const Error& e) {
      // SafetensorsFile reports a damaged file as a damaged checkpoint. Here, report damaged data.
      if (e.code() != Exit::checkpoint) throw;
      fail(Exit::data, e.what());
    }
  } else {
    npy_.emplace(path);
    type_ = npy_->type();
    sizes_ = npy_->sizes();
    bytes_ = npy_->bytes();
  }

  // Remove the first dimension from sizes_, so that the dimensions of one example remain.
  if (sizes_.empty())
    fail(Exit::data, name,
         " holds a single number; an array of examples has a first dimension that counts them");
  examples_ = sizes_[0];
  sizes_.erase(sizes_.begin());

  // The limit keeps byte counts and sums of elements within int64.
  for (const int64_t size : sizes_) {
    if (size == 0)
      fail(Exit::data, name, ": examples of ", sizes_text(sizes_), " elements are empty");
    if (numel_ > (int64_t{1} << 40) / size)
      fail(Exit::data, name, ": examples of ", sizes_text(sizes_),
           " elements are too large; an example may have at most 2^40 elements");
    numel_ *= size;
  }
}

void ExampleArray::read(int64_t i, double* out) const {
  with_reader(type_, [&](auto element) {
    const std::byte* bytes = example(i);
    for (int64_t j = 0; j < numel_; ++j) out[j] = element(bytes, j);
  });
}

void ExampleArray::release(int64_t begin, int64_t end) const {
  const auto each = static_cast<size_t>(numel_ * array_type_bytes(type_));
  const auto part =
      bytes_.subspan(static_cast<size_t>(begin) * each, static_cast<size_t>(end - begin) * each);
  if (npy_) npy_->release(part);
  if (safetensors_) safetensors_->release({{}, {}, {}, part});
}

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += str(text.empty() ? "" : "x", size);
  return text;
}

}  // namespace lathe
