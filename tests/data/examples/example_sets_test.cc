// Tests of example sets: exact epochs, normalization, augmentation, folds, changed folders.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "data/examples/example_manifest.h"
#include "data/examples/examples.h"
#include "data/folder.h"
#include "data/prepare/prepare_examples.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

struct Table {
  std::vector<std::vector<double>> inputs;
  std::vector<double> targets;
};

std::string text_of(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

/// Writes the rows as CSV and prepares them in `folder`/data. Returns `folder`/data.
fs::path prepared(const TempFolder& folder, const Table& table, ExampleOptions options) {
  std::string text;
  for (size_t i = 0; i < table.inputs.size(); ++i) {
    for (const double x : table.inputs[i]) text += text_of(x) + ",";
    text += text_of(table.targets[i]) + "\n";
  }
  write_file(folder / "table.csv", text);
  options.inputs = {(folder / "table.csv").string()};
  options.out = folder / "data";
  fs::remove_all(options.out);
  prepare_examples(options);
  return options.out;
}

/// Returns n rows. Column 0 is the number of the row, column 1 is large with small changes, column
/// 2 is constant, and column 3 is random.
Table numbered(int64_t n, int64_t classes) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Table t;
  for (int64_t i = 0; i < n; ++i) {
    t.inputs.push_back({static_cast<double>(i), 1.6e9 + normal(random), 0.1, 3 * normal(random)});
    t.targets.push_back(classes > 0 ? static_cast<double>(i % classes)
                                    : 100 * normal(random) + 0.5);
  }
  return t;
}

DataConfig config_of(const fs::path& dir) {
  DataConfig c;
  c.dir = dir.string();
  return c;
}

/// Returns a copy of training micro-batch n.
Batch batch_of(const Data& data, int64_t batch_size, uint64_t seed, int64_t n) {
  const auto batches = data.training({.batch_size = batch_size}, seed);
  const auto buffers = batches->make_buffers();
  batches->fill(buffers, n);
  const Batch b = batches->batch_of(buffers);
  return {b.inputs.clone(), b.targets.clone()};
}

/// Returns the validation split, or its first `batches` batches.
Batch all_val(const Data& data, int64_t batch_size = 7, int64_t batches = 0) {
  std::vector<at::Tensor> inputs, targets;
  const auto all = data.evaluation({.batch_size = batch_size}, batches, at::kCPU);
  for (Batch b; all->next(b);) {
    inputs.push_back(b.inputs);
    targets.push_back(b.targets);
  }
  return {torch::cat(inputs), torch::cat(targets)};
}

/// Returns mean and standard deviation by their definitions, in two passes.
std::pair<double, double> by_definition(const std::vector<double>& x) {
  long double mean = 0, squares = 0;
  for (const double v : x) mean += v;
  mean /= static_cast<long double>(x.size());
  for (const double v : x) squares += (v - mean) * (v - mean);
  return {static_cast<double>(mean),
          static_cast<double>(std::sqrt(squares / static_cast<long double>(x.size())))};
}

/// Returns the row numbers of a batch of numbered(), given the mean and scale of column 0.
std::vector<int64_t> rows_of(const Batch& b, double mean, double scale) {
  const at::Tensor x = b.inputs.select(1, 0).to(at::kDouble) * scale + mean;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const double v = x[i].item<double>();
    REQUIRE(std::fabs(v - std::round(v)) < 1e-3);
    rows.push_back(std::llround(v));
  }
  return rows;
}

