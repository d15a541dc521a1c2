"""Explanations show the weights as they were computed: over the text as given, without PyTorch, whole or not at all.

The toys' weights a person can check by eye: `Rising` looks at the n-th of N places with n / (1 + … + N), `Joined` at
each word of a sentence alike.
"""

import base64
import contextlib
import datetime
import html
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from doc_pages import ROOT
from gallery import gallery
from PIL import Image
from tiny_pipelines import QUIET, build_parts, fail_with, plugins, seqpipe, toy_heads, write_classifier
from torch import Tensor, nn
from toy_bundles import changed_bundle, manifest_content

from seqpipe import Model, load, show
from seqpipe.answers.classification import Label
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.registry import MultiHead
from seqpipe.answers.tagging import Spans
from seqpipe.answers.types import Attended
from seqpipe.config.checks import attended
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import BundleError, ConfigError, DataError, ParityError, PluginError, UsageError
from seqpipe.explain.html import draw, draw_answer, draw_spans, page
from seqpipe.explain.views import views
from seqpipe.export.exporter import export_bundle
from seqpipe.features.document import Doc, join_pair
from seqpipe.plugin import Sentences
from seqpipe.runtime.explanation import Explanation, Figure, Origin, WordWeights, attention
from seqpipe.training.datasets import load_records
from seqpipe.training.evaluation import TrainedPipeline

TEXT = 'Good <b>food</b> & "wine".\n\nBad service\ud800!'
TOKENS = ((0, 4), (5, 8), (8, 12), (12, 16), (17, 18), (19, 25), (25, 26), (28, 31), (32, 40), (40, 41))
WEIGHTS = np.array([0.1, 0, 0.25, 0, 0.05, 0.1, 0, 0.4, 0.1, 0], np.float32)
SENTENCES = ((0, 26), (28, 41))


def explanation(text: str = TEXT, **changes: Any) -> Explanation:
    content = {
        "text": text,
        "answer": {"label": "<mixed>", "score": 0.75},
        "answer_lines": ["<mixed> (0.7500)"],
        "attentions": (WordWeights("encoder.0.word_attention", "words", TOKENS, WEIGHTS),),
    }
    return Explanation(**{**content, **changes})


DOCUMENT = explanation(
    attentions=(
        WordWeights("encoder.0.word_attention", "words", TOKENS, WEIGHTS),
        WordWeights("head.attention", "sentences", SENTENCES, np.array([0.36, 0.64], np.float32)),
    )
)


