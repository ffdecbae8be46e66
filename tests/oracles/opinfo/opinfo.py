#!/usr/bin/env python3
"""Compares Lathe's ops with PyTorch's on the samples of PyTorch's tests (OpInfo). Covers every op
that both libraries have. This is the third oracle of ops, after LibTorch and central differences.

    opinfo.py LATHE_TESTS                 writes cases into a temporary folder and runs LATHE_TESTS "[opinfo]" on them
    opinfo.py LATHE_TESTS --write FOLDER  only writes the cases, into FOLDER

Exits with 77 and prints the reason if PyTorch is missing both in this interpreter and in the
environment that `./dev bench --peer` creates. A case has a call's arguments, PyTorch's results, its
gradients for a random cotangent and, in float64, its second gradients. A float32 or bfloat16 case
also has the exact results, computed in float64 from the same rounded inputs.
"""

import glob
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

MOST_SAMPLES = 40  # for each op and dtype
MOST_ELEMENTS = 4000  # in all tensors of a sample together

# The ops that both PyTorch and Lathe have, by OpInfo's names without "nn.functional.". functions.cc
# and layers.cc map them to Lathe's ops.
OPS = """
abs add amax argmax argmin bmm cat chunk clamp clamp_max clamp_min contiguous cos cumprod cumsum diagonal
div.no_rounding_mode einsum eq erf exp expand expm1 flatten flip gather ge gt index_add index_select le log log1p
log_softmax logsumexp lt masked_fill matmul max.binary max.reduction_no_dim max.reduction_with_dim maximum mean
min.binary min.reduction_no_dim min.reduction_with_dim minimum mul ne neg linalg.vector_norm outer permute pow prod
reciprocal reshape roll rsqrt scatter_add select sgn sigmoid sign sin softmax sort split split.list_args
split_with_sizes sqrt squeeze squeeze.multiple stack std std.unbiased sub sum sum_to_size tanh topk transpose tril triu
unbind unfold unsqueeze var var.unbiased where xlogy
adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d batch_norm binary_cross_entropy_with_logits conv1d conv2d
conv_transpose2d cosine_similarity cross_entropy elu embedding gelu group_norm hardswish instance_norm
interpolate.bilinear interpolate.linear interpolate.nearest kl_div l1_loss layer_norm leaky_relu linear logsigmoid
max_pool1d max_pool2d mish mse_loss nll_loss pad.circular pad.constant pad.reflect pad.replicate pairwise_distance relu
rms_norm scaled_dot_product_attention silu smooth_l1_loss softplus triplet_margin_loss nn_unfold
""".split()


def with_torch():
    """Returns this interpreter if it has PyTorch, else the one that `./dev bench --peer` created,
    or None."""
    try:
        import torch  # noqa: F401

        return sys.executable
    except ImportError:
        cache = os.environ.get("LATHE_CACHE") or os.path.expanduser("~/.cache/lathe")
        found = sorted(glob.glob(os.path.join(cache, "peer-*", "bin", "python")))
        return found[-1] if found and "LATHE_OPINFO_AGAIN" not in os.environ else None


