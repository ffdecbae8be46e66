// Declares the page of `lathe serve`.
#pragma once

namespace lathe {

/// The page for chats and completions, which is a self-contained HTML document. CMake converts
/// train/serve/page.html to this string.
extern const char* const chat_page;

}  // namespace lathe
