#include "data/data.h"

#include "core/error.h"
#include "data/examples.h"
#include "data/token_data.h"

namespace lathe {

std::unique_ptr<Data> open_data(const DataConfig& config) {
  if (holds_examples(config.dir)) return open_examples(config);
  if (config.folds != 0 || config.fold != 0 || config.flip || config.crop != 0) {
    fail(Exit::usage, "data.folds, data.fold, data.flip and data.crop are for example sets, and ", config.dir,
         " holds tokens; leave them out");
  }
  return std::make_unique<TokenData>(config.dir);
}

}  // namespace lathe
