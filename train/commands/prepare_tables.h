// The part of `lathe prepare` that is for tables, arrays and images.
#pragma once

#include <vector>

#include "train/commands/commands.h"

namespace lathe {

/// Throws Exit::usage for flags that are for another sort of input.
void refuse_flags(const Arguments& arguments, const std::vector<const char*>& names,
                  const char* what);
/// Returns the flags of tables and arrays alone.
std::vector<const char*> example_flags();
/// Returns a command's own flags with those of tables and arrays.
Flags with_table_flags(Flags flags);
/// Prepares tables and arrays. Refuses `text_flags`, which are those of text.
Exit prepare_tables(const Arguments& arguments, std::vector<const char*> text_flags);
/// Prepares a folder of images by class. Refuses `text_flags` but for --format, which names images.
Exit prepare_images(const Arguments& arguments, std::vector<const char*> text_flags);

}  // namespace lathe
