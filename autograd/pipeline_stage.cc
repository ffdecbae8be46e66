#include "autograd/pipeline_stage.h"

#include "core/error.h"

namespace lathe {

void refuse_stages() {
  fail(Exit::usage,
       "dist.pipeline needs blocks that take and return one tensor, and those of this model have "
       "other arguments; set it to 1");
}

}  // namespace lathe
