#include "train/commands/prepare_tables.h"

#include <algorithm>
#include <string_view>

#include "data/prepare/prepare_examples.h"
#include "train/loop/stop.h"

namespace lathe {
namespace {

/// Parses sizes such as "1,8,8".
std::vector<int64_t> read_shape(const std::string& text) {
  std::vector<int64_t> shape;
  for (const std::string& part : comma_list(text)) {
    const ConfigValue value = read_value(part, int64_t{0});
    const auto* size = std::get_if<int64_t>(&value);
    if (size == nullptr || *size < 1 || *size > 1000000)
      fail(Exit::usage, "command line: --shape must be sizes such as 1,8,8, not ", text);
    shape.push_back(*size);
  }
  return shape;
}

/// Parses a size of images: "32" for a square, or "32,48" for height and width.
ImageOptions read_image_size(const std::string& text) {
  constexpr int64_t most = 4096;
  std::vector<int64_t> sides;
  for (const std::string& part : comma_list(text)) {
    const ConfigValue value = read_value(part, int64_t{0});
    const auto* side = std::get_if<int64_t>(&value);
    sides.push_back(side == nullptr ? 0 : *side);
  }
  const auto fits = [](int64_t side) { return side >= 1 && side <= most; };
  if (sides.empty() || sides.size() > 2 || !std::ranges::all_of(sides, fits))
    fail(Exit::usage, "command line: --size must be a number from 1 to ", most,
         ", or two as HEIGHT,WIDTH, not ", text);
  return {sides.front(), sides.back()};
}

/// Reads the flags of the validation split.
void read_split(const Arguments& arguments, ExampleOptions& o) {
  o.val_share = arguments.number("val", 0.1, between(0, 0.9), false);
  if (!arguments.flags.contains("val-file")) return;
  if (arguments.flags.contains("val"))
    fail(Exit::usage, "command line: give --val or --val-file, not both");
  o.val_inputs = comma_list(arguments.get("val-file", ""));
}

/// Returns the byte that --separator names.
char read_separator(const std::string& text) {
  if (text == "tab" || text == "\\t") return '\t';
  if (text.size() != 1 || std::string_view(",;|\t").find(text[0]) == std::string_view::npos)
    fail(Exit::usage, "command line: --separator of a table must be , ; | or tab, not ", text);
  return text[0];
}

TableOptions read_table_options(const Arguments& arguments) {
  TableOptions o;
  o.target = arguments.get("target", o.target);
  o.id = arguments.get("id", "");
  if (arguments.flags.contains("separator"))
    o.separator = read_separator(arguments.get("separator", ""));

  o.missing = arguments.get("missing", o.missing);
  if (o.missing != "error" && o.missing != "drop" && o.missing != "mean" && o.missing != "median")
    fail(Exit::usage, "command line: --missing must be error, drop, mean or median, not ",
         o.missing);

  const auto list = [&](const char* name) {
    const auto found = arguments.lists.find(name);
    return found == arguments.lists.end() ? std::vector<std::string>{} : found->second;
  };
  o.drop = list("drop");
  o.categories = list("category");
  return o;
}

/// Returns whether --layout asks for channels in the last dimension.
bool read_layout(const Arguments& arguments) {
  const std::string layout = arguments.get("layout", "chw");
  if (layout != "chw" && layout != "hwc")
    fail(Exit::usage, "command line: --layout must be chw or hwc, not ", layout);
  return layout == "hwc";
}

}  // namespace

void refuse_flags(const Arguments& arguments, const std::vector<const char*>& names,
                  const char* what) {
  for (const char* name : names) {
    if (arguments.flags.contains(name) || arguments.lists.contains(name))
      fail(Exit::usage, "command line: --", name, " is for ", what,
           "; leave it out, or name other files");
  }
}

std::vector<const char*> table_flag_names() {
  return {"target", "task", "val-file", "shape",   "layout",
          "id",     "drop", "category", "missing", "size"};
}

Flags with_table_flags(Flags flags) {
  flags.insert(
      flags.end(),
      {{"target",
        "Use this column of a table as the target: last, first, or a column by its name or number. "
        "Default: last.",
        {"last", "first"}},
       {"drop",
        "Leave out this column of a table, by name or number. It may be given several times."},
       {"id",
        "Leave this column of a table out of the inputs; `lathe predict` prints it with each "
        "prediction."},
       {"category",
        "Take the numbers in this column of a table as categories. It may be given several times."},
       {"missing",
        "Treat empty cells of a table as an error, drop their lines, or fill them with the mean or "
        "median of the training examples. Default: error.",
        {"error", "drop", "mean", "median"}},
       {"task",
        "Prepare examples for classification or regression. By default, their targets decide.",
        {"classification", "regression"}},
       {"val-file",
        "Use these example files, separated by commas, for validation instead of a share of the "
        "examples."},
       {"shape",
        "Give each example this shape, such as 1,8,8 for an image. Default: as in the files."},
       {"layout",
        "Read images as chw, or as hwc, whose last dimension is the channels. Default: chw.",
        {"chw", "hwc"}},
       {"size",
        "Resize the files of --format images to this height and width, such as 32 or 24,32. "
        "Default: the size that all images have."}});
  return flags;
}

Exit prepare_tables(const Arguments& arguments, std::vector<const char*> text_flags) {
  // Tables also accept --separator.
  std::erase_if(text_flags, [](const char* name) { return std::string_view(name) == "separator"; });
  refuse_flags(arguments, text_flags, "text");
  ExampleOptions o;
  o.inputs = arguments.positionals;
  o.out = arguments.get("out", "");
  o.table = read_table_options(arguments);
  o.channels_last = read_layout(arguments);
  o.task = arguments.get("task", "");

  if (!o.task.empty() && o.task != "classification" && o.task != "regression")
    fail(Exit::usage, "command line: --task must be classification or regression, not ", o.task);

  read_split(arguments, o);
  if (arguments.flags.contains("shape")) o.shape = read_shape(arguments.get("shape", ""));
  o.stop = [] { return stop_signal() != 0; };
  prepare_examples(o);
  return Exit::done;
}

Exit prepare_images(const Arguments& arguments, std::vector<const char*> text_flags) {
  std::erase_if(text_flags, [](const char* name) { return std::string_view(name) == "format"; });
  refuse_flags(arguments, text_flags, "text");
  std::vector<const char*> table_flags = table_flag_names();
  std::erase_if(table_flags,
                [](std::string_view name) { return name == "val-file" || name == "size"; });
  refuse_flags(arguments, table_flags, "tables and arrays");
  ExampleOptions o;
  o.inputs = arguments.positionals;
  o.out = arguments.get("out", "");
  o.task = "classification";
  o.images = ImageOptions{};
  if (arguments.flags.contains("size")) o.images = read_image_size(arguments.get("size", ""));
  read_split(arguments, o);
  if (o.inputs.size() > 1 || o.val_inputs.size() > 1)
    fail(Exit::usage,
         "command line: --format images takes one folder, and --val-file takes one; name the "
         "folder that holds the folders of the classes");

  o.stop = [] { return stop_signal() != 0; };
  prepare_examples(o);
  return Exit::done;
}

}  // namespace lathe
