#include "autograd/pipeline_stage.h"

#include "core/error.h"

namespace lathe {

void refuse_several_inputs(const char* key) {
  fail(Exit::usage, key,
       " needs blocks that take and return one tensor, but the blocks of this model have other "
       "arguments; leave it out");
}

void refuse_repeated_blocks() {
  fail(Exit::usage,
       "dist.pipeline needs a model that runs its blocks once in each forward pass, but this one "
       "runs them several times; set it to 1");
}

void refuse_hidden_blocks(const char* key) {
  fail(Exit::usage, key,
       " needs a model that runs its blocks by run_blocks() (autograd/recompute.h); leave it out");
}

}  // namespace lathe
