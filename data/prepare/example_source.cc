#include "data/prepare/example_source.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "data/prepare/csv.h"
#include "data/prepare/file_type.h"

namespace lathe {
namespace {

std::string shown(std::string_view text) { return "\"" + std::string(text.substr(0, 100)) + "\""; }

class CsvSource final : public ExampleSource {
 public:
  CsvSource(const std::vector<std::string>& files, const std::string& target,
            const CsvSource* like) {
    for (const auto& file : files) files_.emplace_back(file, Exit::data);
    if (like != nullptr) {
      header_ = like->header_, columns_ = like->columns_, target_ = like->target_,
      names_file_ = like->names_file_;
    } else {
      find_layout(target);
    }
  }

  std::vector<int64_t> sizes() const override { return {static_cast<int64_t>(columns_) - 1}; }
  uint64_t bytes() const override {
    uint64_t n = 0;
    for (const auto& file : files_) n += file.bytes().size();
    return n;
  }
  std::string layout() const override {
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(header_.size(), 8); ++i)
      names += (i > 0 ? ", " : "") + header_[i];
    return str(header_.empty() ? "no header line" : "header line " + names,
               header_.size() > 8 ? ", ..." : "", "; the target is ", column(target_));
  }
  std::string where() const override { return str(file_, ":", line_, ": ", column(target_)); }

  void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) override {
    std::vector<std::string_view> fields;
    std::vector<double> inputs(columns_ - 1);
    for (const auto& file : files_) {
      file_ = file.path().string();
      CsvReader reader(text_of(file), file_);
      size_t told = 0;
      const auto tell = [&] {
        // Release complete pieces only, which end at the end of a page for every page size.
        const size_t behind = reader.at() / ProgressReporter::piece * ProgressReporter::piece;
        if (behind > told / ProgressReporter::piece * ProgressReporter::piece)
          file.release(file.bytes().subspan(
              told / ProgressReporter::piece * ProgressReporter::piece,
              behind - told / ProgressReporter::piece * ProgressReporter::piece));
        meter.advance(reader.at() - told);
        told = reader.at();
      };

      for (bool first = !header_.empty(); reader.next(fields); first = false) {
        line_ = reader.line();
        if (fields.size() != columns_) {
          fail(Exit::data, file_, ":", line_, " has ", fields.size(),
               " columns and the first line of ", names_file_, " has ", columns_,
               "; give every line as many");
        }

        if (first) {
          // Every file must repeat the header; other names would mean other columns.
          if (!std::equal(fields.begin(), fields.end(), header_.begin()))
            fail(Exit::data, file_, ":", line_, ": another header line than that of ", names_file_);
          continue;
        }

        for (size_t c = 0, i = 0; c < columns_; ++c) {
          if (c != target_) inputs[i++] = number(fields[c], c);
        }
        give(inputs, fields[target_], f);
        if (reader.at() - told >= ProgressReporter::piece) tell();
      }

      tell();
    }
  }

 private:
  static std::string_view text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }
  std::string column(size_t c) const {
    return str("column ", c + 1,
               header_.empty() ? "" : " (" + std::string(header_[c].substr(0, 100)) + ")");
  }
  [[noreturn]] void refuse(size_t c, const std::string& what) const {
    fail(Exit::data, file_, ":", line_, ": ", column(c), " ", what);
  }
  double number(std::string_view field, size_t c) const {
    if (field.empty()) refuse(c, "is empty; fill it in, or leave the line out");
    const auto x = csv_number(field);
    if (!x)
      refuse(c, "is " + shown(field) +
                    ", which is no number; repair it, or make numbers of a text column first");
    if (!std::isfinite(*x))
      refuse(c, "is " + shown(field) + ", which is not finite; repair it, or leave the line out");
    return *x;
  }
  void give(const std::vector<double>& inputs, std::string_view field,
            const std::function<void(const RawExample&)>& f) {
    if (field.empty() || csv_number(field)) {
      const double target = number(field, target_);
      f({inputs, {&target, 1}, {}});
    } else {
      f({inputs, {}, field});
    }
  }

  // The first line is a header where `target` names one of its columns, where an input or only the
  // target is not a number in it, or where it counts 0, 1, 2, ... as pandas names columns.
  void find_layout(const std::string& target) {
    names_file_ = files_[0].path().string();
    CsvReader reader(text_of(files_[0]), names_file_);
    std::vector<std::string_view> fields;
    if (!reader.next(fields)) fail(Exit::data, names_file_, " has no lines");

    const std::vector<std::string> first(fields.begin(), fields.end());
    columns_ = first.size();
    if (columns_ < 2) {
      const bool other = first[0].find_first_of(";\t") != std::string::npos;
      fail(Exit::data, names_file_, ":", reader.line(), " has one column",
           other ? "; columns must be separated by commas" : "; there must be inputs and a target");
    }

    // `target` may be a column's name or number. In a line of numbers only it is a column's number.
    size_t place = 0;
    const auto [end, error] = std::from_chars(target.data(), target.data() + target.size(), place);
    const bool whole = error == std::errc() && end == target.data() + target.size();
    const auto named = std::find(first.begin(), first.end(), target);

    bool has_header = false;
    if (target == "last" || target == "first") {
      target_ = target == "last" ? columns_ - 1 : 0;
    } else if (named != first.end() && !(whole && all_numbers(first))) {
      target_ = static_cast<size_t>(named - first.begin());
      has_header = true;
    } else if (whole && place >= 1 && place <= columns_) {
      target_ = place - 1;
    } else {
      fail(Exit::usage, "--target ", target, " is no column of ", names_file_,
           "; say last, first, a name of its first "
           "line, or a number from 1 to ",
           columns_);
    }

    // pandas numbers columns without names; a short row of data may begin with 0, 1, 2 by chance.
    bool counts = columns_ >= 5;
    for (size_t c = 0; c < columns_; ++c) {
      has_header = has_header || (c != target_ && !first[c].empty() && !csv_number(first[c]));
      counts = counts && csv_number(first[c]) == static_cast<double>(c);
    }
    // A text above a number in the target column is its name, not a class.
    const bool named_target = !csv_number(first[target_]) && reader.next(fields) &&
                              fields.size() == columns_ && csv_number(fields[target_]);

    if (!has_header && !counts && !named_target) return;
    header_ = first;
    for (size_t c = 0; c < columns_; ++c) {
      if (!header_[c].empty()) continue;
      fail(Exit::data, names_file_, ":1: column ", c + 1,
           " has no name in the header line; such columns mostly number "
           "the lines: take it out, or give it a name");
    }
  }
  static bool all_numbers(const std::vector<std::string>& fields) {
    return std::all_of(fields.begin(), fields.end(),
                       [](const auto& f) { return csv_number(f).has_value(); });
  }

  std::vector<MappedFile> files_;
  std::string names_file_;  // the file whose first line determines the columns
  std::vector<std::string> header_;
  size_t columns_ = 0, target_ = 0;
  std::string file_;
  int64_t line_ = 0;
};

