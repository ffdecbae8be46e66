// The page of `lathe serve`.
#pragma once

namespace lathe {

/// The page for chats and completions, a self-contained HTML document: train/serve/page.html, which
/// CMake converts to a string.
extern const char* const chat_page;

}  // namespace lathe
