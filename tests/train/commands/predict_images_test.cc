// Prepares a folder of images, and trains, evaluates and predicts with it.
#include <sys/wait.h>
#include <unistd.h>

#include "core/io/json.h"
#include "data/examples/npy.h"
#include "tests/data/prepare/image_files.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns an image of noise. Its upper half is brighter for "sky", and its lower half for "sea".
std::string half_image(bool is_sky, uint32_t seed, bool as_jpeg) {
  constexpr int64_t height = 14, width = 10;
  std::vector<uint8_t> pixels = random_bytes(height * width * 3, seed);
  for (int64_t i = 0; i < height * width * 3; ++i) {
    const bool is_upper = i < height * width * 3 / 2;
    uint8_t& pixel = pixels[static_cast<size_t>(i)];
    pixel = static_cast<uint8_t>(pixel / 2 + (is_upper == is_sky ? 120 : 0));
  }
  return as_jpeg ? jpeg_of(height, width, pixels) : png_of(height, width, pixels);
}

/// A folder with a run of a small convnet on images of half_image().
struct ImageRun {
  TempFolder f;

  ImageRun() {
    for (uint32_t i = 0; i < 60; ++i) {
      const bool is_sky = i % 2 == 0;
      const std::string name =
          str("in/", is_sky ? "sky" : "sea", "/", i, i % 3 == 0 ? ".jpg" : ".png");
      fs::create_directories((f / name).parent_path());
      write_file(f / name, half_image(is_sky, i + 1, i % 3 == 0));
    }
    fs::create_directories(f / "new/more");
    write_file(f / "new/a,1.png", half_image(true, 100, false));
    write_file(f / "new/b.jpg", half_image(false, 101, true));
    write_file(f / "new/more/c.png", half_image(false, 102, false));
    write_file(f / "new/notes.txt", "no image");
    write_file(f / "run.toml",
               "[model]\nkind = \"convnet\"\nn_stage = 2\nn_block = 1\nn_channel = 4\n[data]\ndir "
               "= \"data\"\n[optim]\nlr = 1e-2\n[schedule]\nkind = \"constant\"\nwarmup_steps = "
               "0\n[train]\nsteps = 40\nbatch_size = 16\neval_interval = 40\nthreads = 1\n");
    make({"prepare", "in", "--format", "images", "--size", "8", "--out", "data"});
    make({"train", "run.toml"});
  }
  Finished call(std::vector<std::string> words) const { return lathe_in(f, words); }
  std::string make(const std::vector<std::string>& words) const {
    const Finished done = call(words);
    INFO(done.err << done.out);
    REQUIRE(done.code == 0);
    return done.out;
  }
};

TEST_CASE("predict lists the class of each image file by the name of the file",
          "[predict_images]") {
  const ImageRun r;
  const std::string whole = r.make({"predict", "runs/run", "new"});
  INFO(whole);
  CHECK_THAT(whole, ContainsSubstring("file,class,p_sea,p_sky\n\"new/a,1.png\",sky,0."));
  CHECK_THAT(whole, ContainsSubstring("\nnew/b.jpg,sea,0."));
  CHECK_THAT(whole, ContainsSubstring("\nnew/more/c.png,sea,0."));
  CHECK(std::count(whole.begin(), whole.end(), '\n') == 4);
  CHECK(r.make({"predict", "runs/run", "new/a,1.png", "new/b.jpg", "new/more"}) == whole);
  CHECK_THAT(r.make({"eval", "runs/run"}), ContainsSubstring("class \\ predicted  sea"));

  // A temporary file of a process that has ended is removed. Other files with similar names stay.
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  const std::string left = str("p.jsonl.unfinished-", gone), kept = "p.jsonl.unfinished-notes",
                    running = str("p.jsonl.unfinished-", getpid());
  for (const std::string& name : {left, kept, running}) write_file(r.f / name, "x");
  r.make({"predict", "runs/run", "new/b.jpg", "--out", "p.jsonl"});
  CHECK(!fs::exists(r.f / left));
  CHECK(fs::exists(r.f / kept));
  CHECK(fs::exists(r.f / running));
  const Json line = parse_json(slurp(r.f / "p.jsonl"), "", Exit::internal);
  CHECK(line["id"] == "new/b.jpg");
  CHECK(line["class"] == "sea");

  // Images in an array have no file names, so their rows are numbered.
  const std::string rows = r.make({"predict", "runs/run", "data/val_inputs.npy"});
  CHECK_THAT(rows, ContainsSubstring("row,class,p_sea,p_sky\n1,"));
  // A checkpoint records that the inputs of its model were image files.
  fs::rename(r.f / "data", r.f / "moved");
  CHECK(r.make({"predict", "runs/run", "new"}) == whole);
}

TEST_CASE("files that an image model can't predict are refused with a sentence",
          "[predict_images]") {
  const ImageRun r;
  const auto refused = [&](const std::vector<std::string>& files, int code,
                           const std::string& what) {
    std::vector<std::string> words{"predict", "runs/run"};
    words.insert(words.end(), files.begin(), files.end());
    words.insert(words.end(), {"--out", "out.csv"});
    const Finished done = r.call(words);
    INFO(done.err);
    CHECK(done.code == code);
    CHECK_THAT(done.err, ContainsSubstring(what));
    CHECK(done.out.empty());
    CHECK(!fs::exists(r.f / "out.csv"));
  };
  write_file(r.f / "new/z.png", slurp(r.f / "new/a,1.png").substr(0, 200));
  refused({"new"}, 3, "new/z.png is damaged");
  fs::create_directories(r.f / "none");
  refused({"none"}, 3, "none holds no PNG");
  refused({"new/b.jpg", "nowhere.png"}, 3, "nowhere.png");
  refused({"new/b.jpg", "run.toml"}, 3, "run.toml is neither a PNG");
  write_file(r.f / "bad.PNG", "");
  refused({"bad.PNG"}, 3, "bad.PNG is neither a PNG");
  refused({"run.toml", "new/b.jpg"}, 2, "new/b.jpg is a second");
  refused({"run.toml"}, 3, "run.toml is a table");

  // A model that was trained on arrays does not resize inputs, so it accepts no image files.
  NpyWriter inputs(r.f / "x.npy", ArrayType::u8, {8, 3, 8, 8});
  const std::string zeros(8 * 3 * 64, 'x');
  inputs.write(reinterpret_cast<const std::byte*>(zeros.data()), zeros.size());
  inputs.finish();
  NpyWriter targets(r.f / "y.npy", ArrayType::u8, {8});
  targets.write(reinterpret_cast<const std::byte*>("\0\1\0\1\0\1\0\1"), 8);
  targets.finish();
  r.make({"prepare", "x.npy", "y.npy", "--out", "arrays", "--val", "0.5"});
  r.make({"train", "run.toml", "--data.dir=arrays", "--train.out_dir=runs/arrays",
          "--train.steps=2", "--train.eval_interval=2"});
  const Finished array = r.call({"predict", "runs/arrays", "new"});
  CHECK(array.code == 3);
  CHECK_THAT(array.err, ContainsSubstring("new is a folder"));
  CHECK(r.call({"predict", "runs/arrays", "x.npy"}).code == 0);  // accepted
}

}  // namespace
