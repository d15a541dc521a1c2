"""One long text of tokens: the file it lies in, and the windows that are drawn from it."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_pipelines import ForkedCommand, seqpipe, write_language_model

from seqpipe.config.loader import load_config
from seqpipe.errors import DataError
from seqpipe.training.checkpoint import best, load_weights
from seqpipe.training.data_forms import data_form
from seqpipe.training.datasets import Records, Windows, in_memory, token_file
from seqpipe.training.fit import fit_artifacts

TEXT = "One fox ran.\nTwo owls sat.\n\nThree geese flew away."


def yaml(folder: Path, **changes: Any) -> Path:
    data = {"reader": {"use": "text", "unit": "line"}, "train": "text.txt"}
    train = {"epochs": 2, "epoch_steps": 6, "batch_size": 3, "threads": 1, "checkpoint_steps": 1}
    content: dict[str, Any] = {"data": data, "head": {"use": "lm", "context": 5}, "train": train, **changes}
    return write_language_model(folder, TEXT, **content)


def test_the_file_holds_every_token_with_an_end_between_two_texts(tmp_path: Path) -> None:
    config = load_config(yaml(tmp_path))
    records = Records(config.data.reader, config.data.train)
    artifacts = fit_artifacts(config, records)
    (tmp_path / ".tokens.bin.x.part").touch()  # of a process that was killed at it
    tokens = token_file(tmp_path / "tokens.bin", artifacts.featurizer, records)
    names = [*artifacts.vocabulary]
    text = "".join("|" if token == 3 else names[token] for token in tokens.tolist())
    assert text == TEXT.replace("\n\n", "\n").replace("\n", "|")
    assert tokens.dtype == np.dtype("<u2")
    assert isinstance(tokens, np.memmap)
    assert (tokens == in_memory(artifacts, records)).all()
    assert sorted(path.name for path in tmp_path.glob("*tokens*")) == ["tokens.bin", "tokens.sha256"]


@pytest.mark.parametrize("damage", [lambda data: data[:-2], lambda data: data[:-1], lambda data: data[::-1]])
def test_a_file_of_tokens_that_was_cut_or_changed_is_written_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    config, path = load_config(yaml(tmp_path)), tmp_path / "tokens.bin"
    records = Records(config.data.reader, config.data.train)
    source = fit_artifacts(config, records).featurizer
    expected = token_file(path, source, records).tolist()
    path.write_bytes(damage(path.read_bytes()))
    assert token_file(path, source, records).tolist() == expected


def test_a_file_of_tokens_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(200))
    windows = Windows(np.memmap(path, "<u2", "r"), 10, 4)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"tokens\.bin: was changed while it was read; run the same command again"):
        windows(windows.order(0)[0])


def test_windows_of_an_epoch_cover_the_text_once_and_depend_on_seed_and_epoch_alone() -> None:
    windows = Windows(np.arange(1, 104), 10, 4, seed=3)
    orders = [windows.order(epoch) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    starts = sorted(start for batch in orders[0] for start in batch)
    assert len(starts) == 10
    assert {b - a for a, b in pairwise(starts)} == {10}
    assert Windows(np.arange(1, 104), 10, 4, seed=4).order(0) != orders[0]


def test_the_targets_of_a_window_are_the_next_tokens() -> None:
    windows = Windows(np.arange(10, 40), 4, 2, epoch_batches=3)
    order = windows.order(0)
    assert [len(batch) for batch in order] == [2, 2, 2]
    batch = windows(order[0])
    assert torch.equal(batch["ids"][:, 0], torch.tensor(order[0]) + 10)
    assert torch.equal(batch["target_ids"], batch["ids"] + 1)
    assert bool(batch["mask"].all())


def test_once_over_a_text_every_token_but_the_first_is_a_target_once() -> None:
    tokens = np.arange(1, 24)
    targets = [batch["target_ids"][batch["target_mask"]] for batch in Windows(tokens, 5, 3).once()]
    assert torch.cat(targets).tolist() == tokens[1:].tolist()


def test_a_text_without_room_for_a_window_is_refused_with_what_to_do() -> None:
    with pytest.raises(DataError, match="has 6 tokens, and a window needs 6 and the next one; give more text, or"):
        Windows(np.arange(1, 7), 6, 1)


def test_stateful_windows_follow_those_of_the_batch_before() -> None:
    windows = Windows(np.arange(1, 105), 10, 3, stateful=True)
    orders = [windows.order(epoch) for epoch in range(9)]
    for order in orders:
        assert len(order) == 3
        assert all(b - a == 10 for before, after in pairwise(order) for a, b in zip(before, after, strict=True))
        assert {b - a for a, b in pairwise(order[0])} == {34}
        assert order[-1][-1] + 10 < 104
    assert len({order[0][0] for order in orders}) > 1
    assert len(Windows(np.arange(1, 105), 10, 3, epoch_batches=2, stateful=True).order(0)) == 2
    with pytest.raises(DataError, match="has 3 windows for each of 3 rows, not 4; give more text, or lower"):
        Windows(np.arange(1, 105), 10, 3, epoch_batches=4, stateful=True)


@pytest.mark.parametrize(("stateful", "dev_length"), [(False, 5), (True, len(TEXT.replace("\n\n", "\n")) - 1)])
def test_dev_windows_are_longer_where_training_is_stateful(stateful: bool, dev_length: int, tmp_path: Path) -> None:
    head = {"use": "lm", "context": 5, "stateful": stateful}
    config = load_config(yaml(tmp_path, head=head), ["data.dev=text.txt", "train.epoch_steps=3"])
    form = data_form(config)
    records = form.read(config.data.train)
    data = form.load(fit_artifacts(config, records), records, tmp_path / "run")
    windows: Any = data.batches
    assert (windows.context, windows.rows, windows.epoch_batches, windows.stateful) == (5, 3, 3, stateful)
    first, *_ = data.dev_batches()
    assert first["ids"].shape[1] == dev_length
    if stateful:
        with pytest.raises(DataError, match=r"text\.txt: .*epoch_steps"):
            data_form(load_config(config.file, ["train.epoch_steps=99"])).load(
                data.artifacts, records, tmp_path / "run"
            )


@pytest.mark.parametrize("sync", [2, 9, 18])
@pytest.mark.parametrize("stateful", [False, True])
def test_training_that_was_killed_resumes_bit_equal(tmp_path: Path, stateful: bool, sync: int) -> None:
    train = {"epochs": 2, "epoch_steps": 3, "batch_size": 2, "threads": 1, "checkpoint_steps": 1}
    path = yaml(tmp_path, head={"use": "lm", "context": 5, "stateful": stateful}, train=train)
    weights = []
    for name, kill in (("whole", None), ("torn", ("fsync", sync))):
        folder = tmp_path / name
        folder.mkdir()
        if kill:
            assert ForkedCommand(folder, "train", path, "--device", "cpu", "-q", kill=kill).end() < 0
        assert seqpipe("train", path, "--device", "cpu", folder=folder).code == 0
        weights.append(load_weights(*best(folder / "runs" / "lm" / "checkpoints")))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
