// Implements the table of data kinds.
#include "data/data.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "core/error.h"
#include "data/examples/examples.h"
#include "data/folder.h"
#include "data/mixture/mixture.h"
#include "data/tokens/preferences.h"
#include "data/tokens/token_data.h"

namespace lathe {
namespace {

std::vector<DataKind>& table() {
  static std::vector<DataKind> kinds{{"tokens", open_tokens},
                                     {"mixture", open_mixture},
                                     {"examples", open_examples},
                                     {"preferences", open_preferences}};
  return kinds;
}

}  // namespace

int64_t count_targets(const Batch& batch) {
  const at::Tensor& t = batch.targets;
  return at::isIntegralType(t.scalar_type(), /*includeBool=*/false)
             ? t.ne(-100).sum().item<int64_t>()
             : t.size(0);
}

void add_data_kind(DataKind kind) {
  const bool taken = std::any_of(table().begin(), table().end(),
                                 [&](const DataKind& k) { return k.name == kind.name; });
  LATHE_CHECK(!taken, "there is a data kind ", kind.name, " already; give yours another name");
  table().push_back(std::move(kind));
}

std::unique_ptr<Data> open_data(const DataConfig& config) {
  const std::string name = kind_of_data(config.dir);
  for (const DataKind& kind : table()) {
    if (kind.name == name) return kind.open(config);
  }
  fail(Exit::data, config.dir, " holds data of a kind that this build does not know: ", name);
}

}  // namespace lathe
