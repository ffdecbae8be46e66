#include "data/prepare/example_source.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/io/file.h"
#include "data/prepare/file_type.h"
#include "data/prepare/image_file.h"
#include "data/prepare/image_source.h"
#include "data/prepare/table_source.h"

namespace lathe {
namespace {

/// The array of an IDX file, which is the format of the MNIST database. The file has two zero
/// bytes, a byte for the type, a byte for the number of dimensions, the sizes as big-endian int32,
/// and the elements, which are also big-endian.
class IdxFile {
 public:
  explicit IdxFile(const fs::path& path) : file_(path, Exit::data) {
    const auto bytes = file_.bytes();
    const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
    const std::string name = path.string();
    type = *type_of(bytes);
    const size_t dims = byte(3), begin = 4 + 4 * dims;
    if (bytes.size() < begin) fail(Exit::data, name, " is cut short within its header");
    uint64_t needed = static_cast<uint64_t>(array_type_bytes(type));
    for (size_t d = 0; d < dims; ++d) {
      const size_t at = 4 + 4 * d;
      const uint64_t size = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
      // Saturate instead of overflowing: no file has 2^62 bytes.
      needed =
          size == 0 || needed <= (uint64_t{1} << 62) / size ? needed * size : uint64_t{1} << 62;
      if (d == 0) examples = static_cast<int64_t>(size);
      if (d > 0) sizes.push_back(static_cast<int64_t>(size));
    }

    elements_ = bytes.subspan(begin);
    if (elements_.size() != needed || needed == 0)
      fail(Exit::data, name, ": its header claims ", needed, " bytes of elements and the file has ",
           elements_.size());
    numel = static_cast<int64_t>(needed) / array_type_bytes(type) / examples;
  }
  /// Returns the element type if a file begins like an IDX file; nullopt if it does not.
  static std::optional<ArrayType> type_of(std::span<const std::byte> bytes) {
    if (bytes.size() < 4 || bytes[0] != std::byte{0} || bytes[1] != std::byte{0})
      return std::nullopt;
    if (bytes[3] < std::byte{1} || bytes[3] > std::byte{8}) return std::nullopt;
    switch (std::to_integer<int>(bytes[2])) {
      case 0x08: return ArrayType::u8;
      case 0x09: return ArrayType::i8;
      case 0x0B: return ArrayType::i16;
      case 0x0C: return ArrayType::i32;
      case 0x0D: return ArrayType::f32;
      case 0x0E: return ArrayType::f64;
      default: return std::nullopt;
    }
  }
  void read(int64_t i, double* out) {
    const int64_t item = array_type_bytes(type), begin = i * numel * item;
    little_.assign(elements_.begin() + begin, elements_.begin() + begin + numel * item);
    for (auto at = little_.begin(); at != little_.end(); at += item) std::reverse(at, at + item);
    with_reader(type, [&](auto element) {
      for (int64_t j = 0; j < numel; ++j) out[j] = element(little_.data(), j);
    });
  }

  ArrayType type = ArrayType::u8;
  std::vector<int64_t> sizes;
  int64_t examples = 0, numel = 1;

 private:
  MappedFile file_;
  std::span<const std::byte> elements_;
  std::vector<std::byte> little_;
};

bool is_idx(const fs::path& path) {
  return IdxFile::type_of(MappedFile(path, Exit::data).bytes()).has_value();
}

/// Inputs or targets from an IDX file or from a file that ExampleArray reads (.npy, .safetensors).
class Numbers {
 public:
  Numbers(const fs::path& path, const std::string& tensor) : name_(path.string()) {
    if (path.extension() != ".safetensors" && is_idx(path)) {
      idx_.emplace(path);
      type = idx_->type;
      sizes = idx_->sizes;
      examples = idx_->examples;
      numel = idx_->numel;
      if (sizes.size() == 2) sizes.insert(sizes.begin(), 1);  // images of one channel
    } else {
      array_.emplace(path, tensor);
      type = array_->type();
      sizes = array_->sizes();
      examples = array_->examples();
      numel = array_->numel();
    }
  }
  const std::string& name() const { return name_; }
  uint64_t bytes() const {
    return static_cast<uint64_t>(examples * numel * array_type_bytes(type));
  }
  void read(int64_t i, std::vector<double>& out) {
    out.resize(static_cast<size_t>(numel));
    array_ ? array_->read(i, out.data()) : idx_->read(i, out.data());
    for (const double x : out) {
      if (!std::isfinite(x))
        fail(Exit::data, name_, ": example ", i, " (from 0) holds ", x, ", which is not finite");
      if (type == ArrayType::i64 && std::fabs(x) >= 0x1p53)
        fail(Exit::data, name_, ": example ", i, " (from 0) holds ", x,
             ", whose magnitude is 2^53 or more; store smaller numbers");
    }
  }
  void release(int64_t begin, int64_t end) const {
    if (array_) array_->release(begin, end);
  }

