// Tests of quantized weights: their error and size, how they are loaded, adapters on them, and
// merging.

#include <algorithm>

#include "core/io/json.h"
#include "core/quantized.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"
#include "train/store/new_folder.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Format = QuantizedTensor::Format;

TEST_CASE("nf4's levels are quantiles of the normal distribution", "[quantized_weights]") {
  // QLoRA, section 3: besides 0, the levels are eight positive and seven negative quantiles. The
  // outermost quantiles are those at 0.9677083 and 1 - 0.9677083.
  const auto quantile = [](double p) {
    return at::erfinv(torch::tensor(2 * p - 1, at::kDouble)).item<double>();
  };
  constexpr double tail = 0.9677083;
  std::vector<double> levels{0};
  for (int i = 0; i < 8; ++i) levels.push_back(quantile(tail + (0.5 - tail) * i / 8));
  for (int i = 0; i < 7; ++i) levels.push_back(-quantile(tail + (0.5 - tail) * i / 7));
  std::sort(levels.begin(), levels.end());
  REQUIRE(nf4_levels().size() == levels.size());
  for (size_t i = 0; i < levels.size(); ++i)
    CHECK(nf4_levels()[i] == Approx(levels[i] / quantile(tail)).margin(1e-6));
}

TEST_CASE("quantized tensors have the expected error and size", "[quantized_weights]") {
  torch::manual_seed(1);
  for (const auto& [rows, columns] :
       {std::pair{64, 64}, {1, 1}, {7, 13}, {1000, 700}, {4096, 256}}) {
    const at::Tensor t = torch::randn({rows, columns}) * torch::rand({rows, 1}).add(0.1);
    const double n = static_cast<double>(t.numel());

    // `largest` has, for each element, the largest magnitude in the element's block.
    const int64_t whole = (t.numel() + 63) / 64 * 64;
    const at::Tensor largest = torch::constant_pad_nd(t.view(-1), {0, whole - t.numel()})
                                   .view({-1, 64})
                                   .abs()
                                   .amax(1, true)
                                   .expand({-1, 64})
                                   .reshape(-1)
                                   .slice(0, 0, t.numel())
                                   .view(t.sizes());

    const auto error = [&](const QuantizedTensor& q) {
      CHECK(q.sizes() == t.sizes());
      CHECK(q.dequantize(at::kBFloat16).equal(q.dequantize(at::kFloat).to(at::kBFloat16)));
      return ((q.dequantize(at::kFloat) - t).abs() / largest).max().item<double>();
    };

    const QuantizedTensor int8(t, Format::int8, false, at::kCPU),
        nf4(t, Format::nf4, false, at::kCPU), twice(t, Format::nf4, true, at::kCPU);
    CHECK(error(int8) <= 0.5 / 127 * 1.0001);
    // The largest error is half of the widest gap between levels, the gap from -1 to -0.696.
    CHECK(error(nf4) <= 0.15194);
    CHECK((twice.dequantize(at::kFloat) - nf4.dequantize(at::kFloat)).abs().max().item<double>() <=
          0.02 * largest.max().item<double>());

    // The formulas for the sizes are exact if the tensor consists of complete blocks.
    if (t.numel() % 16384 != 0) continue;
    CHECK(static_cast<double>(int8.nbytes()) == Approx((1 + 4.0 / 64) * n));
    CHECK(static_cast<double>(nf4.nbytes()) == Approx((0.5 + 4.0 / 64) * n));
    CHECK(static_cast<double>(twice.nbytes()) == Approx((0.5 + 1.0 / 64 + 4.0 / 16384) * n + 4));
  }

  CHECK(QuantizedTensor(torch::zeros({2, 64}), Format::nf4, true, at::kCPU)
            .dequantize(at::kFloat)
            .equal(torch::zeros({2, 64})));
}

