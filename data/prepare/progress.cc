#include "data/prepare/progress.h"

#include <limits>

#include "data/folder.h"

namespace lathe {

Json progress_record(const Progress& p, const std::string& command) {
  return {{"command", command}, {"parts", p.parts},           {"train", p.train},
          {"val", p.val},       {"largest_id", p.largest_id}, {"learned", p.learned},
          {"input", p.input},   {"train_sum", p.train_sum},   {"val_sum", p.val_sum}};
}

std::optional<Progress> read_progress(const Json& record, const std::string& command,
                                      const std::string& where) {
  if (json_get<std::string>(record, "command", where, Exit::data) != command) return std::nullopt;
  check_manifest_checksum(record, where);
  const auto whole = [&](const char* key) {
    return json_integer(record, key, 0, std::numeric_limits<int64_t>::max(), where, Exit::data);
  };
  const auto text = [&](const char* key) {
    return json_get<std::string>(record, key, where, Exit::data);
  };
  return Progress{.parts = whole("parts"),
                  .train = whole("train"),
                  .val = whole("val"),
                  .largest_id = whole("largest_id"),
                  .learned = whole("learned"),
                  .input = text("input"),
                  .train_sum = text("train_sum"),
                  .val_sum = text("val_sum")};
}

}  // namespace lathe
