"""Runs initialised from a trained one: rows go by their names, new labels follow the old, which may be deleted."""

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tiny_pipelines
import torch
import torchcrf
from tiny_pipelines import (
    QUIET,
    build_parts,
    plugins,
    seqpipe,
    succeed,
    train_run,
    write_classifier,
    write_jsonl,
    write_seq2seq,
    write_tagger,
)
from torch import Tensor

from seqpipe.config.loader import Config, load_config, resolved
from seqpipe.console import Console
from seqpipe.errors import ConfigError, PluginError, UsageError
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.runs.run_folder import fingerprint, open_run
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.network import Network
from seqpipe.training.warm_start import warm_start

OLD = "../old/runs/old"
LOOKUP = "embedding={use: lookup, dim: 8}"
CONLL = (
    "Zoë\tB-PER\nmet\tO\nthe\tO\nUN\tB-ORG\nin\tO\nRome\tB-LOC\n.\tO\n\nnobody\tO\ncame\tO\nto\tO\nQüi\tB-LOC\n.\tO\n"
)


New = Callable[..., Path]


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory: pytest.TempPathFactory) -> New:
    """A folder with the run of one epoch of a pipeline, called old; trained once."""

    @functools.cache
    def train(write: Callable[[Path], Path], *overrides: str, **toys: tuple[str, type]) -> Path:
        folder = tmp_path_factory.mktemp("old")
        with contextlib.chdir(folder):
            train_run(load_config(write(folder), ["name=old", "train.epochs=1", *overrides], plugins(**toys)))
        return folder

    return train


@pytest.fixture
def new(tmp_path: Path, old_folder: New) -> New:
    """Writes a pipeline into the folder `new`, beside `old` with a run of it."""

    def write_new(write: Callable[[Path], Path], *overrides: str, **toys: tuple[str, type]) -> Path:
        shutil.copytree(old_folder(write, *overrides, **toys), tmp_path / "old")
        (tmp_path / "new").mkdir()
        return write(tmp_path / "new")

    return write_new


def words(folder: Path) -> Path:
    """The tiny tagger, in the folder `new` on data with other words, letters and labels."""
    yaml = write_tagger(folder)
    if folder.name == "new":
        (folder / "train.conll").write_text(CONLL)
    return yaml


def moods(folder: Path) -> Path:
    """Texts with labels, in the folder `new` with one besides `good` that is new."""
    yaml = write_classifier(folder)
    texts = [{"text": f"a awkward {word} day", "label": "awkward"} for word in "xyz"]
    for name in ("train", "dev", "test") if folder.name == "new" else ():
        write_jsonl(folder / f"{name}.jsonl", [*texts, {"text": "a lovely day", "label": "good"}])
    return yaml


def weights_of(run: Path) -> dict[str, Tensor]:
    return checkpoint.load_weights(*checkpoint.best(run / "checkpoints"))


def started(config: Config) -> tuple[Network, dict[str, Tensor], list[str]]:
    """A pipeline after its warm start, its weights before it, and the report."""
    network, _ = build_parts(config)
    fresh = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    return network, fresh, warm_start(network, config)


def by_name(table: Tensor, *axes: Sequence[str]) -> dict[tuple[str, ...], Tensor]:
    """The rows of a table by their names, axis for axis."""
    if not axes:
        return {(): table}
    return {
        (name, *rest): row
        for name, part in zip(axes[0], table, strict=True)
        for rest, row in by_name(part, *axes[1:]).items()
    }


def assert_by_name(new: Mapping[Any, Tensor], fresh: Mapping[Any, Tensor], old: Mapping[Any, Tensor]) -> None:
    """Every row that the old one has is the old one's, every other is the fresh one's; there are rows of both kinds."""
    assert {name in old for name in new} == {True, False}
    for name, row in new.items():
        assert torch.equal(row, old.get(name, fresh[name])), name


def chars_of(artifacts: Artifacts) -> tuple[str, ...]:
    return ("pad", "unknown", *artifacts.featurizer.features["chars"].manifest()["alphabet"])


