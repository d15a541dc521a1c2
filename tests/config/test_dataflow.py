"""A name that nothing provides is a problem of the YAML, and the table of names says who gives what to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from bad_yamls import Chars, FromIds, Lookup, Lost, Mean, Mute, Tagger, Writer

import seqpipe.plugin
from seqpipe.answers.tagging import SpansTask, TagsTask
from seqpipe.answers.text import TextTask
from seqpipe.config.contract import Component, Input, answer_settings, head_task, metric_types, misspelt_members
from seqpipe.config.dataflow import explain, problems
from seqpipe.config.plugins import Offer
from seqpipe.errors import PluginError
from seqpipe.plugin import Metric
from seqpipe.types import Size


def component(
    kind: str, cls: type, options: Mapping[str, Any] | None = None, number: int | None = None, **frame: Any
) -> Component:
    use = cls.__name__.lower()
    key = kind if number is None else f"{kind}.{number}"
    return Component(kind, use, options or {}, frame, Offer(kind, use, "toys", "1.0", cls), cls, "f.yaml", 7, 3, key)


def text(embedding: list[type], encoder: list[type]) -> Input:
    """The only source, a text."""
    embeddings = tuple(component("embedding", cls, number=i) for i, cls in enumerate(embedding))
    encoders = tuple(component("encoder", cls, number=i) for i, cls in enumerate(encoder))
    return Input("", None, component("tokenizer", object), embeddings, encoders)


def messages(
    embedding: list[type], encoder: list[type], head: type, options: Mapping[str, Any] | None = None, **frame: Any
) -> list[str]:
    all_problems = problems(
        [text(embedding, encoder)], [component("head", head, options or {"scheme": "IOB2"}, **frame)]
    )
    assert all((p.file, p.line, p.column) == ("f.yaml", 7, 3) for p in all_problems)
    return [f"{p.key}: {p.message}" for p in all_problems]


def test_stages_that_fit_have_no_problem() -> None:
    assert messages([Lookup, Chars], [Mean, Mean], Tagger) == []
    assert messages([], [FromIds, Mean], Tagger) == []
    assert messages([Lookup], [], Tagger) == []
    assert messages([Lookup], [Mean], Writer, target_tokenizer="same") == []


def test_what_a_stage_lacks_is_told_with_what_there_is() -> None:
    (first, second) = messages([Lookup], [Lost], Tagger)
    message = "encoder.0: encoder 'lost' of toys: `forward` asks for 'masks', which nothing provides"
    assert first == f"{message}; did you mean 'mask'? (there is: ids, mask, x)"
    assert "'tags', which nothing provides here; targets are passed to `loss`" in second


def test_what_a_later_stage_returns_is_not_there_for_an_earlier_one() -> None:
    class Wants:
        def __init__(self, dim): ...

        def forward(self, x, state): ...

    assert messages([Lookup], [Mean, Wants], Tagger) == []
    assert len(messages([Lookup], [Wants, Mean], Tagger)) == 1


def test_an_embedding_sees_features_and_not_x() -> None:
    class Wants:
        def __init__(self): ...

        def forward(self, ids, x): ...

    assert "asks for 'x'" in messages([Lookup, Wants], [], Tagger)[0]


def test_a_feature_is_there_for_every_stage_once_one_declares_it() -> None:
    class Wants:
        def __init__(self, dim): ...

        def forward(self, chars): ...

    assert messages([Lookup, Chars], [Wants], Tagger) == []
    assert "asks for 'chars'" in messages([Lookup], [Wants], Tagger)[0]


def test_targets_are_for_loss_and_decisions_for_score() -> None:
    class Peeks(Tagger):
        def decide(self, x, mask, tags): ...

    class Wrong(Tagger):
        def score(self, x, tokens): ...

    class Right(Tagger):
        def score(self, x, tags, scores, paths): ...

    class Writes(Tagger):
        def loss(self, x, target_ids): ...

    class Cheats(Writer):
        def score(self, x, target_ids): ...

    assert "`score` asks for 'target_ids'" in messages([Lookup], [Mean], Cheats, target_tokenizer="same")[0]
    assert "`decide` asks for 'tags'" in messages([Lookup], [], Peeks)[0]
    assert "`score` asks for 'tokens'" in messages([Lookup], [], Wrong)[0]
    assert messages([Lookup], [], Right) == []
    assert "`loss` asks for 'target_ids'" in messages([Lookup], [], Writes)[0]


def test_a_stage_without_its_methods_is_told() -> None:
    class Nothing:
        def __init__(self, dim): ...

    def _forward_unimplemented(self, *inputs): ...  # what torch.nn.Module has in the place of forward

    class Module:
        forward = _forward_unimplemented

    for cls in (Nothing, Module):
        assert "its class has no `forward`, which every encoder needs" in messages([Lookup], [cls], Tagger)[0]
    assert messages([Lookup], [], Nothing)[1:] == [
        f"head: head 'nothing' of toys: its class has no `{method}`, which every head needs"
        for method in ("decide", "loss")
    ]


def test_a_score_is_not_asked_for() -> None:
    class Silent:
        answer = "tags"

        def __init__(self, dim, labels): ...

        def loss(self, x, tags): ...

        def decide(self, x): ...

    assert messages([Lookup], [], Silent) == []


def test_methods_that_take_anything_or_options_in_the_wrong_place_are_told() -> None:
    class Vague:
        def __init__(self, dim): ...

        def forward(self, *inputs): ...

    class Optional:
        def __init__(self, dim): ...

        def forward(self, x, *, scale: float = 1.0): ...

    assert "'*inputs' has no names" in messages([Lookup], [Vague], Tagger)[0]
    assert "only `decide` has options" in messages([Lookup], [Optional], Tagger)[0]


def test_a_decode_option_is_checked_and_cannot_shadow_a_name() -> None:
    class Shadow(Tagger):
        def decide(self, x, *, mask: bool = True): ...

    class Untyped(Tagger):
        def decide(self, x, *, beams=3): ...

    class Fine(Tagger):
        def decide(self, x, *, beams: Size = 3): ...

    assert "decode option 'mask' has a name that seqpipe itself provides" in messages([Lookup], [], Shadow)[0]
    assert "'beams' has no type" in messages([Lookup], [], Untyped)[0]
    assert messages([Lookup], [], Fine) == []


def test_constructors_get_what_there_is() -> None:
    class Sources:
        def __init__(self, sources): ...

        def forward(self, ids): ...

    class Labels(Writer):
        def __init__(self, dim, labels, target_vocabulary): ...

    assert "only a head may be built from all sources" in messages([Lookup], [Sources], Tagger)[0]
    assert (
        "asks for 'labels', and the answer of the head has none"
        in messages([Lookup], [Mean], Labels, target_tokenizer="same")[0]
    )
    assert "asks for 'target_vocabulary', and there is none" in messages([Lookup], [Mean], Writer)[0]
    assert (
        "takes no target vocabulary; delete `target_tokenizer`"
        in messages([Lookup], [], Tagger, target_tokenizer="same")[0]
    )


def test_one_feature_name_means_one_feature() -> None:
    class Long(Chars):
        features: ClassVar = {"chars": seqpipe.plugin.Chars(longest=99)}

    class Same(Chars): ...

    class Own(Chars):
        features: ClassVar = {"mask": seqpipe.plugin.Pieces(), "chars": seqpipe.plugin.Chars(longest=20)}

    class List(Chars):
        features: ClassVar = ["chars"]

    class Number(Chars):
        features: ClassVar = {"chars": 20}

    assert messages([Chars, Same], [], Tagger) == []
    (message,) = messages([Chars, Long], [], Tagger)
    here, there = (f"Chars(longest={longest}, alphabet='', normalize=None)" for longest in (99, 20))
    assert f"feature 'chars' is {here} here and {there} in" in message
    assert "embedding.0 ('chars')" in message
    assert "feature 'mask' has a name that seqpipe itself provides" in messages([Own], [], Tagger)[0]
    assert "must be a dict from names to features, not list" in messages([List], [], Tagger)[0]
    assert "its feature 'chars' must be one such as seqpipe.plugin.Chars(), not 20" in messages([Number], [], Tagger)[0]


def test_returns_is_a_tuple_of_names() -> None:
    class Word(Mean):
        returns = "x"

    assert (
        "its `returns` must be a tuple of names such as ('x', 'state'), not 'x'"
        in messages([Lookup], [Word], Tagger)[0]
    )


def test_an_encoder_that_returns_no_x_leaves_the_one_before() -> None:
    class StateOnly(Mean):
        returns = ("state",)

    class Alone(FromIds):
        returns = ("state",)

    assert messages([Lookup], [StateOnly], Tagger) == []
    assert "asks for 'dim', and there is no x yet" in messages([], [Alone], Tagger)[0]


def test_what_is_known_of_windows_goes_with_the_x_that_came_of_them() -> None:
    class Windowed(Mean):
        returns = ("x", "window", "other_x")

    class Passing(Mean):
        returns = ("x", "mask", "window")

        def forward(self, x, mask, window=None): ...

    class Asks(Tagger):
        def decide(self, x, mask, window): ...

    (lacks,) = messages([Lookup], [Windowed, Mean], Asks)
    assert "`decide` asks for 'window', which nothing provides" in lacks
    assert messages([Lookup], [Windowed, Passing], Asks) == []
    (lacks,) = messages([Lookup], [Mean, Passing], Asks)  # it passes on only what it was given
    assert "`decide` asks for 'window', which nothing provides" in lacks


def test_the_answer_kind_may_depend_on_the_options() -> None:
    assert head_task(component("head", Tagger, {"scheme": "none"})) is TagsTask
    assert head_task(component("head", Tagger, {"scheme": "BIOES"})) is SpansTask
    assert head_task(component("head", Writer)) is TextTask


def test_a_head_that_cannot_tell_its_answer_is_told_and_nothing_follows_from_it() -> None:
    class Raises(Tagger):
        @staticmethod
        def answer(options: Mapping[str, Any]) -> str:
            raise KeyError("scheme")

    class Silent(Tagger):
        answer = None

    class Number(Tagger):
        answer = 3

    for cls, words in (
        (Raises, "KeyError: 'scheme'"),
        (Silent, "its class has no `answer`"),
        (Number, "`answer` is 3"),
    ):
        (only,) = messages([Lookup], [], cls)
        assert words in only
    with pytest.raises(PluginError, match="did you mean 'tags'"):
        head_task(component("head", Mute))


def test_the_settings_of_an_answer_kind_are_completed_and_those_it_does_not_know_refused() -> None:
    class Scoped(Writer):
        answer = "label"
        answer_settings: ClassVar[Any] = {"out_of_scope": "none"}

    class Plain(Writer):
        answer = "label"

    assert answer_settings(component("head", Scoped)) == {"out_of_scope": "none"}
    assert answer_settings(component("head", Plain)) == {"out_of_scope": None}
    for settings, message in (
        (["out_of_scope"], "its `answer_settings` must return a dict, not list"),
        ({"outside": "none"}, "`answer_settings`: the answer kind 'label' has no setting 'outside'"),
        (staticmethod(lambda options: options["x"]), "`answer_settings` raised KeyError: 'x'"),
    ):
        odd = type("Odd", (Plain,), {"answer_settings": settings})
        assert message in messages([Lookup], [], odd)[0]
        with pytest.raises(PluginError, match="`answer_settings`"):
            answer_settings(component("head", odd))


def test_fields_of_a_structured_answer_are_given_to_loss_and_score() -> None:
    class Parser:
        answer = "structured"
        answer_settings: ClassVar = {"fields": {"head": {"per": "word", "type": "position"}}}

        def __init__(self, dim, labels): ...

        def loss(self, x, mask, head): ...

        def decide(self, x, mask): ...

        def score(self, x, head): ...

    class Peeks(Parser):
        def decide(self, x, head): ...

    class Odd(Parser):
        answer_settings: ClassVar = {"fields": {"head": {"per": "line", "type": "position"}}}

    assert messages([Lookup], [], Parser) == []
    assert "`decide` asks for 'head'" in messages([Lookup], [], Peeks)[0]
    assert "`answer_settings`: fields.head: 'line' and 'position': per is one of" in messages([Lookup], [], Odd)[0]


def test_scores_are_read_as_the_kinds_and_the_heads_state() -> None:
    class Own(Writer):
        score_types: ClassVar = {"distance": Metric(percent=False, more_is_better=False)}

    metrics = metric_types([component("head", Own), component("head", Tagger, {"scheme": "none"})])
    assert metrics.keys() == {"loss", "mean", "exact", "distance", *TextTask.metrics, *TagsTask.metrics}
    assert not metrics["distance"].more_is_better
    assert not metrics["perplexity"].percent
    assert (metrics["loss"].percent, metrics["loss"].more_is_better) == (False, False)


def test_the_table_says_who_gives_what_to_whom() -> None:
    table = explain(
        [replace(text([Lookup, Chars], []), encoder=(component("encoder", Mean),))],
        [component("head", Tagger, {"scheme": "IOB2"})],
    )
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


def test_a_member_that_is_nearly_a_required_one_is_a_problem_and_an_optional_one_is_none() -> None:
    class Misspelt(Mean):
        explians: ClassVar = {"attention": "words"}
        _retruns = ("x",)

    class Decides:
        answer = "label"

        def los(self, x, labels): ...

        def decied(self, x): ...

        need_dev = None

    assert misspelt_members(Misspelt, "encoder") == [("explians", "explains")]
    assert messages([Lookup], [Misspelt], Tagger) == []
    assert misspelt_members(Decides, "head") == [("decied", "decide"), ("los", "loss"), ("need_dev", "needs_dev")]
    assert [line.partition("toys: ")[2] for line in messages([Lookup], [], Decides) if "not read" in line] == [
        "its member 'decied' is not read; did you mean 'decide'?",
        "its member 'los' is not read; did you mean 'loss'?",
    ]


def test_a_method_of_its_own_may_be_another_form_of_a_member_s_word() -> None:
    class Own(Tagger):
        feature: ClassVar = {}

        def measure(self): ...

        def scores(self): ...

        def decided(self): ...

        @staticmethod
        def margins(): ...

        @property
        def steps(self): ...

    class Encoder(Mean):
        def dims(self): ...

        def steps(self): ...

        def returned(self): ...

        def explained(self): ...

    assert misspelt_members(Own, "head") == [("feature", "features")]
    assert misspelt_members(Encoder, "encoder") == []


def test_a_stage_may_state_the_shapes_of_what_it_returns() -> None:
    class Gated(Mean):
        returns: ClassVar = {"x": "", "gate": "(B, T, G) float32"}

    class Reads(Tagger):
        def decide(self, x, mask, gate): ...

    stages = [text([Lookup], [Gated])], [component("head", Reads, {"scheme": "IOB2"})]
    assert problems(*stages) == []
    (row,) = [line for line in explain(*stages).splitlines() if line.startswith("gate")]
    assert row.split(maxsplit=1)[1].startswith("(B, T, G)  float32    encoder.0")
