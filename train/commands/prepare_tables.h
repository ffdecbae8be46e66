// Implements the parts of `lathe prepare` for tables, arrays and images.
#pragma once

#include <vector>

#include "train/commands/commands.h"

namespace lathe {

/// Throws Exit::usage if any flag of `names` was given. `what` names the kind of input that has
/// these flags, such as "text".
void refuse_flags(const Arguments& arguments, const std::vector<const char*>& names,
                  const char* what);
/// Returns the names of the flags that only tables, arrays and images accept.
std::vector<const char*> table_flag_names();
/// Returns `flags`, followed by the flags of tables, arrays and images.
Flags with_table_flags(Flags flags);
/// Prepares tables and arrays. Throws Exit::usage if any of `text_flags`, the flags of text input,
/// was given. The exception is --separator, which tables also accept.
Exit prepare_tables(const Arguments& arguments, std::vector<const char*> text_flags);
/// Prepares a folder of images by class. Throws Exit::usage if any of `text_flags` except --format
/// was given, or any flag that only tables and arrays accept.
Exit prepare_images(const Arguments& arguments, std::vector<const char*> text_flags);

}  // namespace lathe
