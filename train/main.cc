#include "train/verbs/cli.h"

int main(int argc, char** argv) { return lathe::run_cli(argc, argv); }
