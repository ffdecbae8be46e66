#include "data/data.h"

#include "data/token_data.h"

namespace lathe {

std::unique_ptr<Data> open_data(const DataConfig& config) { return std::make_unique<TokenData>(config.dir); }

}  // namespace lathe