TEST_CASE("an epoch has every example once, wherever it resumes and whichever threads fill batches",
          "[example_sets]") {
  const TempFolder f;
  // Test 15 epochs, most of which end within a batch.
  constexpr int64_t n = 37, batch = 5, micro_batches = 3 * n;
  const fs::path dir = prepared(f, numbered(n, 3), {.val_share = 0});
  const auto data = open_examples(config_of(dir));
  REQUIRE(data->train_size() == n);
  CHECK(data->val_size() == 0);
  CHECK(data->evaluation({.batch_size = 2}, 0, at::kCPU) != nullptr);
  const auto m = read_example_manifest(dir);
  const auto rows = [&](const Batch& b) { return rows_of(b, m.inputs.mean[0], m.inputs.scale[0]); };

  std::vector<Batch> whole;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < micro_batches; ++i) {
    whole.push_back(batch_of(*data, batch, 42, i));
    for (const int64_t row : rows(whole.back())) order.push_back(row);
    CHECK(whole.back().targets.scalar_type() == at::kLong);
    CHECK(whole.back().inputs.sizes() == at::IntArrayRef({batch, 4}));
  }
  std::set<std::vector<int64_t>> epochs;
  for (int64_t e = 0; e < micro_batches * batch / n; ++e) {
    std::vector<int64_t> epoch(order.begin() + e * n, order.begin() + (e + 1) * n);
    epochs.insert(epoch);
    CHECK(!std::is_sorted(epoch.begin(), epoch.end()));
    std::sort(epoch.begin(), epoch.end());
    for (int64_t i = 0; i < n; ++i) REQUIRE(epoch[static_cast<size_t>(i)] == i);
  }
  CHECK(epochs.size() == 15);                      // no two epochs have the same order
  for (int64_t i = 0; i < std::ssize(order); ++i)  // targets belong to their inputs
    REQUIRE(whole[static_cast<size_t>(i / batch)].targets[i % batch].item<int64_t>() ==
            order[static_cast<size_t>(i)] % 3);

  // Open the folder again, resume at 20 positions, and let four threads fill batches out of order.
  for (int64_t resume = 0; resume < 20; ++resume) {
    const auto again = open_examples(config_of(dir));
    const int64_t first = resume * 5 + resume % 3;
    const auto batches = again->training({.batch_size = batch}, 42);
    std::vector<std::vector<at::Tensor>> filled(8);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      filled[t] = batches->make_buffers();
      filled[7 - t] = batches->make_buffers();
      threads.emplace_back([&, t] {
        batches->fill(filled[7 - t], first + 7 - static_cast<int64_t>(t));
        batches->fill(filled[t], first + static_cast<int64_t>(t));
      });
    }
    for (auto& t : threads) t.join();
    for (int64_t i = 0; i < 8 && first + i < micro_batches; ++i) {
      const Batch got = batches->batch_of(filled[static_cast<size_t>(i)]),
                  &wanted = whole[static_cast<size_t>(first + i)];
      CHECK(torch::equal(got.inputs, wanted.inputs));
      CHECK(torch::equal(got.targets, wanted.targets));
    }
  }
  CHECK(rows(batch_of(*data, batch, 43, 0)) != rows(whole[0]));
}

TEST_CASE("inputs and targets are normalized by statistics of the training examples only",
          "[example_sets]") {
  const TempFolder f;
  const Table table = numbered(300, 0);
  const fs::path dir = prepared(f, table, {.task = "regression", .val_share = 0.3});
  const auto data = open_examples(config_of(dir));
  REQUIRE(data->train_size() == 210);
  REQUIRE(data->val_size() == 90);
  const auto m = read_example_manifest(dir);
  // The files show which rows are for training.
  const ExampleArray train(dir / "train_inputs.npy", ""), val(dir / "val_inputs.npy", "");
  std::vector<std::vector<double>> columns(4);
  std::vector<double> targets, example(4);
  for (int64_t i = 0; i < 210; ++i) {
    train.read(i, example.data());
    CHECK(example ==
          table.inputs[static_cast<size_t>(example[0])]);  // bitwise equal to the text's numbers
    for (size_t c = 0; c < 4; ++c) columns[c].push_back(example[c]);
    targets.push_back(table.targets[static_cast<size_t>(example[0])]);
  }
  const auto close = [](double a, double b, double scale) {
    return std::fabs(a - b) <= 1e-9 * scale;
  };
  for (size_t c = 0; c < 4; ++c) {
    const auto [mean, deviation] = by_definition(columns[c]);
    INFO("column " << c);
    if (c == 2) {
      CHECK(m.inputs.mean[c] == 0.1);
      CHECK(m.inputs.scale[c] == 1);
      continue;
    }
    // The last bit of 1.6e9 is 2e-7, and a sum of 210 such numbers loses some bits. Therefore,
    // allow an error of 1e-6 of a standard deviation.
    CHECK(std::fabs(m.inputs.mean[c] - mean) <= 1e-6 * deviation);
    CHECK(std::fabs(m.inputs.scale[c] - deviation) <= 1e-6 * deviation);
    // The mean of all rows differs from the mean of the training examples.
    std::vector<double> all;
    for (const auto& row : table.inputs) all.push_back(row[c]);
    CHECK(std::fabs(m.inputs.mean[c] - by_definition(all).first) > 1e-4 * deviation);
  }
  const auto [mean, deviation] = by_definition(targets);
  REQUIRE(data->facts().target_mean.size() == 1);
  CHECK(close(data->facts().target_mean[0], mean, deviation));
  CHECK(close(data->facts().target_scale[0], deviation, deviation));

  const Batch b = all_val(*data);
  CHECK(b.targets.sizes() == at::IntArrayRef({90, 1}));
  for (int64_t i = 0; i < 90; ++i) {
    val.read(i, example.data());
    for (int64_t c = 0; c < 4; ++c) {
      const auto n = static_cast<size_t>(c);
      const double wanted = (example[n] - m.inputs.mean[n]) / m.inputs.scale[n];
      CHECK(b.inputs[i][c].item<float>() == static_cast<float>(wanted));
    }
    const double wanted = (table.targets[static_cast<size_t>(example[0])] - mean) / deviation;
    CHECK(b.targets[i][0].item<double>() == Approx(wanted).epsilon(1e-6).margin(1e-6));  // float32
  }
  CHECK((b.inputs.select(1, 2) == 0).all().item<bool>());  // a constant feature stays finite
}

