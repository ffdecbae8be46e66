"""Records the scales and updates of torch.amp.GradScaler for finite and non-finite gradients, for
tests/amp/amp_test.cc.

usage: cd tests/oracles/grad_scaler && python record.py > steps.json     (a Python with torch 2.11)
"""
import json
import math
import random

import torch


def record(init, growth, backoff, interval, gradients):
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.SGD([p], lr=0.125)
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff,
                                  growth_interval=interval)
    steps = []
    for g in gradients:
        optimizer.zero_grad()
        scaler.scale((p * torch.tensor([g, 0.5])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        steps.append({"gradient": g if math.isfinite(g) else str(g), "scale": scaler.get_scale(),
                      "tracker": scaler._get_growth_tracker(), "p": p.tolist()})
    return {"init": init, "growth": growth, "backoff": backoff, "interval": interval, "steps": steps}


def main():
    random.seed(1)
    mixed = [random.choice([0.25, -1.5, 3.0, 0.125, math.inf, -math.inf, math.nan] + [0.5] * 8) for _ in range(120)]
    recordings = [
        record(65536.0, 2.0, 0.5, 4, mixed),
        record(1024.0, 4.0, 0.25, 3, mixed[::-1]),
        record(1000.0, 1.3, 0.7, 3, mixed),  # the scale times these factors is rounded
        record(2.0**125, 2.0, 0.5, 2, [2.0**-30] * 12),  # the scale does not overflow float32
        record(65536.0, 2.0, 0.5, 2000, [0.5] * 3 + [math.inf] * 10 + [0.5] * 3),
    ]
    print(json.dumps({"torch": torch.__version__.split("+")[0], "recordings": recordings}, indent=None, separators=(",", ":")))


main()
