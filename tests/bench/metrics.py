"""Reads the metrics that a run has logged."""
import json


def logged_steps(run):
    """Returns the lines of a run's metrics.jsonl that report a training step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]
