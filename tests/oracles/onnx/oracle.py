#!/usr/bin/env python3
"""Compares `lathe export --format onnx` with onnxruntime, and folders of images with Pillow.

  tests/oracles/onnx/oracle.py LATHE LATHE_TESTS [NAME ...]

- examples: models trained on arrays. For raw inputs, the results must equal `lathe predict`'s.
- tables: tables with text columns, empty cells, and an unknown category.
- images: the pixels that `lathe prepare` reads, against Pillow's, and the predictions for them.
- language: the logits of language models, against those of Lathe's library.

onnx.checker must accept every file. Exits with 77 and prints the reason if a package is missing
both in this interpreter and in the one that LATHE_ONNX_PYTHON names. Each part must also notice a
difference when it compares the results for other inputs.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import packages  # noqa: E402

PACKAGES = ["numpy", "onnx", "onnxruntime", "PIL"]
TOLERANCE = 1e-5
TEXT = "the lathe turns wood and the tool cuts what turns slowly under it.\n" * 60


class Bench:
    def __init__(self, lathe, tests, folder):
        self.lathe, self.tests, self.folder, self.count = lathe, tests, folder, 0

    def path(self, name):
        self.count += 1
        return self.folder / f"{self.count:03d}-{name}"

    def call(self, *words):
        done = subprocess.run([self.lathe, *map(str, words)], capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, f"lathe {words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def trained(self, data, model, steps=30, optim=""):
        config, run = self.path("run.toml"), self.path("run")
        config.write_text(f"[model]\n{model}\n[data]\ndir = \"{data}\"\n[optim]\nlr = 1e-2\n{optim}\n[schedule]\nkind = \"constant\"\n"
                          f"warmup_steps = 0\n[train]\nsteps = {steps}\nbatch_size = 16\neval_interval = {steps}\n"
                          f"threads = 1\nout_dir = \"{run}\"\n")
        self.call("train", config)
        return run

    def session(self, run, *flags):
        import onnx
        import onnxruntime

        out = self.path("onnx")
        self.call("export", run, "--format", "onnx", "--out", out, *flags)
        model = onnx.load(out / "model.onnx")
        onnx.checker.check_model(model, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(out / "model.onnx", options, providers=["CPUExecutionProvider"])
        return session, {p.key: p.value for p in model.metadata_props}

    def predicted(self, run, *files):
        """Returns the rows that `lathe predict` writes, and their numbers as an array."""
        import numpy

        out = self.path("out.jsonl")
        self.call("predict", run, *files, "--out", out)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        if "class" in rows[0]:
            return rows, numpy.array([list(row["probabilities"].values()) for row in rows])
        return rows, numpy.array([numpy.atleast_1d(row["prediction"]) for row in rows])


def apart(a, b, least=1e-2):
    """Returns the largest difference relative to |b|, or relative to `least` where |b| is
    smaller."""
    import numpy

    return float((numpy.abs(a - b) / numpy.maximum(numpy.abs(b), least)).max())


def compare(name, mine, theirs, control, least=1e-2):
    """Checks that the results agree, and that the results for other inputs, `control`, differ."""
    assert mine.shape == theirs.shape, f"{name}: {mine.shape} and {theirs.shape}"
    far, other = apart(theirs, mine, least), apart(control, mine, least)
    print(f"{name}: {len(mine)} rows differ by {far:.1e} at most")
    assert far < TOLERANCE, f"{name}: {far}"
    assert other > TOLERANCE, f"{name}: the control agrees"


def write_arrays(bench, inputs, targets, *flags):
    import numpy

    x, y, data = bench.path("x.npy"), bench.path("y.npy"), bench.path("data")
    numpy.save(x, inputs)
    numpy.save(y, targets)
    bench.call("prepare", x, y, "--out", data, *flags)
    return x, data


def examples(bench):
    import numpy

    random = numpy.random.default_rng(1)
    labels = random.integers(0, 3, 120)
    images = (random.integers(0, 200, (120, 3, 9, 7)) + labels[:, None, None, None] * 25).astype(numpy.uint8)
    last = numpy.ascontiguousarray(images.transpose(0, 2, 3, 1))
    flat = random.normal(2000, 5, (120, 6)) + labels[:, None]
    numbers = numpy.stack([flat.sum(1) * 100, 1e6 + flat[:, 0] - flat[:, 1]], 1)
    plain = random.integers(0, 255, (120, 8, 8)).astype(numpy.float32) + labels[:, None, None]
    sets = {"images": (images, labels, ()), "channels last": (last, labels, ("--layout", "hwc")),
            "numbers": (flat, labels, ()), "regression": (flat, numbers, ("--task", "regression")),
            "images without channels": (plain, labels, ())}
    models = [("images", 'kind = "convnet"\nn_stage = 3\nn_block = 2\nn_channel = 8\ndropout = 0.1'),
              ("channels last", 'kind = "convnet"\nn_stage = 2\nn_block = 1\nn_channel = 4'),
              ("images without channels", 'kind = "convnet"\nn_stage = 2\nn_block = 1\nn_channel = 4'),
              ("images", 'kind = "mlp"\nnorm = "batch"\nactivation = "silu"'),
              ("numbers", 'kind = "mlp"\nnorm = "layer"\nactivation = "gelu"\nn_layer = 3'),
              ("numbers", 'kind = "mlp"\nn_layer = 0'),
              ("regression", 'kind = "mlp"\nactivation = "tanh"')]
    for name, model in models:
        inputs, targets, flags = sets[name]
        x, data = write_arrays(bench, inputs, targets, *flags)
        run = bench.trained(data, model)
        session, metadata = bench.session(run)
        rows, mine = bench.predicted(run, x)
        given = inputs.astype(numpy.float32 if inputs.ndim == 4 else numpy.float64)
        outputs = dict(zip((o.name for o in session.get_outputs()), session.run(None, {"input": given})))
        theirs = outputs["prediction" if name == "regression" else "probabilities"]
        changed = session.run(None, {"input": given * 0.99})[-1]
        compare(f"{name}, {model.split()[2]}", mine, theirs, changed)
        if name != "regression":
            assert [row["class"] for row in rows] == [json.loads(metadata["classes"])[c] for c in outputs["class"]]
        one = session.run(None, {"input": given[5:6]})[-1]
        assert apart(one, mine[5:6]) < TOLERANCE, f"{name}: a batch of one"

    # The table has the pixels of images whose last dimension is the channels.
    pixels, data = bench.path("pixels.csv"), bench.path("data")
    flat = last.reshape(120, -1)
    numpy.savetxt(pixels, numpy.concatenate([flat, labels[:, None]], 1), fmt="%d", delimiter=",")
    bench.call("prepare", pixels, "--out", data, "--task", "classification", "--shape", "9,7,3", "--layout", "hwc")
    run = bench.trained(data, models[1][1])
    session = bench.session(run)[0]
    mine = bench.predicted(run, pixels)[1]
    theirs, changed = (session.run(["probabilities"], {"input": x.astype(numpy.float32)})[0]
                       for x in (flat, numpy.ascontiguousarray(flat[:, ::-1])))
    compare("a table of pixels, channels last", mine, theirs, changed)

    x, data = write_arrays(bench, images, labels)
    run = bench.trained(data, 'kind = "mlp"', optim="ema_decay = 0.9")
    averaged, plain = (bench.session(run, "--weights", weights)[0] for weights in ("ema", "model"))
    given = {"input": images.astype(numpy.float32)}
    compare("averaged weights", bench.predicted(run, x, "--weights", "ema")[1], averaged.run(["probabilities"], given)[0],
            plain.run(["probabilities"], given)[0])


def tables(bench):
    import numpy

    random = numpy.random.default_rng(2)
    table, data = bench.path("table.csv"), bench.path("data")
    lines, numbers, texts = ["color,id,size,year,shape,kind"], [], []
    for i in range(150):
        color, shape = ["red", "blue", "light, green"][i % 3], ["round", ""][i % 2]
        size, year = random.normal() + i % 3, 1990 + i % 30
        lines.append(f"\"{color}\",n{i},{'' if i % 5 == 2 else size},{year},{shape},{'rose' if i % 3 else 'iris'}")
        numbers.append([numpy.nan if i % 5 == 2 else size, year])
        texts.append([color, shape])
    table.write_text("\n".join(lines) + "\n")
    bench.call("prepare", table, "--out", data, "--id", "id", "--missing", "median")
    run = bench.trained(data, 'kind = "mlp"\nn_hidden = 16', 60)
    session, metadata = bench.session(run)
    assert json.loads(metadata["columns"]) == ["size", "year"] and json.loads(metadata["text_columns"]) == ["color", "shape"]
    rows, mine = bench.predicted(run, table)
    given = {"input": numpy.array(numbers), "texts": numpy.array(texts, dtype=object)}
    theirs = session.run(["probabilities"], given)[0]
    other = session.run(["probabilities"], {**given, "input": numpy.nan_to_num(given["input"])})[0]
    compare("a table", mine, theirs, other)
    try:
        session.run(None, {**given, "texts": numpy.array([["black", "round"]] * 150, dtype=object)})
    except Exception as e:
        assert "Unknown Category" in str(e), e
    else:
        raise AssertionError("a category that no training example has is not refused")


def images(bench):
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(3)
    folder, data, height, width = bench.path("in"), bench.path("data"), 24, 20
    for label, kind in enumerate(("bird", "fish")):
        (folder / kind).mkdir(parents=True)
        for i in range(24):
            size = random.integers(5, 90, 2)
            # Use smooth images, for which JPEG decoders differ little.
            coarse = Image.fromarray(random.integers(0, 180, (3, 4, 3)).astype(numpy.uint8) + numpy.uint8(60 * label))
            image = coarse.resize([int(n) for n in size], Image.BICUBIC)
            mode, end, more = [("RGB", "png", {}), ("RGB", "jpg", {"quality": 95}), ("L", "png", {}), ("P", "png", {}), ("RGBA", "png", {}),
                               ("L", "jpeg", {}), ("1", "png", {}), ("RGB", "jpg", {"progressive": True, "quality": 90})][i % 8]
            image.convert(mode).save(folder / kind / f"{i:02d}-{mode}.{end}", **more)
    bench.call("prepare", folder, "--format", "images", "--size", f"{height},{width}", "--val", "0", "--out", data)
    files = sorted(folder.glob("*/*"))

    def pillow(how):
        return numpy.stack([numpy.array(Image.open(f).convert("RGB").resize((width, height), how)).transpose(2, 0, 1) for f in files]).astype(int)

    mine = numpy.load(data / "train_inputs.npy").astype(int)
    theirs, other = pillow(Image.BILINEAR), pillow(Image.NEAREST)
    far = numpy.abs(mine - theirs)
    print(f"{len(files)} images of {theirs.shape[1:]}: pixels differ from Pillow's by {far.max()} at most, {(far > 0).mean():.2%} of them")
    assert far.max() <= 1, [str(f) for f, d in zip(files, far.max((1, 2, 3))) if d > 1]
    assert numpy.abs(mine - other).max() > 10, "the control agrees"

    split = bench.path("split")
    bench.call("prepare", folder, "--format", "images", "--size", f"{height},{width}", "--out", split)
    run = bench.trained(split, 'kind = "convnet"\nn_stage = 2\nn_block = 1\nn_channel = 4')
    session, metadata = bench.session(run)
    rows, probabilities = bench.predicted(run, folder)
    assert [row["id"] for row in rows] == [str(f) for f in files]
    assert json.loads(metadata["classes"]) == ["bird", "fish"]
    given = mine.astype(numpy.float32)
    compare("images", probabilities, session.run(["probabilities"], {"input": given})[0], session.run(["probabilities"], {"input": given + 3})[0])


def saved_logits(path):
    import numpy

    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:8 + length])["logits"]
    begin, end = entry["data_offsets"]
    return numpy.frombuffer(data[8 + length + begin:8 + length + end], numpy.float32).reshape(entry["shape"])


def language(bench):
    import numpy

    random = numpy.random.default_rng(4)
    text, data = bench.path("text.txt"), bench.path("data")
    text.write_text(TEXT)
    bench.call("prepare", text, "--out", data, "--tokenizer", "char")
    rnn = 'kind = "rnn"\nblock_size = 24\nn_hidden = 32\nn_embd = '
    for model in (rnn + '16', rnn + '32\ntie_weights = true\nn_layer = 3\ndropout = 0.1', rnn + '16\ncell = "gru"', rnn + '32\ncell = "gru"\nn_layer = 1\ntie_weights = true',
                  'kind = "gpt"\nblock_size = 24\nn_embd = 32\nn_head = 2\nn_layer = 2', 'kind = "gpt"\nblock_size = 24\nn_embd = 48\nn_layer = 1\nbias = false\ntie_weights = false'):
        run = bench.trained(data, model)
        session, metadata = bench.session(run)
        characters = json.loads(metadata["characters"])
        assert characters == sorted(set(TEXT)) and metadata["context"] == "24"
        jobs, rows = bench.path("jobs"), []
        for batch, time in ((1, 1), (3, 24), (2, 7)):
            ids = random.integers(0, len(characters), (batch, time))
            rows.append({"run": str(run), "ids": ids.tolist(), "greedy": 1, "cache": False, "out": str(bench.path("logits"))})
        jobs.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = subprocess.run([bench.tests, "[.hf]"], env={**os.environ, "LATHE_HF": str(jobs)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        for row in rows:
            ids = numpy.array(row["ids"])
            mine = saved_logits(Path(row["out"]))
            compare(f"{' '.join(model.split())}, {ids.shape}", mine, session.run(["logits"], {"ids": ids})[0],
                    session.run(["logits"], {"ids": (ids + 1) % len(characters)})[0], least=1)  # a logit may be 0


CASES = {"examples": examples, "tables": tables, "images": images, "language": language}


def main():
    packages.require(PACKAGES, "LATHE_ONNX_PYTHON")
    import onnx
    import onnxruntime

    print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(sys.argv[1], sys.argv[2], Path(temporary))
        for name in sys.argv[3:] or CASES:
            CASES[name](bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