class Page(HTMLParser):
    """Content of a page: tags with their attributes, texts of the input, marks with their titles, and headings."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(source)
        texts = re.findall('<p class="text"[^>]*>(.*?)</p>', source, re.DOTALL)
        self.paragraphs = [text_of(re.sub(r"<(bdi|span)[^>]*>.*?</\1>", "", text)) for text in texts]
        marks = re.findall("<mark([^>]*)>(.*?)</mark>", source, re.DOTALL)
        self.marks = [(text_of(text), "".join(re.findall('title="(.*?)"', tag))) for tag, text in marks]
        self.headings = [text_of(heading) for heading in re.findall("<h[12][^>]*>(.*?)</h[12]>", source)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def text_of(source: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", source))


# HTML


def test_a_page_shows_the_text_as_it_is_and_each_weight_in_three_digits() -> None:
    seen = Page(page(explanation()))
    assert "".join(seen.paragraphs) == TEXT.replace("\ud800", "\ufffd")
    assert seen.marks[:3] == [("Good", "0.100"), ("<b>", "0.000"), ("food", "0.250")]
    assert [float(weight) for _, weight in seen.marks] == pytest.approx(WEIGHTS.tolist())
    pieces = WordWeights("a", "words", ((0, 1), (0, 1), (0, 1), (1, 2)), np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    assert Page(page(explanation("播b", attentions=(pieces,)))).marks == [("播", "0.600"), ("b", "0.400")]


def test_a_page_needs_nothing_else_and_runs_nothing() -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    words = WordWeights(hostile, "words", ((0, len(hostile)),), np.ones(1, "f4"))
    pairs = WordWeights(hostile, "pairs", ((0, 8), (8, len(hostile))), np.full((2, 2, 2), 0.5, "f4"))
    source = page(explanation(hostile, answer={"label": hostile, "score": 1.0}, attentions=(words, pairs)))
    tags = Page(source).tags
    known = "html head meta title style body header main footer h1 section h2 p span div dl dt dd mark svg rect path "
    known += "table thead tbody tr th td bdi details summary"
    assert {tag for tag, _ in tags} <= {*known.split()}
    assert not any(name in ("src", "href") or name.startswith("on") for _, attributes in tags for name in attributes)
    assert "http" not in source.replace("http-equiv", "")
    assert "default-src 'none'" in source


def places(grid: tuple[int, int] | None) -> WordWeights:
    """The attention of two written tokens to six places of four rows."""
    doc = Doc("0 1 2 3", [*"0123"], [(i, i + 1) for i in range(0, 8, 2)], [1] * 4)
    weights = np.array([[0, 0, 0, 0.1, 0.9, 0], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0] * 6], np.float32)
    return attention(Attended("head.attention", "written", "place_count", grid), doc, weights, None, ["a", "seven"])


def test_attention_to_places_is_drawn_on_the_picture() -> None:
    pixels = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6, 1) * 10
    to_places = places((2, 3))
    assert to_places.places == ((0, 3),) * 3 + ((4, 7),) * 3
    shown = explanation("0 1 2 3", attentions=(to_places,), picture=pixels)
    source = page(shown)
    images = [Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall('png;base64,([^"]+)', source)]
    assert len(images) == 3  # the input, and each word's copy
    assert all(np.array_equal(np.asarray(image), pixels[..., 0]) for image in images)
    (strongest,) = re.findall(r'<rect x="(\S+)" y="(\S+)" width="2" height="2" style="--weight:1.000">', source)
    assert strongest == ("2", "2")  # the second place of the second row
    assert re.findall("<figcaption><bdi>(.*?)</bdi>", source) == ["a", "seven"]
    lines = shown.table().splitlines()
    assert lines[-2:] == ["  0.9000  a      row 2, column 2", "  0.5000  seven  row 1, column 1"]
    assert shown.data()["attentions"]["head.attention"]["grid"] == [2, 3]
    with pytest.raises(BundleError, match=r"the shape \(1, 2, 6\), not \(1, 2, 10\)"):
        places((2, 5))
    along_time = places(None)
    assert (along_time.grid, along_time.places[:3]) == ((1, 6), ((0, 1), (0, 3), (2, 3)))
    shown = explanation("0 1 2 3", attentions=(along_time,), picture=np.zeros((5, 40, 1), np.uint8))
    assert "part 5 of 6" in shown.table()
    assert page(shown).count('class="map wide"') == 3


@pytest.mark.parametrize(("pipeline", "grid"), [("caption", (7, 4)), ("spoken-digits", None)])
def test_a_pipeline_of_pictures_or_sounds_states_its_places(pipeline: str, grid: Any) -> None:
    changes = ["inputs.image.encoder={use: lenet, filters: [8, 8]}", "inputs.image.embedding.width=15"] if grid else []
    config = load_config(ROOT / "pipelines" / f"{pipeline}.yaml", changes, files=False, runs=False)
    (stated,) = attended(config.inputs, config.head)["head"].values()
    assert (stated.over, stated.axis, stated.grid) == ("written", "place_count", grid)


def test_a_document_has_bars_of_sentences_and_words_shaded_by_weight_times_the_root_of_their_sentences() -> None:
    seen = Page(page(DOCUMENT))
    assert seen.paragraphs == ['Good <b>food</b> & "wine".\n\n', "Bad service\ufffd!"]
    bars = [attributes["style"] for tag, attributes in seen.tags if attributes.get("class") == "fill"]
    assert bars == ["width:75.0%", "width:56.3%", "width:100.0%"]  # the answer's score, and sentences by their greatest
    assert all(f'<span class="number">{number}</span>' in page(DOCUMENT) for number in ("0.750", "0.360", "0.640"))
    (view,) = views(DOCUMENT)
    shades = {piece.text: piece.shade for row in view.rows(TEXT) for piece in row.fragments if piece.weight is not None}
    greatest = 0.4 * 0.8  # Bad
    expected = [1, 0.25 * 0.6 / greatest, 0.1 * 0.6 / greatest]
    assert [shades[word] for word in ("Bad", "food", "Good")] == pytest.approx(expected)


def test_words_without_sentences_sentences_alone_and_further_attentions_are_shown() -> None:
    (view,) = views(explanation())
    (row,) = view.rows(TEXT)
    shades = {"Good": 0.25, "food": 0.625, "&": 0.125, '"wine"': 0.25, "Bad": 1, "service\ud800"[:8]: 0.25}
    assert {part.text: part.shade for part in row.fragments if part.shade} == pytest.approx(shades)
    words, sentences = DOCUMENT.attentions
    assert [(v.words, v.sentences) for v in views(explanation(attentions=(sentences,)))] == [(None, sentences)]
    several = explanation(attentions=(words, words, sentences, sentences))
    expected = [(words, sentences), (words, sentences), (None, sentences)]
    assert [(v.words, v.sentences) for v in views(several)] == expected
    seen = Page(page(explanation(attentions=(sentences,))))
    assert "".join(seen.paragraphs) == TEXT.replace("\ud800", "\ufffd")


def titles(shown: Explanation) -> list[str | None]:
    return [attributes["title"] for _, attributes in Page(page(shown)).tags if "title" in attributes]


def test_pairs_are_a_matrix_of_the_mean_and_one_of_each_head_as_far_as_a_browser_bears_it() -> None:
    weights = np.arange(8, dtype=np.float32).reshape(2, 2, 2) / 8
    pairs = WordWeights("encoder.0.attention", "pairs", ((0, 1), (2, 3)), weights)
    shown = titles(explanation("a b", attentions=(pairs,)))
    assert len(shown) == 3 * 4
    assert shown[:4] == ["a → a: 0.250", "a → b: 0.375", "b → a: 0.500", "b → b: 0.625"]
    assert shown[4:8] == ["a → a: 0.000", "a → b: 0.125", "b → a: 0.250", "b → b: 0.375"]
    places = tuple((i, i + 1) for i in range(300))
    many = WordWeights("a", "pairs", places, np.full((3, 300, 300), 1 / 300, np.float32))
    source = page(explanation("x" * 300, attentions=(many,)))
    assert "the first 100 of 300 are shown" in source
    assert source.count("<td class=") == 4 * 100 * 100


def test_generated_tokens_attend_to_the_text() -> None:
    doc = Doc("a b c", ["a", "b", "c"], [(0, 1), (2, 3), (4, 5)], [4, 5, 6])
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) / 12  # the last row is of the end, and nothing
    stated = Attended("head.attention", "written", "sequence_length")
    written = attention(stated, doc, weights, None, ["X", "Y"])
    assert (written.weights.shape, np.array(written.data()["weights"]).shape) == ((1, 2, 3), (2, 3))
    assert written.data()["written"] == ["X", "Y"]
    shown = explanation(doc.text, attentions=(written,))
    expected = [f"{y} → {x}: {i / 12:.3f}" for i, (y, x) in enumerate(itertools.product("XY", "abc"))]
    assert titles(shown) == expected
    assert shown.table().endswith("head.attention, over written:\n  0.1667  X  c\n  0.4167  Y  c")
    with pytest.raises(BundleError, match=r"head\.attention has the shape"):
        attention(stated, doc, weights[:, :2], None, ["X", "Y"])


def test_an_empty_text_is_shown_with_its_answer_alone(tmp_path: Path) -> None:
    lines = Label(["a"]).lines({"label": None, "score": 0.0})
    empty = explanation("", answer={"label": None, "score": 0.0}, answer_lines=lines, attentions=())
    for name in ("a.html", "a.json"):
        draw(empty, tmp_path / name)
    source = (tmp_path / "a.html").read_text()
    assert '<p class="big" dir="auto">(nothing)</p>' in source
    assert "This text has no tokens" in source


def written_blanks() -> Explanation:
    """Letters and blanks of a text, at which the letters of its translation looked."""
    text, written = "in May 1999\tand\nlater " * 4, (*"1999-05 ", " ", "\n")
    places = tuple((i, i + 1) for i in range(len(text)))
    weights = np.tile(np.eye(len(written), len(text), dtype="f4"), (1, 1, 1))
    attentions = (WordWeights("head.attention", "written", places, weights, written),)
    return explanation(text, answer_lines=["1999-05 (0.8020)"], attentions=attentions)


def test_a_page_has_the_answer_then_the_input_then_sections_in_plain_words() -> None:
    source = page(written_blanks(), {"Model": "dates <1>"})
    seen = Page(source)
    section = "Input tokens that each answer token attends to"
    assert seen.headings == ["Explanation of an answer", "Answer", "Input", section]
    assert seen.paragraphs == [written_blanks().text]
    assert [tag for tag, _ in seen.tags if tag in ("header", "main", "footer")] == ["header", "main", "footer"]
    assert dict(seen.tags)["html"] == {"lang": "en"}
    assert "<dt>Model</dt><dd>dates &lt;1&gt;</dd>" in source
    assert f"<dt>Date</dt><dd>{datetime.date.today().year}-" in source
    assert source.count('class="scale"') == 1  # the legend of the colours
    assert Page(page(DOCUMENT)).headings[1:] == ["Answer", "Weight of each word and each sentence of the input"]


def test_blanks_have_a_mark_in_labels_and_letters_stand_upright() -> None:
    source = page(written_blanks())
    assert re.findall(r'<th scope="col">(?:<bdi>)(.*?)</bdi>', source)[:16] == [*"in␣May␣1999⇥and↵"]
    assert 'class="turned"' not in source.partition("</style>")[2]
    assert re.findall(r'<th scope="row"><bdi>(.*?)</bdi>', source) == [*"1999-05␣␣↵"]
    assert "  1.0000  ␣  5" not in written_blanks().table()
    assert "  1.0000  ␣  9" in written_blanks().table()
    words = WordWeights("a", "pairs", ((0, 2), (3, 6)), np.full((1, 2, 2), 0.5, "f4"))
    columns = re.findall(r"<th scope=\"col\"( class=\"turned\")?>", page(explanation("in May", attentions=(words,))))
    assert columns == ["", ' class="turned"']


@contextlib.contextmanager
def chromium() -> Iterator[tuple[Any, Any]]:
    """A browser, and the checker of accessibility."""
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    path = shutil.which("chromium")
    with (
        sync_playwright() as playwright,
        contextlib.closing(playwright.chromium.launch(executable_path=path)) as browser,
    ):
        yield browser, axe


@pytest.mark.chromium
def test_a_page_is_accessible_and_needs_no_scrolling_to_the_side() -> None:
    pairs = WordWeights("encoder.attention", "pairs", TOKENS, np.full((2, 10, 10), 0.1, "f4") + np.eye(10, dtype="f4"))
    importance = WordWeights("<mixed>", "words", TOKENS, WEIGHTS - 0.2, None, "<mixed>", "number")
    copied = {"head.generating": (Origin("food", 0.1, (8, 12)), Origin("new", 0.9, None))}
    points = Figure(((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)), (0, 1, 2, 0), "polygon")
    pages = [DOCUMENT, written_blanks(), explanation("", figure=points), explanation(attentions=(importance,))]
    pages.append(explanation(attentions=(pairs,), copied=copied))
    with chromium() as (browser, axe):
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            requests: list[str] = []
            tab.on("request", lambda request, seen=requests: seen.append(request.url))
            for shown in pages:
                tab.set_content(page(shown))
                tab.locator("details").evaluate_all("list => list.forEach(part => { part.open = true; })")
                assert tab.evaluate("document.documentElement.scrollWidth") == width
                report = axe.run(tab)
                assert report.violations_count == 0, report.generate_report()
            assert requests == []
            tab.set_content(page(written_blanks()))
            assert tab.locator(".scrolls").evaluate("map => map.scrollWidth > map.clientWidth")
            tab.close()


# Answers on their texts


def words(text: str) -> Doc:
    places = [match.span() for match in re.finditer(r"\S+", text)]
    return Doc(text, text.split(), places, [5] * len(places))


def test_spans_stand_in_the_text_with_their_labels_and_nothing_of_it_is_markup(tiny: Model) -> None:
    texts = ["Anna calls <b>Ben</b> & 'me' in New York.\nho\ud800", "nobody calls"]
    drawing = show(tiny, texts)
    shown = drawing._repr_html_()
    assert Page(shown).paragraphs == [texts[0].replace("\ud800", "\ufffd"), texts[1]]
    assert [text for text, _ in Page(shown).marks] == ["Anna", "Ben", "New York"]
    answer = tiny(texts[0])
    chips = re.findall('<bdi class="chip"[^>]*>([^<]*)<span class="number">([0-9.]+)<', shown)
    assert chips == [(span["entity_group"], f"{span['score']:.2f}") for span in answer]
    lines = [line.strip() for line in repr(drawing).splitlines()]
    assert [f"{span['word']}: {span['entity_group']} ({span['score']:.4f})" for span in answer] == lines[2:-2]
    assert lines[-1] == "(nothing)"
    hues = dict(re.findall('--hue:([0-9]+)">(person|city)', shown))
    assert len(hues) == len({*hues.values()}) == 2


def test_nested_and_overlapping_spans_have_a_stripe_each_and_every_character_once() -> None:
    spans = [(0, 8, "A<"), (2, 4, "B"), (6, 10, "B"), (8, 10, "C")]
    text = "01<3456789!"
    shown = draw_spans(text, [{"start": a, "end": b, "label": label} for a, b, label in spans], ["A<", "B", "C"])
    assert Page(shown).paragraphs == [text]
    assert re.findall('class="chip"[^>]*>([^<]*)</bdi>', shown) == ["B", "A&lt;", "C", "B"]
    fragments = re.findall("<mark[^>]*background-position:([^;]*);[^>]*>([^<]*)</mark>", shown)
    levels = [[int(place) // 5 for place in re.findall("- ([0-9]+)px", places)] for places, _ in fragments]
    assert [html.unescape(text) for _, text in fragments] == ["01", "<3", "45", "67", "89"]
    assert levels == [[0], [0, 1], [0], [0, 1], [1, 0]]


def test_tags_are_spans_alternatives_lines_and_a_continuation_is_marked(tiny_tagger: Model, tiny: Model) -> None:
    shown = show(tiny_tagger, "Anna in Bern")._repr_html_()
    assert re.findall('class="chip"[^>]*>([^<]*)<', shown) == [word["entity"] for word in tiny_tagger("Anna in Bern")]
    alternatives = [{"spans": tiny("Anna in Bern"), "score": 0.75}, {"spans": [], "score": 0.25}]
    several = draw_answer(tiny.predictor.kind, alternatives, words("Anna in Bern"))
    assert re.findall('class="number">([0-9.]+)', several) == ["0.750", "0.250"]
    assert "Anna: person" in several
    writer = load(gallery("generation").bundle, "cpu", threads=1)
    text = writer("a g", max_length=5)["generated_text"].removeprefix("a g")
    shown = show(writer, "a g", max_length=5)._repr_html_()
    assert re.findall('dir="auto">a g<mark class="new">([^<]+)</mark>', shown) == [text]


def test_labels_have_bars_of_their_probabilities_and_weights_are_those_of_the_page(looking: Model) -> None:
    shown = show(looking, "a lovely day")._repr_html_()
    for part in looking("a lovely day", n_best="all"):
        assert f'<bdi class="name">{part["label"]}</bdi>' in shown
        assert f'style="width:{100 * float(format(part["score"], ".4f")):.1f}%"' in shown
    assert f"{looking('a lovely day')['score']:.3f}" in shown
    drawn = page(looking.explain("a lovely day"))
    assert Page(shown).marks == Page(drawn).marks != []
    assert show(looking, "a lovely day", n_best=1)._repr_html_().count('class="name"') == 0
    with pytest.raises(UsageError, match="did you mean 'n_best'"):
        show(looking, "a lovely day", n_bset=1)


def test_each_of_several_heads_and_the_second_of_two_texts_has_its_drawing() -> None:
    kind = MultiHead({"mood": Label(["bad", "good"]), "names": Spans(["B-PER", "O"])})
    names = [{"entity_group": "PER", "word": "Ada", "start": 0, "end": 3, "score": 0.5}]
    shown = draw_answer(kind, {"mood": {"label": "good", "score": 0.75}, "names": names}, words("Ada left"))
    assert re.findall("<h3>(.*?)</h3>", shown) == ["mood", "names"]
    assert '<p class="big" dir="auto">good</p>' in shown
    assert re.findall("<mark[^>]*>(.*?)</mark>", shown) == ["Ada"]
    pair = join_pair(words("who left ?"), words("Ada left , Ben came"))
    drawn = Page(draw_answer(ExtractiveSpan(), {"answer": "Ada", "score": 0.5, "start": 0, "end": 3}, pair))
    assert (drawn.paragraphs, drawn.marks[0][0]) == (["Ada left , Ben came"], "Ada")
    nothing = draw_answer(ExtractiveSpan(), {"answer": "", "score": 0.5, "start": 0, "end": 0}, pair)
    assert ("(nothing)" in nothing, "<mark" in nothing) == (True, False)


@pytest.mark.chromium
def test_an_answer_has_the_theme_of_its_notebook_and_leaves_the_notebooks_style(tiny: Model) -> None:
    shown = show(tiny, ["Anna calls Ben in New York", "Bern"])._repr_html_()
    themes = (("true", "dark", "rgb(255, 255, 255)"), ("false", "light", "rgb(29, 32, 41)"))
    with chromium() as (browser, axe):
        for theme, scheme, background in themes:
            tab = browser.new_page(color_scheme=scheme)
            document = f"<html lang='en'><title>x</title><main><h1>Notebook</h1><mark>x</mark>{shown}</main>"
            tab.set_content(document)
            tab.evaluate(f"document.body.setAttribute('data-jp-theme-light', '{theme}')")
            color = "element => getComputedStyle(element).backgroundColor"
            assert tab.locator(".card").first.evaluate(color) == background
            assert tab.locator("mark").first.evaluate(color) == "rgb(255, 255, 0)"  # as the browser's
            report = axe.run(tab)
            assert report.violations_count == 0, report.generate_report()


# Files, JSON and the table


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a", "a.htm"])
def test_another_ending_is_refused_before_anything_is_opened_or_written(name: str, tmp_path: Path) -> None:
    message = r"a page \(\.html\) or data \(\.json\); write a\.html, which a browser"
    with pytest.raises(UsageError, match=message):
        draw(explanation(), tmp_path / name)
    done = seqpipe("explain", tmp_path / "none", "a text", "-o", tmp_path / name)
    assert (done.code, bool(re.search(message, done.err))) == (2, True)
    assert not list(tmp_path.iterdir())


def test_json_has_every_weight_and_the_table_the_greatest(tmp_path: Path) -> None:
    draw(DOCUMENT, tmp_path / "a.JSON")
    content = json.loads((tmp_path / "a.JSON").read_text())
    assert (content["text"], content["answer"]) == (TEXT, DOCUMENT.answer)
    words, sentences = content["attentions"].values()
    assert words["weights"] == pytest.approx(WEIGHTS.tolist())
    assert sentences == {"over": "sentences", "places": [[0, 26], [28, 41]], "weights": [0.36, 0.64]}
    lines = DOCUMENT.table().splitlines()
    assert lines[:4] == ["<mixed> (0.7500)", "", "encoder.0.word_attention, over words:", "  0.4000  Bad"]
    assert "  0.6400  Bad service\ud800!" in lines
    places = tuple((i, i + 1) for i in range(30))
    thirty = WordWeights("a", "words", places, np.eye(30, dtype="f4")[-1])
    assert explanation("x" * 30, attentions=(thirty,)).table().endswith("  … and 20 more")


# Where weights stand


def test_weights_find_their_places_by_the_axis_that_the_bundle_names_or_are_refused() -> None:
    tokens, offsets = ["play", "ing", "well", ".", "ok"], [(0, 4), (4, 7), (8, 12), (12, 13), (14, 16)]
    words = ((0, 7), (8, 12), (12, 13), (14, 16))
    doc = Doc("playing well. ok", tokens, offsets, [4] * 5, [0, 2, 3, 4], [*words])
    rows = np.array([[1, 2, 3, 4], [5, 0, 0, 0]])
    sentences = ((0, 13), (14, 16))
    for axis, places in (("sequence_length", (*offsets,)), ("word_count", words), ("sentence_count", sentences)):
        weights = np.zeros(len(places), "f4")
        assert attention(Attended("a", "words", axis), doc, weights, rows).places == places
    doc = Doc("a b", ["a", "b"], [(0, 1), (2, 3)], [4, 5])
    for over, shape in (("words", (3,)), ("words", (2, 2)), ("pairs", (2, 2)), ("pairs", (1, 2, 3))):
        with pytest.raises(BundleError, match=r"explain\.head\.a has the shape"):
            attention(Attended("head.a", over, "sequence_length"), doc, np.zeros(shape, "f4"), None)


# From a pipeline to a bundle


def rising(mask: Tensor) -> Tensor:  # (B, N) -> (B, N)
    places = torch.where(mask, mask.long().cumsum(1), 0).float()
    return places / places.sum(1, keepdim=True)


class Toy(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim


class Echo(Toy):
    """x as it is, and what it looked at."""

    returns: ClassVar = ("x", "attention")
    explains: ClassVar = {"attention": "words"}

    def __init__(self, dim: int, *, times: float = 1.0):
        super().__init__(dim)
        self.times = times

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"x": x, "attention": rising(mask) * self.times}


class Joined(Toy):
    """The mean of each sentence."""

    features: ClassVar = {"sentences": Sentences()}
    returns: ClassVar = ("x", "mask")
    explains: ClassVar = {"word_attention": "words"}

    def forward(self, x: Tensor, mask: Tensor, sentences: Tensor) -> dict[str, Tensor]:
        real = sentences > 0  # (B, S, W)
        index = (sentences - 1).clamp(min=0).flatten(1)[..., None].expand(-1, -1, x.shape[2])
        words = x.gather(1, index).unflatten(1, (sentences.shape[1], sentences.shape[2]))  # (B, S, W, D)
        count = real.sum(2, keepdim=True).clamp(min=1)
        means = torch.where(real[..., None], words, 0.0).sum(2) / count
        share = (real / count).flatten(1)
        room = x.new_zeros(x.shape[0], x.shape[1] + 1).scatter(1, sentences.flatten(1), share)
        return {"x": means, "mask": real.any(2), "word_attention": room[:, 1:]}


class Lost(Toy):
    """Every other place: nobody knows which."""

    returns: ClassVar = ("x", "mask")

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"x": x[:, ::2], "mask": mask[:, ::2]}


Mean: Any = toy_heads()["mean"][1]


def attending(weights: Callable[[Tensor], Tensor] = rising, stated: Any = {"attention": "words"}) -> type:  # noqa: B006
    """The toy head `mean` with these attention weights, which states the weights that it returns."""

    class Attending(Mean):
        explains: ClassVar = stated

        def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
            return {**super().decide(x, mask), "attention": weights(mask)}

    return Attending


def by_options(options: Mapping[str, Any]) -> dict[str, str]:
    return {"attention": "words"} if len(options["order"]) == 3 else {}


HEADS = {
    "mean": Mean,
    "rising": attending(),
    "filled": attending(lambda mask: torch.where(mask, rising(mask), 0.5)),  # in the padding too
    "rough": attending(lambda mask: rising(mask) * (1.01 if torch.compiler.is_exporting() else 1.0)),
    "silent": attending(stated={"attention": "words", "coverage": "words"}),  # one more than it returns
    "odd": attending(stated={"attention": "letters"}),
    "choosing": attending(stated=staticmethod(by_options)),
}
TOYS = {"echo": Echo, "joined": Joined, "lost": Lost}


def config(folder: Path, **changes: Any) -> Config:
    toys = {name: ("head", toy) for name, toy in HEADS.items()} | {name: ("encoder", toy) for name, toy in TOYS.items()}
    head = {"use": changes.pop("use", "rising"), "order": changes.pop("order", ["bad", "fine", "good"])}
    path = write_classifier(folder, {"head": head, "export": {"explain": True}, **changes})
    return load_config(path, (), plugins(**toys))


def exported(folder: Path, **changes: Any) -> Model:
    toy = config(folder, **changes)
    records = load_records(toy.data.reader, toy.data.tests["test"])
    return export_bundle(TrainedPipeline(build_parts(toy)[0].eval(), toy), records, folder / "bundle", QUIET)


@pytest.fixture(scope="module")
def looking_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of two encoders that return the same name, and a head that does."""
    folder = tmp_path_factory.mktemp("looking")
    exported(folder, encoder=[{"use": "echo"}, {"use": "echo", "times": 0.5}])
    return folder / "bundle"


