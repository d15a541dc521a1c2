"""Every answer kind by its name: what each states is whole, and manifests that state none of them are refused."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from seqpipe.answers.base import HeadAnswer
from seqpipe.answers.classification import Label, LabelTask, Score, ScoreTask
from seqpipe.answers.pointers import PointerGold
from seqpipe.answers.registry import (
    ANSWER_KINDS,
    TASKS,
    MultiHead,
    MultiHeadTask,
    answer_from,
    head_answer_from,
    head_task,
    join_kinds,
    task_metrics,
    task_of,
)
from seqpipe.answers.tagging import Tags
from seqpipe.answers.task import HeadInfo, check_settings
from seqpipe.answers.text import Text
from seqpipe.errors import BundleError
from seqpipe.features.kinds.base import TOKEN_AXIS
from seqpipe.features.vocabulary import MASK, SPAN_MARKS
from seqpipe_plugins.tokenizers.words import WordsTokenizer

FIELDS = {"mood": {"per": "text", "type": "label"}, "head": {"per": "word", "type": "position"}}
SETTINGS: dict[str, dict[str, Any]] = {"structured": {"fields": FIELDS}, "spans": {"scheme": "BIOES"}}
SETTINGS["fill-mask"] = {"share": 0.2}
LABELS: dict[str, tuple[str, ...]] = {"structured": ("mood/bad", "mood/good"), "spans": ("O", "B-a", "I-a")}
CANDIDATES = [{"text": "first", "label": "a"}, {"text": "second", "label": "b", "answer": "yes"}]
SIDES: dict[str, tuple[Any, Any]] = {  # a reference, and what was predicted
    "tags": ([("a", 0, 1)], [("b", 0, 1)]),
    "spans": ([("a", 0, 1)], [("a", 0, 1)]),
    "label": ("a", "b"),
    "labels": (["a"], ["a", "b"]),
    "score": (1.0, None),
    "vector": ("a", [1.0, 0.0]),
    "candidate": ("a", ["b", "a"]),
    "span": (["Rome"], "Rome"),
    "pointers": (PointerGold((0, 1)), [0, 1]),
    "structured": ({"mood": "bad", "head": {(0, 1): None}}, {"mood": "bad", "head": {(0, 1): (0, 1)}}),
    "text": ("a b", "a c"),
    "fill-mask": (["a"], ["a"]),
    "span-infilling": ("a b", "a c"),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    trained = WordsTokenizer().train(["a b c"])
    trained.add_special_tokens([MASK, *SPAN_MARKS])
    return trained


def created(name: str, tokenizer: Tokenizer, target: str | None = None) -> HeadAnswer:
    task = TASKS[name]
    settings = check_settings(task, SETTINGS.get(name, {}))
    info = HeadInfo(settings, target=target, rows=TOKEN_AXIS, candidates=CANDIDATES)
    return task.create(info, LABELS.get(name, ("a", "b")), tokenizer if task.kind_type.needs_tokenizer else None)


def test_there_are_these_kinds() -> None:
    assert set(ANSWER_KINDS) == {
        *("tags", "spans", "label", "labels", "score", "vector", "candidate", "span", "pointers", "structured"),
        *("text", "generation", "fill-mask", "span-infilling"),
    }
    assert all(kind.kind == name for name, kind in ANSWER_KINDS.items())


@pytest.mark.parametrize("target", [None, "field"])
@pytest.mark.parametrize("name", ANSWER_KINDS)
def test_a_kind_is_built_again_from_its_manifest(name: str, target: str | None, tokenizer: Tokenizer) -> None:
    kind = created(name, tokenizer, target)
    again = head_answer_from(json.loads(json.dumps(kind.manifest())), tokenizer)
    assert type(again) is type(kind) is ANSWER_KINDS[name]
    assert vars(again) | {"copies": None} == vars(kind) | {"copies": None}  # which is built anew


@pytest.mark.parametrize("name", ANSWER_KINDS)
def test_the_declarations_of_a_kind_are_consistent(name: str, tokenizer: Tokenizer) -> None:
    kind, cls = created(name, tokenizer), TASKS[name]
    task, settings = head_task(kind), check_settings(cls, SETTINGS.get(name, {}))
    assert type(task) is cls
    assert kind.decided == cls.declared_decided(settings)
    assert task.metrics == cls.declared_metrics(settings)
    assert task.metrics
    used = {output for choice in task.choices for output in (*choice.outputs, choice.scored_as)}
    assert {*kind.outputs, *used, kind.scored_labels} - {""} <= {*kind.decided}
    arrays = [*kind.decided.values(), *cls.declared_targets(settings).values()]
    assert all(array.dtype in ("int64", "float32", "bool") and array.shape.startswith("(B") for array in arrays)


@pytest.mark.parametrize("name", sorted(ANSWER_KINDS.keys() - {"generation"}))
def test_every_score_that_is_counted_is_stated_and_the_first_is_the_headline(name: str, tokenizer: Tokenizer) -> None:
    task = head_task(created(name, tokenizer))
    counter = task.counter()
    counter.add(*SIDES[name])
    counts = {"labels", "gold", "predicted", "correct"}
    scores = [score for score in counter.result() if score not in counts]
    assert {*scores} <= {*task.metrics}
    assert scores[0] == next(iter(task.metrics))


@pytest.mark.parametrize("kind", [None, "boxes", 3, ["text"], "joint", "spanz"])
def test_an_unknown_kind_is_refused_and_a_misspelt_one_names_the_nearest(kind: Any) -> None:
    fix = r" 'spanz'; did you mean 'spans?'\?" if kind == "spanz" else r".*; update seqpipe"
    with pytest.raises(BundleError, match=f"unknown answer kind{fix}"):
        head_answer_from({"kind": kind}, None)
    with pytest.raises(BundleError, match=r"unknown answer kind.*; update seqpipe"):
        head_answer_from({}, None)


@pytest.mark.parametrize("name", [*ANSWER_KINDS])
def test_a_manifest_that_lacks_a_key_is_an_error_and_no_kind(name: str, tokenizer: Tokenizer) -> None:
    manifest = created(name, tokenizer).manifest()
    optional = {"kind", "cyclic", "axis", "figure_style", "log_score"}
    optional |= {"target"} if not manifest["target"] else set()
    for key in manifest.keys() - optional:
        with pytest.raises((KeyError, TypeError, ValueError)):
            head_answer_from({name: value for name, value in manifest.items() if name != key}, tokenizer)


def test_settings_are_completed_and_missing_ones_refused() -> None:
    with pytest.raises(ValueError, match="the setting `scheme`, one of IOB1, IOB2, BIOES, BILOU, BMES, not 'none'"):
        check_settings(TASKS["spans"], {})
    with pytest.raises(ValueError, match=r"the answer kind 'score' has no setting 'labels' \(there is: none\)"):
        check_settings(TASKS["score"], {"labels": 3})
    assert check_settings(LabelTask, {}) == {"out_of_scope": None}


def test_several_heads_are_one_kind_and_a_head_alone_keeps_its_kind(tokenizer: Tokenizer) -> None:
    alone = Label(["a", "b"])
    assert join_kinds({"": alone}) is alone
    assert answer_from(alone.manifest(), {}).manifest() == alone.manifest()
    joint = join_kinds({"topic": alone, "title": Text(tokenizer), "words": Tags(["N"])})
    assert isinstance(joint, MultiHead)
    assert joint.outputs[:2] == ("topic.label", "topic.scores")
    again = answer_from(json.loads(json.dumps(joint.manifest())), {"title": tokenizer})
    assert again.manifest() == joint.manifest()
    assert [type(part) for part in again.parts.values()] == [Label, Text, Tags]
    with pytest.raises(BundleError, match="answer kind 'text' lacks its target tokenizer"):
        answer_from(joint.manifest(), {"topic": tokenizer})
    nested = {"kind": "joint", "parts": {"a": MultiHead({"a": Score()}).manifest()}}
    with pytest.raises(BundleError, match=r"unknown answer kind 'joint'.*; update seqpipe"):
        answer_from(nested, {})


def test_the_metrics_of_several_heads_are_those_of_each_and_of_all_together() -> None:
    alone, several = (task_metrics(task_of(kind)) for kind in (Score(), MultiHead({"a": Label(["x"]), "b": Score()})))
    assert alone == ScoreTask.metrics
    assert several == {**MultiHeadTask.metrics, **LabelTask.metrics, **ScoreTask.metrics}
    assert (several["mae"].more_is_better, several["mean"].more_is_better) == (False, True)
