"""A traced graph is read again where nothing that it depends on has changed, and never where something has."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Install
from tiny_pipelines import QUIET, SMALL_TAGGER, build_parts, load_tagger, seqpipe, toy_encoders, write_tagger
from torch import Tensor, nn

from seqpipe.config.loader import Config
from seqpipe.console import Console
from seqpipe.errors import ParityError
from seqpipe.export import graph_cache as keys
from seqpipe.export.exporter import use_graph
from seqpipe.export.graph import graph_without_weights, to_onnx, with_weights
from seqpipe.export.graph_cache import GraphCache, UnknownKeyError, default_cache, graph_key
from seqpipe.export.tracing import conversion
from seqpipe.pipeline.check import check_export
from seqpipe.training.pipeline import Pipeline

CNN = (*SMALL_TAGGER, "encoder={use: cnn, filters: 8, widths: [2]}")


@pytest.fixture
def cache(tmp_path: Path) -> GraphCache:
    return GraphCache(tmp_path / "cache")


def entries(cache: GraphCache) -> list[Path]:
    return sorted(cache.folder.glob("*"))


def built(folder: Path, *overrides: str, seed: int = 1) -> tuple[Config, Pipeline]:
    folder.mkdir(exist_ok=True)
    config = load_tagger(folder, *CNN, *overrides, f"train.seed={seed}")
    return config, build_parts(config)[0].eval()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An item for each graph that is traced from now on."""
    traced, onnx_model = [], conversion.onnx_model
    monkeypatch.setattr(conversion, "onnx_model", lambda *inputs: traced.append(None) or onnx_model(*inputs))
    return traced