TEST_CASE("one-pass statistics agree with the definition, even if the first value is far off",
          "[example_sets]") {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const double first : {0.0, 1e6, -1e9}) {
    std::vector<double> x{first};
    for (int i = 0; i < 5000; ++i) x.push_back(1000 + 1e-3 * normal(random));
    Statistics one({1, 1});
    for (const double v : x) one.add(&v);

    const auto [mean, deviation] = by_definition(x);
    CHECK(one.result().mean[0] ==
          Approx(mean).epsilon(1e-12));  // 5000 roundings, which mostly cancel
    CHECK(one.result().scale[0] == Approx(deviation).epsilon(1e-10));  // roundings of squares
  }

  // Compute statistics by channel, for two channels of six elements each. Compare them with the
  // definition applied to all elements of a channel.
  Statistics channels(groups_of({2, 2, 3}));
  std::vector<std::vector<double>> all(2);
  for (int i = 0; i < 100; ++i) {
    std::vector<double> image;
    for (int j = 0; j < 12; ++j)
      image.push_back(normal(random) * (j < 6 ? 1 : 50) + 1000 * (j < 6));
    for (size_t j = 0; j < 12; ++j) all[j / 6].push_back(image[j]);
    channels.add(image.data());
  }
  for (size_t c = 0; c < 2; ++c) {
    const auto [mean, deviation] = by_definition(all[c]);
    CHECK(channels.result().mean[c] == Approx(mean).epsilon(1e-12).margin(1e-12 * deviation));
    CHECK(channels.result().scale[c] == Approx(deviation).epsilon(1e-12));
  }

  // The sum of 60 times 0.1, divided by 60, is not exactly 0.1. The mean of a constant must
  // nevertheless be the constant.
  const std::vector<double> constant(6, 0.1);
  Statistics still({1, 6});
  for (int i = 0; i < 10; ++i) still.add(constant.data());
  CHECK(still.result().mean[0] == 0.1);
  CHECK(still.result().scale[0] == 1);
}

/// Returns images of [2, 4, 6] whose pixels all differ; the target is the number of the image.
Table images(int64_t n) {
  Table t;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> image;
    for (int64_t j = 0; j < 48; ++j)
      image.push_back(static_cast<double>(1 + 48 * i + (j * 29) % 48));
    t.inputs.push_back(image);
    t.targets.push_back(static_cast<double>(i));
  }
  return t;
}

