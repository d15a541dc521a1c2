"""One bundle for every answer kind, with recorded answers, and an application that serves them with the page."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from media_bundles import image_file, in_base64, wav
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.candidates import Candidate, Vector
from seqpipe.answers.classification import Label, Labels, Score
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.fill_mask import FillMask, SpanInfilling
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.registry import MultiHead
from seqpipe.answers.structured import Field, Structured
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.text import Generation, Text
from seqpipe.answers.types import CandidateTexts
from seqpipe.features.vocabulary import MASK, SPAN_MARKS
from seqpipe.runtime.decode_options import describe_options
from seqpipe.serve.app import page_routes
from seqpipe_plugins.tokenizers.words import WordsTokenizer


def typed_inputs(**types: str) -> tuple[Mapping[str, str], ...]:
    """Inputs of these names and types, as the server describes them."""
    return tuple({"name": name, "type": kind} for name, kind in types.items())


SEARCH = {
    "beams": {"type": "size", "default": 1, "minimum": 1, "maximum": 64},
    "temperature": {"type": "float", "default": 1.0, "minimum": math.ulp(0.0), "maximum": None},
    "stop": {"type": "tokens", "default": None},
    "uniform": {"type": "uniform", "default": None},
    "greedy": {"type": "bool", "default": False},
}
BIAS = {"bias": {"type": "float", "default": 0.0, "minimum": -20, "maximum": 20, "description": "Evidence for O."}}


@dataclass(frozen=True)
class Case:
    """A bundle, an example of its input, the recorded answer, and the words that a person then reads."""

    name: str
    kind: AnswerKind
    example: Any
    answer: Any
    shows: tuple[str, ...]
    inputs: tuple[Mapping[str, str], ...] = typed_inputs(text="text")
    options: Mapping[str, Any] = field(default_factory=dict)
    explanation: Mapping[str, Any] | None = None
    pieces: tuple[str, ...] = ()  # of the answer's text behind the prompt, where it streams

    @property
    def description(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "pipeline": f"{self.name}-small",
            "answer": self.kind.kind,
            "fields": [part["name"] for part in self.inputs],
            "inputs": [*self.inputs],
            "options": describe_options(self.options),
            "labels": sorted(map(str, getattr(self.kind, "labels", ()))),
            "drawing": self.kind.drawing,
            "explains": self.explanation is not None,
            "streams": bool(self.pieces),
            "documents": self.kind.tags_words,
            "limits": {"tokens": 512},
            "examples": [self.example] if self.name != "entities" else [self.example, "Nothing to see here"],
            "sha256": "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592",
            "bytes": 1_000_000,
            "reads_empty": bool(self.pieces),
        }


def place(text: str, word: str) -> dict[str, Any]:
    """The offsets of a word's first occurrence in a text."""
    return {"start": text.index(word), "end": text.index(word) + len(word)}


def span(text: str, word: str, label: str, score: float | None = 0.97) -> dict[str, Any]:
    scored = {} if score is None else {"score": score}
    return {"entity_group": label, **scored, "word": word, **place(text, word)}


def places(text: str) -> list[list[int]]:
    """The offsets of the words of a text."""
    return [[*match.span()] for match in re.finditer(r"\S+", text)]


TOKENIZER: Tokenizer = WordsTokenizer().train(["a b c"])
TOKENIZER.add_special_tokens([MASK, *SPAN_MARKS])
LABELS = ("O", *(f"{at}-{name}" for name in ("city", "date", "organization", "person", "time") for at in "BI"))
WAKE = "Wake me at seven in Lausanne 🏔️ with Anna"
NESTED = "The New York University Press opened in Bern"
HEBREW = "אנה נסעה לירושלים ביום שלישי"
CHINESE = "😀明天上午安娜从北京飞往上海"
PARSE = "She saw a red car"
QUESTION, PASSAGE = "Where is the lake?", "Lausanne stands on the lake 🌊 of Geneva, below the Jura."
SOURCE = "please wake Zoltán at seven"
POINTS = [[0.1, 0.2], [0.9, 0.15], [0.55, 0.5], [0.8, 0.85], [0.2, 0.9], [0.4, 0.35]]
PROMPT = "Once upon a time"
STORY = ", a small fox lived by the river."