EMISSIONS = {"emissions.weight": 1, "emissions.bias": 1}  # weights and how many of their axes are by label
TAGGERS = {"crf": {**EMISSIONS, "start_transitions": 1, "end_transitions": 1, "transitions": 2}, "tags": EMISSIONS}


@pytest.mark.parametrize("chars", ["char-cnn", "char-lstm"])
@pytest.mark.parametrize("head", TAGGERS)
def test_rows_of_tokens_characters_and_tags_go_by_their_names(tmp_path: Path, new: New, head: str, chars: str) -> None:
    stages = (
        f"embedding=[{{use: lookup, dim: 8}}, {{use: {chars}, dim: 6, char_dim: 4}}]",
        f"head={{use: {head}, scheme: BIOES}}",
    )
    yaml, run = new(words, *stages), tmp_path / "old/runs/old"
    inits = ("embedding.0", "embedding.1", "encoder", "head")
    network, fresh, report = started(load_config(yaml, [*stages, *(f"{key}.init={OLD}" for key in inits)]))
    weights, old = network.state_dict(), weights_of(run)
    artifacts, old_artifacts = network.artifacts, Artifacts.load(run)
    labels, old_labels = artifacts.tasks[0].labels, old_artifacts.tasks[0].labels
    assert labels == (*old_labels, "B-ORG", "I-ORG", "E-ORG", "S-ORG")
    named = {
        "embedding.0.table.weight": ((artifacts.vocabulary,), (old_artifacts.vocabulary,)),
        "embedding.1.chars.weight": ((chars_of(artifacts),), (chars_of(old_artifacts),)),
    }
    named |= {f"heads.0.{name}": ((labels,) * axes, (old_labels,) * axes) for name, axes in TAGGERS[head].items()}
    for name, (names, old_names) in named.items():
        assert_by_name(by_name(weights[name], *names), by_name(fresh[name], *names), by_name(old[name], *old_names))
    others = set(weights) - set(named)
    assert len(others) > 5
    assert all(torch.equal(weights[name], old[name]) for name in others)
    assert "encoder: starts from" in report[-2]
    assert "9 labels are kept, and 4 new: B-ORG, I-ORG, E-ORG, S-ORG" in report[-1]
    alphabet, old_alphabet = chars_of(artifacts), chars_of(old_artifacts)
    added = sorted({*"ZoëmetheUNinRome.nobodycametoQüi"} - {*old_alphabet})
    assert alphabet == (*old_alphabet, *added) != old_alphabet


# Heads and their labels


def test_labels_of_the_run_come_first_and_count_nothing(tmp_path: Path, new: New) -> None:
    config = load_config(new(moods, "head=label"), [f"head={{use: label, class_weights: balanced, init: {OLD}}}"])
    network, _, report = started(config)
    labels = network.artifacts.tasks[0].labels
    assert labels == ("bad", "fine", "good", "awkward")
    assert labels.counts == [0, 0, 1, 3]
    assert network.head.weights.tolist() == [1.0, 1.0, 2.0, pytest.approx(2 / 3)]
    assert report == [
        f"head: starts from {os.path.relpath(tmp_path / 'old/runs/old')}: its 3 labels are kept, and 1 new: awkward"
    ]


def test_a_temperature_that_was_chosen_on_dev_is_not_taken(tmp_path: Path, new: New) -> None:
    yaml = new(moods, "head={use: label, calibrate: true}")
    assert weights_of(tmp_path / "old/runs/old")["heads.0.temperature"] != 1
    network, _, _ = started(load_config(yaml, [f"head={{use: label, init: {OLD}}}"]))
    assert network.head.temperature == 1


def toy(**more: Any) -> tuple[str, type]:
    kind, cls = tiny_pipelines.toy_heads()["mean"]
    return kind, type("Mean", (cls,), more)