TEST_CASE("shifted and mirrored images agree with LibTorch, and all shifts are equally likely",
          "[example_sets]") {
  const TempFolder f;
  const int64_t n = 4, batch = 8;
  const fs::path dir =
      prepared(f, images(n), {.task = "classification", .val_share = 0, .shape = {2, 4, 6}});
  const auto m = read_example_manifest(dir);
  REQUIRE(m.inputs.mean.size() == 2);
  CHECK(m.input_sizes == std::vector<int64_t>{2, 4, 6});
  DataConfig config = config_of(dir);
  const auto plain = open_examples(config);
  config.flip = true;
  config.crop = 2;
  const auto data = open_examples(config);

  const at::Tensor mean = torch::tensor(m.inputs.mean, at::kDouble).view({2, 1, 1}),
                   scale = torch::tensor(m.inputs.scale, at::kDouble).view({2, 1, 1});
  std::vector<at::Tensor> raw;
  for (const auto& image : images(n).inputs)
    raw.push_back(torch::tensor(image, at::kDouble).view({2, 4, 6}));
  // Transform every image in each of the 2 x 25 ways.
  std::map<std::string, std::pair<bool, int64_t>> way_of;
  const auto bytes_of = [](const at::Tensor& t) {
    const at::Tensor c = t.contiguous();
    return std::string(static_cast<const char*>(c.const_data_ptr()),
                       static_cast<size_t>(c.nbytes()));
  };
  for (int64_t i = 0; i < n; ++i) {
    const at::Tensor padded = torch::constant_pad_nd(raw[static_cast<size_t>(i)], {2, 2, 2, 2}, 0);
    for (int64_t way = 0; way < 25; ++way) {
      const at::Tensor shifted =
          padded.slice(1, way / 5, way / 5 + 4).slice(2, way % 5, way % 5 + 6);
      for (const bool mirrored : {false, true}) {
        const at::Tensor x =
            (((mirrored ? shifted.flip(2) : shifted) - mean) / scale).to(at::kFloat);
        way_of[str(i, " ") + bytes_of(x)] = {mirrored, way};
      }
    }
  }
  REQUIRE(way_of.size() == static_cast<size_t>(50 * n));
  int64_t mirrored = 0, samples = 0;
  std::vector<int64_t> ways(25);
  for (int64_t k = 0; k < 500; ++k) {
    const Batch b = batch_of(*data, batch, 9, k), p = batch_of(*plain, batch, 9, k);
    CHECK(torch::equal(b.targets, p.targets));  // the same examples
    if (k % 50 == 0)
      CHECK(torch::equal(b.inputs, batch_of(*open_examples(config), batch, 9, k).inputs));
    for (int64_t i = 0; i < batch; ++i, ++samples) {
      const auto found =
          way_of.find(str(b.targets[i].item<int64_t>(), " ") + bytes_of(b.inputs[i]));
      REQUIRE(found != way_of.end());
      mirrored += found->second.first;
      ++ways[static_cast<size_t>(found->second.second)];
      const auto untouched =
          way_of.find(str(p.targets[i].item<int64_t>(), " ") + bytes_of(p.inputs[i]));
      REQUIRE(untouched != way_of.end());
      CHECK(untouched->second == std::pair(false, int64_t{12}));  // an image that was not shifted
    }
  }
  // On average, 2000 of 4000 samples are mirrored, with a standard deviation of 32, and each of the
  // 25 shifts occurs 160 times, with a standard deviation of 12.4. Allow 5 standard deviations.
  CHECK(std::llabs(mirrored - samples / 2) < 160);
  for (const int64_t count : ways) CHECK(std::llabs(count - samples / 25) < 62);
  // The augmentation depends on the seed and on the number of the sample, not on its batch.
  const Batch one = batch_of(*data, 1, 9, 13), eight = batch_of(*data, 8, 9, 1);
  CHECK(torch::equal(one.inputs[0], eight.inputs[5]));
  CHECK(!torch::equal(batch_of(*data, 64, 10, 0).inputs, batch_of(*data, 64, 9, 0).inputs));
  // Mirror images without shifts.
  config.crop = 0;
  const at::Tensor flipped = batch_of(*open_examples(config), 64, 9, 0).inputs,
                   plain64 = batch_of(*plain, 64, 9, 0).inputs;
  for (int64_t i = 0; i < 64; ++i)
    CHECK((torch::equal(flipped[i], plain64[i]) || torch::equal(flipped[i], plain64[i].flip(2))));
}

