// Tests of windows that contain several documents. Attention, models and runs keep these documents
// apart. The oracle computes each document by itself.
#include <ATen/Parallel.h>

#include "autograd/engine.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "core/kernels/gemm.h"
#include "core/kernels/isa.h"
#include "data/loader.h"
#include "data/tokens/token_data.h"
#include "nn/layers/documents.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/models/rnn.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/run_folder.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns document starts for rows of `t` positions. The documents' lengths are random: some have
/// one position, and some have more than a block of 64.
at::Tensor random_starts(int64_t rows, int64_t t) {
  const at::Tensor starts = torch::zeros({rows, t}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t start = 0;
    for (int64_t i = 1; i < t; ++i) {
      const bool begins = torch::rand({1}).item<double>() < (row % 2 == 0 ? 0.15 : 0.01);
      if (begins) start = i;
      starts[row][i] = start;
    }
  }
  return starts;
}

/// Returns the result of f(inputs) and the gradients for the cotangent dy.
template <class F>
std::vector<at::Tensor> pass(const std::vector<at::Tensor>& inputs, const at::Tensor& dy,
                             const F& f) {
  std::vector<Variable> leaves;
  for (const at::Tensor& t : inputs) leaves.push_back(Variable::parameter(t.clone()));
  const Variable y = f(leaves);
  backward(y, dy);
  std::vector<at::Tensor> all{y.data()};
  for (const Variable& v : leaves) all.push_back(v.grad());
  return all;
}

/// Returns the largest distance of a and b relative to b's norm, or to 1 if that is larger.
double worst(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor wide = b[i].to(at::kDouble);
    const double distance = (a[i].to(at::kDouble) - wide).norm().item<double>();
    most = std::max(most, distance / std::max(1.0, wide.norm().item<double>()));
  }
  return most;
}

/// Computes attention of each document separately, and concatenates the results.
Variable by_documents(const std::vector<Variable>& qkv, int64_t heads, int64_t kv_heads,
                      const at::Tensor& starts) {
  std::vector<Variable> rows;
  for (int64_t row = 0; row < starts.size(0); ++row) {
    std::vector<Variable> documents;
    for (int64_t begin = 0; begin < starts.size(1);) {
      int64_t end = begin + 1;
      while (end < starts.size(1) && starts[row][end].item<int64_t>() == begin) ++end;
      const auto part = [&](const Variable& x) {
        return slice(slice(x, 0, row, row + 1), 1, begin, end);
      };
      documents.push_back(attention(part(qkv[0]), part(qkv[1]), part(qkv[2]), heads, kv_heads));
      begin = end;
    }
    rows.push_back(documents.size() == 1 ? documents[0] : cat(documents, 1));
  }
  return cat(rows, 0);
}

TEST_CASE(
    "documents of a row have the attention that each has alone, on any instruction set and number "
    "of threads",
    "[separate_documents]") {
  torch::manual_seed(11);
  const int threads = at::get_num_threads();
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
    if (isa > machine_isa()) continue;
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const auto& [heads, kv_heads, width, time] :
           std::vector<std::array<int64_t, 4>>{{2, 2, 8, 1},
                                               {2, 1, 16, 3},
                                               {4, 2, 16, 64},
                                               {2, 2, 10, 65},
                                               {3, 1, 8, 200},
                                               {1, 1, 64, 330}}) {
        INFO(isa_name(isa) << ", " << dtype << ", " << heads << " heads of " << width << ", "
                           << time << " positions");
        const at::Tensor starts = random_starts(3, time);
        const auto make = [&](int64_t h) {
          return torch::randn({3, time, h * width}, at::kDouble);
        };
        const std::vector<at::Tensor> wide{make(heads), make(kv_heads), make(kv_heads)};
        const at::Tensor dy = make(heads);

        // The oracle computes in float64, with the instructions of this machine.
        const auto wanted =
            pass(wide, dy, [&, h = heads, k = kv_heads](const std::vector<Variable>& in) {
              return by_documents(in, h, k, starts);
            });

        std::vector<at::Tensor> inputs;
        for (const at::Tensor& t : wide) inputs.push_back(t.to(dtype));
        use_isa(isa);
        const auto own = [&, h = heads, k = kv_heads](const std::vector<Variable>& in) {
          return attention(in[0], in[1], in[2], h, k, starts);
        };
        const auto got = pass(inputs, dy.to(dtype), own);

        // float32 and bfloat16 have relative rounding errors of 6e-8 and 4e-3. Sums of a few
        // hundred terms stay within some tens of these errors.
        const double most = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 3e-6 : 2e-2;
        CHECK(worst(got, wanted) < most);
        if (heads == kv_heads) {  // also test packed queries, keys and values
          const at::Tensor packed = torch::cat(inputs, 2);
          const auto both =
              pass({packed}, dy.to(dtype), [&, h = heads](const std::vector<Variable>& in) {
                return attention(in[0], h, starts);
              });
          CHECK(worst(both, {wanted[0], torch::cat({wanted[1], wanted[2], wanted[3]}, 2)}) < most);
        }

        // The number of threads changes no bit of the results in float32 and bfloat16.
        for (const int n : {1, 3}) {
          at::set_num_threads(n);
          const auto again = pass(inputs, dy.to(dtype), own);
          if (dtype != at::kDouble)
            for (size_t i = 0; i < got.size(); ++i) CHECK(again[i].equal(got[i]));
        }
        at::set_num_threads(threads);
        use_isa(machine_isa());
      }
    }
  }
}

