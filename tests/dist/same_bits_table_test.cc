// Tests that runs are bitwise equal on 1, 2 and 4 processes, for a table of model kinds,
// precisions, optimizers and values of dist.shard. For any two columns, each pair of their values
// occurs in a row of the table (a TableCell).
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

const Kind two_block_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};
const Kind four_block_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 4\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};
// The matrices of this GPT have more elements than a partial sum covers, so that ranks divide the
// matrices.
const Kind divided_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 2\nn_head = 2\nn_embd = 96\nblock_size = 12\ndropout = 0.1\n"};

// These kinds have tensors with at least 4096 elements. adam8bit keeps 8-bit moments only for such
// tensors.
const Kind wide_llama{.name = "llama",
                      .data = "text",
                      .keys =
                          "n_layer = 2\nn_head = 4\nn_kv_head = 2\nn_embd = 64\nblock_size = "
                          "12\ndropout = 0.1\nqk_norm = true\n"};
const Kind wide_lstm{.name = "rnn",
                     .data = "text",
                     .keys =
                         "n_hidden = 64\nn_embd = 16\nn_layer = 2\nblock_size = 12\ndropout = "
                         "0.1\ntie_weights = false\n"};
const Kind wide_convnet{.name = "convnet",
                        .data = "images",
                        .keys = "n_stage = 2\nn_block = 1\nn_channel = 16\ndropout = 0.1\n"};
const Kind wide_mlp{
    .name = "mlp", .data = "images", .keys = "n_hidden = 64\ndropout = 0.1\nnorm = \"batch\"\n"};

struct TableCell {
  const Kind& kind;
  std::string precision, optimizer, shard;
  Words more;  ///< additional config keys of the cell
};

/// The values of each column: kind, precision, optimizer and dist.shard. fp16 has a dynamic loss
/// scale by default.
const std::array<Words, 4> table_axes{{{"gpt", "llama", "rnn", "convnet", "mlp"},
                                       {"fp32", "bf16", "fp16", "fp8"},
                                       {"adamw", "adam8bit", "muon", "adafactor"},
                                       {"none", "optimizer", "gradients", "parameters"}}};

struct RefusedPair {
  std::string kind, precision;
};

/// The pairs that the program refuses. They combine fp8 with kinds that have no repeated blocks of
/// linear layers.
const std::vector<RefusedPair> refused_pairs{{.kind = "rnn", .precision = "fp8"},
                                             {.kind = "convnet", .precision = "fp8"},
                                             {.kind = "mlp", .precision = "fp8"}};

/// Returns the table. A smaller table is impossible. Each of the four optimizers needs a cell with
/// fp8, and only GPTs and Llamas support fp8. GPTs and Llamas need six more cells for the other
/// precisions. Each of the other kinds needs four cells, one per optimizer.
///
/// In test::kinds, index 0 is an mlp with batch norm, 1 is an mlp of numbers, 2 is a convnet, 3 is
/// a Llama, 4 is an LSTM and 5 is a GRU.
std::vector<TableCell> bits_table() {
  const auto& kinds = lathe::test::kinds;
  return {
      {divided_gpt,
       "fp32",
       "adamw",
       "gradients",
       {"--optim.grad_clip=0.5", "--dist.bucket_mb=0.002", "--memory.saved=fp8"}},
      {two_block_gpt, "bf16", "adamw", "none", {"--amp.master=false"}},
      {divided_gpt, "fp16", "adam8bit", "parameters", {"--memory.recompute=selective"}},
      {two_block_gpt, "fp8", "muon", "optimizer", {"--amp.fp8_edge_blocks=0"}},
      {four_block_gpt, "fp8", "adafactor", "parameters", {"--amp.fp8_scaling=delayed"}},

      {kinds[3], "fp32", "muon", "parameters", {}},
      {kinds[3], "bf16", "muon", "none", {"--memory.recompute=selective"}},
      // The scaler skips three of the six updates.
      {kinds[3], "fp16", "adafactor", "optimizer", {"--amp.loss_scale=16777216"}},
      {kinds[3],
       "fp8",
       "adamw",
       "gradients",
       {"--amp.fp8_edge_blocks=0", "--amp.fp8_scaling=delayed"}},
      {wide_llama, "fp8", "adam8bit", "none", {"--amp.fp8_edge_blocks=0"}},

      {kinds[4], "fp32", "muon", "none", {"--memory.saved=bf16"}},
      {kinds[5], "fp32", "adafactor", "gradients", {}},
      {wide_lstm, "bf16", "adam8bit", "optimizer", {}},
      {kinds[4], "fp16", "adamw", "parameters", {"--optim.ema_decay=0.9"}},

      {wide_convnet, "fp32", "adam8bit", "parameters", {}},
      {kinds[2], "bf16", "adafactor", "none", {}},
      {kinds[2],
       "fp16",
       "adamw",
       "optimizer",
       {"--amp.scaler=dynamic", "--amp.loss_scale=2097152"}},  // three updates are skipped
      {kinds[2], "fp16", "muon", "gradients", {}},

      {kinds[1], "fp32", "muon", "optimizer", {}},
      {wide_mlp, "bf16", "adam8bit", "gradients", {"--amp.grad=low"}},
      {kinds[1], "bf16", "adafactor", "parameters", {}},
      {kinds[0], "fp16", "adamw", "none", {}},
  };
}

