// Tests of the CSV files, TensorBoard events and layer statistics that runs write. When a run
// resumes, these files are cut back to the checkpoint, as metrics.jsonl is.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "core/io/json.h"
#include "core/io/progress.h"
#include "core/io/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"
#include "train/store/curves.h"
#include "train/store/sinks.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("evaluations.csv keeps its columns when an evaluation has other metrics", "[sinks]") {
  const TempFolder f;
  const auto add = [&](uint64_t length, int64_t step,
                       const std::vector<std::pair<std::string, double>>& metrics) {
    FileLengths lengths{{"evaluations.csv", length}};
    MetricsSinks sinks({.csv = true}, {f.path(), lengths, "tokens"});
    sinks.add_validation(step, metrics);
    sinks.add_lengths(lengths);
    return lengths.at("evaluations.csv");
  };
  uint64_t length = add(0, 1, {{"val_loss", 5}, {"val_loss_a", 6}});
  length = add(length, 2, {{"val_loss", 4}, {"val_loss_b", 7}, {"val_loss_a", 3}});
  add(length, 3, {{"val_loss", 2}});
  std::istringstream lines(slurp(f / "evaluations.csv"));
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);)
    rows.push_back(line.substr(0, line.rfind(',')));
  CHECK(rows == std::vector<std::string>{"step,val_loss,val_loss_a", "1,5,6", "2,4,3", "3,2,"});
}

TEST_CASE("an events.jsonl of another program is renamed, and one with an incomplete line is not",
          "[sinks]") {
  const TempFolder f;
  const FileLengths lengths;
  const auto start = [&] { MetricsSinks({}, {f.path(), lengths, "tokens"}).add_start(0, ""); };
  write_file(f / "events.jsonl", "my own\n");
  start();
  CHECK(slurp(f / "events.jsonl.old") == "my own\n");
  CHECK(read_events(f.path()).starts.size() == 1);

  start();
  write_file(f / "events.jsonl", slurp(f / "events.jsonl") + "{\"event\": \"st");
  start();
  CHECK(read_events(f.path()).starts.size() == 3);
  CHECK(!fs::exists(f / "events.jsonl.old.2"));
}

TEST_CASE("curves are read again if a resumed run has replaced their lines", "[sinks]") {
  const TempFolder f;
  const auto lines = [](int first, int last, const char* loss) {
    std::string text;
    for (int step = first; step <= last; ++step)
      text += str("{\"step\": ", step, ", \"loss\": ", loss, "}\n");
    return text;
  };
  write_file(f / "metrics.jsonl", lines(1, 6, "5"));
  Curves curves(f.path());
  CHECK(curves.read());
  CHECK(!curves.read());

  // The file was cut back to step 3, and is now longer than it was before.
  write_file(f / "metrics.jsonl", lines(1, 3, "5") + lines(4, 12, "4.25"));
  CHECK(curves.read());
  const Series& loss = curves.series.at("loss");
  CHECK(loss.steps == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(std::count(loss.values.begin(), loss.values.end(), 5) == 3);

  // The file has the same length as before, but other values.
  write_file(f / "metrics.jsonl", lines(1, 3, "5") + lines(4, 12, "3.25"));
  CHECK(curves.read());
  CHECK(curves.series.at("loss").values.back() == 3.25);
}

TEST_CASE("a sample that was not drawn because the run stopped is drawn when the run resumes",
          "[sinks]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto train = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> args{"train",
                                  "tiny.toml",
                                  "--train.out_dir=" + out,
                                  "--train.steps=6",
                                  "--train.sample_interval=2",
                                  "--train.eval_interval=3"};
    args.insert(args.end(), more.begin(), more.end());
    return lathe_in(f, args).code;
  };
  REQUIRE(train("whole", {}) == 0);
  // Each start makes one step and then exceeds its time limit.
  int code = 75;
  for (int starts = 0; starts < 20 && code == 75; ++starts)
    code = train("parts", {"--train.max_time=1e-9"});
  REQUIRE(code == 0);

  const auto samples = [&](const char* run) {
    std::vector<std::pair<int64_t, std::string>> found;
    for (const auto& s : read_events(f / run).samples) found.emplace_back(s.step, s.text);
    return found;
  };
  CHECK(samples("whole").size() == 3);
  CHECK(samples("parts") == samples("whole"));
}

