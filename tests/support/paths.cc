// This is the only file that depends on the path of the build folder. ccache can therefore share
// all other objects between build folders.
#include "tests/support/process.h"

namespace lathe::test {

fs::path source_folder() { return LATHE_SOURCE_DIR; }
fs::path binary_folder() { return LATHE_BINARY_DIR; }

}  // namespace lathe::test
