"""A name that no stage provides is a problem of the YAML, and the table of names lists who provides each to whom."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from bad_yamls import Chars, FromIds, Lookup, Lost, Mean, Mute, Tagger, Writer

import seqpipe.plugin
from seqpipe.answers.tagging import SpansTask, TagsTask
from seqpipe.answers.text import TextTask
from seqpipe.config.contract import Component, Input, answer_settings, metric_types, misspelt_members, task_class
from seqpipe.config.dataflow import names_table, problems
from seqpipe.config.plugins import Offer
from seqpipe.errors import PluginError
from seqpipe.plugin import Metric
from seqpipe.types import Size


def component(kind: str, cls: type, options: Any = None, number: int | None = None, **common_keys: Any) -> Component:
    use = cls.__name__.lower()
    key = kind if number is None else f"{kind}.{number}"
    offer = Offer(kind, use, "toys", "1.0", cls)
    return Component(kind, use, options or {}, common_keys, offer, cls, "f.yaml", 7, 3, key)


def variant(base: type, **members: Any) -> type:
    """A component like the base, with other members."""
    return type("Variant", (base,), members)


def text(embedding: list[type], encoder: list[type]) -> Input:
    """The only source, a text."""
    embeddings = tuple(component("embedding", cls, number=i) for i, cls in enumerate(embedding))
    encoders = tuple(component("encoder", cls, number=i) for i, cls in enumerate(encoder))
    return Input("", None, component("tokenizer", object), embeddings, encoders)


def messages(embedding: list[type], encoder: list[type], head: type, **common_keys: Any) -> list[str]:
    heads = [component("head", head, {"scheme": "IOB2"}, **common_keys)]
    all_problems = problems([text(embedding, encoder)], heads)
    assert all((p.file, p.line, p.column) == ("f.yaml", 7, 3) for p in all_problems)
    return [f"{p.key}: {p.message}" for p in all_problems]


class Parser:
    """A head whose answer has a field for each word."""

    answer = "structured"
    answer_settings: ClassVar = {"fields": {"head": {"per": "word", "type": "position"}}}

    def __init__(self, dim, labels): ...

    def loss(self, x, mask, head): ...

    def decide(self, x, mask): ...

    def score(self, x, head): ...


TAKES_SOURCES = variant(Lost, __init__=lambda self, sources: None)
TAKES_STATE = variant(Lost, forward=lambda self, x, state: None)
TAKES_CHARS = variant(Lost, forward=lambda self, chars: None)
WINDOWED = variant(Mean, returns=("x", "window", "other_x"))
PASSES_WINDOW = variant(
    Mean,
    returns=("x", "mask", "window"),
    features={"pieces": seqpipe.plugin.Pieces()},
    forward=lambda self, x, mask, pieces, window=None: None,
)
TAKES_WINDOW = variant(Tagger, decide=lambda self, x, mask, window: None)


FITTING = [
    ([Lookup], [variant(Mean, context="same"), Mean], Tagger, {}),  # the later encoder tells the words apart
    ([Lookup, Chars], [Mean, Mean], Tagger, {}),
    ([], [FromIds, Mean], Tagger, {}),
    ([Lookup], [], Tagger, {}),
    ([Lookup], [Mean], Writer, {"target_tokenizer": "same"}),
    ([Lookup], [Mean, TAKES_STATE], Tagger, {}),
    ([Lookup, Chars], [TAKES_CHARS], Tagger, {}),  # a feature that one stage declares is there for every stage
    ([Chars, variant(Chars)], [], Tagger, {}),  # and the same feature may be declared twice
    ([Lookup], [], variant(Tagger, score=lambda self, x, tags, scores, paths: None), {}),
    # the x before is left
    ([Lookup], [variant(Mean, returns=("state",))], variant(Tagger, decide=lambda self, x, mask, state: None), {}),
    ([Lookup], [WINDOWED, PASSES_WINDOW], TAKES_WINDOW, {}),
    ([Lookup], [], Parser, {}),
]


@pytest.mark.parametrize(("embedding", "encoder", "head", "common_keys"), FITTING)
def test_stages_that_fit_have_no_problem(embedding: list, encoder: list, head: type, common_keys: dict) -> None:
    assert messages(embedding, encoder, head, **common_keys) == []


RETURNS_TEXT = variant(Mean, returns="x")
IGNORES_X = variant(Tagger, loss=lambda self, ids, tags: None, decide=lambda self, ids: None, score=None)
NUMBER_AS_FEATURE = variant(Chars, features={"chars": 20})
SHADOWING = variant(Chars, features={"mask": seqpipe.plugin.Pieces(), "chars": seqpipe.plugin.Chars(longest=20)})
MISFITS = [
    ([Lookup], [TAKES_STATE, Mean], Tagger, "asks for 'state'"),  # a later stage returns it
    ([Lookup, variant(Lookup, forward=lambda self, ids, x: None)], [], Tagger, "asks for 'x'"),
    ([Lookup], [TAKES_CHARS], Tagger, "asks for 'chars'"),
    ([Lookup], [], variant(Tagger, decide=lambda self, x, mask, tags: None), "`decide` asks for 'tags'"),
    ([Lookup], [], variant(Tagger, score=lambda self, x, tokens: None), "`score` asks for 'tokens'"),
    ([Lookup], [], variant(Tagger, loss=lambda self, x, target_ids: None), "`loss` asks for 'target_ids'"),
    ([Lookup], [], variant(Parser, decide=lambda self, x, head: None), "`decide` asks for 'head'"),
    ([Lookup], [variant(Mean, forward=lambda self, *inputs: None)], Tagger, "'*inputs' has no names"),
    ([Lookup], [variant(Mean, forward=lambda self, x, *, scale=1.0: None)], Tagger, "only `decide` has options"),
    ([Lookup], [], variant(Tagger, decide=lambda self, x, *, beams=3: None), "'beams' has no type"),
    ([Lookup], [Mean], Writer, "asks for 'target_vocabulary', and there is none"),
    ([Lookup], [TAKES_SOURCES], Tagger, "only a head may be built from all sources"),
    ([], [variant(FromIds, returns=("state",))], Tagger, "asks for 'dim', and there is no x yet"),
    ([Lookup], [RETURNS_TEXT], Tagger, "its `returns` must be a tuple of names such as ('x', 'state'), not 'x'"),
    ([Lookup], [WINDOWED, Mean], TAKES_WINDOW, "`decide` asks for 'window', which nothing provides"),
    ([Lookup], [Mean, PASSES_WINDOW], TAKES_WINDOW, "`decide` asks for 'window', which nothing provides"),
    ([variant(Chars, features=["chars"])], [], Tagger, "must be a dict from names to features, not list"),
    ([NUMBER_AS_FEATURE], [], Tagger, "its feature 'chars' must be one such as seqpipe.plugin.Chars(), not 20"),
    ([SHADOWING], [], Tagger, "feature 'mask' has a name that seqpipe itself provides"),
    (
        [Lookup],
        [variant(Mean, returns=("x", "mask"))],
        Tagger,
        "(encoder.0, line 7) replaces the words with other rows",
    ),
    ([Lookup], [variant(Mean, context="same")], Tagger, "gives all words of a text one vector"),
    ([Lookup], [Mean], IGNORES_X, "head 'variant' reads none of what it returns (x, state); delete it"),
]


@pytest.mark.parametrize(("embedding", "encoder", "head", "message"), MISFITS)
def test_a_signature_that_does_not_fit_is_a_problem(embedding: list, encoder: list, head: type, message: str) -> None:
    assert message in messages(embedding, encoder, head)[0]


def test_a_missing_name_is_reported_with_the_names_that_there_are() -> None:
    (first, second) = messages([Lookup], [Lost], Tagger)
    message = "encoder.0: encoder 'lost' of toys: `forward` asks for 'masks', which nothing provides"
    assert first == f"{message}; did you mean 'mask'? (there is: ids, mask, x)"
    assert "'tags', which nothing provides here; targets are passed to `loss`" in second


def test_a_head_of_text_has_the_target_vocabulary_and_no_labels() -> None:
    scores_ids = variant(Writer, score=lambda self, x, target_ids: None)
    takes_labels = variant(Writer, __init__=lambda self, dim, labels, target_vocabulary: None)
    for encoder, head, message in (
        ([Mean], scores_ids, "`score` asks for 'target_ids'"),
        ([Mean], takes_labels, "asks for 'labels', and the answer of the head has none"),
        ([], Tagger, "takes no target vocabulary; delete `target_tokenizer`"),
    ):
        assert message in messages([Lookup], encoder, head, target_tokenizer="same")[0]


def test_a_stage_without_its_methods_is_a_problem() -> None:
    class Nothing:
        def __init__(self, dim): ...

    def _forward_unimplemented(self, *inputs): ...  # torch.nn.Module has it in the place of forward

    for cls in (Nothing, type("Module", (), {"forward": _forward_unimplemented})):
        assert "its class has no `forward`, which every encoder needs" in messages([Lookup], [cls], Tagger)[0]
    assert messages([Lookup], [], Nothing)[1:] == [
        f"head: head 'nothing' of toys: its class has no `{method}`, which every head needs"
        for method in ("decide", "loss")
    ]


def test_a_decode_option_may_have_any_name_but_those_that_stages_read() -> None:
    class Shadow(Tagger):
        def decide(self, x, *, mask: bool = True): ...

    class Fine(Tagger):
        def decide(self, x, *, beams: Size = 3): ...

    assert "decode option 'mask' has a name that seqpipe itself provides" in messages([Lookup], [], Shadow)[0]
    assert messages([Lookup], [], Fine) == []


def test_the_answer_kind_may_depend_on_the_options() -> None:
    assert task_class(component("head", Tagger, {"scheme": "none"})) is TagsTask
    assert task_class(component("head", Tagger, {"scheme": "BIOES"})) is SpansTask
    assert task_class(component("head", Writer)) is TextTask


def raises_key_error(options: Mapping[str, Any]) -> Any:
    raise KeyError("scheme")


def test_a_head_without_a_known_answer_kind_is_the_only_problem() -> None:
    raises = staticmethod(raises_key_error)
    answers = [(raises, "KeyError: 'scheme'"), (None, "its class has no `answer`"), (3, "`answer` is 3")]
    for answer, words in answers:
        (message,) = messages([Lookup], [], variant(Tagger, answer=answer))
        assert words in message
    with pytest.raises(PluginError, match="did you mean 'tags'"):
        task_class(component("head", Mute))


def test_the_settings_of_an_answer_kind_are_completed_and_unknown_ones_refused() -> None:
    plain = variant(Writer, answer="label")
    scoped = variant(plain, answer_settings={"out_of_scope": "none"})
    assert answer_settings(component("head", scoped)) == {"out_of_scope": "none"}
    assert answer_settings(component("head", plain)) == {"out_of_scope": None}
    for base, settings, message in (
        (plain, ["out_of_scope"], "its `answer_settings` must return a dict, not list"),
        (plain, {"outside": "none"}, "`answer_settings`: the answer kind 'label' has no setting 'outside'"),
        (plain, staticmethod(raises_key_error), "`answer_settings` raised KeyError: 'scheme'"),
        (
            *(Parser, {"fields": {"head": {"per": "line", "type": "position"}}}),
            "`answer_settings`: fields.head: 'line' and 'position': per is one of",
        ),
    ):
        odd = variant(base, answer_settings=settings)
        assert message in messages([Lookup], [], odd)[0]
        with pytest.raises(PluginError, match="`answer_settings`"):
            answer_settings(component("head", odd))


def test_metrics_are_those_of_the_answer_kinds_and_of_the_heads() -> None:
    own = variant(Writer, score_types={"distance": Metric(percent=False, more_is_better=False)})
    metrics = metric_types([component("head", own), component("head", Tagger, {"scheme": "none"})])
    assert metrics.keys() == {"loss", "mean", "exact", "distance", *TextTask.metrics, *TagsTask.metrics}
    assert not metrics["distance"].more_is_better
    assert not metrics["perplexity"].percent
    assert (metrics["loss"].percent, metrics["loss"].more_is_better) == (False, False)


def test_the_table_lists_who_provides_each_name_to_whom() -> None:
    source = replace(text([Lookup, Chars], []), encoder=(component("encoder", Mean),))
    table = names_table([source], [component("head", Tagger, {"scheme": "IOB2"})])
    rows = [line.split() for line in table.splitlines() if line]
    assert rows[0] == ["name", "shape", "dtype", "from", "used", "by"]
    assert ["ids", "(B,", "T)", "int64", "data", "embedding.0.forward"] in rows
    assert ["x", "(B,", "T,", "D)", "float32", "embedding.0", "+", "embedding.1", "encoder.forward"] in rows
    assert ["x", "(B,", "T,", "D)", "float32", "encoder", "head.decide,", "head.loss,", "head.score"] in rows
    assert ["tags", "(B,", "T)", "int64", "data", "(target", "of", "head)", "head.loss"] in rows
    assert ["tags", "(B,", "T)", "int64", "head.decide", "head.score"] in rows
    assert ["labels", "L", "text", "data", "(target", "of", "head)", "head()"] in rows
    assert [row[0] for row in rows].count("dim") == 2
    assert max(map(len, table.splitlines())) <= 120


def test_a_member_that_is_nearly_a_required_one_is_a_problem_and_an_optional_one_is_not() -> None:
    misspelt = variant(Mean, explians={"attention": "words"}, _retruns=("x",))
    assert misspelt_members(misspelt, "encoder") == [("explians", "explains")]
    assert messages([Lookup], [misspelt], Tagger) == []
    method = lambda self, x: None  # noqa: E731
    decides = variant(object, answer="label", los=method, decied=method, need_dev=None)
    assert misspelt_members(decides, "head") == [("decied", "decide"), ("los", "loss"), ("need_dev", "needs_dev")]
    assert [line.partition("toys: ")[2] for line in messages([Lookup], [], decides) if "not read" in line] == [
        "its member 'decied' is not read; did you mean 'decide'?",
        "its member 'los' is not read; did you mean 'loss'?",
    ]


def test_a_method_may_have_another_form_of_a_members_word_as_its_name() -> None:
    method = lambda self: None  # noqa: E731
    forms = {"measure": method, "scores": method, "decided": method, "margins": staticmethod(method)}
    head = variant(Tagger, feature={}, steps=property(method), **forms)
    assert misspelt_members(head, "head") == [("feature", "features")]
    encoder = variant(Mean, dims=method, steps=method, returned=method, explained=method)
    assert misspelt_members(encoder, "encoder") == []


def test_a_stage_may_state_the_shapes_of_its_outputs() -> None:
    gated = variant(Mean, returns={"x": "", "gate": "(B, T, G) float32"})
    reads = variant(Tagger, decide=lambda self, x, mask, gate: None)
    stages = [text([Lookup], [gated])], [component("head", reads, {"scheme": "IOB2"})]
    assert problems(*stages) == []
    (row,) = [line for line in names_table(*stages).splitlines() if line.startswith("gate")]
    assert row.split(maxsplit=1)[1].startswith("(B, T, G)  float32    encoder.0")
