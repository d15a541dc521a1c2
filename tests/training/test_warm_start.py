"""What starts from a trained run: rows go by their names, new labels come behind the old, and the old run may go."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import (
    QUIET,
    begin_run,
    labelling,
    parts,
    plugins,
    seqpipe,
    tagging,
    toy_heads,
    train_run,
    write_jsonl,
    writing,
)
from torch import Tensor

from seqpipe.config.loader import Config, load, resolved
from seqpipe.config.plugins import Plugins
from seqpipe.console import Console
from seqpipe.errors import ConfigError, PluginError, UsageError
from seqpipe.pipeline.full_run import run_all
from seqpipe.pipeline.run_folder import fingerprint, open_run
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.warm_start import warm_start

OLD = "../old/runs/old"
ALL = ("embedding", "encoder", "head")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def trained(folder: Path, yaml: Path, *overrides: str, plugins: Plugins | None = None) -> Path:
    """The folder of a run called old, of one epoch."""
    config = load(yaml, ["name=old", "train.epochs=1", *overrides], plugins)
    with contextlib.chdir(folder):
        train_run(config)
    return folder / "runs" / "old"


def here(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def weights_of(run: Path) -> dict[str, Tensor]:
    return checkpoint.load_weights(*checkpoint.best(run / "checkpoints"))


def begun(config: Config) -> tuple[Pipeline, dict[str, Tensor], list[str]]:
    """A pipeline that has begun, its weights before, and what was said."""
    pipeline, _ = parts(config)
    fresh = {name: tensor.clone() for name, tensor in pipeline.state_dict().items()}
    return pipeline, fresh, warm_start(pipeline, config)


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


CONLL = (
    "Zoë\tB-PER\nmet\tO\nthe\tO\nUN\tB-ORG\nin\tO\nRome\tB-LOC\n.\tO\n\nnobody\tO\ncame\tO\nto\tO\nQüi\tB-LOC\n.\tO\n"
)


def other_tagging(tmp_path: Path, old: Sequence[str] = ()) -> tuple[Path, Path]:
    """An old run of the tiny tagger, and the YAML of another on data with other words, letters and labels."""
    before = here(tmp_path, "old")
    run = trained(before, tagging(before), *old)
    after = here(tmp_path, "new")
    yaml = tagging(after)
    (after / "train.conll").write_text(CONLL)
    return run, yaml


TAGGERS = {
    "crf": {
        "emissions.weight": 1,
        "emissions.bias": 1,
        "start_transitions": 1,
        "end_transitions": 1,
        "transitions": 2,
    },
    "tags": {"emissions.weight": 1, "emissions.bias": 1},
}


@pytest.mark.parametrize("chars", ["char-cnn", "char-lstm"])
@pytest.mark.parametrize("head", TAGGERS)
def test_rows_of_tokens_characters_and_tags_go_by_their_names(tmp_path: Path, head: str, chars: str) -> None:
    stages = (
        f"embedding=[{{use: lookup, dim: 8}}, {{use: {chars}, dim: 6, char_dim: 4}}]",
        f"head={{use: {head}, scheme: BIOES}}",
    )
    run, yaml = other_tagging(tmp_path, stages)
    inits = ("embedding.0.init", "embedding.1.init", "encoder.init", "head.init")
    config = load(yaml, [*stages, *(f"{key}={OLD}" for key in inits)])
    pipeline, fresh, report = begun(config)
    new, old, older = pipeline.state_dict(), weights_of(run), Artifacts.load(run)
    mine, theirs = pipeline.artifacts.tasks[0].labels, older.tasks[0].labels
    assert mine[: len(theirs)] == theirs
    assert [*mine[len(theirs) :]] == ["B-ORG", "I-ORG", "E-ORG", "S-ORG"]
    named = {
        "embedding.0.table.weight": ((pipeline.artifacts.vocabulary,), (older.vocabulary,)),
        "embedding.1.chars.weight": ((chars_of(pipeline.artifacts),), (chars_of(older),)),
    }
    named |= {f"heads.0.{name}": ((mine,) * axes, (theirs,) * axes) for name, axes in TAGGERS[head].items()}
    for name, (ours, their_names) in named.items():
        assert_by_name(by_name(new[name], *ours), by_name(fresh[name], *ours), by_name(old[name], *their_names))
    others = set(new) - set(named)
    assert len(others) > 5
    assert all(torch.equal(new[name], old[name]) for name in others)
    assert "encoder: starts from" in report[-2]
    assert "9 labels are kept, and 4 new: B-ORG, I-ORG, E-ORG, S-ORG" in report[-1]


def test_new_characters_come_behind_the_old_alphabet(tmp_path: Path) -> None:
    run, yaml = other_tagging(tmp_path)
    config = load(yaml, [f"embedding.1.init={OLD}"])
    pipeline, _ = parts(config)
    old = Artifacts.load(run).featurizer.features["chars"].manifest()["alphabet"]
    new = pipeline.artifacts.featurizer.features["chars"].manifest()["alphabet"]
    assert new.startswith(old)
    assert new[len(old) :] == "".join(sorted({*"ZoëmetheUNinRome.nobodycametoQüi"} - {*old})) != ""


# Heads and their labels


def other_moods(tmp_path: Path, label: str, *old: str, **toys: tuple[str, type]) -> Path:
    """An old run of the toy labels, and the YAML of another whose texts have this label besides `good`."""
    before = here(tmp_path, "old")
    trained(before, labelling(before), *old, plugins=plugins(**toys))
    after = here(tmp_path, "new")
    yaml = labelling(after)
    texts = [{"text": f"a {label} {word} day", "label": label} for word in "xyz"]
    for name in ("train", "dev", "test"):
        write_jsonl(after / f"{name}.jsonl", [*texts, {"text": "a lovely day", "label": "good"}])
    return yaml


def test_labels_of_the_run_come_first_and_count_nothing(tmp_path: Path) -> None:
    yaml = other_moods(tmp_path, "awkward", "head=label")
    config = load(yaml, [f"head={{use: label, class_weights: balanced, init: {OLD}}}"])
    pipeline, _, report = begun(config)
    labels = pipeline.artifacts.tasks[0].labels
    assert labels == ("bad", "fine", "good", "awkward")
    assert labels.counts == [0, 0, 1, 3]
    assert pipeline.head.weights.tolist() == [1.0, 1.0, 2.0, pytest.approx(2 / 3)]
    assert report == [f"head: starts from {relative(tmp_path)}: its 3 labels are kept, and 1 new: awkward"]


def relative(tmp_path: Path) -> str:
    return os.path.relpath(tmp_path / "old/runs/old")


def test_what_is_chosen_on_dev_or_by_options_is_not_taken(tmp_path: Path) -> None:
    yaml = other_moods(tmp_path, "awkward", "head={use: label, calibrate: true}")
    old = weights_of(tmp_path / "old/runs/old")
    assert old["heads.0.temperature"] != 1
    pipeline, _, _ = begun(load(yaml, [f"head={{use: label, init: {OLD}}}"]))
    assert pipeline.head.temperature == 1


def toy(**more: Any) -> tuple[str, type]:
    kind, cls = toy_heads()["mean"]
    return kind, type("Mean", (cls,), more)


def test_a_class_that_does_not_say_whose_rows_are_whose_is_refused_where_it_matters(tmp_path: Path) -> None:
    yaml = other_moods(tmp_path, "awkward", mean=toy())
    config = load(yaml, [f"head.init={OLD}"], plugins(mean=toy()))
    with pytest.raises(PluginError, match=r"(?s)head 'mean' of toys: its labels differs from that of .*give it `rows`"):
        begun(config)
    config = load(yaml, [f"head.init={OLD}"], plugins(mean=toy(rows={"output.weight": ("vocabulary",)})))
    with pytest.raises(PluginError, match=r"axis 0 of output.weight is by vocabulary, of which there are"):
        begun(config)
    right = toy(rows={"output.weight": ("labels",), "output.bias": ("labels",)})
    begun(load(yaml, [f"head.init={OLD}"], plugins(mean=right)))
    same = labelling(here(tmp_path, "same"))
    pipeline, _, _ = begun(load(same, [f"head.init={OLD}"], plugins(mean=toy())))
    assert torch.equal(pipeline.head.output.weight, weights_of(tmp_path / "old/runs/old")["heads.0.output.weight"])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            "{use: label, multi: true, target: label",
            "answers with label, but this head with labels; restore its old options",
        ),
        ("{use: label, hidden: 4", r"hidden was null and is 4\), or delete init"),
    ],
)
def test_a_head_of_other_options_is_told_its_old_ones(tmp_path: Path, head: str, message: str) -> None:
    yaml = other_moods(tmp_path, "awkward", "head=label")
    with pytest.raises(ConfigError, match=message) as caught:
        begun(load(yaml, [f"{head}, init: {OLD}}}".replace("{use", "head={use", 1)]))
    assert caught.value.problems[0].key == "head"


def test_tags_of_another_scheme_are_refused(tmp_path: Path) -> None:
    _, yaml = other_tagging(tmp_path, ["embedding={use: lookup, dim: 8}"])
    with pytest.raises(ConfigError, match="set scheme: BIOES, or delete init"):
        begun(load(yaml, ["head.scheme=IOB2", f"head.init={OLD}"]))


def test_another_width_is_told_with_both_shapes(tmp_path: Path) -> None:
    _, yaml = other_tagging(tmp_path)
    with pytest.raises(ConfigError, match=r"\[24, 14\] in .*, \[20, 14\] here; .*hidden was 6 and is 5"):
        begun(load(yaml, ["encoder.hidden=5", f"encoder.init={OLD}"]))
    with pytest.raises(ConfigError, match="its options are the same, so an earlier stage has another width"):
        begun(load(yaml, ["embedding={use: lookup, dim: 9}", f"encoder.init={OLD}"]))


def test_heads_are_found_by_their_names_then_by_their_places(tmp_path: Path) -> None:
    heads = "head=[{use: label, target: topic, name: first}, {use: label, target: topic, name: second}]"
    before = here(tmp_path, "old")
    run = trained(before, tagging(before), heads, "embedding={use: lookup, dim: 8}")
    after = here(tmp_path, "new")
    new = [
        f"head=[{{use: label, target: topic, name: second, init: {OLD}}}, "
        f"{{use: label, target: topic, name: third, init: {OLD}}}]",
        "embedding={use: lookup, dim: 8}",
    ]
    pipeline, _, report = begun(load(tagging(after), new))
    old = weights_of(run)
    assert torch.equal(pipeline.heads[0].output.weight, old["heads.1.output.weight"])
    assert torch.equal(pipeline.heads[1].output.weight, old["heads.1.output.weight"])
    assert "old (head.1): its 2 labels are kept" in report[0]


# Tokenizers, and texts to write


def test_the_tokenizer_of_the_run_is_taken_as_it_is_and_counts_are_of_the_new_data(tmp_path: Path) -> None:
    run, yaml = other_tagging(tmp_path)
    config = load(yaml, [f"tokenizer.init={OLD}", "tokenizer.lowercase=false", f"embedding.0.init={OLD}"])
    pipeline, _, report = begun(config)
    older = Artifacts.load(run)
    assert pipeline.artifacts.vocabulary == older.vocabulary
    assert pipeline.artifacts.featurizer.tokenizer.to_str() == older.featurizer.tokenizer.to_str()
    words = [line.split("\t")[0].lower() for line in CONLL.splitlines() if line]
    assert sum(pipeline.artifacts.counts[""]) == len(words)
    assert pipeline.artifacts.counts[""][older.vocabulary.index("came")] == 1
    unknown = sum(word not in older.vocabulary for word in words) / len(words)
    assert 0 < unknown < 1
    assert (
        f"with {len(older.vocabulary)} tokens; {100 * unknown:.1f} % of the tokens of the new texts are unknown"
        in report[0]
    )
    assert "lowercase was true and is false, which has no effect" in report[1]
    assert torch.equal(pipeline.embedding[0].table.weight, weights_of(run)["embedding.0.table.weight"])


def test_a_vocabulary_that_is_hardly_known_there_is_worth_a_note(tmp_path: Path) -> None:
    _, yaml = other_tagging(tmp_path)
    config = load(yaml, [f"embedding.0.init={OLD}"])
    _, _, report = begun(config)
    assert not any("note" in line for line in report)
    (yaml.parent / "train.conll").write_text("Lund\tB-LOC\nnobody\tO\nis\tO\nhere\tO\n")
    _, _, report = begun(load(yaml, [f"embedding.0.init={OLD}"]))
    assert report[0].endswith("1 of 4 tokens are known there")
    assert report[1].startswith("note: embedding.0: the rows of the other 3 tokens start at random")
    assert report[1].endswith("beside the `use` of the tokenizer too")


@pytest.mark.parametrize("init", ["", f", init: {OLD}"])
def test_a_decoder_goes_on_with_its_target_tokens(tmp_path: Path, init: str) -> None:
    writer = "head={{use: seq2seq, hidden: 16, target: reversed, target_tokenizer: {{use: chars{0}}}{1}}}"
    before = here(tmp_path, "old")
    run = trained(before, writing(before), writer.format("", ""))
    yaml = writing(here(tmp_path, "new"))
    write_jsonl(yaml.parent / "train.jsonl", [{"text": "abxy", "reversed": "yxba"}, {"text": "cd", "reversed": "dc"}])
    pipeline, fresh, report = begun(load(yaml, [writer.format(init, f", init: {OLD}")]))
    old = weights_of(run)
    mine, theirs = (
        artifacts.tasks[0].target_vocabulary or () for artifacts in (pipeline.artifacts, Artifacts.load(run))
    )
    assert (mine == theirs) is bool(init)
    for name in (f"vocabulary.{parameter}" for parameter in ("embedding.weight", "output.weight", "output.bias")):
        new = by_name(pipeline.state_dict()[f"heads.0.{name}"], mine)
        if init:
            assert torch.equal(pipeline.state_dict()[f"heads.0.{name}"], old[f"heads.0.{name}"])
        else:
            assert_by_name(new, by_name(fresh[f"heads.0.{name}"], mine), by_name(old[f"heads.0.{name}"], theirs))
    assert torch.equal(pipeline.head.bridge.weight, old["heads.0.bridge.weight"])
    assert ("head.target_tokenizer: taken from" in report[0]) is bool(init)


# Tables kept in two, and words of a checkpoint


@pytest.mark.parametrize("was", [True, False])
@pytest.mark.parametrize("becomes", [True, False])
def test_pretrained_vectors_go_by_their_words_whether_they_are_learned_or_not(
    tmp_path: Path, was: bool, becomes: bool
) -> None:
    for name in ("old", "new"):
        here(tmp_path, name)
        (tmp_path / name / "some.vec").write_text(f"rome 1 2 3\nlima 4 5 6\n{'met' if name == 'new' else 'in'} 7 8 9\n")
    stage = "embedding={{use: vectors, path: some.vec, train: {0}{1}}}"
    run = trained(tmp_path / "old", tagging(tmp_path / "old"), stage.format(str(was).lower(), ""))
    yaml = tagging(tmp_path / "new")
    (tmp_path / "new/train.conll").write_text(CONLL)
    pipeline, fresh, _ = begun(load(yaml, [stage.format(str(becomes).lower(), f", init: {OLD}")]))

    def rows(state: Mapping[str, Tensor], words: Sequence[str]) -> dict[Any, Tensor]:
        x = state["embedding.0.table.weight"].clone()
        if "embedding.0.table.place" in state:
            for i, place in enumerate(state["embedding.0.table.place"].tolist()):
                x[i] += state["embedding.0.table.learned.weight"][place] * (place > 0)
        return by_name(x, words)

    mine, theirs = pipeline.artifacts.vocabulary, Artifacts.load(run).vocabulary
    new = pipeline.state_dict()
    assert_by_name(rows(new, mine), rows(fresh, mine), rows(weights_of(run), theirs))
    shown = pipeline.embedding[0].table(torch.arange(len(mine)))
    assert all(torch.equal(shown[i], row) for i, row in enumerate(rows(new, mine).values()))


# From one run to the next


def test_a_run_started_from_another_knows_what_that_knew_and_outlives_it(tmp_path: Path) -> None:
    yaml = other_moods(tmp_path, "awkward", "head=label", "train.epochs=12")
    init = ["head=label", *(f"{key}.init={OLD}" for key in ("tokenizer", "embedding", "head"))]
    config = load(yaml, [*init, "train.epochs=2", "train.optimizer.lr=0.005"])
    with contextlib.chdir(yaml.parent):
        run_all(config, QUIET, "cpu")
        folder = Path("runs/moods").absolute()
        seen = seqpipe("evaluate", folder, "--data", tmp_path / "old/test.jsonl", "--json")
        assert seen.code == 0, seen.err
        assert '"accuracy": 1.0' in seen.out  # of labels that its own data have not
        shutil.rmtree(tmp_path / "old/runs")
        assert seqpipe("evaluate", folder, "--data", tmp_path / "old/test.jsonl", "--json").out == seen.out
        assert seqpipe("export", folder, "-q").code == 0
        opened = open_run(folder, QUIET).config
        assert opened == config
        assert resolved(opened, folder)["head"]["init"] == "../../../old/runs/old"


def test_a_change_of_the_run_that_it_started_from_makes_another_run(tmp_path: Path) -> None:
    run, yaml = other_tagging(tmp_path)
    config = load(yaml, [f"{key}.init={OLD}" for key in ("encoder", "tokenizer")])
    sources = fingerprint(config)["sources"]
    assert list(sources) == ["tokenizer.init", "encoder.init"]
    assert list(sources["encoder.init"]) == ["weights", "learned.json", "tokenizer.json"]
    assert "sources" not in fingerprint(load(yaml))
    with contextlib.chdir(yaml.parent):
        train_run(config)
        (run / "learned.json").write_text((run / "learned.json").read_text() + " ")
        with pytest.raises(UsageError, match=r"encoder.init: the learned.json of the run changed"):
            begin_run(config)


def test_a_run_is_not_started_from_itself_and_nothing_is_moved(tmp_path: Path) -> None:
    before = here(tmp_path, "old")
    run = trained(before, tagging(before))
    config = load(before / "tiny.yaml", ["name=old", "encoder.init=runs/old"])
    with contextlib.chdir(before), pytest.raises(ConfigError, match="names this run's own folder") as caught:
        begin_run(config, fresh=True)
    assert caught.value.problems[0].key == "encoder.init"
    assert run.exists()


def test_frozen_stages_keep_what_they_started_from_and_resuming_begins_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, yaml = other_tagging(tmp_path)
    keys = ("tokenizer", "embedding.0", "embedding.1", "encoder", "head")
    frozen = [f"{key}.freeze=true" for key in ("embedding.0", "encoder")]
    config = load(yaml, [*(f"{key}.init={OLD}" for key in keys), *frozen, "train.epochs=2", "data.dev=null"])
    old = weights_of(run)

    class CutError(Exception):
        pass

    class Cut(Console):
        def say(self, text: str) -> None:
            if "epoch   1/2" in text:
                raise CutError

    ended = []
    for place, console in (("whole", QUIET), ("cut", Cut(-1))):
        (tmp_path / place).mkdir()
        with contextlib.chdir(tmp_path / place):
            opened = begin_run(config)
            with contextlib.suppress(CutError):
                train_run(config, console)
            if place == "cut":
                assert checkpoint.load(opened.checkpoints / "last.ckpt")["progress"]["epoch"] == 1
                again = "seqpipe.pipeline.training.warm_start"
                monkeypatch.setattr(again, lambda *arguments: pytest.fail("began again"))
                train_run(config)
            ended.append(weights_of(opened.folder))
    assert all(torch.equal(ended[0][name], tensor) for name, tensor in ended[1].items())
    still = {name for name in old if name in ended[0] and torch.equal(old[name], ended[0][name])}
    still.remove("heads.0.temperature")  # 1 without `calibrate`
    assert {name for name in still if not name.startswith(("embedding.0.", "encoder."))} == set()
    assert {name for name in old if name.startswith(("embedding.0.", "encoder."))} == still


def test_check_tells_what_starts_where(tmp_path: Path) -> None:
    _, yaml = other_tagging(tmp_path, ["head=tags", "embedding={use: lookup, dim: 8}"])
    sets = ["head=tags", "embedding={use: lookup, dim: 8}", *(f"{key}.init={OLD}" for key in ALL)]
    done = seqpipe("check", yaml, *sets, folder=yaml.parent)
    assert done.code == 0, done.err
    assert "  embedding: starts from ../old/runs/old: 7 of 11 tokens are known there\n" in done.err
    assert "  encoder: starts from ../old/runs/old\n" in done.err
    assert "  head: starts from ../old/runs/old: its 9 labels are kept, and 4 new: B-ORG" in done.err