TEST_CASE("folds cover each example once, are stratified, and normalize by their training examples",
          "[example_sets]") {
  const TempFolder f;
  const bool classes = GENERATE(true, false);
  Table table = numbered(103, 4);
  if (classes) table.targets[0] = table.targets[4] = 9;  // a class of two examples
  const fs::path dir =
      prepared(f, table, {.task = classes ? "classification" : "regression", .val_share = 0.2});

  std::multiset<int64_t> validated;
  std::set<std::string> hashes;
  for (int64_t fold = 0; fold < 5; ++fold) {
    DataConfig config = config_of(dir);
    config.folds = 5;
    config.fold = fold;
    const auto data = open_examples(config);
    hashes.insert(data->hash());
    CHECK(data->train_size() + data->val_size() == 103);
    CHECK(data->val_size() >= 20);
    CHECK(data->val_size() <= 21);

    // Load the training part of the fold as one batch. Then load the validation part.
    const auto batches = data->training({.batch_size = data->train_size()}, 1);
    const auto buffers = batches->make_buffers();
    batches->fill(buffers, 0);
    const Batch b = batches->batch_of(buffers), v = all_val(*data);
    // Identify rows by their rank in the random column, which does not depend on the scale.
    const at::Tensor x = torch::cat({b.inputs, v.inputs}).select(1, 3).to(at::kDouble);
    std::vector<double> third;
    for (const auto& row : table.inputs) third.push_back(row[3]);
    const at::Tensor by_rank = torch::tensor(third, at::kDouble).argsort(), rank = x.argsort();
    std::vector<int64_t> row_of(103);
    for (int64_t i = 0; i < 103; ++i)
      row_of[static_cast<size_t>(rank[i].item<int64_t>())] = by_rank[i].item<int64_t>();
    const std::vector<int64_t> train_rows(row_of.begin(), row_of.begin() + data->train_size());
    std::map<double, int64_t> of_class;
    for (size_t i = static_cast<size_t>(data->train_size()); i < 103; ++i) {
      validated.insert(row_of[i]);
      ++of_class[table.targets[static_cast<size_t>(row_of[i])]];
    }

    if (fold == 0 && !classes) {  // folds use a random order: not every fifth row of the file
      const ExampleArray train(dir / "train_inputs.npy", "");
      int64_t every_fifth = 0, all = 0;
      for (int64_t i = 0; i < 82; i += 5, ++all) {
        double row[4];
        train.read(i, row);
        every_fifth += static_cast<int64_t>(validated.count(std::llround(row[0])));
      }
      CHECK(every_fifth < all / 2);
    }

    if (classes) {
      std::map<double, int64_t> all;
      for (const double t : table.targets) ++all[t];
      for (const auto& [label, count] : all)
        CHECK(std::fabs(of_class[label] - static_cast<double>(count) / 5) < 1);
    } else {
      std::vector<double> targets;
      for (const int64_t row : train_rows)
        targets.push_back(table.targets[static_cast<size_t>(row)]);
      const auto [mean, deviation] = by_definition(targets);
      CHECK(data->facts().target_mean[0] == Approx(mean).epsilon(1e-12));
      CHECK(data->facts().target_scale[0] == Approx(deviation).epsilon(1e-12));
    }

    // Inputs are normalized by the mean and standard deviation of the training examples.
    for (const size_t c : {0, 1, 3}) {
      std::vector<double> column;
      for (const int64_t row : train_rows)
        column.push_back(table.inputs[static_cast<size_t>(row)][c]);
      const auto [mean, deviation] = by_definition(column);
      for (int64_t i = 0; i < 103; ++i) {
        const double wanted =
            (table.inputs[static_cast<size_t>(row_of[static_cast<size_t>(i)])][c] - mean) /
            deviation;
        const double got =
            (i < data->train_size() ? b.inputs[i]
                                    : v.inputs[i - data->train_size()])[static_cast<int64_t>(c)]
                .item<double>();
        CHECK(got == Approx(wanted).epsilon(1e-5).margin(
                         1e-5));  // float32; 1.6e9 has its last bit at 2e-7
      }
    }
  }

  CHECK(validated.size() == 103);
  CHECK(std::set<int64_t>(validated.begin(), validated.end()).size() == 103);
  CHECK(hashes.size() == 1);  // the hash does not depend on the fold
  CHECK(hashes.count(open_examples(config_of(dir))->hash()) == 1);
}

