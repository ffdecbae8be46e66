#include "train/tasks/choices.h"

#include "core/io/json.h"
#include "data/prepare/documents.h"

namespace lathe {

std::vector<MultipleChoice> read_choices(const std::string& file) {
  std::vector<MultipleChoice> all;
  const DocumentSource source{.files = {file}, .format = "jsonl"};
  PartReader reader(source, /*whole=*/false);
  for (Part part; reader.next(part);) {
    each_line(part, [&](uint64_t line, std::string_view text) {
      const std::string where = str(file, ":", line);
      const Json json = parse_json(text, where, Exit::data);
      MultipleChoice c{.context = json_get<std::string>(json, "context", where, Exit::data),
                       .endings = {},
                       .label = 0};

      const Json endings = json_get<Json>(json, "endings", where, Exit::data);
      if (!endings.is_array()) fail(Exit::data, where, ": \"endings\" must be a list of strings");
      for (const Json& ending : endings) {
        if (!ending.is_string() || ending.get<std::string>().empty())
          fail(Exit::data, where, ": \"endings\" must be a list of non-empty strings");
        c.endings.push_back(ending.get<std::string>());
      }
      if (std::ssize(c.endings) < 2)
        fail(Exit::data, where, ": \"endings\" needs at least two strings");

      c.label = json_integer(json, "label", 0, std::ssize(c.endings) - 1, where, Exit::data);
      all.push_back(std::move(c));
    });
  }
  if (all.empty()) fail(Exit::data, file, " has no questions; write one JSON object per line");
  return all;
}

}  // namespace lathe