/// The array of an IDX file (the format of the MNIST database): two zero bytes, type, number of
/// dimensions, sizes as big-endian int32, then the elements, which are big-endian, too.
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
  /// Returns the element type of a file that begins like an IDX file; nullopt for any other.
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

/// Inputs or targets in either format.
class Numbers {
 public:
  Numbers(const fs::path& path, const std::string& tensor) : name_(path.string()) {
    if (path.extension() != ".safetensors" && is_idx(path)) {
      idx_.emplace(path);
      type = idx_->type, sizes = idx_->sizes, examples = idx_->examples, numel = idx_->numel;
      if (sizes.size() == 2) sizes.insert(sizes.begin(), 1);  // images of one channel
    } else {
      array_.emplace(path, tensor);
      type = array_->type(), sizes = array_->sizes(), examples = array_->examples(),
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
             ", 2^53 or beyond; make smaller numbers of them");
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
        f({x, y, {}});
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
  if (fs::path(path).extension() == ".safetensors") return Kind::safetensors;
  return begin.starts_with("\x93NUMPY") || IdxFile::type_of(file.bytes()) ? Kind::array : Kind::csv;
}

}  // namespace

std::unique_ptr<ExampleSource> open_source(const std::vector<std::string>& files,
                                           const std::string& target, const ExampleSource* like) {
  std::vector<Kind> kinds;
  for (const auto& file : files) {
    if (!fs::exists(file)) fail(Exit::data, "there is no file ", file);
    kinds.push_back(kind_of(file));
  }

  // A line of CSV has inputs and target, so there may be any number of CSV files.
  const auto is_csv = [](Kind k) { return k == Kind::csv; };
  if (std::all_of(kinds.begin(), kinds.end(), is_csv)) {
    const auto* csv = dynamic_cast<const CsvSource*>(like);
    if (like != nullptr && csv == nullptr)
      fail(Exit::data, files[0], " is CSV and the training examples are not");
    return std::make_unique<CsvSource>(files, target, csv);
  }

  if (std::any_of(kinds.begin(), kinds.end(), is_csv) || files.size() > 2 ||
      (files.size() == 1 && kinds[0] != Kind::safetensors)) {
    fail(Exit::data, files[0], files.size() == 1 ? " is one array" : " and other files are no pair",
         "; give a file of inputs and a file of targets (IDX, .npy, .safetensors), or CSV files "
         "alone");
  }

  if (target != "last" && like == nullptr)
    fail(Exit::usage, "--target ", target,
         " names a column of CSV; here the targets are a file or tensor of their own");

  if (files.size() == 1)
    return std::make_unique<ArraySource>(Numbers(files[0], "inputs"), Numbers(files[0], "targets"));

  Numbers inputs(files[0], ""), targets(files[1], "");
  // Inputs of one number with targets of several are most likely swapped files.
  if (inputs.sizes.empty() && !targets.sizes.empty())
    fail(Exit::data, files[0], " has one number for each example and ", files[1],
         " more; give the inputs first");
  return std::make_unique<ArraySource>(std::move(inputs), std::move(targets));
}

bool is_example_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (path.extension() == ".csv" || path.extension() == ".safetensors") return true;
  const MappedFile file(path, Exit::data);
  const std::string_view begin(reinterpret_cast<const char*>(file.bytes().data()),
                               std::min<size_t>(file.bytes().size(), 6));
  return begin == "\x93NUMPY" || IdxFile::type_of(file.bytes()).has_value();
}

}  // namespace lathe