/// Returns the pairs of values that the table lacks, except those that the program refuses.
Words missing_pairs(const std::vector<TableCell>& table) {
  std::set<Words> found;
  for (const RefusedPair& pair : refused_pairs) found.insert(Words{pair.kind, pair.precision});
  for (const TableCell& cell : table) {
    const Words values{cell.kind.name, cell.precision, cell.optimizer, cell.shard};
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t j = i + 1; j < values.size(); ++j) found.insert(Words{values[i], values[j]});
    }
  }

  Words missing;
  for (size_t i = 0; i < table_axes.size(); ++i) {
    for (size_t j = i + 1; j < table_axes.size(); ++j) {
      for (const std::string& a : table_axes[i]) {
        for (const std::string& b : table_axes[j]) {
          if (!found.contains(Words{a, b})) missing.push_back(a + " with " + b);
        }
      }
    }
  }
  return missing;
}

/// Returns the keys of a cell. dist.shard = "parameters" needs memory.recompute.
Words keys_of_cell(const TableCell& cell) {
  Words keys{"--amp.dtype=" + cell.precision, "--optim.kind=" + cell.optimizer,
             "--dist.shard=" + cell.shard};
  if (cell.shard == "parameters") keys.push_back("--memory.recompute=blocks");
  return with_keys(keys, cell.more);
}

const Words table_keys{"--train.steps=6",        "--train.grad_accum=4",
                       "--train.batch_size=4",   "--train.eval_interval=3",
                       "--train.eval_batches=3", "--checkpoint.interval=6",
                       "--dist.timeout=60"};

/// Checks the cells of a model kind.
void check_cells_of(const std::string& kind) {
  RunsOnRanks runs(table_keys, "step-00000006");
  for (const TableCell& cell : bits_table()) {
    if (cell.kind.name != kind) continue;

    const Words keys = keys_of_cell(cell);
    const std::string alone = runs.results(1, cell.kind, keys);
    for (const int ranks : {2, 4}) {
      INFO(kind << ", " << cell.precision << ", " << cell.optimizer
                << " and dist.shard = " << cell.shard << " on " << ranks << " processes");
      CHECK((runs.results(ranks, cell.kind, keys) == alone));
    }
  }
}

TEST_CASE("the table has each pair of values that the program accepts", "[same_bits_table]") {
  const std::vector<TableCell> all = bits_table();
  CHECK(missing_pairs(all) == Words{});

  // If the cells that have a pair are removed, the pair is reported as missing.
  std::vector<TableCell> fewer;
  for (const TableCell& cell : all) {
    if (cell.kind.name != "gpt" || cell.precision != "fp16") fewer.push_back(cell);
  }
  const Words missing = missing_pairs(fewer);
  CHECK(std::count(missing.begin(), missing.end(), "gpt with fp16") == 1);
}

TEST_CASE("the program refuses the pairs that the table leaves out", "[same_bits_table]") {
  const TempFolder f;
  lathe::test::make_data(f);
  const std::vector<TableCell> table = bits_table();
  for (const RefusedPair& pair : refused_pairs) {
    INFO(pair.kind << " with " << pair.precision);
    const auto cell = std::find_if(table.begin(), table.end(),
                                   [&](const TableCell& c) { return c.kind.name == pair.kind; });
    REQUIRE(cell != table.end());

    lathe::test::write_config(f, cell->kind);
    const Finished done = train_on(f, 1, "kind.toml", pair.kind, {"--amp.dtype=" + pair.precision});
    CHECK(done.code == 2);
    CHECK_THAT(done.err, ContainsSubstring("amp.dtype") && !ContainsSubstring("fp8_edge_blocks"));
  }
}

TEST_CASE("runs of a GPT are bitwise equal on 1, 2 and 4 processes", "[same_bits_table]") {
  check_cells_of("gpt");
}

TEST_CASE("runs of a Llama are bitwise equal on 1, 2 and 4 processes", "[same_bits_table]") {
  check_cells_of("llama");
}

TEST_CASE("runs of an RNN are bitwise equal on 1, 2 and 4 processes", "[same_bits_table]") {
  check_cells_of("rnn");
}

TEST_CASE("runs of a convnet are bitwise equal on 1, 2 and 4 processes", "[same_bits_table]") {
  check_cells_of("convnet");
}

TEST_CASE("runs of an mlp are bitwise equal on 1, 2 and 4 processes", "[same_bits_table]") {
  check_cells_of("mlp");
}

}  // namespace