TEST_CASE("matrix products with few rows read the quantized weights directly",
          "[quantized_weights]") {
  torch::manual_seed(4);
  for (const auto format : {QuantizedTensor::Format::int8, QuantizedTensor::Format::nf4}) {
    for (const bool twice : {false, true}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>(1, 64), {67, 192}, {300, 704}}) {
        const QuantizedTensor w(torch::randn({n, k}), format, twice, at::kCPU);
        const auto bits = w.view();
        REQUIRE(bits);

        const at::Tensor exact = w.dequantize(at::kFloat).to(at::kDouble), bias = torch::randn({n});
        for (const int64_t rows : {1, 2, 3, 8}) {
          for (const auto dtype : {at::kFloat, at::kBFloat16}) {
            const at::Tensor x = torch::randn({rows, k}).to(dtype), y = torch::empty({rows, n});
            gemv_quantized(
                {x.const_data_ptr(), k, element_of(dtype)}, *bits, rows, n, k,
                {.out = {y.data_ptr(), n, Element::f32}, .bias = bias.const_data_ptr<float>()});

            const at::Tensor wanted = x.to(at::kDouble).matmul(exact.t()) + bias;
            INFO(n << " x " << k << ", " << rows << " rows");
            CHECK((y - wanted).abs().max().item<double>() <
                  2e-6 * std::sqrt(k) * wanted.abs().max().item<double>());
          }
        }
      }
    }
  }

  // view() has no value if the rows are not a multiple of 64 elements.
  CHECK(!QuantizedTensor(torch::randn({8, 96}), QuantizedTensor::Format::int8, false, at::kCPU)
             .view());
}

TEST_CASE("an fp8 run loads in any dtype, and texts generated together do not affect each other",
          "[quantized_weights]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--amp.dtype=fp8", "--amp.fp8_edge_blocks=0",
                       "--train.eval_interval=0", "--optim.lr=1e-2"})
              .code == 0);
  const auto loss = [&](const char* dtype) {
    const Finished r = lathe_in(f, {"eval", "runs/tiny", "--load-dtype", dtype});
    INFO(dtype << ": " << r.err);
    REQUIRE(r.code == 0);
    return parse_json(r.out, "", Exit::internal)["val_loss"].get<double>();
  };
  // nf4 has only 4 bits, so its loss may differ by a few percent.
  for (const char* dtype : {"bf16", "fp16", "int8", "nf4"})
    CHECK(loss(dtype) == Approx(loss("fp32")).epsilon(0.05));

  // If an fp8 layer had one scale for the batch, a text with larger values would change the other
  // texts.
  write_file(f / "prompts.txt", "a\nthe the the\nthe\n");
  const std::vector<std::string> flags{"--tokens=12", "--temperature=1"};
  const auto text = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", "runs/tiny"});
    words.insert(words.end(), flags.begin(), flags.end());
    return lathe_in(f, words).out;
  };
  for (int seed = 1; seed <= 8; ++seed) {
    const std::string of_seed = str("--seed=", seed);
    CHECK(text({"--prompt-file=prompts.txt", of_seed}).starts_with(text({"--prompt=a", of_seed})));
  }
}

TEST_CASE("a dtype for which a model kind has no layers is refused", "[quantized_weights]") {
  const TempFolder f;
  make_tiny_run(f.path());
  write_file(f / "rnn.toml",
             "[model]\nkind = \"rnn\"\nn_embd = 8\nn_hidden = 8\nblock_size = 8\n[data]\ndir = "
             "\"data\"\n[train]\nsteps = 1\nbatch_size = 2\neval_interval = 0\n");
  REQUIRE(lathe_in(f, {"train", "rnn.toml"}).code == 0);
  for (const char* dtype : {"int8", "nf4"}) {
    const Finished r = lathe_in(f, {"eval", "runs/rnn", "--load-dtype", dtype});
    CHECK(r.code == 2);
    CHECK_THAT(r.err, ContainsSubstring(str("--load-dtype ", dtype)));
  }
  CHECK(lathe_in(f, {"eval", "runs/rnn", "--load-dtype=bf16"}).code == 0);
}

