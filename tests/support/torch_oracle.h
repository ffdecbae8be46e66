// Includes torch::nn, torch::optim, torch::autograd and torch::cuda, the oracles of a few tests.
// Compiling them takes 7 s per file, so catch.h leaves them out.
#pragma once

#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim.h>