PICTURE = in_base64(image_file(np.arange(64).reshape(8, 8) * 4))
SOUND = in_base64(wav(np.sin(np.arange(4_000) / 9) / 2))


def _attention(text: str) -> dict[str, Any]:
    """Weights of the words of a text, and of their pairs in two heads."""
    at = places(text)
    weights = [round((i % 3 + 1) / 10, 6) for i in range(len(at))]
    pairs = [[[1 / (1 + abs(i - j) + head) for j in range(len(at))] for i in range(len(at))] for head in range(2)]
    return {
        "encoder.0.attention": {"over": "pairs", "places": at, "weights": pairs},
        "head.attention": {"over": "words", "places": at, "weights": weights},
    }


def _written(text: str, output: str, weights: Any, **more: Any) -> dict[str, Any]:
    """The explanation of a generated text: weights of the input for each of its words."""
    attention = {"over": "written", "places": places(text), "written": output.split(), "weights": weights}
    return {"text": text, "attentions": {"head.attention": attention | more}}


ROWS, IMAGE = typed_inputs(points="rows"), typed_inputs(image="picture")
POINT_INPUT, IMAGE_INPUT, PAIR = ({"points": POINTS}, {"image": PICTURE}, {"question": QUESTION, "context": PASSAGE})
GAPS, SENTINEL = f"The {MASK} sat on the {MASK}.", f"The {SPAN_MARKS[0]} on the mat."
TOPICS = ("alarm", "music", "weather")
INTENT = Label(TOPICS)
FIELDS = [
    Field("head", "word", "position", "head"),
    Field("relation", "word", "label", "relation", ("amod", "det", "nsubj", "obj", "root")),
    Field("mood", "text", "label", "mood", ("neutral", "happy")),
    Field("roles", "pair", "label", "roles", ("none", "agent", "patient")),
]
MASKED_LM = FillMask(TOKENIZER, token=MASK, share=0.15, fields=("text",))
INFILLING = SpanInfilling(TOKENIZER, share=0.15, length=3.0, field="text")
QUESTIONS = CandidateTexts(("When are you open?", "Is there a bus?"), ("hours", "bus"), ("From ten to seven.", None))