# The folder


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:40] + b"x" + data[41:]]
)
def test_an_entry_is_read_until_it_is_deleted_or_damaged(cache: GraphCache, damage: Any) -> None:
    assert cache.read("a") is None
    cache.write("a", b"one")
    cache.write("a", b"a graph of some length")
    assert cache.read("a") == b"a graph of some length"
    cache.delete("a")
    assert cache.read("a") is None
    assert entries(cache) == []
    cache.write("a", b"a graph of some length")
    (path,) = entries(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("a") is None
    assert entries(cache) == []


def test_the_entries_used_longest_ago_make_room(tmp_path: Path) -> None:
    cache = GraphCache(tmp_path / "cache", most=250)
    for age, name in enumerate("cba"):
        cache.write(name, bytes(50))
        os.utime(next(cache.folder.glob(f"{name}*")), (1000 - age, 1000 - age))
    assert cache.read("a") is not None  # was the oldest, and is used
    cache.write("d", bytes(50))
    assert [name for name in "abcd" if cache.read(name) is not None] == ["a", "c", "d"]


def test_the_folder_is_the_users_unless_a_variable_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQPIPE_CACHE", str(tmp_path / "mine"))
    assert default_cache().folder == tmp_path / "mine" / "graphs"
    monkeypatch.delenv("SEQPIPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))
    assert default_cache().folder.is_relative_to(tmp_path / "users" / "seqpipe")


# The key


def test_weights_do_not_change_a_key_and_all_else_does(tmp_path: Path) -> None:
    _, pipeline = built(tmp_path / "a")
    key = graph_key(pipeline, 18)
    assert graph_key(built(tmp_path / "b", seed=2)[1], 18) == key
    assert graph_key(pipeline, 19) != key
    assert graph_key(built(tmp_path / "c", "embedding.dim=9")[1], 18) != key
    encoder: Any = pipeline.encoder[0]
    encoder.slope = 0.5
    changed = graph_key(pipeline, 18)
    assert changed != key
    encoder.slope = torch.tensor([0.5])  # no parameter, no buffer: its content is part of the graph
    assert graph_key(pipeline, 18) not in (key, changed)
    del encoder.slope
    assert graph_key(pipeline, 18) == key


def test_the_code_of_a_plugin_and_the_versions_of_packages_change_a_key(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("seqpipe-toy", "from torch import nn\n\n\nclass Toy(nn.Module):\n    pass\n")
    import seqpipe_toy  # type: ignore[import-not-found]

    toy = seqpipe_toy.Toy()
    key = graph_key(toy)
    assert graph_key(toy) == key
    file = Path(seqpipe_toy.__file__)
    before = file.read_text()
    file.write_text(before + "# another line\n")
    assert graph_key(toy) != key
    file.write_text(before)
    assert graph_key(toy) == key
    monkeypatch.setattr(keys, "_installed_packages", lambda: frozenset({("torch-9.9.dist-info", "")}))
    assert graph_key(toy) != key


def test_sharing_weights_changes_a_key_and_a_module_of_unknown_code_or_content_has_none() -> None:
    apart, tied = (nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]) for _ in range(2))
    tied[1].weight = tied[0].weight
    assert graph_key(apart) != graph_key(tied)

    class Local(nn.Module):
        pass

    with pytest.raises(UnknownKeyError, match="Local"):
        graph_key(Local())
    functions = [nn.Identity(), nn.Identity()]
    functions[0].call, functions[1].call = (lambda x: x + 1), (lambda x: x - 1)
    assert graph_key(functions[0]) != graph_key(functions[1])
    odd = nn.Identity()
    odd.__dict__["walk"] = iter([1])
    with pytest.raises(UnknownKeyError, match="list_iterator"):
        graph_key(odd)


# The two together


def test_a_second_check_traces_nothing_and_says_the_same(tmp_path: Path, cache: GraphCache, traced: list[None]) -> None:
    config, _ = built(tmp_path / "a")
    first, second = (check_export(config, QUIET, cache) for _ in range(2))
    assert len(traced) == 1
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    check_export(config, QUIET)
    assert len(traced) == 2


def test_a_cached_graph_with_other_weights_is_the_one_that_would_be_traced(
    tmp_path: Path, cache: GraphCache, traced: list[None]
) -> None:
    graphs: list[bytes] = []
    for seed in (1, 2):
        config, pipeline = built(tmp_path / str(seed), seed=seed)
        use_graph(pipeline, config, cache, QUIET, graphs.append)
        assert graphs[-1] == to_onnx(pipeline, {}, config.export.opset)
    assert graphs[0] != graphs[1]
    assert len(traced) == 3  # by `use_graph` once, by `to_onnx` twice


def test_a_planted_graph_is_noticed_and_replaced(
    tmp_path: Path, cache: GraphCache, capsys: pytest.CaptureFixture[str]
) -> None:
    config, pipeline = built(tmp_path / "a")
    check_export(config, QUIET, cache)
    (path,) = entries(cache)
    good = path.read_bytes()
    model = graph_without_weights(pipeline, {}, config.export.opset)
    (tags,) = [node for node in model.graph.node if node.op_type == "ArgMax"]
    tags.op_type = "ArgMin"
    cache.write(path.stem, model.SerializeToString())
    check_export(config, Console(), cache)
    messages = capsys.readouterr().err
    assert "the cached graph was refused (ParityError: " in messages
    assert "exporting again" in messages
    assert path.read_bytes() == good
    (tmp_path / "file").touch()
    assert check_export(config, Console(), GraphCache(tmp_path / "file" / "cache")).decisions > 0
    assert "the graph is not cached: " in capsys.readouterr().err


class Halved(nn.Module):
    """Writes into a part of a tensor, which only PyTorch's own exporter records."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.linear = dim, nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        y[..., 0] = 0.5
        return y


def test_a_graph_that_fails_or_holds_weights_or_unknown_code_is_not_kept(tmp_path: Path, cache: GraphCache) -> None:
    toys = {**toy_encoders(), "halved": ("encoder", Halved)}
    with pytest.raises(ParityError):
        check_export(load_tagger(tmp_path, *SMALL_TAGGER, "encoder=nomask", **toys), QUIET, cache)
    check_export(
        load_tagger(tmp_path, *SMALL_TAGGER, "encoder=sound", **toys), QUIET, cache
    )  # a class made as the program runs
    assert entries(cache) == []
    check_export(load_tagger(tmp_path, *SMALL_TAGGER, "encoder=halved", **toys), QUIET, cache)
    assert entries(cache) == []


def test_a_weightless_model_is_left_as_it_is(tmp_path: Path) -> None:
    config, pipeline = built(tmp_path / "a")
    model = graph_without_weights(pipeline, {}, config.export.opset)
    before = model.SerializeToString()
    assert len(with_weights(model, pipeline)) > len(before)
    assert model.SerializeToString() == before


# As it is typed


def test_commands_keep_graphs_unless_an_option_says_not_to(
    tmp_path: Path, traced: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQPIPE_CACHE", str(tmp_path / "cache"))
    write_tagger(tmp_path)
    graphs = tmp_path / "cache" / "graphs"
    assert seqpipe("check", "tiny.yaml", *CNN, "--no-cache", folder=tmp_path).code == 0
    assert not graphs.exists()
    check = ("check", "tiny.yaml", *CNN)
    for command in (check, check, ("run", "tiny.yaml", *CNN, "train.epochs=1")):  # of the same shapes
        assert seqpipe(*command, folder=tmp_path).code == 0
        assert (len([*graphs.iterdir()]), len(traced)) == (1, 2)
    for option, count in (("", 2), ("--no-cache", 3)):
        done = seqpipe("export", "runs/tiny", "-o", f"bundle{option}", *filter(None, [option]), folder=tmp_path)
        assert (done.code, len(traced)) == (0, count)
