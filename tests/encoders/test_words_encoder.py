"""The encoder `words`: one vector a word of the vectors of its pieces, in PyTorch and in the graph."""

from pathlib import Path
from typing import Any

import encoder_equations
import numpy as np
import pytest
import torch
from encoder_equations import arrays, noisy
from exported_graphs import export, ragged_mask
from tiny_pipelines import build_parts, write_tagger
from torch import Tensor

from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError
from seqpipe_plugins.encoders.words import WordsEncoder

POOLS: dict[str, Any] = {"first": lambda pieces: pieces[0], "mean": lambda p: p.mean(0), "max": lambda p: p.max(0)}
AXES = {**encoder_equations.AXES, "pieces": ("b", "n")}
STARTS = [  # of the words of each row, and how many pieces the row has
    [([0, 1, 4], 6), ([0], 3), ([0, 1, 2, 3], 4)],
    [([0], 1)],
    [([0, 2], 5), ([0, 1, 2, 3, 4], 5)],
]


def inputs(rows: list[tuple[list[int], int]]) -> dict[str, Tensor]:
    mask = ragged_mask(*(length for _, length in rows))
    pieces = torch.zeros(len(rows), max(len(starts) for starts, _ in rows), dtype=torch.int64)
    for row, (starts, _) in zip(pieces, rows, strict=True):
        row[: len(starts)] = torch.tensor(starts) + 1
    return {"x": noisy(mask, 4), "mask": mask, "pieces": pieces}


@pytest.mark.parametrize("pool", POOLS)
def test_the_graph_and_pytorch_pool_the_pieces_of_each_word(pool: Any, tmp_path: Path) -> None:
    encoder = WordsEncoder(4, pool=pool)
    graph = export(tmp_path / "words.onnx", encoder, encoder.forward, AXES, **inputs(STARTS[0]))
    for rows in STARTS:
        feed = inputs(rows)
        for output in (graph(**feed), arrays(encoder(**feed))):
            assert output["mask"].sum(1).tolist() == [len(starts) for starts, _ in rows]
            for b, (starts, length) in enumerate(rows):
                for n, (start, end) in enumerate(zip(starts, [*starts[1:], length], strict=True)):
                    expected = POOLS[pool](feed["x"][b, start:end].double().numpy())
                    assert np.abs(output["x"][b, n] - expected).max() < 1e-6
            assert not output["x"][~output["mask"]].any()


@pytest.mark.parametrize("pool", POOLS)
def test_of_windows_each_word_has_those_of_its_first_piece(pool: Any) -> None:
    encoder, feed = WordsEncoder(4, pool=pool), inputs(STARTS[0])
    numbers = torch.randint(0, 9, (2, *feed["mask"].shape))
    windows = {"other_x": 2 * feed["x"], "window": numbers[0], "other_window": numbers[1]}
    output = encoder(**feed, **windows)
    assert torch.allclose(output["other_x"], 2 * output["x"])
    for b, (starts, _) in enumerate(STARTS[0]):
        for name in ("window", "other_window"):
            assert output[name][b, : len(starts)].tolist() == windows[name][b, starts].tolist()
    assert {*encoder(**feed)} == {"x", "mask"}


PIECES = {"tokenizer": {"use": "wordpiece", "max_size": 60, "lowercase": True}}


@pytest.mark.parametrize("head", [{"use": "crf"}, {"use": "tags", "scheme": "IOB2"}])
def test_a_tag_for_each_word_is_learned_and_answered_of_pieces(tmp_path: Path, head: dict[str, str]) -> None:
    encoder = [{"use": "lstm", "hidden": 6}, "words"]
    config = load_config(write_tagger(tmp_path, PIECES | {"encoder": encoder, "head": head}))
    pipeline, batches = build_parts(config)
    batch = batches(batches.order(0)[0])
    assert batch["tags"].shape == batch["pieces"].shape
    assert batch["ids"].shape[1] > batch["tags"].shape[1]
    pipeline.loss(batch).backward()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (PIECES, r"head: .*'crf'.* 'wordpiece' splits words.*add \{use: words\} to the encoders"),
        (
            {"encoder": ["sentences"]},
            "replaces the words with other rows, so there are no words to tag; delete that encoder",
        ),
    ],
)
def test_tags_without_a_row_for_each_word_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_parts(load_config(write_tagger(tmp_path, changes)))