# The answers
ENTITIES = [span(WAKE, "seven", "time", 0.98), span(WAKE, "Lausanne", "city"), span(WAKE, "Anna", "person")]
NESTED_SPANS = [
    span(NESTED, "New York University", "organization", 0.9),
    span(NESTED, "New York", "city", 0.8),
    span(NESTED, "University Press", "organization", 0.4),
    span(NESTED, "Bern", "city"),
]
HEBREW_SPANS = [span(HEBREW, "אנה", "person"), span(HEBREW, "ירושלים", "city"), span(HEBREW, "ביום שלישי", "date")]
CHINESE_SPANS = [span(CHINESE, "明天上午", "date"), span(CHINESE, "安娜", "person"), span(CHINESE, "北京", "city")]
N_BEST = [
    {"spans": [span(NESTED, "New York", "city", None)], "score": 0.7},
    {"spans": [span(NESTED, "New York University", "organization", None)], "score": 0.2},
]
POS_TAGS = [
    {"entity": label, "score": 0.99, "word": word, **place(PARSE, word)}
    for word, label in zip(PARSE.split(), ("PRON", "VERB", "DET", "ADJ", "NOUN"), strict=True)
]
INTENTS = [
    {"label": "alarm", "score": 0.9312},
    {"label": "weather", "score": 0.0684},
    {"label": "music", "score": 4e-4},
]
OPEN = {"text": "When are you open?", "label": "hours", "answer": "From ten to seven.", "score": 0.9127}
NEAREST = [OPEN, {"text": "Is there a bus?", "label": "bus", "answer": None, "score": 0.3051}]
GENEVA = {"answer": "Geneva", "score": 0.88, **place(PASSAGE, "Geneva")}
TREE = [
    {"word": PARSE[a:b], "start": a, "end": b, "head": head, "relation": relation, "relation_score": 0.95}
    for (a, b), head, relation in zip(
        places(PARSE), (1, None, 4, 4, 1), ("nsubj", "root", "det", "amod", "obj"), strict=True
    )
]
ROLES = [{"from": 1, "to": 0, "label": "agent", "score": 0.9}, {"from": 1, "to": 4, "label": "patient", "score": 0.8}]
NORMALIZED = [
    {"generated_text": "wake Zoltán 07:00", "score": 0.81, "warning": "longer than any text in training"},
    {"generated_text": "wake Zoltan 07:00", "score": 0.12},
]
COPY_WEIGHTS = [[0.05, 0.8, 0.05, 0.05, 0.05], [0.02, 0.02, 0.92, 0.02, 0.02], [0.01, 0.04, 0.05, 0.1, 0.8]]
COPIES = [
    {"token": "wake", "generating": 0.3, **place(SOURCE, "wake")},
    {"token": "Zoltán", "generating": 0.01, **place(SOURCE, "Zoltán")},
    {"token": "07:00", "generating": 0.98, "start": None, "end": None},
]
FAQ = OPEN | {"nearest": NEAREST}
EMBEDDING = {"vector": [round(math.sin(i * i / 40) / 11.3, 6) for i in range(256)]}
SORTED = {"pointers": [2, 0, 1], "words": ["alpha", "bravo", "charlie"], "score": 0.91}
TOUR, HULL = {"pointers": [0, 5, 2, 4, 3, 1, 0], "score": 0.61}, {"pointers": [0, 1, 3, 4], "score": 0.93}
PARSED = {"words": TREE, "mood": "neutral", "mood_score": 0.88, "roles": ROLES}
FILLED = {"generated_text": "The cat sat on the mat.", "score": 0.4, "words": ["cat", "mat"]}
INFILLED = {"generated_text": f"{SPAN_MARKS[0]} cat sat {SPAN_MARKS[1]}", "score": 0.3}
IMAGE_WEIGHTS = [[0.1, 0.1, 0.1, 0.1, 0.1, 0.5], [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]]
IMAGE_PLACES = {"grid": [2, 3], "places": [[0, 1]] * 3 + [[2, 3]] * 3}

