// Tests of preparing images in one folder per class: the results, and errors that name the file.
#include <zlib.h>

#include <optional>

#include "core/io/json.h"
#include "data/examples/example_manifest.h"
#include "data/prepare/image_file.h"
#include "data/prepare/prepare_examples.h"
#include "data/prepare/resize.h"
#include "tests/data/prepare/image_files.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// A folder with one subfolder of images for each class, and the example set prepared from it.
struct ImageFolderCase {
  TempFolder f;
  ExampleOptions options{.val_share = 0};

  ImageFolderCase() {
    fs::create_directories(f / "in/dog/deep");
    fs::create_directories(f / "in/cat");
    write_file(f / "in/cat/b.png", png_of(6, 8, random_bytes(6 * 8 * 3, 1)));
    write_file(f / "in/cat/a.JPG", jpeg_of(6, 8, random_bytes(6 * 8 * 3, 2)));
    write_file(f / "in/dog/deep/c.jpeg", jpeg_of(9, 5, random_bytes(9 * 5, 3), {JCS_GRAYSCALE, 1}));
    write_file(f / "in/dog/d.png", png_of(4, 4, random_bytes(16, 4), {PNG_COLOR_TYPE_GRAY}));
    options.images = ImageOptions{4, 6};
  }
  ExampleManifest prepare() {
    options.inputs = {(f / "in").string()};
    options.out = f / "out";
    fs::remove_all(options.out);
    prepare_examples(options);
    return read_example_manifest(options.out);
  }
  /// Checks that prepare() throws an error with the exit code `code`, that its message contains
  /// each of `facts`, and that no output folder is left.
  void refused(Exit code, const std::vector<std::string>& facts) {
    INFO(facts.at(0));
    std::optional<Exit> given;
    std::string sentence;
    try {
      prepare();
    } catch (const Error& e) {
      given = e.code();
      sentence = e.what();
    }
    CHECK(given == code);
    for (const auto& fact : facts) CHECK_THAT(sentence, ContainsSubstring(fact));
    CHECK(!fs::exists(options.out));
  }
  std::vector<double> example(const std::string& array, int64_t i) {
    const ExampleArray inputs(options.out / array, "");
    std::vector<double> numbers(static_cast<size_t>(inputs.numel()));
    inputs.read(i, numbers.data());
    return numbers;
  }
  std::vector<double> resized(const std::string& file, int64_t channels) {
    ImageFile image(f / file);
    std::vector<uint8_t> pixels;
    image.read(channels, pixels);
    std::vector<double> out;
    resize_image(pixels, image.height(), image.width(), channels, options.images->height,
                 options.images->width, out);
    return out;
  }
};

TEST_CASE("images in one folder per class become an array of bytes with channels first",
          "[image_folders]") {
  ImageFolderCase c;
  write_file(c.f / "in/notes.txt", "some notes");
  write_file(c.f / "in/cat/Thumbs.db", "no image");
  fs::create_directories(c.f / "in/.cache");
  write_file(c.f / "in/cat/.hidden.png", "no image");
  const ExampleManifest m = c.prepare();
  CHECK(m.task == "classification");
  CHECK(m.labels == std::vector<std::string>{"cat", "dog"});
  CHECK(m.input_sizes == std::vector<int64_t>{3, 4, 6});
  CHECK(m.train.inputs.type == ArrayType::u8);
  CHECK(m.encoding().image_files);
  // Examples are sorted by class, then by path.
  CHECK(m.train.examples == 4);
  const std::vector<std::string> files{"in/cat/a.JPG", "in/cat/b.png", "in/dog/d.png",
                                       "in/dog/deep/c.jpeg"};
  for (int64_t i = 0; i < 4; ++i) {
    INFO(files[static_cast<size_t>(i)]);
    CHECK(c.example("train_inputs.npy", i) == c.resized(files[static_cast<size_t>(i)], 3));
    CHECK(c.example("train_targets.npy", i) == std::vector<double>{i < 2 ? 0.0 : 1.0});
  }

  // The examples have only one channel if all images are gray, and otherwise three.
  fs::remove_all(c.f / "in/cat");
  fs::create_directories(c.f / "in/ant");
  write_file(c.f / "in/ant/a.png", png_of(4, 4, random_bytes(32, 4), {PNG_COLOR_TYPE_GRAY_ALPHA}));
  CHECK(c.prepare().input_sizes == std::vector<int64_t>{1, 4, 6});
  CHECK(c.example("train_inputs.npy", 1) == c.resized("in/dog/d.png", 1));

  // Validation images are converted to the channels and the size of the training images.
  fs::create_directories(c.f / "val/dog");
  write_file(c.f / "val/dog/x.png", png_of(3, 9, random_bytes(81, 5)));
  c.options.val_inputs = {(c.f / "val").string()};
  CHECK(c.prepare().val.examples == 1);
  CHECK(c.example("val_inputs.npy", 0) == c.resized("val/dog/x.png", 1));
  CHECK(c.example("val_targets.npy", 0) == std::vector<double>{1});
  fs::create_directories(c.f / "val/bee");
  write_file(c.f / "val/bee/x.png", png_of(3, 9, random_bytes(81, 5)));
  c.refused(Exit::data, {"val/bee/x.png", "\"bee\""});
}