TEST_CASE("evaluation reads the validation split in order, and its last batch is shorter",
          "[example_sets]") {
  const TempFolder f;
  const fs::path dir = prepared(f, numbered(60, 3), {.val_share = 0.5});
  const auto data = open_examples(config_of(dir));
  REQUIRE(data->val_size() == 30);
  const auto m = read_example_manifest(dir);
  const auto rows = rows_of(all_val(*data), m.inputs.mean[0], m.inputs.scale[0]);
  CHECK(rows.size() == 30);
  CHECK(std::is_sorted(rows.begin(), rows.end()));  // in the order of the file
  const ExampleArray val(dir / "val_inputs.npy", "");
  for (int64_t i = 0; i < 30; ++i) {
    std::vector<double> x(4);
    val.read(i, x.data());
    CHECK(static_cast<int64_t>(x[0]) == rows[static_cast<size_t>(i)]);
  }
  CHECK(all_val(*data, 7, 2).inputs.size(0) == 14);
  CHECK(all_val(*data, 7, 99).inputs.size(0) == 30);
  // A partial evaluation is in order as well, and has the same examples for any batch size.
  const auto part = rows_of(all_val(*data, 7, 2), m.inputs.mean[0], m.inputs.scale[0]);
  CHECK(std::set<int64_t>(part.begin(), part.end()).size() == 14);
  CHECK(std::is_sorted(part.begin(), part.end()));
  CHECK(all_val(*data, 14, 1).inputs.equal(all_val(*data, 7, 2).inputs));
}

TEST_CASE("keys that do not fit the data are reported", "[example_sets]") {
  const TempFolder f;
  const fs::path dir = prepared(f, numbered(30, 3), {});
  const auto problem = [&](const std::function<void(DataConfig&)>& change) {
    DataConfig c = config_of(dir);
    change(c);
    try {
      open_examples(c);
    } catch (const Error& e) {
      CHECK(e.code() == Exit::usage);
      return std::string(e.what());
    }
    return std::string();
  };

  // The default keys are accepted. Keys that need images are not.
  CHECK(problem([](DataConfig&) {}).empty());
  CHECK_THAT(problem([](DataConfig& c) { c.flip = true; }),
             ContainsSubstring("data.flip") && ContainsSubstring("--shape C,H,W"));
  CHECK_THAT(problem([](DataConfig& c) { c.crop = 1; }),
             ContainsSubstring("data.crop") && ContainsSubstring("--shape C,H,W"));

  // These values of data.folds and data.fold are refused.
  CHECK_THAT(problem([](DataConfig& c) { c.folds = 1; }), ContainsSubstring("data.folds = 1"));
  CHECK_THAT(problem([](DataConfig& c) {
               c.folds = 5;
               c.fold = 5;
             }),
             ContainsSubstring("data.fold = 5") && ContainsSubstring("data.folds = 5"));
  CHECK_THAT(problem([](DataConfig& c) { c.fold = 2; }),
             ContainsSubstring("data.fold = 2") && ContainsSubstring("data.folds = 0"));
  CHECK_THAT(problem([](DataConfig& c) { c.folds = 31; }), ContainsSubstring("data.folds = 31"));

  // A crop is refused if it could move an image completely out of its frame.
  prepared(f, images(4), {.shape = {2, 4, 6}});
  CHECK(problem([](DataConfig& c) { c.crop = 3; }).empty());
  CHECK_THAT(problem([](DataConfig& c) { c.crop = 4; }),
             ContainsSubstring("data.crop = 4") && ContainsSubstring("4x6"));
}

