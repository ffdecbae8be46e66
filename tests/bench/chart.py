#!/usr/bin/env python3
"""Draws docs/assets/steps.svg from the table "steps" of docs/benchmarks/README.md.

The chart shows the speed of Lathe's training steps relative to tuned PyTorch.

With --peer, performance.py also draws the chart after it has written the table. Run this script
after you have edited the table.
"""
import pathlib

PAGE, CHART = pathlib.Path("docs/benchmarks/README.md"), pathlib.Path("docs/assets/steps.svg")
MODELS = {"a": "a: 0.8M parameters", "b": "b: 10.7M", "c": "c: 124M, context 256", "d": "d: 124M, context 64"}
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#24292f} .note{fill:#57606a} .bf16{fill:#0969da} .fp32{fill:#8c959f}
line{stroke:#57606a;stroke-dasharray:4 3} .white{fill:#ffffff;font-weight:600}
@media(prefers-color-scheme:dark){text{fill:#e6edf3} .note{fill:#9198a1} .bf16{fill:#1f6feb} .fp32{fill:#656c76}
line{stroke:#9198a1}}
</style>"""


def ratios():
    """Returns {(model, dtype): PyTorch's time / Lathe's time}, from the table's column "tuned /
    Lathe"."""
    found = {}
    for line in PAGE.read_text().split("<!-- steps -->\n")[1].split("<!-- end -->")[0].split("\n"):
        cells = [cell.strip() for cell in line.split("|")]
        words = cells[1].split() if len(cells) > 6 else []
        if len(words) == 2 and words[0] in MODELS and cells[6]:
            found[tuple(words)] = float(cells[6])
    return found


def draw(values):
    left, scale, top, height = 160, 190, 46, 18
    rows, y = [], top
    for model, label in MODELS.items():
        rows.append(f'<text x="{left - 10}" y="{y + 23}" text-anchor="end">{label}</text>')
        for dtype in ("fp32", "bf16"):
            value = values[model, dtype]
            rows.append(f'<rect class="{dtype}" x="{left}" y="{y}" width="{value * scale:.0f}" height="{height - 2}"/>'
                        f'<text x="{left + value * scale + 6:.0f}" y="{y + 13}">{value:.2f}</text>'
                        f'<text class="white" x="{left + 6}" y="{y + 13}">{dtype}</text>')
            y += height
        y += 12
    one = left + scale
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 {y + 6}" role="img" '
        'aria-label="Speed of a training step relative to tuned PyTorch">', STYLE,
        '<text x="10" y="18">Speed of a training step relative to tuned PyTorch (longer is faster)</text>',
        f'<text class="note" x="{one}" y="38" text-anchor="middle">PyTorch = 1</text>', *rows,
        f'<line x1="{one}" y1="{top - 4}" x2="{one}" y2="{y - 8}"/>', "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(draw(ratios()))
    print(f"{CHART}: done")
