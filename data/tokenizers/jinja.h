// Renders Jinja templates, with the features of Jinja that chat templates use. Includes no LibTorch
// header.
//
// chat_format.cc renders a few conversations with a template to find out whether the template
// writes ChatML or Llama 3's format. Macros, imports and most filters are not supported. Templates
// that use these are still kept and exported.
#pragma once

#include <optional>
#include <string>

#include "core/io/json.h"

namespace lathe {

/// Renders the template `text` as transformers does: with trim_blocks and lstrip_blocks. Returns
/// nullopt if the template is malformed, raises an exception, uses an unsupported feature, or takes
/// too long.
std::optional<std::string> render_jinja(const std::string& text, const Json& variables);

}  // namespace lathe