TEST_CASE("an example set of safetensors can be written by hand, and wrong manifests are refused",
          "[example_sets]") {
  const TempFolder f;
  const at::Tensor x = torch::randn({6, 3}).to(at::kBFloat16),
                   y = torch::tensor({0, 1, 2, 2, 1, 0}, at::kByte);
  const auto bytes = [](const at::Tensor& t) {
    return std::as_bytes(
        std::span(static_cast<const char*>(t.const_data_ptr()), static_cast<size_t>(t.nbytes())));
  };
  const std::string sum = write_safetensors(
      f / "all.safetensors", {{"x", "BF16", {6, 3}, bytes(x)}, {"y", "U8", {6}, bytes(y)}});

  ExampleManifest m{.task = "classification",
                    .input_sizes = {3},
                    .outputs = 3,
                    .labels = {},
                    .inputs = {{1, 2, 3}, {2, 2, 2}},
                    .targets = {},
                    .train = {.examples = 6,
                              .inputs = {.file = "all.safetensors",
                                         .tensor = "x",
                                         .type = ArrayType::bf16,
                                         .xxh3 = sum},
                              .targets = {.file = "all.safetensors",
                                          .tensor = "y",
                                          .type = ArrayType::u8,
                                          .xxh3 = sum}},
                    .val = {}};
  const auto open = [&] {
    write_example_manifest(f.path(), m);
    return open_examples(config_of(f.path()));
  };

  const auto data = open();
  data->verify();
  CHECK(data->facts().task == "classification");
  CHECK(data->facts().outputs == 3);
  CHECK_THAT(data->table(), ContainsSubstring("6 examples  3 bfloat16"));

  // Each row of the batch is a normalized row of the file, with its target.
  const Batch b = batch_of(*data, 6, 1, 0);
  const at::Tensor wanted = ((x.to(at::kDouble) - torch::tensor({1., 2., 3.})) / 2).to(at::kFloat);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 6; ++j) {
      if (!torch::equal(b.inputs[i], wanted[j])) continue;
      seen.insert(j);
      CHECK(b.targets[i].item<int64_t>() == y[j].item<int64_t>());
    }
  }
  CHECK(seen.size() == 6);

  // These manifests do not match the files.
  const ExampleManifest right = m;
  const auto problem = [&](const std::function<void(ExampleManifest&)>& change) {
    m = right;
    change(m);
    return error_of([&] { batch_of(*open(), 6, 1, 0); });
  };

  CHECK(problem([](auto&) {}).empty());
  CHECK_THAT(problem([](auto& c) { c.outputs = 2; }),
             ContainsSubstring("is 2") && ContainsSubstring("below 2"));
  CHECK_THAT(problem([](auto& c) { c.train.examples = 7; }),
             ContainsSubstring("7 examples of bfloat16") && ContainsSubstring("6 of bfloat16"));
  CHECK_THAT(problem([](auto& c) { c.train.inputs.type = ArrayType::f32; }),
             ContainsSubstring("6 examples of float32") && ContainsSubstring("6 of bfloat16"));
  CHECK_THAT(problem([](auto& c) { c.train.inputs.tensor = "z"; }),
             ContainsSubstring("all.safetensors") && ContainsSubstring("\"z\""));

  // These manifests are invalid whatever the file contains.
  CHECK_THAT(problem([](auto& c) { c.train.examples = 0; }),
             ContainsSubstring(f.path().string()) && ContainsSubstring("no training examples"));
  CHECK_THAT(problem([](auto& c) { c.labels = {"a", "b"}; }),
             ContainsSubstring("2 labels") && ContainsSubstring("3 classes"));
  CHECK_THAT(problem([](auto& c) { c.inputs.scale[1] = 0; }),
             ContainsSubstring("\"inputs\"") && ContainsSubstring("above 0"));
  CHECK_THAT(problem([](auto& c) { c.inputs.mean.pop_back(); }),
             ContainsSubstring("\"inputs\"") && ContainsSubstring("3 means"));
  CHECK_THAT(problem([](auto& c) { c.task = "language"; }),
             ContainsSubstring("\"language\"") && ContainsSubstring("classification"));

  // These manifests have sizes that the arrays do not have.
  CHECK_THAT(problem([](auto& c) {
               c.input_sizes = {1};
               c.inputs = {{0}, {1}};
             }),
             ContainsSubstring("all.safetensors") && ContainsSubstring("shape [3]") &&
                 ContainsSubstring("claims [1]"));
  CHECK_THAT(problem([](auto& c) {
               c.task = "regression";
               c.targets = {{0, 0, 0}, {1, 1, 1}};
             }),
             ContainsSubstring("all.safetensors") && ContainsSubstring("targets of 1") &&
                 ContainsSubstring("requires 3"));

  // This manifest names a file outside the folder.
  CHECK_THAT(problem([](auto& c) { c.train.inputs.file = "../all.safetensors"; }),
             ContainsSubstring("\"file\"") && ContainsSubstring("same folder"));
}