  ArrayType type = ArrayType::f32;
  std::vector<int64_t> sizes;
  int64_t examples = 0, numel = 1;

 private:
  std::string name_;
  std::optional<ExampleArray> array_;
  std::optional<IdxFile> idx_;
};

/// An array of new inputs without targets, for `lathe predict`.
class NewArray final : public ExampleSource {
 public:
  explicit NewArray(const std::string& file) : inputs_(file, "") {}
  std::vector<int64_t> sizes() const override { return inputs_.sizes; }
  uint64_t bytes() const override { return inputs_.bytes(); }
  std::string where() const override { return str(inputs_.name(), ": example ", at_, " (from 0)"); }
  void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) override {
    std::vector<double> x;
    for (at_ = 0; at_ < inputs_.examples; ++at_) {
      inputs_.read(at_, x);
      f({.inputs = x, .targets = {}, .label = {}});
      inputs_.release(at_, at_ + 1);
      meter.advance(inputs_.bytes() / static_cast<uint64_t>(inputs_.examples));
    }
  }

 private:
  Numbers inputs_;
  int64_t at_ = 0;
};

class ArraySource final : public ExampleSource {
 public:
  ArraySource(Numbers inputs, Numbers targets)
      : inputs_(std::move(inputs)), targets_(std::move(targets)) {
    if (inputs_.examples == targets_.examples) return;
    fail(Exit::data, inputs_.name(), " holds ", inputs_.examples, " examples and ", targets_.name(),
         " ", targets_.examples,
         "; give the inputs and the targets of the same examples, in this order");
  }
  std::vector<int64_t> sizes() const override {
    return inputs_.sizes.empty() ? std::vector<int64_t>{1} : inputs_.sizes;
  }
  int64_t target_numel() const override { return targets_.numel; }
  std::optional<ArrayType> input_type() const override { return inputs_.type; }
  std::optional<ArrayType> target_type() const override { return targets_.type; }
  uint64_t bytes() const override { return inputs_.bytes() + targets_.bytes(); }
  std::string where() const override {
    return str(targets_.name(), ": example ", at_, " (from 0)");
  }
  void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) override {
    const uint64_t bytes_each =
        inputs_.examples == 0 ? 0 : bytes() / static_cast<uint64_t>(inputs_.examples);
    const auto a_piece = std::max<int64_t>(
        1, static_cast<int64_t>(ProgressReporter::piece / std::max<uint64_t>(1, bytes_each)));
    std::vector<double> x, y;
    for (int64_t begin = 0; begin < inputs_.examples; begin += a_piece) {
      const int64_t end = std::min(begin + a_piece, inputs_.examples);
      for (at_ = begin; at_ < end; ++at_) {
        inputs_.read(at_, x);
        targets_.read(at_, y);
        f({.inputs = x, .targets = y, .label = {}});
      }
      inputs_.release(begin, end);
      targets_.release(begin, end);
      meter.advance(static_cast<uint64_t>(end - begin) * bytes_each);
    }
  }

 private:
  Numbers inputs_, targets_;
  int64_t at_ = 0;
};

enum class Kind { csv, array, safetensors };

Kind kind_of(const std::string& path) {
  if (fs::is_directory(path))
    fail(Exit::data, path, " is a folder; name the files of examples in it");
  const MappedFile file(path, Exit::data);
  const std::string_view begin(reinterpret_cast<const char*>(file.bytes().data()),
                               std::min<size_t>(file.bytes().size(), 8));
  if (const std::string format = foreign_format(begin); !format.empty())
    fail(Exit::data, path, " ", format);
  if (lower_extension(path) == ".safetensors") return Kind::safetensors;
  return begin.starts_with("\x93NUMPY") || IdxFile::type_of(file.bytes()) ? Kind::array : Kind::csv;
}

}  // namespace