TEST_CASE("weights are loaded without having all of them in float32 at the same time",
          "[quantized_weights]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=1", "--model.n_embd=512",
                       "--model.n_layer=8", "--train.eval_interval=0", "--optim.kind=sgd"})
              .code == 0);
  const auto bytes = static_cast<double>(
      fs::file_size(f / "runs/tiny/checkpoints/step-00000001/model.safetensors"));
  CHECK(bytes > 1e8);

  const auto eval = [&](std::vector<std::string> flags) {
    std::vector<std::string> args{"eval", "runs/tiny", "--threads=2"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Finished r = lathe_in(f, args);
    INFO(r.err);
    REQUIRE(r.code == 0);
    return parse_json(r.out, "", Exit::internal);
  };

  const Json wide = eval({});
  CHECK(wide["weight_bytes"].get<double>() == Approx(bytes).epsilon(0.01));
  const double rss = wide["peak_rss_bytes"];
  const std::vector<std::pair<std::vector<std::string>, double>> kept{
      {{"--load-dtype=bf16"}, 0.5},
      {{"--load-dtype=fp16"}, 0.5},
      {{"--load-dtype=int8"}, 0.25 + 1.0 / 64},
      {{"--load-dtype=nf4"}, 0.125 + 1.0 / 64},
      {{"--load-dtype=nf4", "--double-quant=true"}, 0.125 + 1.0 / 256}};

  for (const auto& [flags, share] : kept) {
    INFO(flags[0]);
    const Json r = eval(flags);
    CHECK(r["weight_bytes"].get<double>() == Approx(share * bytes).epsilon(0.03));
    CHECK(r["loading_peak_bytes"].get<double>() <
          share * bytes + 0.05 * bytes);  // plus a part of one tensor that is being converted
    CHECK(r["peak_rss_bytes"].get<double>() < rss - 0.5 * (1 - share) * bytes);
    // After one step, the logits are near zero in every dtype, so the losses are nearly equal.
    CHECK(r["val_loss"].get<double>() == Approx(wide["val_loss"].get<double>()).epsilon(0.01));
  }

  CHECK(lathe_in(f, {"generate", "runs/tiny", "--load-dtype=int8", "--tokens=3", "--prompt=the "})
            .out.size() == 4 + 3 + 1);
}

