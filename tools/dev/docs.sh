# shellcheck shell=bash disable=SC2154 # variables of dev and of the files that it reads first
# ./dev docs: writes the pages of docs/reference that are generated, and the API reference.

setup
compile_lathe
"$build/lathe" config docs >docs/reference/config.md
"$build/lathe" config docs cli >docs/reference/cli.md

install_packages doxygen
.ci/contracts "$build/api" || true # missing contracts are reported here; ./dev lint fails for them
say "generated pages: docs/reference/config.md and cli.md; the API reference: $build/api/html/index.html"
