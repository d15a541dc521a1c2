"""The model card of a bundle, README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from seqpipe.answers.metrics.table import shown
from seqpipe.answers.types import Metric
from seqpipe.runtime.evaluate import headlines
from seqpipe.training.progress import outcome_lines


def model_card(manifest: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """What a bundle is, how to use it, its scores and what it was made with, in Markdown."""
    parts: Mapping[str, Any] = manifest["answer"].get("parts", {"": manifest["answer"]})
    kinds = " and ".join(part["kind"] + (f" (`{name}`)" if name else "") for name, part in parts.items())
    lines = [f"# {manifest['name']}", "", f"A seqpipe bundle that answers with {kinds}.", ""]
    for name, part in parts.items():
        if "labels" in part:
            labels = ", ".join(f"`{label}`" for label in part["labels"])
            lines += [f"Labels{f' of `{name}`' if name else ''}: {labels}", ""]
        if "calibration" in part:
            lines += [f"Chosen on dev{f' for `{name}`' if name else ''}: {json.dumps(part['calibration'])}", ""]
    lines += [
        "## Use",
        "",
        "```",
        'pip install "seqpipe-nlp[cpu]"',
        'echo "some text" | seqpipe predict PATH_OF_THIS_FOLDER',
        "```",
        "",
    ]
    lines += ["`seqpipe verify PATH_OF_THIS_FOLDER` repeats the golden examples on this machine.", ""]
    lines += _scores(manifest, metrics)
    made_with, parity = manifest["made_with"], manifest["parity"]
    lines += ["## Made with", "", *(f"- {name} {version}" for name, version in made_with["packages"].items())]
    lines += [f"- {place}: {owner}" for place, owner in made_with["components"].items()]
    lines += ["", f"onnxruntime and PyTorch agreed on {parity['decisions']} decisions ({parity['ties']} ties).", ""]
    return "\n".join(lines)


def _scores(manifest: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[str]:
    """A table that leads with the metric that chose the weights, and how training ended."""
    outcome, tests = manifest["training"], manifest["metrics"]
    rows = {}
    if "dev" in outcome and "dev" not in tests:
        rows["dev"] = {outcome["metric"]: outcome["dev"]}
    rows |= {name: headlines(scores, outcome.get("metric")) for name, scores in tests.items()}
    lines = ["## Scores", "", "| data set | metric | value |", "|---|---|---|"]
    for name, scores in rows.items():
        lines += [f"| {name} | {metric} | {shown(metric, value, metrics)} |" for metric, value in scores.items()]
    raw = [
        f"{name}: the text alone is given, as in deployment; {100 * scores['split_otherwise']:.1f} % of the words of "
        "the data are split otherwise there."
        for name, scores in tests.items()
        if "split_otherwise" in scores
    ]
    training = [f"Training: {'; '.join(described)}.", ""] if (described := outcome_lines(outcome, metrics)) else []
    return [*lines, "", *(line for text in raw for line in (text, "")), *training] if rows else training
