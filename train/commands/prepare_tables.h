// The part of `lathe prepare` that is for tables, arrays and images.
#pragma once

#include <vector>

#include "train/commands/commands.h"

namespace lathe {

/// Throws Exit::usage if a flag of `names` was given. `what` is the kind of input that these flags
/// are for, such as "text".
void refuse_flags(const Arguments& arguments, const std::vector<const char*>& names,
                  const char* what);
/// Returns the names of the flags that only tables, arrays and images have.
std::vector<const char*> table_flag_names();
/// Returns a command's own flags, followed by those of tables, arrays and images.
Flags with_table_flags(Flags flags);
/// Prepares tables and arrays. Throws Exit::usage for any of `text_flags`, the flags of text input,
/// except --separator, which tables have too.
Exit prepare_tables(const Arguments& arguments, std::vector<const char*> text_flags);
/// Prepares a folder of images by class. Throws Exit::usage for any of `text_flags` except
/// --format, and for the flags of tables and arrays.
Exit prepare_images(const Arguments& arguments, std::vector<const char*> text_flags);

}  // namespace lathe