TEST_CASE("a manifest that claims longer examples than the file has is refused", "[example_sets]") {
  const TempFolder f;
  const std::vector<float> x(6);
  const std::string sum =
      write_safetensors(f / "x.safetensors", {{"x", "F32", {6}, std::as_bytes(std::span(x))}});
  ExampleManifest m;
  m.task = "regression";
  m.input_sizes = {1, 1};
  m.outputs = 1;
  m.inputs = m.targets = {{0}, {1}};
  const ArrayInfo all{.file = "x.safetensors", .tensor = "x", .type = ArrayType::f32, .xxh3 = sum};
  m.train = {.examples = 6, .inputs = all, .targets = all};
  write_example_manifest(f.path(), m);
  CHECK(open_examples(config_of(f.path()))->train_size() == 6);  // the right size is accepted
  m.input_sizes = {3};
  m.inputs = {{0, 0, 0}, {1, 1, 1}};
  write_example_manifest(f.path(), m);
  CHECK_THAT(error_of([&] { open_examples(config_of(f.path())); }),
             ContainsSubstring("x.safetensors") && ContainsSubstring("claims [3]"));
}

TEST_CASE("a changed byte is found by verify, the hash and the manifest's own checksum",
          "[example_sets]") {
  const TempFolder f;
  const fs::path dir = prepared(f, numbered(40, 3), {});
  const std::string hash = open_examples(config_of(dir))->hash();
  open_examples(config_of(dir))->verify();
  CHECK(open_examples(config_of(dir))->matches(hash));

  for (const char* name :
       {"train_inputs.npy", "train_targets.npy", "val_inputs.npy", "val_targets.npy"}) {
    const std::string whole = slurp(dir / name);
    std::string other = whole;
    other[other.size() - 8] ^= 1;
    write_file(dir / name, other);
    const auto data = open_examples(config_of(dir));
    CHECK_THAT(error_of([&] { data->verify(); }),
               ContainsSubstring(name) && ContainsSubstring("damaged"));
    CHECK(!data->matches(hash));
    write_file(dir / name, whole);
    CHECK(open_examples(config_of(dir))->matches(hash));
  }

  const auto data = open_examples(config_of(dir));
  CHECK_THAT(error_of([&] { data->verify([] { return true; }); }), ContainsSubstring("stopped"));

  // The manifest has a checksum of itself, which notices a changed digit.
  const std::string manifest = slurp(dir / "manifest.json");
  const size_t at = manifest.find("\"mean\": [") + 20;
  std::string changed = manifest;
  changed[manifest.find_first_of("123456789", at)] = '0';
  REQUIRE(changed != manifest);
  write_file(dir / "manifest.json", changed);
  CHECK_THAT(error_of([&] { open_examples(config_of(dir)); }),
             ContainsSubstring("manifest.json") && ContainsSubstring("own checksum"));
}

TEST_CASE("a partial evaluation has each class in proportion, even in sorted data",
          "[example_sets]") {
  const TempFolder f;
  Table table = numbered(200, 1);
  for (size_t i = 0; i < 200; ++i) table.targets[i] = i < 40 ? 0 : i < 120 ? 1 : 2;
  DataConfig c = config_of(prepared(f, table, {.val_share = 0}));
  c.folds = 2;
  const auto data = open_data(c);
  REQUIRE(data->val_size() == 100);

  const auto counts = [&](int64_t batches) {
    return torch::bincount(all_val(*data, 4, batches).targets, {}, 3);
  };
  CHECK(counts(5).equal(torch::tensor({4, 8, 8}, at::kLong)));
  CHECK(counts(25).equal(torch::tensor({20, 40, 40}, at::kLong)));
  CHECK(all_val(*data, 4, 5).inputs.equal(all_val(*data, 4, 5).inputs));
}

}  // namespace