TEST_CASE("without --size, all images must have the same size", "[image_folders]") {
  ImageFolderCase c;
  c.options.images = ImageOptions{};
  c.refused(Exit::usage, {"in/dog/d.png", "4 x 4", "--size"});
  fs::remove_all(c.f / "in/dog");
  fs::create_directories(c.f / "in/dog");
  write_file(c.f / "in/dog/d.png", png_of(6, 8, random_bytes(48, 4), {PNG_COLOR_TYPE_GRAY}));
  CHECK(c.prepare().input_sizes == std::vector<int64_t>{3, 6, 8});
  const std::vector<uint8_t> pixels = random_bytes(48, 4);
  std::vector<double> wanted;
  for (int channel = 0; channel < 3; ++channel)
    wanted.insert(wanted.end(), pixels.begin(), pixels.end());
  CHECK(c.example("train_inputs.npy", 2) == wanted);

  fs::create_directories(c.f / "val/dog");
  write_file(c.f / "val/dog/x.png", png_of(3, 9, random_bytes(81, 5)));
  c.options.val_inputs = {(c.f / "val").string()};
  c.refused(Exit::usage, {"val/dog/x.png", "3 x 9", "--size"});
}

TEST_CASE("a manifest is refused if \"images\" has an unknown value or contradicts other keys",
          "[image_folders]") {
  ImageFolderCase c;
  c.prepare();
  const Json good = parse_json(slurp(c.f / "out/manifest.json"), "", Exit::internal);
  CHECK(good["images"] == "bilinear");
  for (const auto& [key, value] : {std::pair<const char*, Json>{"images", "nearest"},
                                   {"images", true},
                                   {"sizes", {2, 4, 6}},
                                   {"layout", "hwc"}}) {
    INFO(key);
    Json bad = good;
    bad[key] = value;
    if (bad["sizes"] != good["sizes"]) bad["inputs"] = {{"mean", {0, 0}}, {"scale", {1, 1}}};
    write_file(c.f / "out/manifest.json", json_text(bad));
    CHECK_THAT(error_of([&] { read_example_manifest(c.f / "out"); }),
               ContainsSubstring("\"images\""));
  }
}

/// Returns a PNG file whose header states the given size, although its data are those of a 4 x 4
/// image.
std::string png_claiming(uint32_t height, uint32_t width) {
  std::string file = png_of(4, 4, random_bytes(48, 1));
  const auto put = [&](size_t at, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) file[at + i] = static_cast<char>(value >> (24 - 8 * i));
  };
  put(16, width);
  put(20, height);
  put(29, static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(file.data()) + 12, 17)));
  return file;
}

TEST_CASE("a file that is not a readable image is refused with its name, and no output is left",
          "[image_folders]") {
  ImageFolderCase c;
  const std::string png = png_of(6, 8, random_bytes(144, 1)),
                    jpeg = jpeg_of(16, 8, random_bytes(384, 2));
  CHECK(c.prepare().train.examples == 4);  // without a bad file, preparing succeeds
  const auto bad = [&](const std::string& name, const std::string& bytes, const std::string& what) {
    write_file(c.f / "in/cat" / name, bytes);
    c.refused(Exit::data, {"in/cat/" + name, what});
    fs::remove(c.f / "in/cat" / name);
  };
  for (const double share : {0.1, 0.4, 0.8, 0.95})
    bad("a.png", png.substr(0, static_cast<size_t>(share * static_cast<double>(png.size()))),
        "damaged");
  for (const double share : {0.2, 0.5, 0.9})
    bad("a.jpg", jpeg.substr(0, static_cast<size_t>(share * static_cast<double>(jpeg.size()))),
        "damaged");
  std::string flipped = png;
  flipped[60] ^= 1;
  bad("a.png", flipped, "damaged");
  bad("a.png", "", "neither");
  bad("a.jpg", "GIF89a and more", "neither");
  bad("a.jpg", jpeg_of(4, 4, random_bytes(64, 1), {JCS_CMYK, 4}), "CMYK");
  bad("a.png", png_claiming(30000, 5000), "30000 x 5000");
  bad("a.png", png_claiming(0, 4), "damaged");
  // 10^8 pixels are within the limit. Decoding therefore starts, and fails at the missing data.
  bad("a.png", png_claiming(10000, 10000), "damaged");

  // Each repeated scan adds only a few bytes to the file, but takes the time of a complete scan.
  const std::string scans = jpeg_of(16, 8, random_bytes(384, 2), {.apart = true});
  const std::string last = scans.substr(scans.rfind("\xFF\xDA"));
  const auto repeated = [&](int times) {
    std::string file = scans.substr(0, scans.size() - 2);
    for (int i = 0; i < times; ++i) file += last.substr(0, last.size() - 2);
    return file + "\xFF\xD9";
  };
  bad("a.jpg", repeated(98), "100 scans");
  write_file(c.f / "in/cat/scans.jpg", repeated(97));  // a file with one scan fewer is accepted
  write_file(c.f / "in/cat/png.jpg", png);             // contents, not names, determine the format
  CHECK(c.prepare().train.examples == 6);
}