def test_a_class_without_names_of_its_rows_is_refused_where_the_labels_differ(tmp_path: Path, new: New) -> None:
    yaml = new(moods, mean=toy())
    for rows, message in (
        ({}, r"(?s)head 'mean' of toys: its labels differs from that of .*give it `rows`"),
        ({"rows": {"output.weight": ("vocabulary",)}}, r"axis 0 of output.weight is by vocabulary, of which there are"),
    ):
        config = load_config(yaml, [f"head.init={OLD}"], plugins(mean=toy(**rows)))
        with pytest.raises(PluginError, match=message):
            started(config)
    right = toy(rows={"output.weight": ("labels",), "output.bias": ("labels",)})
    started(load_config(yaml, [f"head.init={OLD}"], plugins(mean=right)))
    network, _, _ = started(load_config(write_classifier(yaml.parent), [f"head.init={OLD}"], plugins(mean=toy())))
    assert torch.equal(network.head.output.weight, weights_of(tmp_path / "old/runs/old")["heads.0.output.weight"])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("multi: true, target: label", "answers with label, but this head with labels; restore its old options"),
        ("hidden: 4", r"hidden was null and is 4\), or delete init"),
    ],
)
def test_a_head_of_other_options_is_refused_with_its_old_ones(new: New, head: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        started(load_config(new(moods, "head=label"), [f"head={{use: label, {head}, init: {OLD}}}"]))
    assert caught.value.problems[0].key == "head"


@pytest.mark.parametrize(
    ("stage", "change", "message"),
    [
        ("head", "head.scheme=IOB2", "set scheme: BIOES, or delete init"),
        ("encoder", "encoder.hidden=5", r"\[24, 14\] in .*, \[20, 14\] here; .*hidden was 6 and is 5"),
        (
            "encoder",
            "embedding={use: lookup, dim: 9}",
            "its options are the same, so an earlier stage has another width",
        ),
    ],
)
def test_another_scheme_or_width_is_refused(new: New, stage: str, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        started(load_config(new(words), [change, f"{stage}.init={OLD}"]))


def test_heads_are_found_by_their_names_then_by_their_places(tmp_path: Path, new: New) -> None:
    head = "{{use: label, target: topic, name: {}}}"
    yaml = new(write_tagger, f"head=[{head.format('first')}, {head.format('second')}]", LOOKUP)
    names = (f"{name}, init: {OLD}" for name in ("second", "third"))
    network, _, report = started(load_config(yaml, [f"head=[{', '.join(map(head.format, names))}]", LOOKUP]))
    old = weights_of(tmp_path / "old/runs/old")["heads.1.output.weight"]
    assert all(torch.equal(head.output.weight, old) for head in network.heads)
    assert "old (head.1): its 2 labels are kept" in report[0]


# Tokenizers, and texts to write


def test_the_tokenizer_of_the_run_is_taken_as_it_is_and_counts_are_of_the_new_data(tmp_path: Path, new: New) -> None:
    overrides = [f"tokenizer.init={OLD}", "tokenizer.lowercase=false", f"embedding.0.init={OLD}"]
    network, _, report = started(load_config(new(words), overrides))
    run = tmp_path / "old/runs/old"
    artifacts, old = network.artifacts, Artifacts.load(run)
    assert artifacts.vocabulary == old.vocabulary
    assert artifacts.featurizer.tokenizer.to_str() == old.featurizer.tokenizer.to_str()
    tokens = [line.split("\t")[0].lower() for line in CONLL.splitlines() if line]
    assert sum(artifacts.counts[""]) == len(tokens)
    assert artifacts.counts[""][old.vocabulary.index("came")] == 1
    unknown = sum(word not in old.vocabulary for word in tokens) / len(tokens)
    assert 0 < unknown < 1
    message = f"with {len(old.vocabulary)} tokens; {100 * unknown:.1f} % of the tokens of the new texts are unknown"
    assert message in report[0]
    assert "lowercase was true and is false, which has no effect" in report[1]
    assert torch.equal(network.embedding[0].table.weight, weights_of(run)["embedding.0.table.weight"])


def test_a_vocabulary_of_which_the_run_knows_hardly_any_word_gets_a_note(new: New) -> None:
    yaml = new(words)
    _, _, report = started(load_config(yaml, [f"embedding.0.init={OLD}"]))
    assert not any("note" in line for line in report)
    (yaml.parent / "train.conll").write_text("Lund\tB-LOC\nnobody\tO\nis\tO\nhere\tO\n")
    _, _, report = started(load_config(yaml, [f"embedding.0.init={OLD}"]))
    assert report[0].endswith("1 of 4 tokens are known there")
    assert report[1].startswith("note: embedding.0: the rows of the other 3 tokens start at random")
    assert report[1].endswith("beside the `use` of the tokenizer too")


@pytest.mark.parametrize("init", ["", f", init: {OLD}"])
def test_a_decoder_keeps_the_rows_of_its_target_tokens(tmp_path: Path, new: New, init: str) -> None:
    writer = "head={{use: seq2seq, hidden: 16, target: reversed, target_tokenizer: {{use: chars{0}}}{1}}}"
    yaml, run = new(write_seq2seq, writer.format("", "")), tmp_path / "old/runs/old"
    write_jsonl(yaml.parent / "train.jsonl", [{"text": "abxy", "reversed": "yxba"}, {"text": "cd", "reversed": "dc"}])
    network, fresh, report = started(load_config(yaml, [writer.format(init, f", init: {OLD}")]))
    old, weights = weights_of(run), network.state_dict()
    tokens, old_tokens = (each.tasks[0].target_vocabulary for each in (network.artifacts, Artifacts.load(run)))
    assert (tokens == old_tokens) is bool(init)
    for parameter in ("embedding.weight", "output.weight", "output.bias"):
        name = f"heads.0.vocabulary.{parameter}"
        if init:
            assert torch.equal(weights[name], old[name])
        else:
            rows, fresh_rows = by_name(weights[name], tokens), by_name(fresh[name], tokens)
            assert_by_name(rows, fresh_rows, by_name(old[name], old_tokens))
    assert torch.equal(network.head.bridge.weight, old["heads.0.bridge.weight"])
    assert ("head.target_tokenizer: taken from" in report[0]) is bool(init)


# Tables kept in two, and words of a checkpoint


@pytest.mark.parametrize("was", [True, False])
@pytest.mark.parametrize("becomes", [True, False])
def test_pretrained_vectors_go_by_their_words(tmp_path: Path, new: New, was: bool, becomes: bool) -> None:
    vectors = "rome 1 2 3\nlima 4 5 6\n{} 7 8 9\n"
    (tmp_path / "some.vec").write_text(vectors.format("in"))
    stage = f"embedding={{{{use: vectors, path: {tmp_path}/some.vec, train: {{0}}{{1}}}}}}"
    yaml = new(words, stage.format(str(was).lower(), ""))
    (tmp_path / "some.vec").write_text(vectors.format("met"))
    network, fresh, _ = started(load_config(yaml, [stage.format(str(becomes).lower(), f", init: {OLD}")]))

    def rows(state: Mapping[str, Tensor], words: Sequence[str]) -> dict[Any, Tensor]:
        x = state["embedding.0.table.weight"].clone()
        if "embedding.0.table.place" in state:
            for i, place in enumerate(state["embedding.0.table.place"].tolist()):
                x[i] += state["embedding.0.table.learned.weight"][place] * (place > 0)
        return by_name(x, words)

    run = tmp_path / "old/runs/old"
    names, weights = network.artifacts.vocabulary, network.state_dict()
    assert_by_name(rows(weights, names), rows(fresh, names), rows(weights_of(run), Artifacts.load(run).vocabulary))
    vectors = network.embedding[0].table(torch.arange(len(names)))
    assert all(torch.equal(vectors[i], row) for i, row in enumerate(rows(weights, names).values()))


# A field that pytorch-crf trained

TAGS = ("I-PER", "O", "B-LOC", "I-LOC", "B-PER")
FIELD = "head={use: crf, scheme: IOB2, constraints: false, init: {crf: ../crf.safetensors, scheme: BIO, labels: [%s]}}"


def field_yaml(folder: Path) -> tuple[Path, torchcrf.CRF]:
    """The tiny tagger, and beside its folder a field of pytorch-crf."""
    field = torchcrf.CRF(len(TAGS))
    safetensors.torch.save_file(field.state_dict(), folder / "crf.safetensors")
    (folder / "new").mkdir()
    return write_tagger(folder / "new"), field


def test_a_head_starts_from_a_field_of_pytorch_crf_by_the_names_of_its_labels(tmp_path: Path) -> None:
    yaml, field = field_yaml(tmp_path)
    config = load_config(yaml, [FIELD % ", ".join(TAGS)])
    network, _, report = started(config)
    assert report == ["head: starts from crf.safetensors"]
    labels = network.artifacts.tasks[0].labels
    assert {*labels} == {*TAGS}
    assert labels != TAGS
    for name, weight in field.named_parameters():
        axes = (labels, labels) if name == "transitions" else (labels,)
        theirs = by_name(weight, *(TAGS for _ in axes))
        assert all(
            torch.equal(row, theirs[names]) for names, row in by_name(getattr(network.head, name), *axes).items()
        )


def test_a_run_that_started_from_a_field_has_its_hash_and_does_not_need_its_file(tmp_path: Path) -> None:
    yaml, field = field_yaml(tmp_path)
    sets = [LOOKUP, FIELD % ", ".join(TAGS), "train.epochs=1", "train.optimizer.lr=1e-6"]
    config = load_config(yaml, sets)
    with contextlib.chdir(yaml.parent):
        train_run(config)
        folder = Path("runs/tiny").absolute()
        near = weights_of(folder)["heads.0.start_transitions"].sort().values
        assert torch.allclose(near, field.start_transitions.sort().values, atol=1e-3)
        (hashed,) = (value for key, value in fingerprint(config)["files"].items() if "crf" in key)
        other = torchcrf.CRF(len(TAGS))
        safetensors.torch.save_file(other.state_dict(), tmp_path / "crf.safetensors")
        assert hashed not in fingerprint(config)["files"].values()
        (tmp_path / "crf.safetensors").unlink()
        assert resolved(config, folder)["head"]["init"]["crf"] == "../../../crf.safetensors"
        succeed("evaluate", folder)
        assert open_run(folder, QUIET).config == config


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("{crf: none.safetensors, scheme: BIO, labels: [O]}", "head.init.crf: no such file 'none.safetensors'"),
        ("{crf: ../crf.safetensors, scheme: BILOU, labels: [O]}", "head.init.scheme: 'BILOU' does not fit here"),
        ("{crf: ../crf.safetensors, scheme: BIO}", "head.init: should be {crf: a path, labels: a list"),
        ("{crf: ../crf.safetensors, scheme: BIO, labels: [O], size: 5}", "head.init.size: 5 does not fit here"),
    ],
)
def test_a_wrong_mapping_is_reported_at_its_key(tmp_path: Path, init: str, message: str) -> None:
    yaml, _ = field_yaml(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(yaml, [f"head={{use: crf, scheme: IOB2, init: {init}}}"])


def test_a_field_that_does_not_fit_is_reported_by_check_at_the_head(tmp_path: Path) -> None:
    yaml, _ = field_yaml(tmp_path)
    done = seqpipe("check", yaml, FIELD % "O, B-PER, I-PER", folder=yaml.parent)
    assert done.code == 2
    assert "head: head 'crf' of seqpipe-nlp: init.labels: list the training data's tags" in done.err
    assert "(missing: B-LOC, I-LOC)" in done.err


def test_only_a_component_with_such_an_option_takes_a_mapping(tmp_path: Path) -> None:
    yaml, _ = field_yaml(tmp_path)
    message = "encoder.init: should be a run's folder or null, not {crf: x}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(yaml, ["encoder.init={crf: x}"])


def test_the_head_crf_starts_from_a_run_as_before(tmp_path: Path, new: New) -> None:
    config = load_config(new(words), [f"head.init={OLD}"])
    assert resolved(config, tmp_path / "new")["head"]["init"] == OLD
    assert "init" not in config.head[0].options


# From one run to the next


def test_a_run_keeps_the_labels_of_the_one_that_it_started_from_and_does_not_need_it(tmp_path: Path, new: New) -> None:
    yaml = new(moods, "head=label", "train.epochs=12")
    init = ["head=label", *(f"{key}.init={OLD}" for key in ("tokenizer", "embedding", "head"))]
    config = load_config(yaml, [*init, "train.epochs=2", "train.optimizer.lr=0.005"])
    with contextlib.chdir(yaml.parent):
        run_all(config, QUIET, RunOptions("cpu"))
        folder = Path("runs/moods").absolute()
        shutil.rmtree(tmp_path / "old/runs")
        done = succeed("evaluate", folder, "--data", tmp_path / "old/test.jsonl", "--json")
        assert '"accuracy": 1.0' in done.out  # of labels that its own data have not
        assert seqpipe("export", folder, "-q").code == 0
        opened = open_run(folder, QUIET).config
        assert opened == config
        assert resolved(opened, folder)["head"]["init"] == "../../../old/runs/old"


def test_a_change_of_the_run_that_it_started_from_makes_another_run(tmp_path: Path, new: New) -> None:
    yaml, learned = new(words), tmp_path / "old/runs/old/learned.json"
    config = load_config(yaml, [f"{key}.init={OLD}" for key in ("encoder", "tokenizer")])
    sources = fingerprint(config)["sources"]
    assert list(sources) == ["tokenizer.init", "encoder.init"]
    assert list(sources["encoder.init"]) == ["weights", "learned.json", "tokenizer.json"]
    assert "sources" not in fingerprint(load_config(yaml))
    with contextlib.chdir(yaml.parent):
        train_run(config)
        learned.write_text(learned.read_text() + " ")
        with pytest.raises(UsageError, match=r"encoder.init: the learned.json of the run changed"):
            tiny_pipelines.begin_run(config)


def test_a_run_is_not_started_from_itself_and_nothing_is_moved(tmp_path: Path, new: New) -> None:
    new(write_tagger)
    config = load_config(tmp_path / "old/tiny.yaml", ["name=old", "encoder.init=runs/old"])
    with contextlib.chdir(tmp_path / "old"), pytest.raises(ConfigError, match="names this run's own folder") as caught:
        tiny_pipelines.begin_run(config, fresh=True)
    assert caught.value.problems[0].key == "encoder.init"
    assert (tmp_path / "old/runs/old").exists()


def test_frozen_stages_keep_what_they_started_from_and_a_resumed_run_is_not_started_again(
    tmp_path: Path, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    yaml = new(words)
    keys = ("tokenizer", "embedding.0", "embedding.1", "encoder", "head")
    frozen = [f"{key}.freeze=true" for key in ("embedding.0", "encoder")]
    config = load_config(yaml, [*(f"{key}.init={OLD}" for key in keys), *frozen, "train.epochs=2", "data.dev=null"])
    old = weights_of(tmp_path / "old/runs/old")

    class Cut(Console):
        def say(self, text: str) -> None:
            if "epoch   1/2" in text:
                raise KeyboardInterrupt

    ended = []
    for place, console in (("whole", QUIET), ("cut", Cut(-1))):
        (tmp_path / place).mkdir()
        with contextlib.chdir(tmp_path / place):
            opened = tiny_pipelines.begin_run(config)
            with contextlib.suppress(KeyboardInterrupt):
                train_run(config, console)
            if place == "cut":
                assert checkpoint.load(opened.checkpoints / "last.ckpt")["progress"]["epoch"] == 1
                again = "seqpipe.runs.train.warm_start"
                monkeypatch.setattr(again, lambda *arguments: pytest.fail("began again"))
                train_run(config)
            ended.append(weights_of(opened.folder))
    assert all(torch.equal(ended[0][name], tensor) for name, tensor in ended[1].items())
    still = {name for name in old if name in ended[0] and torch.equal(old[name], ended[0][name])}
    still.remove("heads.0.temperature")  # 1 without `calibrate`
    assert still == {name for name in old if name.startswith(("embedding.0.", "encoder."))}


def test_check_reports_each_warm_start(new: New) -> None:
    yaml = new(words, "head=tags", LOOKUP)
    sets = ["head=tags", LOOKUP, *(f"{key}.init={OLD}" for key in ("embedding", "encoder", "head"))]
    done = succeed("check", yaml, *sets, folder=yaml.parent)
    assert "  embedding: starts from ../old/runs/old: 7 of 11 tokens are known there\n" in done.err
    assert "  encoder: starts from ../old/runs/old\n" in done.err
    assert "  head: starts from ../old/runs/old: its 9 labels are kept, and 4 new: B-ORG" in done.err