TEST_CASE(
    "adapters are trained on a frozen model, saved without the model, loaded, resumed and merged",
    "[quantized_weights]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=base", "--checkpoint.keep=1"}).code ==
          0);
  const auto val_loss = [&](const std::string& run, std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"eval", run});
    const Finished r = lathe_in(f, flags);
    INFO(r.err);
    REQUIRE(r.code == 0);
    return parse_json(r.out, "", Exit::internal)["val_loss"].get<double>();
  };
  const double base = val_loss("base");

  const auto command = [](const std::string& out, const std::string& dtype,
                          std::vector<std::string> more = {}) {
    std::vector<std::string> args{"train",
                                  "tiny.toml",
                                  "--train.out_dir=" + out,
                                  "--adapters.rank=4",
                                  "--adapters.base=base",
                                  "--adapters.dtype=" + dtype,
                                  "--optim.lr=0.01",
                                  "--model.dropout=0",
                                  "--train.eval_batches=0",
                                  "--train.eval_interval=100",
                                  "--train.steps=200"};
    if (dtype != "fp32") args.push_back(dtype == "fp16" ? "--amp.dtype=fp16" : "--amp.dtype=bf16");
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };

  for (const std::string dtype : {"fp32", "bf16", "fp16", "int8", "nf4"}) {
    INFO(dtype);
    const Finished r = lathe_in(f, command(dtype, dtype));
    INFO(r.out << r.err);
    REQUIRE(r.code == 0);

    // A plan must work without the values of the base and without document starts.
    std::vector<std::string> planned =
        command(dtype, dtype, {"--data.documents=separate", "--data.document_end=10"});
    planned[0] = "plan";
    CHECK(lathe_in(f, planned).code == 0);
    const std::string metrics = slurp(f / dtype / "metrics.jsonl");

    // The plan counts the base in its own dtype. A quantized block is not also counted in float32.
    planned = command(dtype, dtype, {"--json=true"});
    planned[0] = "plan";
    const Json forecast = Json::parse(lathe_in(f, planned).out);
    const size_t last = metrics.rfind("\"memory_bytes\":");
    CHECK(forecast.at("tensors_mb").get<double>() * (1 << 20) ==
          Approx(std::stod(metrics.substr(last + 15))).epsilon(0.02));

    const double first =
        parse_json(metrics.substr(0, metrics.find('\n')), "", Exit::internal)["val_loss"];
    CHECK(first ==
          Approx(base).epsilon(dtype == "nf4" ? 0.02 : 0.002));  // new adapters have no effect
    const double tuned = val_loss(dtype);
    CHECK(tuned < base - 0.03);
    const fs::path model = list_checkpoints(f / dtype).at(0) / "model.safetensors";
    CHECK(fs::file_size(model) <
          fs::file_size(list_checkpoints(f / "base").at(0) / "model.safetensors"));
    CHECK_THAT(lathe_in(f, {"inspect", model.string()}).out,
               ContainsSubstring("blocks.0.attn.qkv.lora_a  F32 [4,16]"));

    REQUIRE(lathe_in(f, command(dtype + "-parts", dtype, {"--train.max_time=0.01"})).code == 75);
    REQUIRE(lathe_in(f, command(dtype + "-parts", dtype)).code == 0);
    CHECK(difference(f / dtype, f / (dtype + "-parts")) == "");

    // The merged model equals the float32 base with the adapters.
    REQUIRE(lathe_in(f, {"merge", dtype, "--out", dtype + "-merged"}).code == 0);
    CHECK(lathe_in(f, {"verify", dtype + "-merged"}).code == 0);
    CHECK(val_loss(dtype + "-merged") ==
          Approx(val_loss(dtype, {"--load-dtype=fp32"})).epsilon(dtype == "fp32" ? 1e-6 : 2e-3));
    const auto out = [&](const std::string& run) {
      return lathe_in(f, {"generate", run, "--prompt=the ", "--tokens=20", "--load-dtype=fp32",
                          "--temperature=0"})
          .out;
    };
    if (dtype == "fp32") CHECK(out(dtype) == out(dtype + "-merged"));
  }
  CHECK(lathe_in(f, {"merge", "fp32", "--out", "fp32-merged"}).code == 2);

  // Only one command at a time may write to a folder, and a command that is stopped leaves no
  // files.
  const std::vector<std::string> merge_again{"merge", "fp32", "--out", "again"};
  {
    const NewFolder other(f / "again");
    CHECK(lathe_in(f, merge_again).code == 8);
  }
  for (const char* point : {"new folder: created 1", "save: begun 1"}) {
    CHECK(run({"lathe_faults", merge_again, f.path(), {{"LATHE_TEST_STOP", point}}}).code == 75);
    CHECK(!fs::exists(f / ".unfinished-again"));
    CHECK(!fs::exists(f / "again"));
  }

  CHECK_THAT(lathe_in(f, {"merge", "base", "--out", "x"}).err,
             ContainsSubstring("base ") && ContainsSubstring("adapters.rank"));
  CHECK_THAT(lathe_in(f, command("more", "fp32", {"--model.n_layer=3"})).err,
             ContainsSubstring("command line: model.n_layer = 3") &&
                 ContainsSubstring("adapters.base has 2"));
  std::string other = sample_text(20000);
  std::replace(other.begin(), other.end(), 'a', 'A');
  write_file(f / "other.txt", other);
  REQUIRE(lathe_in(f, {"prepare", "other.txt", "--out", "other", "--tokenizer", "char"}).code == 0);
  const Finished elsewhere = lathe_in(f, command("more", "fp32", {"--data.dir=other"}));
  CHECK(elsewhere.code == 3);
  CHECK_THAT(elsewhere.err, ContainsSubstring("error: other ") && ContainsSubstring("tokenizer"));
  CHECK(!fs::exists(f / "more"));

  // A base that was trained further counts as a different base.
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=base", "--train.steps=41",
                       "--checkpoint.keep=1"})
              .code == 0);
  for (const auto& args : {std::vector<std::string>{"eval", "fp32"},
                           command("fp32", "fp32", {"--train.sample_interval=0"})}) {
    const Finished r = lathe_in(f, args);
    CHECK(r.code == 4);
    CHECK_THAT(r.err, ContainsSubstring("adapters.base = base") && ContainsSubstring("checksum"));
  }
}

}  // namespace
