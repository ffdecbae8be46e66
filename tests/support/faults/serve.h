// Runs many lathe commands from one process. Loading LibTorch takes a fifth of a second. In tests
// that run hundreds of commands, this would be most of the time.
#pragma once

namespace lathe::test {

/// Answers requests on a socket (SOCK_SEQPACKET) until its other end is closed. A request has three
/// file descriptors, for standard output, standard error and the answer, and these strings, each
/// followed by NUL: the folder ("" for the current one), the number of arguments (argv), the
/// arguments, and the environment variables as NAME=VALUE. A fork of this process calls `run` with
/// argc and argv in the folder and exits with its result. The answer is two ints: the process id
/// and, once the process has ended, its status from waitpid().
void serve(int socket, int (*run)(int, char**));

}  // namespace lathe::test
