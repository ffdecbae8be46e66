// Many lathe commands from one process: loading LibTorch takes a fifth of a second, which would be
// most of the time of tests that run hundreds of commands.
#pragma once

namespace lathe::test {

/// Answers requests on a socket (SOCK_SEQPACKET) until its other end is closed. A request is two
/// descriptors for standard output and error and one for the answer, and the folder, the number of
/// words, the words and the environment, each with a NUL behind it. A fork of this process, which
/// loaded all and did nothing yet, runs `run` on the words there and ends with its result. The
/// answer is its process number, then, once it ended, its status as of waitpid, an int each.
void serve(int socket, int (*run)(int, char**));

}  // namespace lathe::test
