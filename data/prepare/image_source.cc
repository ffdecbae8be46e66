#include "data/prepare/image_source.h"

#include <algorithm>

#include "core/error.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "data/prepare/image_file.h"
#include "data/prepare/resize.h"

namespace lathe {
namespace {

struct ImagePath {
  std::string path, label;
  uint64_t bytes = 0;
};

constexpr int64_t most_size = 4096;  // largest height and width of inputs

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

/// Adds all images in a folder and its subfolders to `found`, in the order of their paths. Does not
/// follow links to folders. Adds the number of other files to `others`.
void collect_images(const fs::path& folder, const std::string& label, std::vector<ImagePath>& found,
                    int64_t& others) {
  std::vector<fs::path> entries = list_folder(folder);
  std::ranges::sort(entries);
  for (const fs::path& entry : entries) {
    if (is_hidden(entry)) continue;
    if (fs::is_directory(entry) && !fs::is_symlink(entry)) {
      collect_images(entry, label, found, others);
    } else if (fs::is_regular_file(entry) && has_image_name(entry)) {
      found.push_back({.path = entry.string(), .label = label, .bytes = fs::file_size(entry)});
    } else {
      ++others;
    }
  }
}

/// Images in order, resized to one size.
class ImageSource : public ExampleSource {
 public:
  std::vector<int64_t> sizes() const override { return {channels_, height_, width_}; }
  std::optional<ArrayType> input_type() const override { return ArrayType::u8; }
  uint64_t bytes() const override {
    uint64_t all = 0;
    for (const ImagePath& image : images_) all += image.bytes;
    return all;
  }
  std::string where() const override { return at_; }
  void each(ProgressReporter& meter, const std::function<void(const RawExample&)>& f) override {
    std::vector<uint8_t> pixels;
    std::vector<double> resized;
    for (const ImagePath& image : images_) {
      at_ = image.path;
      ImageFile file(image.path);
      file.read(channels_, pixels);
      resize_image(pixels, file.height(), file.width(), channels_, height_, width_, resized);
      f({.inputs = resized, .targets = {}, .label = image.label});
      meter.advance(image.bytes);
    }
  }

 protected:
  std::vector<ImagePath> images_;
  int64_t channels_ = 0, height_ = 0, width_ = 0, others_ = 0;
  std::string at_;
};

class ImageFolder final : public ImageSource {
 public:
  ImageFolder(const std::string& folder, const ImageOptions& options, const ExampleSource* like) {
    if (!fs::is_directory(folder))
      fail(Exit::data, folder, fs::exists(folder) ? " is not a folder" : " does not exist",
           "; --format images takes a folder that holds a folder of images for each class");
    std::vector<fs::path> classes = list_folder(folder);
    std::ranges::sort(classes);
    for (const fs::path& entry : classes) add_class(entry);
    if (classes_ == 0)
      fail(Exit::data, folder, " holds no folders; make one for each class, with its images in it");

    height_ = options.height;
    width_ = options.width;
    if (like == nullptr) return;
    const std::vector<int64_t> sizes = like->sizes();
    channels_ = sizes.at(0);
    height_ = sizes.at(1);
    width_ = sizes.at(2);
    if (options.height == 0) check_sizes();
  }

  void scan(ProgressReporter& meter) override;
  std::string layout() const override {
    return str(quantity(std::ssize(images_), "image"), " of ", classes_, " classes, as ",
               channels_ == 1 ? "gray" : "RGB", " of ", height_, " x ", width_,
               others_ > 0 ? str("; ", quantity(others_, "other file"),
                                 others_ == 1 ? " is" : " are", " ignored")
                           : "");
  }

 private:
  void add_class(const fs::path& entry);
  /// Throws unless all images have the size of the training images.
  void check_sizes() const;

  int64_t classes_ = 0;
};

void ImageFolder::add_class(const fs::path& entry) {
  if (is_hidden(entry)) return;
  if (!fs::is_directory(entry)) {
    if (has_image_name(entry))
      fail(Exit::data, entry.string(), " is beside the folders of classes; move it into one");
    ++others_;
    return;
  }

  const std::string label = entry.filename().string();
  if (!is_utf8(label))
    fail(Exit::data, entry.string(), ": the name of the class is not UTF-8; rename the folder");
  const size_t before = images_.size();
  collect_images(entry, label, images_, others_);
  if (images_.size() == before)
    fail(Exit::data, entry.string(), " holds no PNG or JPEG images; add some, or remove it");
  ++classes_;
}

void ImageFolder::check_sizes() const {
  for (const ImagePath& image : images_) {
    const ImageFile file(image.path);
    if (file.height() == height_ && file.width() == width_) continue;
    fail(Exit::usage, image.path, " is ", file.height(), " x ", file.width(),
         ", but the training images are ", height_, " x ", width_,
         "; resize all images with --size HEIGHT,WIDTH");
  }
}

/// Determines the number of channels, and the size if no size was given.
void ImageFolder::scan(ProgressReporter& meter) {
  const bool keeps = height_ == 0;
  meter.begin("scanned", bytes());
  channels_ = 1;
  for (const ImagePath& image : images_) {
    const ImageFile file(image.path);
    if (!file.is_gray()) channels_ = 3;
    if (keeps && height_ == 0) {
      height_ = file.height();
      width_ = file.width();
    }
    if (keeps && (file.height() != height_ || file.width() != width_))
      fail(Exit::usage, image.path, " is ", file.height(), " x ", file.width(), ", but ",
           images_[0].path, " is ", height_, " x ", width_,
           "; resize all images with --size HEIGHT,WIDTH");
    if (keeps && std::max(height_, width_) > most_size)
      fail(Exit::usage, image.path, " is ", height_, " x ", width_,
           "; resize all images with --size HEIGHT,WIDTH, to at most ", most_size);
    meter.advance(image.bytes);
  }
}

class NewImages final : public ImageSource {
 public:
  NewImages(const std::vector<std::string>& paths, const ExampleEncoding& encoding) {
    channels_ = encoding.input_sizes.at(0);
    height_ = encoding.input_sizes.at(1);
    width_ = encoding.input_sizes.at(2);
    for (const std::string& path : paths) {
      if (!fs::is_directory(path)) {
        images_.push_back({.path = path, .label = "", .bytes = fs::file_size(path)});
        continue;
      }
      const size_t before = images_.size();
      collect_images(path, "", images_, others_);
      if (images_.size() == before) fail(Exit::data, path, " holds no PNG or JPEG images");
    }
    if (others_ > 0)
      log_warn(quantity(others_, "file"), others_ == 1 ? " was" : " were",
               " left out: only PNG and JPEG images are read, and links to folders are not "
               "followed");
    for (ImagePath& image : images_) {
      if (!is_utf8(image.path)) fail(Exit::data, image.path, " is not UTF-8; rename the file");
      image.label = image.path;
    }
  }
};

}  // namespace

std::unique_ptr<ExampleSource> open_image_folder(const std::string& folder,
                                                 const ImageOptions& options,
                                                 const ExampleSource* like) {
  return std::make_unique<ImageFolder>(folder, options, like);
}

std::unique_ptr<ExampleSource> open_new_images(const std::vector<std::string>& paths,
                                               const ExampleEncoding& encoding) {
  return std::make_unique<NewImages>(paths, encoding);
}

}  // namespace lathe
