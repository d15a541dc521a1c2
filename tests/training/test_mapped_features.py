"""Mapped features: the examples and weights are those in memory; files are shared, remade if damaged, and pruned."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shipped_pipelines import first_records
from tiny_pipelines import QUIET, load_tagger, seqpipe, train_run

from seqpipe.config.loader import Config, load_config
from seqpipe.config.run_layout import FEATURES, MAPPED
from seqpipe.console import Console
from seqpipe.errors import DataError, UsageError
from seqpipe.features import mapped
from seqpipe.features.document import Doc
from seqpipe.features.mapped import FeatureStore, Ragged, write_values
from seqpipe.features.sources import TextSource, tokenizers_of
from seqpipe.runs.table import prune_features
from seqpipe.training.data_forms import DataForm, data_form
from seqpipe.training.datasets import Batches, Example, MappedExamples

PIPELINES = Path(__file__).parents[2] / "pipelines"
SOME = ("bilm", "pos", "spoken-digits")
OTHERS = ("agreement", "caption", "chat", "couplet", "dates", "describe", "digits", "document-han", "mlm", "ner-zh")
OTHERS += ("poem", "reviews", "slots-and-intent", "summarise", "translate", "translate-names")
FEWER = {"spoken-digits": 60, "caption": 500}  # records of sounds and pictures, whose features take long to compute


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of consoles from now on."""
    warnings: list[str] = []
    monkeypatch.setattr(Console, "warn", lambda console, text, indent="": warnings.append(text))
    return warnings


def form_of(config: Config, folder: Path, processes: int = 1) -> DataForm:
    """Return the form of training data of a run of this name below a folder."""
    run = folder / "runs" / config.name
    run.mkdir(parents=True, exist_ok=True)
    return data_form(config, FeatureStore(folder / "runs" / FEATURES, run / MAPPED, QUIET, processes))


def loaded(form: DataForm) -> tuple[Any, Any]:
    records = form.read(form.config.data.train)
    artifacts = form.fit(records)
    return artifacts, form.load(artifacts, records)


@pytest.mark.parametrize("name", [*SOME, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_mapped_data_are_those_in_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(PIPELINES / f"{name}.yaml")
    if count := FEWER.get(name):
        train = first_records(config.data.train, count, tmp_path)
        config = load_config(PIPELINES / f"{name}.yaml", [f"data.train={train}"])
    monkeypatch.setenv("SEQPIPE_FEATURES", "memory")
    artifacts, data = loaded(form_of(config, tmp_path))
    monkeypatch.setenv("SEQPIPE_FEATURES", "mapped")
    for _ in range(2):  # made, and read again
        same, twin = loaded(form_of(config, tmp_path))
        assert isinstance(twin.batches.data, MappedExamples)
        assert (same.counts, same.longest) == (artifacts.counts, artifacts.longest)
        assert same.featurizer.manifest() == artifacts.featurizer.manifest()
        assert [(e, e.where) for e in twin.batches.data] == [(e, e.where) for e in data.batches.data]
        assert twin.warnings == data.warnings
        assert [*twin.batches.lengths] == [*data.batches.lengths]
        for epoch in (0, 3):
            assert twin.batches.order(epoch) == data.batches.order(epoch)
        for rows in data.batches.order(0)[:3]:
            expected, batch = data.batches(rows), pickle.loads(pickle.dumps(twin.batches.data))[rows[0] : rows[0] + 1]
            assert batch == [data.batches.data[rows[0]]]
            assert all(torch.equal(tensor, expected[name]) for name, tensor in twin.batches(rows).items())


def plain_order(data: list[Example], tokens: int, most: int | None, seed: int, epoch: int) -> list[list[int]]:
    """The order of an epoch, example by example."""
    random = np.random.default_rng((seed, epoch))
    lengths = np.array([example.length for example in data], float)
    noisy = lengths * random.uniform(0.9, 1.1, len(data)) + random.uniform(0, 1, len(data))
    batches: list[list[int]] = []
    batch: list[int] = []
    kinds: dict[tuple[str, ...], int] = {}
    groups = [kinds.setdefault(tuple(example.targets), len(kinds)) for example in data]
    longest = 0.0
    for i in np.lexsort((noisy, np.array(groups))).tolist():
        longest = max(longest, lengths[i])
        if batch and ((len(batch) + 1) * longest > tokens or len(batch) == most or groups[i] != groups[batch[-1]]):
            batches.append(batch)
            batch, longest = [], lengths[i]
        batch.append(i)
    batches += [batch] if batch else []
    return [batches[i] for i in random.permutation(len(batches))]


sizes = st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["a", "b"])), min_size=1, max_size=150)


@given(sizes, st.integers(1, 900), st.none() | st.integers(1, 70), st.integers(0, 9))
def test_order_is_of_the_plain_loop(sizes: list[tuple[int, str]], tokens: int, most: int | None, epoch: int) -> None:
    data = [Example(Doc("", ["w"] * n, [(0, 0)] * n, [4] * n), {name: [0] * n}) for n, name in sizes]
    artifacts: Any = None  # the order needs nothing of them
    order = Batches(artifacts, data, tokens, most, 5).order(epoch)
    assert [*order] == plain_order(data, tokens, most, 5, epoch)
    assert [*order[1::2]] == [*order][1::2]


