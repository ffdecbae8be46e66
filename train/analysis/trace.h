// Writes timelines of training steps in the formats of trace viewers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/analysis/profile.h"

namespace lathe {

/// Texts near the beginning of the traces of profile_trace() and write_kineto_trace(). By these
/// texts, Lathe recognizes its own files before it overwrites them.
constexpr const char *trace_mark = R"("args":{"name":"lathe"})",
                     *kineto_mark = R"("program": "lathe")";

/// Returns the spans and the work of each thread as JSON in Chrome's trace event format, which
/// Perfetto can display.
std::string profile_trace(const Profile& profile);

/// Runs `count` steps, beginning with step `first`, under LibTorch's profiler. Writes Kineto's
/// trace of these steps to `file`; the trace has Lathe's steps, modules and ops, ATen's ops, and a
/// GPU's kernels and copies. Does not wait for a GPU between ops. The session changes as in
/// training. Throws Exit::io if the file can't be written.
void write_kineto_trace(Session& session, const Data& data, int64_t first, int64_t count,
                        const std::filesystem::path& file);

/// Runs `count` steps, beginning with step `first`, with an NVTX range for Nsight Systems around
/// each step, module and op. The session must be on a GPU.
void run_with_nvtx(Session& session, const Data& data, int64_t first, int64_t count);

}  // namespace lathe