TEST_CASE("TensorBoard records have the expected bytes, and damaged records are noticed",
          "[sinks]") {
  CHECK(crc32c("123456789") == 0xe3069283);            // the check value of CRC-32C
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);  // the value in RFC 3720, B.4
  const std::string one = tf_record("abc"), two = one + tf_event(1.5, 7, {tf_scalar("loss", 2)});
  CHECK(one.size() == 8 + 4 + 3 + 4);
  CHECK(complete_tf_records_end(two) == two.size());
  CHECK(complete_tf_records_end(two + "half") == two.size());
  CHECK(complete_tf_records_end(two.substr(0, two.size() - 1)) == one.size());
  for (const size_t at : {size_t{1}, size_t{9}, size_t{13}, size_t{17}}) {
    std::string damaged = two;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    CHECK(complete_tf_records_end(damaged) == 0);
  }
  // The expected bytes are those that protoc encodes for Event {wall_time 1.5, step 300, summary
  // {value {tag "a", simple_value 0.5}}}.
  const std::string wanted{
      "\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01"
      "a\x15\0\0\0\x3f",
      24};
  CHECK(tf_event(1.5, 300, {tf_scalar("a", 0.5)}).substr(12, 24) == wanted);
}

/// Returns the steps (field 2) of the events in a file, in order. Parses the file without Lathe's
/// code.
std::vector<int64_t> event_steps(const std::string& file) {
  std::vector<int64_t> steps;
  REQUIRE(complete_tf_records_end(file) == file.size());
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + at, 8);
    size_t p = at + 12 + 9;  // position after the time, field 1
    if (file[p] == 0x10) {
      int64_t step = 0;
      int shift = 0;
      do {
        step |= static_cast<int64_t>(file[++p] & 127) << shift;
        shift += 7;
      } while ((file[p] & 128) != 0);
      steps.push_back(step);
    }
    at += 12 + length + 4;
  }
  return steps;
}

/// Returns the first `columns` cells of each line, joined by commas.
std::vector<std::string> cells(const fs::path& path, int columns) {
  std::vector<std::string> rows;
  std::istringstream text(slurp(path));
  for (std::string line; std::getline(text, line);) {
    size_t end = 0;
    for (int i = 0; i < columns && end != std::string::npos; ++i) end = line.find(',', end + 1);
    rows.push_back(line.substr(0, end));
  }
  return rows;
}

const std::string events = "tensorboard/events.out.tfevents.lathe";