@pytest.fixture(scope="module")
def looking(looking_at: Path) -> Model:
    return load(looking_at, "cpu", threads=1)


def test_every_stages_weights_are_taken_where_they_are_made_and_an_ordinary_run_computes_none(looking: Model) -> None:
    explained = looking.explain("a lovely day")
    weights = {attention.name: attention.weights.tolist() for attention in explained.attentions}
    rising = [1 / 6, 2 / 6, 3 / 6]
    assert weights == {
        "encoder.0.attention": pytest.approx(rising),
        "encoder.1.attention": pytest.approx([w / 2 for w in rising]),
        "head.attention": pytest.approx(rising),
    }
    assert all(attention.places == ((0, 1), (2, 8), (9, 12)) for attention in explained.attentions)
    assert explained.answer == looking("a lovely day")
    featurizer = looking.predictor.featurizer
    feeds = featurizer.collate(featurizer.docs([{"text": "a sad x day"}]))
    decision, everything = looking.run(feeds), looking.graph.run_all(feeds)
    assert set(decision) == {"label", "scores"}
    assert set(everything) - set(decision) == {f"explain.{name}" for name in looking.manifest.explain}
    assert (decision["scores"] == everything["scores"]).all()


def test_without_explain_the_graph_has_no_weights_and_the_error_names_the_cure(tmp_path: Path) -> None:
    model = exported(tmp_path, encoder="echo", export={"explain": False})
    assert [output.name for output in model.session.get_outputs()] == ["label", "scores"]
    assert "explain" not in manifest_content(model.manifest)
    with pytest.raises(UsageError, match=r"export: \{explain: true\}.*seqpipe export RUN --set export\.explain=true"):
        model.explain("a day", method="attention")
    assert model.explain("a day").attentions[0].measure == "log-probability"


