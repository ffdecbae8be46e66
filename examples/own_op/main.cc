// Checks the gradient of a custom op, and counts its FLOPs.
#include <lathe/autograd/create.h>
#include <lathe/autograd/gradcheck.h>
#include <lathe/autograd/ops.h>
#include <lathe/core/mode.h>

#include <iostream>

#include "snake.h"

using namespace lathe;

int main() {
  const Variable x = randn({3, 4}, /*seed=*/1);
  gradcheck([](const Variable& v) { return snake(v, 0.7); }, x);
  std::cout << "the gradient agrees with central differences\n" << snake(x, 0.7) << "\n";
  FlopCount flops;
  const CountFlops counting(flops);
  sum(snake(randn({1000}, 2).requires_grad_(), 0.7)).backward();
  std::cout << "snake and sum of 1000 elements: " << flops.forward.other << " operations forward, "
            << flops.backward.other << " backward\n";
}