class Writer:
    """Collects tensors for one safetensors file, and calls as JSON."""

    def __init__(self):
        self.header, self.chunks, self.size = {}, [], 0

    def put(self, t):
        import torch

        names = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}
        t = t.detach().contiguous()
        name = "%07d" % len(self.header)
        plain = t.view(torch.int16) if t.dtype == torch.bfloat16 else t
        data = plain.numpy(force=True).tobytes()
        self.header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [self.size, self.size + len(data)]}
        self.chunks.append(data)
        self.size += len(data)
        return name

    def value(self, v):
        """Returns an argument as JSON; a tensor is {"t": name, "grad": requires_grad}."""
        import torch

        if isinstance(v, torch.Tensor):
            return {"t": self.put(v), "grad": v.requires_grad}
        if isinstance(v, (list, tuple)):
            return [self.value(x) for x in v]
        if isinstance(v, float) and not math.isfinite(v):
            return {"float": str(v)}
        if v is None or isinstance(v, (bool, int, float, str)):
            return v
        return {"other": str(v)}

    def write(self, path):
        text = json.dumps(self.header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for chunk in self.chunks:
                f.write(chunk)


def mapped(v, f):
    import torch

    if isinstance(v, torch.Tensor):
        return f(v)
    if isinstance(v, (list, tuple)):
        return type(v)([mapped(x, f) for x in v])
    if isinstance(v, dict):
        return {k: mapped(x, f) for k, x in v.items()}
    return v


def tensors_in(v):
    found = []
    mapped(v, lambda t: found.append(t) or t)
    return found


def results(op, call, weights, with_second):
    """Returns the outputs of a call [args, kwargs], the cotangents, the gradients or None, and the
    second gradients or None. The second gradients are a pair: the weights with which gradients are
    summed, and the gradients of this sum. Takes the cotangents from the list `weights`, and appends
    random cotangents if it is too short. Also appends the random weights of the second
    gradients."""
    import torch

    args, kwargs = call
    out = op(*args, **kwargs)
    outs = [t for t in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(t, torch.Tensor)]
    leaves = [t for t in tensors_in(call) if t.requires_grad]
    ends = [t for t in outs if t.is_floating_point()]
    while len(weights) < len(ends):
        weights.append(torch.rand(ends[len(weights)].shape, dtype=torch.float64) * 2 - 1)
    dys = [w.to(t.dtype) for w, t in zip(weights, ends)]
    grown = [(t, dy) for t, dy in zip(ends, dys) if t.requires_grad]
    if not leaves or not grown:
        return outs, dys, None, None
    ends, ways = [t for t, _ in grown], [dy for _, dy in grown]
    grads = list(torch.autograd.grad(ends, leaves, ways, create_graph=with_second, allow_unused=True))
    if not with_second:
        return outs, dys, grads, None
    for g in grads:
        weights.append(torch.rand(g.shape, dtype=torch.float64) * 2 - 1 if g is not None else None)
    last = weights[-len(grads) :]
    terms = [(g * w).sum() for g, w in zip(grads, last) if g is not None and g.requires_grad]
    second = [None] * len(leaves)
    if terms:
        second = list(torch.autograd.grad(sum(terms), leaves, allow_unused=True))
    return outs, dys, grads, (last, second)


def cases(writer):
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    named = {}
    for info in op_db:
        name = info.name.removeprefix("nn.functional.")
        if info.name == "nn.functional.unfold":
            name = "nn_unfold"
        named.setdefault(name + ("." + info.variant_test_name if info.variant_test_name else ""), info)
    missing = [name for name in OPS if name not in named]
    assert not missing, "OpInfo has no " + ", ".join(missing)
    optional = lambda ts: None if ts is None else [None if t is None else writer.put(t) for t in ts]
    skipped = {}
    for name in OPS:
        info = named[name]
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            if not info.supports_dtype(dtype, "cpu"):
                skipped["PyTorch lacks it in %s" % dtype] = skipped.get("PyTorch lacks it in %s" % dtype, 0) + 1
                continue
            torch.manual_seed(1)
            taken = 0
            for sample in info.sample_inputs("cpu", dtype, requires_grad=info.supports_autograd):
                call = [[sample.input, *sample.args], dict(sample.kwargs)]
                every = tensors_in(call)
                known = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)
                if sum(t.numel() for t in every) > MOST_ELEMENTS or any(t.dtype not in known for t in every):
                    skipped["too large, or of a dtype that Lathe lacks"] = skipped.get("too large, or of a dtype that Lathe lacks", 0) + 1
                    continue
                if taken == MOST_SAMPLES:
                    break
                taken += 1
                # Make each tensor a leaf, because a tensor of a sample may be a view of another
                # tensor.
                call = mapped(call, lambda t: t.detach().clone().requires_grad_(t.requires_grad))
                record = {"op": name, "dtype": str(dtype).removeprefix("torch."), "args": writer.value(call[0]),
                          "kwargs": {k: writer.value(v) for k, v in call[1].items()}}
                weights = []
                wide = dtype == torch.float64
                second = wide and info.supports_gradgrad
                try:
                    outs, dys, grads, more = results(info.op, call, weights, second)
                except RuntimeError as e:  # PyTorch has no second derivatives for this kernel
                    reason = "second gradients of " + name + ": " + str(e).split("\n")[0][:60]
                    skipped[reason] = skipped.get(reason, 0) + 1
                    weights.clear()
                    outs, dys, grads, more = results(info.op, call, weights, False)
                record["outs"], record["dys"], record["grads"] = optional(outs), optional(dys), optional(grads)
                if more:
                    record["weights"], record["second"] = optional(more[0]), optional(more[1])
                if not wide:
                    double = mapped(call, lambda t: t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t)
                    weights = [dy.double() for dy in dys]
                    outs, _, grads, _ = results(info.op, double, weights, False)
                    record["exact_outs"], record["exact_grads"] = optional(outs), optional(grads)
                yield record
    for reason, n in sorted(skipped.items()):
        print("not written: %d, %s" % (n, reason))


def main():
    binary = sys.argv[1]
    python = with_torch()
    if python is None:
        print("skipped: PyTorch is missing; `./dev bench --peer` creates an environment with it")
        return 77
    if python != sys.executable:
        return subprocess.call([python, *sys.argv], env={**os.environ, "LATHE_OPINFO_AGAIN": "1"})
    import warnings

    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[3] if len(sys.argv) > 3 else temporary
        os.makedirs(folder, exist_ok=True)
        writer = Writer()
        with open(os.path.join(folder, "cases.jsonl"), "w") as f:
            for record in cases(writer):
                f.write(json.dumps(record) + "\n")
        writer.write(os.path.join(folder, "tensors.safetensors"))
        if len(sys.argv) > 3:
            return 0
        return subprocess.call([binary, "[opinfo]"], env={**os.environ, "LATHE_OPINFO": folder})


if __name__ == "__main__":
    sys.exit(main())