TEST_CASE("every sink has each step once, even after a kill, and no sink changes training",
          "[sinks]") {
  const TempFolder f;
  make_tiny_run(f.path(), "keep = 50\n");
  const auto train = [&](const std::string& out, std::vector<std::string> more,
                         std::map<std::string, std::string> environment = {}) {
    std::vector<std::string> args{"train", "tiny.toml", "--train.out_dir=" + out,
                                  "--train.steps=24"};
    args.insert(args.end(), more.begin(), more.end());
    return run(
        {.binary = "lathe_faults", .args = args, .folder = f.path(), .environment = environment});
  };
  const std::vector<std::string> all{"--log.csv=true", "--log.tensorboard=true",
                                     "--log.histograms=8", "--log.layers=3",
                                     "--train.sample_interval=6"};
  REQUIRE(train("plain", {}).code == 0);
  CHECK(!fs::exists(f / "plain/metrics.csv"));
  CHECK(!fs::exists(f / "plain/tensorboard"));
  const Finished whole = train("whole", all);
  INFO(whole.err);
  REQUIRE(whole.code == 0);
  CHECK(difference(f / "plain", f / "whole") == "");

  REQUIRE(train("killed", all, {{"LATHE_TEST_KILL", "step 17"}}).code == 128 + 9);
  const std::string rows_then = slurp(f / "killed/metrics.csv");
  REQUIRE(std::count(rows_then.begin(), rows_then.end(), '\n') >
          15);  // rows later than the last checkpoint
  const Finished on = train("killed", all);
  INFO(on.err << on.out);
  REQUIRE(on.code == 0);
  CHECK_THAT(on.out, ContainsSubstring("cut killed/metrics.csv"));
  CHECK_THAT(on.out, ContainsSubstring("cut killed/" + events));
  CHECK(difference(f / "whole", f / "killed") == "");
  CHECK(cells(f / "whole/metrics.csv", 6) == cells(f / "killed/metrics.csv", 6));
  CHECK(cells(f / "whole/evaluations.csv", 2) == cells(f / "killed/evaluations.csv", 2));
  CHECK(cells(f / "whole/metrics.csv", 1).size() == 25);

  // Memory by category is written only when it changes, but its curve has a value for every step.
  Curves curves(f / "whole");
  curves.read();
  const Series* parameters = curves.find("memory/parameters");
  REQUIRE(parameters != nullptr);
  CHECK(parameters->steps == curves.find("loss")->steps);
  const SafetensorsFile model(list_checkpoints(f / "whole").at(0) / "model.safetensors");
  double bytes = 0;
  for (const TensorEntry& entry : model.tensors()) bytes += static_cast<double>(entry.bytes.size());
  for (const double value : parameters->values)
    // Memory includes the unused ends of allocated blocks.
    CHECK(value == Approx(1.15 * bytes).epsilon(0.15));
  CHECK(cells(f / "whole/metrics.csv", 3).at(0) == "step,updates,loss");

  // The event with the file's version is the first event. It occurs only once, even after a resume.
  for (const char* out : {"whole", "killed"}) {
    INFO(out);
    const std::string file = slurp(f / out / events), version = "brain.Event:2";
    const size_t first = file.find(version);
    CHECK(first < tf_first_event(0).size());
    CHECK(file.find(version, first + 1) == std::string::npos);
  }
  const auto steps = event_steps(slurp(f / "whole" / events));
  CHECK(steps == event_steps(slurp(f / "killed" / events)));
  for (const char* tag : {"weights/blocks.0.attn.qkv.weight", "gradients/blocks.0.attn.qkv.weight",
                          "activations/blocks.0.attn"}) {
    CHECK_THAT(slurp(f / "whole" / events), ContainsSubstring(tag));
  }
  // An event of metrics and an event of a sample.
  CHECK(std::count(steps.begin(), steps.end(), 12) == 2);
  CHECK(std::count(steps.begin(), steps.end(), 24) ==
        4);  // one event each of metrics, histograms, an evaluation and a sample

  // Each start and each sample is recorded once.
  const RunEvents refusal = read_events(f / "killed");
  REQUIRE(refusal.starts.size() == 2);
  CHECK(refusal.starts[0].step == 0);
  CHECK(refusal.starts[1].step == 10);
  CHECK_THAT(refusal.starts[1].from, ContainsSubstring("step-00000010"));
  std::vector<int64_t> sampled;
  for (const auto& s : refusal.samples) sampled.push_back(s.step);
  CHECK(sampled == std::vector<int64_t>{6, 12, 18, 24});

  // If a file is shorter than the length in the checkpoint, it is kept up to its last complete
  // record, with a warning.
  REQUIRE(train("short", all, {{"LATHE_TEST_KILL", "step 17"}}).code == 128 + 9);
  write_file(f / "short" / events, slurp(f / "short" / events).substr(0, 1000));
  const Finished lost = train("short", all);
  CHECK(lost.code == 0);
  CHECK_THAT(lost.err, ContainsSubstring("short/" + events) && ContainsSubstring("1000 bytes"));
  CHECK(!event_steps(slurp(f / "short" / events)).empty());

  // The files of sinks that are disabled before a resume have no lines of steps that are repeated.
  REQUIRE(train("disabled", all, {{"LATHE_TEST_KILL", "step 17"}}).code == 128 + 9);
  REQUIRE(train("disabled", {}).code == 0);
  CHECK(cells(f / "disabled/metrics.csv", 1).back() == "10");
  CHECK(event_steps(slurp(f / "disabled" / events)).back() == 10);

  // A sink that is enabled later starts at that step, and the file of a disabled sink gets no
  // lines.
  REQUIRE(train("later", {"--log.csv=true", "--train.pause_at=6"}).code == 75);
  REQUIRE(train("later", {"--train.pause_at=12"}).code == 75);
  REQUIRE(train("later", {"--log.csv=true"}).code == 0);
  auto wanted = cells(f / "whole/metrics.csv", 6);
  wanted.erase(wanted.begin() + 7, wanted.begin() + 13);
  CHECK(cells(f / "later/metrics.csv", 6) == wanted);
  CHECK(difference(f / "plain", f / "later") == "");

  const Finished none = train("none", {"--log.histograms=8"});
  CHECK(none.code == 2);
  CHECK_THAT(none.err, ContainsSubstring("log.histograms") && ContainsSubstring("log.tensorboard"));
  CHECK(!fs::exists(f / "none"));
}

