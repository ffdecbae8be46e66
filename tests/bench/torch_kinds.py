#!/usr/bin/env python3
"""Trains models like Lathe's kinds rnn, convnet and mlp in plain PyTorch, as a reference. The data
are random and have the shapes of the data that Lathe uses.

Training: cross-entropy, clipping of the global norm at 1, fused AdamW. The last line is a JSON
object with the median and the minimum milliseconds of a step (after --skip) and the number of
parameters.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Recurrent(nn.Module):
    """The kind rnn: an embedding, layers of LSTM or GRU cells, and a head."""

    def __init__(self, cell, vocab, width, layers, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.cells = getattr(nn, cell)(width, width, layers, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x):
        return self.head(self.cells(self.embedding(x))[0]).flatten(0, 1)


class Block(nn.Module):
    """The residual block of the kind convnet."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if channels == out and stride == 1 else nn.Sequential(
            nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


def convnet(channels, stages, classes):
    layers, width = [nn.Conv2d(1, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()], channels
    for stage in range(stages):
        layers.append(Block(width, channels << stage, 2 if stage > 0 else 1))
        width = channels << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def mlp(features, width, layers, dropout, classes):
    parts = []
    for i in range(layers):
        parts += [nn.Linear(width if i else features, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*parts, nn.Linear(width, classes))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=["LSTM", "GRU", "convnet", "mlp"], required=True)
    p.add_argument("--width", type=int, default=128, help="units, or channels of the first stage")
    p.add_argument("--layers", type=int, default=2, help="layers, or stages")
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--vocab", type=int, default=27)
    p.add_argument("--dropout", type=float, default=0)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--skip", type=int, default=20)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)

    if a.kind in ("LSTM", "GRU"):
        model = Recurrent(a.kind, a.vocab, a.width, a.layers, a.dropout)
        x, y = (torch.randint(0, a.vocab, (a.batch, a.context)) for _ in range(2))
    else:
        is_image = a.kind == "convnet"
        model = convnet(a.width, a.layers, 10) if is_image else mlp(64, a.width, a.layers, a.dropout, 10)
        x, y = torch.randn(a.batch, *((1, 8, 8) if is_image else (64,))), torch.randint(0, 10, (a.batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    times = []
    for _ in range(a.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        times.append(1e3 * (time.perf_counter() - begin))
    kept = times[a.skip:]
    print(json.dumps({"ms_median": statistics.median(kept), "ms_min": min(kept),
                      "params": sum(p.numel() for p in model.parameters())}))


main()
