// What steps do over time, in the formats of trace viewers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/run/profile.h"

namespace lathe {

/// What the first bytes of a trace have that Lathe wrote: profile_trace's, write_kineto_trace's.
constexpr const char *trace_mark = R"("args":{"name":"lathe"})",
                     *kineto_mark = R"("program": "lathe")";

/// The spans and what each thread did, as Chrome's trace event format, which Perfetto reads: JSON.
std::string profile_trace(const Profile& profile);

/// Runs steps from `first`, `count` of them, under LibTorch's profiler and writes Kineto's trace of
/// them to `file`: our steps, modules and ops, ATen's ops, and a GPU's kernels and copies. Nothing
/// is waited for between ops. The session changes as in training. Exit::io where the file can't be
/// written.
void write_kineto_trace(Session& session, const Data& data, int64_t first, int64_t count,
                        const std::filesystem::path& file);

/// Runs such steps with NVTX ranges around what has a name, for Nsight Systems. The session is on a
/// GPU.
void run_with_nvtx(Session& session, const Data& data, int64_t first, int64_t count);

}  // namespace lathe
