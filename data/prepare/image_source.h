// Folders of images as example sets. No LibTorch header.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/prepare/example_source.h"

namespace lathe {

/// How images become inputs.
struct ImageOptions {
  int64_t height = 0, width = 0;  ///< size to which all are resized; 0: keep the size that all have
};

/// Opens a folder that holds, for each class, a folder of PNG and JPEG files with the name of the
/// class. Folders in that folder are searched too; other files and names that begin with a dot are
/// ignored. Inputs are uint8 [C, height, width], with C = 1 where all images are gray and else 3,
/// in the order of classes and paths. scan() reads all headers. With `like`, which must have been
/// scanned, images get its channels and size. Throws Exit::data for a folder of another form, and
/// for images that can't be read (data/prepare/image_file.h); Exit::usage for images of different
/// sizes if `options` has none to resize them to.
std::unique_ptr<ExampleSource> open_image_folder(const std::string& folder,
                                                 const ImageOptions& options,
                                                 const ExampleSource* like);

/// Opens new images for a model that was trained on a folder of images: files, and folders with all
/// images in them. RawExample::label is the path of an image.
std::unique_ptr<ExampleSource> open_new_images(const std::vector<std::string>& paths,
                                               const ExampleEncoding& encoding);

}  // namespace lathe