TEST_CASE("the start of a single document changes no bit of attention, and bad starts are refused",
          "[separate_documents]") {
  torch::manual_seed(12);
  const Variable qkv(torch::randn({2, 130, 3 * 32}));
  CHECK(
      attention(qkv, 4, torch::zeros({2, 130}, at::kLong)).data().equal(attention(qkv, 4).data()));
  const auto refusal = [&](const at::Tensor& starts) {
    return error_of([&] { attention(qkv, 4, starts); });
  };
  at::Tensor bad = torch::zeros({2, 130}, at::kLong);
  bad[1][7] = 8;
  CHECK_THAT(refusal(bad),
             ContainsSubstring("position 7 of row 1 ") && ContainsSubstring("start 8;"));
  bad[1][7] = 5;
  CHECK_THAT(refusal(bad),
             ContainsSubstring("position 8 of row 1 ") && ContainsSubstring("start 0;"));
  bad[1][7] = -1;
  CHECK_THAT(refusal(bad),
             ContainsSubstring("position 7 of row 1 ") && ContainsSubstring("start -1;"));
  CHECK_THAT(refusal(torch::zeros({2, 129}, at::kLong)),
             ContainsSubstring("int64 [2, 130]") && ContainsSubstring("int64[2,129]"));
  CHECK_THAT(refusal(torch::zeros({2, 130})),
             ContainsSubstring("int64 [2, 130]") && ContainsSubstring("float32[2,130]"));
}

/// Returns the largest difference relative to the largest value of b.
double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

template <class Model>
void check_model(const Model& model) {
  const at::Tensor ids = torch::randint(11, {2, 40}), starts = random_starts(2, 40),
                   targets = torch::randint(11, {2, 40});

  std::vector<at::Tensor> alone;
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t begin = 0; begin < 40;) {
      int64_t end = begin + 1;
      while (end < 40 && starts[row][end].item<int64_t>() == begin) ++end;
      alone.push_back(model(ids.slice(0, row, row + 1).slice(1, begin, end)).data()[0]);
      begin = end;
    }
  }

  const auto together = [&]() -> at::Tensor {
    const SeparateDocuments documents(starts);
    return model(ids).data();
  };
  const at::Tensor wanted = torch::cat(alone, 0).view({2, 40, 11});
  CHECK(apart(together(), wanted) < 1e-10);
  CHECK(apart(model(ids).data(), wanted) > 1e-3);  // without document starts

  // Recomputed blocks must separate the same documents.
  const auto gradients = [&](RecomputePolicy policy) {
    zero_grad(model);
    const SeparateDocuments documents(starts);
    const RecomputeBlocks recompute(policy);
    Variable loss = head_loss(model, ids, targets, 80);
    backward(loss);
    std::vector<at::Tensor> all{loss.data()};
    for (const auto& p : parameters(model)) all.push_back(p.parameter.grad().clone());
    return all;
  };

  const auto kept = gradients(RecomputePolicy::none);
  for (const auto policy : {RecomputePolicy::blocks, RecomputePolicy::sqrt}) {
    const auto again = gradients(policy);
    for (size_t i = 0; i < kept.size(); ++i) CHECK(again[i].equal(kept[i]));
  }
}

