// Reads folders of images as example sets. Includes no LibTorch header.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/prepare/example_source.h"

namespace lathe {

/// Defines how images become inputs.
struct ImageOptions {
  /// The size to which all images are resized. 0: images keep their size, which must be the same
  /// for all images.
  int64_t height = 0, width = 0;
};

/// Opens a folder that holds one folder for each class. The folder of a class has the name of the
/// class, and holds PNG and JPEG files. Its subfolders are also searched, but links to folders are
/// not followed. Other files and names that begin with a dot are ignored. Examples are in the order
/// of classes and paths. Inputs are uint8 [C, height, width], with C = 1 if all images are gray and
/// C = 3 otherwise. scan() reads the headers of all images. If `like` is not null, it must be a
/// scanned source; images then get the number of channels and the size of the inputs of `like`.
/// Throws Exit::data for a folder of another form, and for images that can't be read
/// (data/prepare/image_file.h). Throws Exit::usage if images have different sizes and `options`
/// gives no size to resize them to.
std::unique_ptr<ExampleSource> open_image_folder(const std::string& folder,
                                                 const ImageOptions& options,
                                                 const ExampleSource* like);

/// Opens new images for a model that was trained on a folder of images. `paths` are image files,
/// and folders from which all images are read. RawExample::label is the path of an image.
std::unique_ptr<ExampleSource> open_new_images(const std::vector<std::string>& paths,
                                               const ExampleEncoding& encoding);

}  // namespace lathe