std::unique_ptr<ExampleSource> open_source(const std::vector<std::string>& files,
                                           const TableOptions& options, const ExampleSource* like) {
  std::vector<Kind> kinds;
  for (const auto& file : files) {
    if (!fs::exists(file)) fail(Exit::data, "there is no file ", file);
    kinds.push_back(kind_of(file));
  }

  // A row of a table has both the inputs and the target, so any number of tables may be given.
  const auto is_csv = [](Kind k) { return k == Kind::csv; };
  if (std::all_of(kinds.begin(), kinds.end(), is_csv)) return open_tables(files, options, like);

  if (std::any_of(kinds.begin(), kinds.end(), is_csv) || files.size() > 2 ||
      (files.size() == 1 && kinds[0] != Kind::safetensors)) {
    fail(Exit::data, files[0],
         files.size() == 1 ? " is one array" : " and other files are not a pair",
         "; give a file of inputs and a file of targets (IDX, .npy, .safetensors), or CSV files "
         "alone");
  }

  // Arrays have no columns that an option could name.
  const bool has_names =
      !options.id.empty() || !options.drop.empty() || !options.categories.empty();
  const bool has_options = has_names || options.separator != 0 || options.missing != "error";
  if (options.target != "last" && like == nullptr)
    fail(Exit::usage, "--target ", options.target,
         " names a column of a table, but the targets of arrays are a separate file or tensor; "
         "leave --target out");
  if (has_options)
    fail(Exit::usage, "--id, --drop, --category, --separator and --missing are for tables, and ",
         files[0], " is an array; leave them out");

  if (files.size() == 1)
    return std::make_unique<ArraySource>(Numbers(files[0], "inputs"), Numbers(files[0], "targets"));

  Numbers inputs(files[0], ""), targets(files[1], "");
  // If inputs have one number and targets have several, the files are most likely swapped.
  if (inputs.sizes.empty() && !targets.sizes.empty())
    fail(Exit::data, files[0], " has one number for each example and ", files[1],
         " has several; give the inputs first");
  return std::make_unique<ArraySource>(std::move(inputs), std::move(targets));
}

std::unique_ptr<ExampleSource> open_new_examples(const std::vector<std::string>& files,
                                                 const ExampleEncoding& encoding) {
  for (const std::string& path : files) {
    if (!fs::exists(path)) fail(Exit::data, "there is no file ", path);
  }
  const std::string& file = files.at(0);
  // Also check the name, so that a damaged image is recognized.
  if (fs::is_directory(file) || is_image_file(file) || has_image_name(file)) {
    if (encoding.image_files) return open_new_images(files, encoding);
    fail(Exit::data, file, fs::is_directory(file) ? " is a folder" : " is an image file",
         ", but the model was not trained on a folder of images; give a table or an array");
  }
  if (files.size() > 1)
    fail(Exit::usage, "command line: ", files[1],
         " is a second file, but lathe predict takes only one table or array, or several images; "
         "leave it out");

  if (kind_of(file) == Kind::csv) {
    if (encoding.table) return open_new_rows(file, *encoding.table);
    fail(Exit::data, file,
         " is a table, but the model was trained on arrays or images; give an array (.npy, "
         ".safetensors, IDX)",
         encoding.image_files ? ", PNG or JPEG files, or a folder of them" : "");
  }

  auto source = std::make_unique<NewArray>(file);
  // An image may be given as a flat array. An image of one channel may lack the channel dimension.
  const auto essential = [](std::vector<int64_t> sizes) {
    std::erase(sizes, 1);
    return sizes;
  };
  const auto& wanted = encoding.input_sizes;
  const std::vector<int64_t> in_files =
      encoding.channels_last ? std::vector<int64_t>{wanted[1], wanted[2], wanted[0]} : wanted;
  int64_t numel = 1;
  for (const int64_t size : wanted) numel *= size;
  const auto found = essential(source->sizes());
  if (found != essential(in_files) && found != essential({numel}))
    fail(Exit::data, file, " has examples of ",
         source->sizes().empty() ? "one element" : sizes_text(source->sizes()) + " elements",
         ", but the model takes ", sizes_text(in_files));
  return source;
}

bool is_example_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  const std::string extension = lower_extension(path);
  for (const char* name : {".csv", ".tsv", ".tab", ".safetensors"}) {
    if (extension == name) return true;
  }
  const MappedFile file(path, Exit::data);
  const std::string_view begin(reinterpret_cast<const char*>(file.bytes().data()),
                               std::min<size_t>(file.bytes().size(), 6));
  return begin == "\x93NUMPY" || IdxFile::type_of(file.bytes()).has_value();
}

}  // namespace lathe