double norm_of(const TensorEntry& entry, const TensorEntry* minus = nullptr) {
  double sum = 0;
  const auto value = [](const TensorEntry& e, size_t i) {
    float x = 0;
    std::memcpy(&x, e.bytes.data() + 4 * i, 4);
    return static_cast<double>(x);
  };
  for (size_t i = 0; i < entry.bytes.size() / 4; ++i)
    sum += std::pow(value(entry, i) - (minus != nullptr ? value(*minus, i) : 0), 2);
  return std::sqrt(sum);
}

TEST_CASE("layer statistics agree with the weights in the checkpoints", "[sinks]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=run", "--train.steps=6",
                       "--checkpoint.interval=1", "--log.layers=2"})
              .code == 0);
  const SafetensorsFile now(f / "run/checkpoints/step-00000006/model.safetensors"),
      before(f / "run/checkpoints/step-00000005/model.safetensors");

  std::istringstream text(slurp(f / "run/metrics.jsonl"));
  Json layers;
  double grad_norm = 0;
  std::vector<int64_t> steps;
  for (std::string line; std::getline(text, line);) {
    const Json j = parse_json(line, "metrics.jsonl", Exit::internal);
    if (!j.contains("layers")) continue;
    layers = j["layers"];
    grad_norm = j["grad_norm"].get<double>();
    steps.push_back(j["step"].get<int64_t>());
  }
  CHECK(steps == std::vector<int64_t>{2, 4, 6});

  // Compute the norms of a layer from its weights in the last two checkpoints.
  const std::string layer = "blocks.1.attn.qkv";
  REQUIRE(layers.contains(layer));
  const std::string weight = layer + ".weight", bias = layer + ".bias";
  const double weights = std::hypot(norm_of(now.at(weight)), norm_of(now.at(bias)));
  CHECK(layers[layer]["weight_norm"].get<double>() ==
        Approx(weights).epsilon(1e-5));  // a run adds the squares in float32
  const double change = std::hypot(norm_of(now.at(weight), before.find(weight)),
                                   norm_of(now.at(bias), before.find(bias)));
  const double was = std::hypot(norm_of(before.at(weight)), norm_of(before.at(bias)));
  CHECK(layers[layer]["update_ratio"].get<double>() == Approx(change / was).epsilon(1e-4));

  // The squared gradient norms of all layers add up to the squared gradient norm of the step.
  double squares = 0;
  int dead = 0, most = 0;
  for (const auto& [name, figures] : layers.items()) {
    if (figures.contains("grad_norm")) squares += std::pow(figures["grad_norm"].get<double>(), 2);
    if (figures.contains("act_max")) {
      ++most;
      CHECK(figures["act_max"].get<double>() > 0);
    }
    if (!figures.contains("dead")) continue;
    ++dead;
    CHECK(figures["dead"].get<double>() >= 0);
    CHECK(figures["dead"].get<double>() < 1);
  }
  CHECK(std::sqrt(squares) == Approx(grad_norm).epsilon(1e-5));
  CHECK(dead == 2);  // one feed-forward layer in each of the two blocks
  CHECK(most > 6);
}

TEST_CASE("a progress bar is never longer than its line", "[sinks]") {
  const std::vector<std::string> facts{"loss 2.3456", "1234 tokens/s", "mfu 43%", "0.21 GB",
                                       "data wait 1%"};
  for (size_t width = 5; width < 140; ++width) {
    const std::string line = bar_line("step 120/2000", 0.5, facts, 83, width, false);
    INFO(width << ": " << line);
    CHECK(line.size() <= width);
    CHECK_THAT(line, Catch::StartsWith(std::string("step 120/2000").substr(0, width)));
  }
  CHECK(bar_line("step 120/2000", 0.5, facts, 83, 200, false) ==
        "step 120/2000 [############............]  50%  loss 2.3456  1234 tokens/s  mfu 43%  0.21 "
        "GB  data wait 1%  eta "
        "1:23");
  CHECK(bar_line("a", 1, {}, -1, 20, false) == "a [###########] 100%");
  CHECK(bar_line("a", 0.999, {}, -1, 20, false) == "a [##########.]  99%");
  CHECK_THAT(bar_line("a", 0.5, {}, -1, 20, true),
             ContainsSubstring("\033[32m#####\033[39m......"));
  CHECK(duration_text(3725) == "1:02:05");
  CHECK(duration_text(3 * 86400 - 1) == "71:59:59");
  CHECK(duration_text(346 * 86400) == "346 days");
}

}  // namespace