CASES = (
    Case(
        "entities",
        Spans(LABELS),
        WAKE,
        ENTITIES,
        ("seventime0.98", "Lausannecity0.97", "Annaperson0.97"),
        options=BIAS,
        explanation={"text": WAKE, "attentions": _attention(WAKE)},
    ),
    Case(
        "nested",
        Spans(LABELS),
        NESTED,
        NESTED_SPANS,
        ("New York", "city0.80", "organization0.90", "Pressorganization0.40"),
    ),
    Case("hebrew", Spans(LABELS), HEBREW, HEBREW_SPANS, ("אנהperson0.97", "ירושליםcity0.97")),
    Case("chinese", Spans(LABELS), CHINESE, CHINESE_SPANS, ("明天上午date0.97", "安娜person0.97", "北京city0.97")),
    Case(
        "n-best", Spans(LABELS), NESTED, N_BEST, ("New Yorkcity", "New York Universityorganization", "0.700", "0.200")
    ),
    Case("part-of-speech", Tags(("DET", "NOUN", "PRON", "VERB")), PARSE, POS_TAGS, ("ShePRON", "sawVERB", "carNOUN")),
    Case(
        "intent",
        INTENT,
        WAKE,
        INTENTS,
        ("alarm", "0.931", "weather", "0.068", "music", "< 0.001"),
        options=INTENT.answer_options,
    ),
    Case("topics", Labels(TOPICS), WAKE, INTENTS[:2], ("alarm", "0.931", "weather", "0.068")),
    Case("stars", Score(), "A wonderful evening", {"score": 4.3721}, ("4.3721",)),
    Case("embedding", Vector(("a", "b")), "A wonderful evening", EMBEDDING, ("256 numbers", "norm 1.0")),
    Case(
        "faq",
        Candidate(QUESTIONS),
        "until when are you open",
        FAQ,
        ("From ten to seven.", "When are you open?", "0.913", "Is there a bus?", "0.305"),
    ),
    Case(
        "reading",
        ExtractiveSpan(),
        PAIR,
        GENEVA,
        ("Geneva", "Lausanne stands on", "0.880"),
        typed_inputs(question="text", context="text"),
    ),
    Case("sorting", Pointers(), "bravo charlie alpha", SORTED, ("alpha2", "bravo0", "charlie1")),
    Case("tour", Pointers(points="points", cyclic=True), POINT_INPUT, TOUR, ("0", "5", "2"), ROWS),
    Case("hull", Pointers(points="points", figure_style="polygon"), POINT_INPUT, HULL, ("0", "1", "3", "4"), ROWS),
    Case("parser", Structured(FIELDS), PARSE, PARSED, ("She", "nsubj", "root", "agent", "neutral", "0.880")),
    Case(
        "normalization",
        Text(TOKENIZER),
        SOURCE,
        NORMALIZED,
        ("wake Zoltán 07:00", "0.810", "longer than any text in training"),
        options=SEARCH,
        explanation=_written(SOURCE, "wake Zoltán 07:00", COPY_WEIGHTS) | {"copied": {"head.generating": COPIES}},
    ),
    Case(
        "stories",
        Generation(TOKENIZER, True, 256),
        PROMPT,
        {"generated_text": PROMPT + STORY, "score": 0.02},
        (PROMPT + STORY,),
        options=SEARCH,
        pieces=(", a small", " fox lived", " by the", " river."),
    ),
    Case("gaps", MASKED_LM, GAPS, FILLED, ("The cat sat on the mat.",)),
    Case("infilling", INFILLING, SENTINEL, INFILLED, ("cat sat",)),
    Case("digit", INTENT, IMAGE_INPUT, INTENTS[:2], ("alarm", "0.931"), IMAGE, INTENT.answer_options),
    Case(
        "caption",
        Text(TOKENIZER),
        {"image": [[0, 128, 255], [255, 128, 0]]},
        {"generated_text": "a seven", "score": 0.8},
        ("a seven", "0.800"),
        IMAGE,
        explanation=_written("0 1", "a seven", IMAGE_WEIGHTS, **IMAGE_PLACES),
    ),
    Case(
        "spoken",
        Text(TOKENIZER),
        {"audio": SOUND},
        {"generated_text": "one two", "score": 0.7},
        ("one two", "0.700"),
        typed_inputs(audio="sound"),
        explanation=_written("0 1 2", "a seven", IMAGE_WEIGHTS, **IMAGE_PLACES | {"grid": [1, 6]}),
    ),
    Case(
        "assistant",
        MultiHead({"intent": INTENT, "slots": Spans(LABELS), "mood": Score()}),
        WAKE,
        {"intent": {"label": "alarm", "score": 0.98}, "slots": ENTITIES[:1], "mood": {"score": -0.25}},
        ("intent", "alarm", "slots", "seventime0.98", "mood", "-0.2500"),
        options={"slots.n_best": {"type": "size", "default": 1, "minimum": 1, "maximum": 10}},
    ),
)


def recorded_app(requests: list[dict[str, Any]]) -> Starlette:
    """The page with recorded answers; every request body is kept in `requests`."""
    cases = {case.name: case for case in CASES}

    async def bundles(request: Request) -> JSONResponse:
        return JSONResponse({"bundles": [case.description for case in CASES]})

    async def answer(request: Request) -> Response:
        case, body = cases[request.path_params["name"]], await request.json()
        requests.append(body)
        if "refuse" in str(body["inputs"]):
            return JSONResponse({"error": "record 1: the text is refused; write another"}, 422)
        if body.get("stream"):
            return StreamingResponse(_events(case), media_type="text/event-stream")
        explained = {"explanation": case.explanation} if body.get("explain") else {}
        return JSONResponse({"answer": case.answer, **explained})

    routes = [Route("/v1", bundles), Route("/v1/{name}", answer, methods=["POST"])]
    return Starlette(routes=[*routes, *page_routes()])


async def _events(case: Case) -> AsyncIterator[str]:
    for piece in case.pieces:
        yield f"data: {json.dumps({'text': piece})}\n\n"
        await asyncio.sleep(0.02)
    yield f"data: {json.dumps({'answer': case.answer})}\n\n"
