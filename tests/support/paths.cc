// The only file that depends on the folder of this build. ccache can then share all other objects
// between folders.
#include "tests/support/process.h"

namespace lathe::test {

fs::path source_folder() { return LATHE_SOURCE_DIR; }
fs::path binary_folder() { return LATHE_BINARY_DIR; }

}  // namespace lathe::test
