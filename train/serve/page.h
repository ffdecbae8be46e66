// The page of `lathe serve`.
#pragma once

namespace lathe {

/// The page for chats and completions, an HTML document without other files:
/// train/serve/page.html, which CMake makes a string.
extern const char* const chat_page;

}  // namespace lathe