def test_words_and_empty_texts_and_long_ones_are_explained_as_they_are_predicted(looking: Model) -> None:
    explained = looking.explain({"words": ["a", "lovely day"], "text": "a  lovely day"})
    assert explained.attentions[0].places == ((0, 1), (3, 13))
    assert (looking.explain("").answer, looking.explain("").attentions) == ({"label": None, "score": 0.0}, ())
    with pytest.raises(DataError, match="exceed the limit of 1,000"):
        looking.explain("a " * 100_001)
    assert looking.explain("a", n_best=2).answer == looking("a", n_best=2)
    with pytest.raises(UsageError, match="no decode option 'beams'"):
        looking.explain("a", beams=2)


WRONG_WEIGHTS = [
    ("filled", ParityError, r"explain\.head\.attention is not 0 in the padding"),
    ("rough", ParityError, r"explain\.head\.attention differs by"),
    ("silent", PluginError, r"head: head 'silent' of toys: it returned no 'coverage'"),
]


@pytest.mark.parametrize(("use", "error", "message"), WRONG_WEIGHTS)
def test_weights_are_returned_as_stated_compared_with_pytorchs_and_0_in_the_padding(
    use: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        exported(tmp_path, use=use)
    assert not (tmp_path / "bundle").exists()


WITHOUT_WEIGHTS = [
    ({"use": "mean"}, r"export\.explain: no stage has attention weights; use one that has"),
    ({"use": "choosing", "order": ["bad", "good"]}, r"export\.explain: no stage has attention weights"),
    ({"use": "odd"}, r"head 'odd' of toys: `explains` must be a dict from names to one of words, sentences"),
    ({"encoder": "lost"}, r"an encoder before it replaces the tokens, so head\.attention has no place in the text"),
]


@pytest.mark.parametrize(("changes", "message"), WITHOUT_WEIGHTS)
def test_a_yaml_that_wants_explanations_of_stages_that_have_none_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"moods\.yaml:\d+:\d+: .*{message}"):
        config(tmp_path, **changes)
    assert config(tmp_path, encoder="lost", export={}).export.explain is False
    assert config(tmp_path, use="choosing").export.explain is True