TEST_CASE("models give a document in a row the logits of the document by itself",
          "[separate_documents]") {
  torch::manual_seed(13);
  GPTConfig g;
  g.n_layer = 3;
  g.n_head = 2;
  g.n_embd = 16;
  g.block_size = 40;
  g.vocab_size = 11;

  LlamaConfig l;
  l.n_layer = 3;
  l.n_head = 4;
  l.n_kv_head = 2;
  l.n_embd = 16;
  l.block_size = 40;
  l.vocab_size = 11;

  const auto randomised = [](auto model) {
    move_to(model, at::kCPU, at::kDouble);
    for (const auto& p : parameters(model))
      p.parameter.data().copy_(torch::randn(p.parameter.sizes(), at::kDouble) * 0.3);
    return model;
  };
  check_model(randomised(GPT(g)));
  check_model(randomised(Llama(l)));

  // Attention windows stay within documents.
  l.sliding_window = 5;
  l.window_layers = "110";
  l.rope_layers = "101";
  l.rope_local_theta = 50;
  l.attention_softcap = 3;
  l.norm_position = "both";
  check_model(randomised(Llama(l)));

  for (const char* kind : {"gpt", "llama"}) CHECK(find_model_kind(kind)->separates_documents);
  CHECK(!find_model_kind("rnn")->separates_documents);
}

TEST_CASE("batches have document starts, and a document begins with the previous one's end token",
          "[separate_documents]") {
  const TempFolder f;
  std::vector<uint16_t> ids;
  for (uint16_t i = 0; i < 300; ++i) ids.push_back(i % 7 == 3 ? 9 : 1);
  write_file(f / "train.bin", packed(ids));
  write_file(f / "val.bin", packed(ids));

  DataConfig c;
  c.dir = f.path().string();
  c.documents = "separate";
  CHECK_THAT(error_of([&] { open_data(c); }), ContainsSubstring("data.documents = \"separate\"") &&
                                                  ContainsSubstring("no manifest.json") &&
                                                  ContainsSubstring("data.document_end"));

  c.document_end = 9;
  const auto data = open_data(c);
  const BatchSizes sizes{.batch_size = 4, .block_size = 20, .vocab_size = 10};
  for (const Batch& b : draw_batches(*data, sizes, 3, 0, 5, at::kCPU)) {
    REQUIRE(b.starts.sizes() == b.inputs.sizes());
    for (int64_t row = 0; row < 4; ++row) {
      int64_t start = 0;
      for (int64_t i = 0; i < 20; ++i) {
        if (b.inputs[row][i].item<int64_t>() == 9) start = i;
        CHECK(b.starts[row][i].item<int64_t>() == start);
      }
      CHECK(start > 0);
    }
  }

  Batch last;
  int batches = 0;
  for (const auto all = data->evaluation(sizes, 0, at::kCPU); all->next(last); ++batches)
    CHECK(last.starts.sizes() == last.inputs.sizes());
  CHECK(batches > 0);

  c.documents = "joined";
  CHECK_THAT(error_of([&] { open_data(c); }), ContainsSubstring("data.document_end") &&
                                                  ContainsSubstring("data.documents = \"joined\""));
}

TEST_CASE("resuming and recomputation change no bits of a run on separate documents",
          "[separate_documents]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  std::string text;
  for (int i = 0; i < 400; ++i) text += "document " + std::to_string(i * i) + "\n";
  write_file(f / "text.txt", text);
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "lines", "--tokenizer", "char"}).code == 0);

  const auto train = [&](const std::string& out, std::vector<std::string> more, int code = 0,
                         const std::string& documents = "separate", int document_end = 0) {
    std::vector<std::string> args{"train",
                                  "tiny.toml",
                                  "--data.dir=lines",
                                  "--data.documents=" + documents,
                                  "--data.document_end=" + std::to_string(document_end),
                                  "--train.out_dir=" + out};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, args);
    INFO(done.err);
    CHECK(done.code == code);
    return done.err;
  };

  train("whole", {});
  train("parts", {"--train.pause_at=7"}, 75);
  train("parts", {});
  CHECK(difference(f / "whole", f / "parts").empty());
  train("again", {"--memory.recompute=blocks"});
  CHECK(difference(f / "whole", f / "again").empty());

  // The comparison notices a run whose documents are not separated.
  train("joined", {}, 0, "joined", -1);
  CHECK(!difference(f / "whole", f / "joined").empty());

  CHECK_THAT(train("unknown", {}, 2, "separate", -1),
             ContainsSubstring("data.documents = \"separate\"") &&
                 ContainsSubstring("a tokenizer") && ContainsSubstring("data.document_end"));
  CHECK_THAT(train("whole", {}, 2, "joined", -1), ContainsSubstring("data.documents"));

  write_file(f / "rnn.toml",
             "[model]\nkind = \"rnn\"\n[data]\ndir = \"lines\"\ndocuments = \"separate\"\n"
             "document_end = 0\n");
  const Finished rnn = lathe_in(f, {"train", "rnn.toml"});
  CHECK(rnn.code == 2);
  CHECK_THAT(rnn.err, ContainsSubstring("data.documents = \"separate\"") &&
                          ContainsSubstring("model.kind = \"rnn\""));
}

}  // namespace