def test_a_run_from_mapped_features_ends_with_the_same_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for mode in ("memory", "mapped"):
        monkeypatch.setenv("SEQPIPE_FEATURES", mode)
        train_run(load_tagger(folder, f"name={mode}", "data.dev=0.2"), QUIET)
        (best,) = Path("runs", mode, "checkpoints").glob("best-*.safetensors")
        results.append((best.read_bytes(), json.loads(Path("runs", mode, "facts.json").read_text())))
    assert results[0] == results[1]
    assert not (folder / "runs/memory/features.json").exists()
    names = json.loads((folder / "runs/mapped/features.json").read_text())
    assert len(names) == len(set(names)) == len([*Path("runs/.features").glob("*.lock")]) > 3


def test_features_are_shared_remade_if_damaged_and_pruned_if_no_run_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    monkeypatch.setenv("SEQPIPE_FEATURES", "mapped")
    store = tmp_path / "runs" / FEATURES

    def load_as(name: str, *overrides: str) -> dict[Path, int]:
        """Return when each file of values was written, after a run of this name has loaded its data."""
        loaded(form_of(load_tagger(tmp_path, f"name={name}", *overrides), tmp_path))
        return {path: path.stat().st_mtime_ns for path in store.glob("*/*.values")}

    first = load_as("first")
    assert len(first) == 4  # records of train and dev, Docs and examples
    assert load_as("second", "encoder=gru", "train.seed=7") == first
    damaged = min(store.glob("*/examples.values"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"\0")
    changed = load_as("third").items() - first.items()
    assert (damaged.read_bytes(), [path for path, _ in changed]) == (content, [damaged])
    assert warnings == [f"{damaged.parent}: examples.values is damaged; it is made again"]

    both = load_as("other", "tokenizer.lowercase=false")
    assert len(both) == 6  # the records are shared
    assert prune_features(tmp_path / "runs") == {}
    (tmp_path / "runs/other" / MAPPED).unlink()
    unused = {path.parent.name for path in both.keys() - first.keys()}
    assert {*prune_features(tmp_path / "runs", dry_run=True)} == unused
    done = seqpipe("features", "prune", folder=tmp_path)
    assert all(name in done.out for name in unused)
    assert done.out.splitlines()[-1].startswith("2 folders, ")
    assert {*store.glob("*/*.values")} == first.keys()
    assert not [name for name in unused if (store / f"{name}.lock").exists()]


def test_processes_write_the_same_docs_and_report_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "BYTES_PER_PROCESS", 1_000)
    monkeypatch.setenv("SEQPIPE_FEATURES", "mapped")
    docs, config = [], load_tagger(tmp_path)
    for processes in (1, 2):
        artifacts, data = loaded(form_of(config, tmp_path / str(processes), processes=processes))
        docs.append([*data.batches.data.docs])
        assert not [*data.batches.data.docs.path.parent.glob("part-*")]
    assert docs[0] == docs[1]
    records = form_of(config, tmp_path / "2", processes=2).read(config.data.train)
    with pytest.raises(DataError, match=r"train\.conll:\d+: no field 'title'"):
        records.docs(TextSource(tokenizers_of(artifacts.featurizer)[""], {}, "title"))


def test_values_are_read_by_position_and_only_plain_data_are_written(tmp_path: Path) -> None:
    values = [{"a": [1, (2.5, None)], "b": "\ud800"}, "é" * 300, b"", {"x": -1}]
    write_values(tmp_path / "v", values * 100)
    read: Ragged[Any] = Ragged(tmp_path / "v")
    (tmp_path / "rows").write_bytes(np.array([3, 0, 399], np.int32).tobytes())
    some: Ragged[Any] = Ragged(tmp_path / "v", tmp_path / "rows")
    assert [*read] == values * 100
    assert (read[-1], read[1:3], some[-1]) == (values[3], values[1:3], values[3])
    assert [*some] == [values[3], values[0], values[3]]
    with pytest.raises(IndexError):
        read[400]
    with pytest.raises(mapped.UnmappableError):
        write_values(tmp_path / "w", [{"path": Path("x.png")}])


@pytest.mark.parametrize(("suffix", "content"), [(".values", b""), (".offsets", b""), (".values", b"\xff" * 99)])
def test_values_that_are_cut_or_changed_while_they_are_read_are_an_error(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    write_values(tmp_path / "v", ["a text"] * 9)
    read: Ragged[Any] = Ragged(tmp_path / "v")
    (tmp_path / "v").with_suffix(suffix).write_bytes(content)
    for read_values in (lambda: read[0], lambda: [*read]):
        with pytest.raises(DataError, match="v: was changed while it was read; run the same command again"):
            read_values()


def test_data_that_cannot_be_mapped_stay_in_memory_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    monkeypatch.setenv("SEQPIPE_FEATURES", "mapped")
    for name, reason in (
        ("faq", "each text is paired with a candidate"),
        ("sort", "yields other records in each epoch"),
    ):
        _, data = loaded(form_of(load_config(PIPELINES / f"{name}.yaml"), tmp_path))
        assert isinstance(data.batches.data, list)
        assert "MB are read into memory, where they are 20 to 50 times that: " in warnings[-1]
        assert warnings[-1].endswith(reason)
    monkeypatch.setenv("SEQPIPE_FEATURES", "maped")
    with pytest.raises(UsageError, match="SEQPIPE_FEATURES=maped: must be auto, memory or mapped"):
        form_of(load_config(PIPELINES / "ner.yaml"), tmp_path).read(load_config(PIPELINES / "ner.yaml").data.train)
