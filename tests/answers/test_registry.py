"""Every answer kind by its name: what each states is whole, and manifests that state none of them are refused."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind, HeadAnswer
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
    metric_types,
    task_of,
)
from seqpipe.answers.tagging import Tags
from seqpipe.answers.task import HeadInfo
from seqpipe.answers.task import check_settings as completed
from seqpipe.answers.text import Text
from seqpipe.errors import BundleError
from seqpipe.features.kinds.base import TOKENS
from seqpipe.features.vocabulary import MASK, SPAN_MARKS
from seqpipe_plugins.tokenizers.words import Words

FIELDS = {"mood": {"per": "text", "type": "label"}, "head": {"per": "word", "type": "position"}}
SETTINGS: dict[str, dict[str, Any]] = {"structured": {"fields": FIELDS}, "spans": {"scheme": "IOB2"}}
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
    trained = Words().train(["a b c"])
    trained.add_special_tokens([MASK, *SPAN_MARKS])
    return trained


def created(name: str, tokenizer: Tokenizer) -> HeadAnswer:
    task = TASKS[name]
    info = HeadInfo(completed(task, SETTINGS.get(name, {})), target=None, rows=TOKENS, candidates=CANDIDATES)
    return task.create(info, LABELS.get(name, ("a", "b")), tokenizer if task.kind_type.needs_tokenizer else None)


def test_there_are_these_kinds() -> None:
    assert set(ANSWER_KINDS) == {
        *("tags", "spans", "label", "labels", "score", "vector", "candidate", "span", "pointers", "structured"),
        *("text", "generation", "fill-mask", "span-infilling"),
    }
    assert all(kind.kind == name for name, kind in ANSWER_KINDS.items())


@pytest.mark.parametrize("name", ANSWER_KINDS)
def test_a_kind_is_built_again_from_what_json_keeps_of_its_manifest(name: str, tokenizer: Tokenizer) -> None:
    kind = created(name, tokenizer)
    again = head_answer_from(json.loads(json.dumps(kind.manifest())), tokenizer)
    assert type(again) is type(kind) is ANSWER_KINDS[name]
    made_anew = {"copies": None}
    assert vars(again) | made_anew == vars(kind) | made_anew


@pytest.mark.parametrize("name", ANSWER_KINDS)
def test_what_a_kind_states_holds_together(name: str, tokenizer: Tokenizer) -> None:
    kind, cls = created(name, tokenizer), TASKS[name]
    task = head_task(kind)
    settings = completed(cls, SETTINGS.get(name, {}))
    assert type(task) is cls
    assert kind.decided == cls.declared_decided(settings)
    assert task.metrics == cls.declared_metrics(settings)
    assert task.metrics
    assert {*kind.outputs} <= {*kind.decided}
    assert {output for choice in task.choices for output in choice.outputs} <= {*kind.decided}
    assert {choice.scored_as for choice in task.choices} - {""} <= {*kind.decided}
    assert {kind.step_output, kind.scored_labels} - {""} <= {*kind.decided}
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


@pytest.mark.parametrize(
    "manifest", [{}, {"kind": "boxes"}, {"kind": None}, {"kind": 3}, {"kind": ["text"]}, {"kind": "joint"}]
)
def test_a_kind_that_is_not_known_asks_for_an_update(manifest: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match=r"unknown answer kind.*; update seqpipe"):
        head_answer_from(manifest, None)


def test_a_misspelt_kind_names_the_nearest() -> None:
    with pytest.raises(BundleError, match=r"unknown answer kind 'spanz'; did you mean 'spans?'\?"):
        head_answer_from({"kind": "spanz"}, None)


@pytest.mark.parametrize("name", [name for name, kind in ANSWER_KINDS.items() if kind.needs_tokenizer])
def test_a_kind_that_writes_text_is_nothing_without_its_tokenizer(name: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(BundleError, match=f"answer kind '{name}' lacks its target tokenizer; export it again"):
        head_answer_from(created(name, tokenizer).manifest(), None)


@pytest.mark.parametrize("name", [*ANSWER_KINDS])
def test_a_manifest_that_lacks_a_key_is_an_error_and_no_kind(name: str, tokenizer: Tokenizer) -> None:
    manifest = created(name, tokenizer).manifest()
    optional = {"kind", "cyclic", "axis", "figure_style"} | ({"target"} if not manifest["target"] else set())
    for key in manifest.keys() - optional:
        with pytest.raises((KeyError, TypeError, ValueError)):
            head_answer_from({name: value for name, value in manifest.items() if name != key}, tokenizer)


def test_a_setting_that_a_kind_does_not_know_is_refused() -> None:
    assert completed(LabelTask, {}) == {"out_of_scope": None}
    with pytest.raises(ValueError, match=r"the answer kind 'label' has no setting 'labels' \(there is: out_of_scope\)"):
        completed(LabelTask, {"labels": 3})
    with pytest.raises(ValueError, match=r"the answer kind 'score' has no setting 'labels' \(there is: none\)"):
        completed(ScoreTask, {"labels": 3})


def test_several_heads_are_one_kind_and_a_head_alone_is_its_own(tokenizer: Tokenizer) -> None:
    alone = Label(["a", "b"])
    assert join_kinds({"": alone}) is alone
    both = join_kinds({"topic": alone, "title": Text(tokenizer), "words": Tags(["N"])})
    assert isinstance(both, MultiHead)
    assert both.outputs[:2] == ("topic.label", "topic.scores")
    again = answer_from(json.loads(json.dumps(both.manifest())), {"title": tokenizer})
    assert again.manifest() == both.manifest()
    assert [type(part) for part in again.parts.values()] == [Label, Text, Tags]
    with pytest.raises(BundleError, match="answer kind 'text' lacks its target tokenizer"):
        answer_from(both.manifest(), {"topic": tokenizer})
    assert answer_from(alone.manifest(), {}).manifest() == alone.manifest()


def test_a_kind_within_another_of_several_heads_is_refused() -> None:
    inner = MultiHead({"a": Score()}).manifest()
    with pytest.raises(BundleError, match=r"unknown answer kind 'joint'.*; update seqpipe"):
        answer_from({"kind": "joint", "parts": {"a": inner}}, {})


def test_what_is_known_of_scores_is_that_of_all_heads_and_of_all_together() -> None:
    kinds: list[AnswerKind] = [Score(), MultiHead({"a": Label(["x"]), "b": Score()})]
    alone, several = (metric_types(task_of(kind)) for kind in kinds)
    assert alone == ScoreTask.metrics
    assert several == {**MultiHeadTask.metrics, **LabelTask.metrics, **ScoreTask.metrics}
    assert not several["mae"].more_is_better
    assert several["mean"].more_is_better


def test_spans_need_a_tagging_scheme() -> None:
    with pytest.raises(
        ValueError, match="spans need the setting `scheme`, one of IOB1, IOB2, BIOES, BILOU, BMES, not 'none'"
    ):
        completed(TASKS["spans"], {})
    assert completed(TASKS["spans"], {"scheme": "BIOES"}) == {"scheme": "BIOES"}
