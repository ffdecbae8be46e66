// The one file that knows where this build is, so that every other object is the same in every
// folder (ccache).
#include "tests/support/process.h"

namespace lathe::test {

fs::path source_folder() { return LATHE_SOURCE_DIR; }
fs::path binary_folder() { return LATHE_BINARY_DIR; }

}  // namespace lathe::test
