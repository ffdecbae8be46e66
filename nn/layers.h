// Includes all layers. A layer is a plain struct of parameters and sizes, and is called like a
// function. It is constructed with its sizes; nn/init.h sets the values of its parameters. Under
// autocast, a layer computes in the dtypes of its ops (autograd/ops.h).
#pragma once

#include "nn/layers/attention.h"
#include "nn/layers/cache.h"
#include "nn/layers/conv.h"
#include "nn/layers/dropout.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "nn/layers/pool.h"
#include "nn/layers/recurrent.h"
#include "nn/layers/sequential.h"
#include "nn/layers/transformer.h"