TEST_CASE("a folder that does not have one subfolder of images per class is refused",
          "[image_folders]") {
  ImageFolderCase c;
  const std::string in = (c.f / "in").string();
  write_file(c.f / "in/x.png", png_of(4, 4, random_bytes(48, 1)));
  c.refused(Exit::data, {"in/x.png", "beside"});
  fs::remove(c.f / "in/x.png");
  fs::create_directories(c.f / "in/empty");
  c.refused(Exit::data, {"in/empty", "PNG"});
  fs::remove(c.f / "in/empty");
  fs::create_directories(c.f / "in/\xFF");
  c.refused(Exit::data, {"class", "UTF-8"});
  fs::remove(c.f / "in/\xFF");
  CHECK(c.prepare().train.examples == 4);  // the remaining folders are valid
  fs::remove_all(c.f / "in/dog");
  c.refused(Exit::data, {"target is cat"});
  fs::remove_all(c.f / "in/cat");
  c.refused(Exit::data, {in, "no folders"});
  fs::remove_all(c.f / "in");
  c.refused(Exit::data, {in, "exist"});
  write_file(c.f / "in", "text");
  c.refused(Exit::data, {in, "not a folder"});
}

TEST_CASE("a stop while images are read leaves no output", "[image_folders]") {
  ImageFolderCase c;
  int calls = 0;
  c.options.stop = [&] { return ++calls == 7; };
  c.refused(Exit::stopped, {(c.f / "out").string(), "nothing"});
  c.options.stop = nullptr;
  CHECK(c.prepare().train.examples == 4);
}

TEST_CASE("flags for images are refused for other formats and with wrong values",
          "[image_folders]") {
  const ImageFolderCase c;
  const auto outcome = [&](std::vector<std::string> flags, const std::string& in = "in") {
    std::vector<std::string> words{"prepare", in, "--out", "out"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = lathe_in(c.f, words);
    CHECK(fs::exists(c.f / "out") == (done.code == 0));
    fs::remove_all(c.f / "out");
    return done;
  };
  const Finished made = outcome({"--format", "images", "--size", "4,6", "--val", "0"});
  CHECK(made.code == 0);
  CHECK_THAT(made.out, ContainsSubstring("4 images") && ContainsSubstring("2 classes") &&
                           ContainsSubstring("RGB") && ContainsSubstring("4 x 6"));
  CHECK_THAT(made.out, ContainsSubstring("4 training") && ContainsSubstring("0 validation"));

  write_file(c.f / "a.csv", "1,2\n3,4\n");
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--format", "images", "--size", "0"},
                                             {"--format", "images", "--size", "4097"},
                                             {"--format", "images", "--size", "3,4,5"},
                                             {"--format", "images", "--size", "wide"},
                                             {"--format", "images", "--target", "last"},
                                             {"--format", "images", "--tokenizer", "byte"},
                                             {"--format", "images", "--val-file", "in,in"},
                                             {"--format", "text", "--size", "4"}}) {
    INFO(flags.back());
    const Finished done = outcome(flags);
    CHECK(done.code == 2);
    CHECK_THAT(done.err, ContainsSubstring("command line: --"));
  }
  CHECK(outcome({"--size", "4"}, "a.csv").code == 2);
  CHECK(outcome({"--format", "images"}, "a.csv").code == 3);
  // If a folder of images is given without --format images, the error recommends that flag.
  const Finished hinted = outcome({});
  CHECK(hinted.code == 3);
  CHECK_THAT(hinted.err, ContainsSubstring("--format images"));
}

}  // namespace