MISSTATED = [
    ({}, r"disagree about explain\.encoder"),
    (
        {"head.attention": {"over": "letters", "axis": "sequence_length"}},
        r"explain\.head\.attention: weights over 'letters' cannot have the axis 'sequence_length'",
    ),
    ({"head.attention": {"over": "words"}}, r"explain\.head\.attention: must be .* it lacks `axis`"),
    ([], r"explain: must be an object"),
]


@pytest.mark.parametrize(("change", "message"), MISSTATED)
def test_a_bundle_that_misstates_its_weights_is_refused(
    change: Any, message: str, looking_at: Path, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match=message):
        load(changed_bundle(looking_at, tmp_path / "bundle", explain=change), "cpu")


# The commands


def test_a_document_is_explained_at_both_levels_by_a_command_without_torch(tmp_path: Path) -> None:
    model, path, text = exported(tmp_path, encoder="joined"), tmp_path / "bundle", "A lovely day. Sad!\nNo"
    words, sentences = model.explain(text).attentions
    assert (words.name, words.over) == ("encoder.word_attention", "words")
    assert words.weights.tolist() == pytest.approx([0.25] * 4 + [0.5] * 2 + [1])
    assert (sentences.name, sentences.over) == ("head.attention", "sentences")
    assert [text[a:b] for a, b in sentences.places] == ["A lovely day.", "Sad!", "No"]
    assert sentences.weights.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert manifest_content(model.manifest)["explain"] == {
        "encoder.word_attention": {"over": "words", "axis": "sequence_length"},
        "head.attention": {"over": "sentences", "axis": "sentence_count"},
    }
    for name in ("a.html", "a.json"):
        done = seqpipe("explain", path, text, "-o", tmp_path / name)
        assert (done.code, done.err) == (0, f"wrote {tmp_path / name}\n")
        assert (tmp_path / name).stat().st_size > 200
    table = seqpipe("explain", path, text)
    assert "head.attention, over sentences:\n  0.5000  No\n  0.3333  Sad!\n" in table.out
    content = json.loads(seqpipe("explain", path, "-", "--json", stdin=text.encode()).out)
    assert content == json.loads((tmp_path / "a.json").read_text())
    code = "from seqpipe.commands.app import main\ntry: main()\nfinally: import sys; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "explain", path, text, "-o", tmp_path / "b.html"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_trained_run_is_exported_again_with_weights(tmp_path: Path) -> None:
    train = {"epochs": 1, "batch_tokens": 64, "threads": 1}
    write_classifier(tmp_path, {"encoder": {"use": "self-attention"}, "head": "label", "train": train})
    assert seqpipe("run", "moods.yaml", folder=tmp_path).code == 0
    without = seqpipe("explain", "runs/moods/bundle", "a day", "--method", "attention", folder=tmp_path)
    assert (without.code, "--set export.explain=true" in without.err) == (2, True)
    again = ("export", "runs/moods", "-o", "other", "--set")
    fail_with(2, "only keys of `export` and `card`", *again, "train.epochs=2", folder=tmp_path)
    assert seqpipe(*again, "export.explain=true", folder=tmp_path).code == 0
    explained = json.loads(seqpipe("explain", "other", "a glad day", "--json", folder=tmp_path).out)
    (pairs,) = explained["attentions"].values()
    assert (pairs["over"], pairs["places"]) == ("pairs", [[0, 1], [2, 6], [7, 10]])
    assert np.array(pairs["weights"]).sum(-1) == pytest.approx(1, abs=1e-5)
