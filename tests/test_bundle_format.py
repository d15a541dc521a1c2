"""docs/internals/bundle-*.md: a runtime written from them alone answers as seqpipe does, and so does examples/node."""

import ast
import functools
import hashlib
import itertools
import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import doc_pages
import numpy as np
import onnx
import onnxruntime
import pytest
import second_runtime
import second_tokenizer
from gallery import CONLL, Example, Recipe, changed_recipe, gallery, number_rows, text_recipe, train_settings
from hostile_inputs import hostile_texts as texts
from jsonschema import Draft202012Validator
from media_bundles import GREY, IMAGE, MEL, REFUSED_ENTRIES, image_file, in_base64, wav, write_media_bundle
from node_program import alike, in_node, install_node_program, node_lines, shell
from PIL import Image
from second_runtime import Bundle, RefusedError
from tiny_pipelines import PARTS, labelled_texts, write_tagger, write_yaml

from seqpipe import load
from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.fill_mask import FillMask
from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.text import Text
from seqpipe.errors import BundleError, SeqpipeError
from seqpipe.features import splitting
from seqpipe.features.document import Doc
from seqpipe.features.kinds.ngrams import Ngrams
from seqpipe.features.kinds.registry import feature_kinds
from seqpipe.features.kinds.text import Chars
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.serve.openapi import input_schema

PAGES = sorted((doc_pages.ROOT / "docs/internals").glob("bundle-*.md"))
SPLIT: list[Any] = [
    {"words": ["Ada", "flew", "to", "New", "York"]},
    {"words": ["Ada", "met", "Ada", "."], "text": "Ada  met\nAda."},
    {"words": ["New York", "[PAD]", "[EOS]", "ROME", "\ud800", "💩"]},
    {"words": []},
    {"words": None, "text": "in Rome"},
    {"words": ["\u200b"]},
    {"words": ["", "met", "\u00ad"]},
]
KINDS = (
    *("spans", "tags", "label", "labels", "candidate", "text", "copying", "generation", "fill-mask", "multi-head"),
    *("structured", "plugin", "int8", "other field", "sources", "ngrams", "segmentation"),
)


WORDS = {"use": "words", "pattern": r"\w+|[^\w\s]", "min_count": 4}


def introductions(count: int, seed: int) -> list[dict[str, Any]]:
    """Sentences with names that no vocabulary holds, which their targets repeat."""
    dice, rows = random.Random(seed), []
    for _ in range(count):
        a, b = ("".join(dice.choices("bdklmn", k=2) + dice.choices("aeiou", k=2)) for _ in range(2))
        rows.append({"text": f"{a} met {b} .", "target": f"{b}, {a}!"})
    return rows


CHINESE = ("研究", "研究生", "生命", "他", "喜欢", "大学生", "科学家", "的", "你好", "图书馆")


def write_segments(folder: Path) -> Path:
    """Write the data and YAML of a model of Chinese word segmentation, with words of one to three characters."""
    dice = random.Random(2)
    for part, count in zip(PARTS, (150, 20, 20), strict=True):
        lines = (" ".join(dice.choices(CHINESE, k=dice.randint(2, 7))) for _ in range(count))
        (folder / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    content = {
        "data": {"reader": "segmented"} | {part: f"{part}.txt" for part in PARTS},
        "tokenizer": {"use": "chars", "keep_spaces": False},
        "embedding": {"use": "lookup", "dim": 12},
        "encoder": {"use": "lstm", "hidden": 12},
        "head": {"use": "crf", "scheme": "BMES"},
        "train": train_settings(8, 0.03, 128),
    }
    return write_yaml(folder, "segments", **content)


RECIPES = {  # what only this file needs
    "segmentation": Recipe(write_segments),
    "copying": text_recipe(
        introductions,
        "copying",
        *(80, 10, 10),
        tokenizer=WORDS,
        embedding={"use": "lookup", "dim": 12},
        encoder={"use": "lstm", "hidden": 16},
        head={"use": "copy-seq2seq", "hidden": 24, "target_tokenizer": WORDS | {"detokenize": True}},
        train=train_settings(8, tokens=128),
    ),
    "generation": text_recipe(  # of subwords, for a label
        labelled_texts,
        "generation",
        tokenizer={"use": "bpe", "max_size": 40},
        embedding={"use": "lookup", "dim": 16, "column": "label"},
        encoder={"use": "transformer", "causal": True, "heads": 2},
        head={"use": "lm", "packed": False},
        train=train_settings(8),
    ),
    "fill-mask": text_recipe(  # of bytes
        labelled_texts,
        "fill-mask",
        tokenizer={"use": "bpe", "max_size": 300, "byte_level": True},
        embedding={"use": "lookup", "dim": 16},
        encoder={"use": "gru", "hidden": 16},
        head="mlm",
        train=train_settings(4),
    ),
    "ngrams": changed_recipe(
        write_tagger,
        embedding={"use": "ngrams", "dim": 8, "max_size": 150, "lr": 3.0, "weighting": "none"},
        data={"reader": {"use": "conll", "scheme": "none"}, **CONLL},
        head={"use": "tags", "scheme": "none"},
    ),
}


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bundle of each kind, of the gallery or made when it is first needed."""

    @functools.cache
    def path(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("bundle")
        if kind == "other field":
            bundle = Path(shutil.copytree(gallery("text").bundle, folder / "bundle"))
            change(bundle, lambda manifest: manifest.update(field="note", golden=noted(manifest["golden"])))
            return bundle
        if kind not in RECIPES:
            return gallery(kind).bundle
        RECIPES[kind].make(folder)
        return Example(folder).bundle

    return path


def noted(golden: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**example, "record": {"note": example["record"]["text"]}} for example in golden]


def change(path: Path, what: Callable[[dict[str, Any]], object], old: bytes = b"", new: bytes = b"") -> None:
    """Changes a bundle.json, and seals it as the page says; at last, bytes of the body."""
    manifest = json.loads((path / "bundle.json").read_text(encoding="utf-8"))
    del manifest["sha256"]
    what(manifest)
    body = json.dumps(manifest, ensure_ascii=False, indent=2).encode().removesuffix(b"}")
    assert old in body
    body = body.replace(old, new, 1)
    seal = f',\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'
    (path / "bundle.json").write_bytes(body + seal.encode())


class Pair:
    """One bundle, opened by seqpipe and by the runtime that was written from the page."""

    def __init__(self, path: Path):
        self.path, self.ours, self.theirs = path, load(path, "cpu", threads=1), Bundle(path)
        self.known: dict[str, Any] = {}
        field = self.ours.manifest.field
        unseen = ("  ", "\u200b\ufe0f", "\u3000\u00ad", "می\u200cخواهم so\u00adft ❤\ufe0f \u2060 \u200cOslo\u200d")
        given = (*texts(60), *(mood["text"] for mood in labelled_texts(9, 5)), *unseen)
        self.inputs = [{"text" if isinstance(field, dict) else field: text} for text in given]
        if isinstance(field, dict):
            self.inputs = [{**record, "numbers": number_rows(i)} for i, record in enumerate(self.inputs)]
        column = self.ours.manifest.inputs.get("column")
        if column:
            self.inputs = [{**one, "label": column["values"][i % 2]} for i, one in enumerate(self.inputs)]
        self.inputs += SPLIT if field == "text" and not column else []
        if self.ours.manifest.answer["kind"] == "fill-mask":
            gaps = ("[MASK]", " [MASK]", "[MASK] [MASK]", "[MASK][MASK]")
            self.inputs += [{"text": gaps[i % 4].join(pair)} for i, pair in enumerate(pairwise(texts(61, seed=5)))]
        self.options: list[dict[str, Any]] = [{}]
        if "names.n_best" in self.ours.manifest.options:
            self.options += [{"names.n_best": 3}]
        if "n_best" in self.ours.manifest.options:
            beams = "beams" in self.ours.manifest.options
            self.options += [{"n_best": 3} | ({"beams": 4, "max_length": 7} if beams else {})]
        prefix = "prefix" in self.ours.manifest.options
        if "token_scores" in self.ours.manifest.options:
            self.options += [{"token_scores": True, "max_length": 9}]
        drawn = {"seed": 7, "beams": 2, "n_best": 2, "temperature": 1.3, "max_length": 9}
        drawn |= {"prefix": [4]} if prefix else {"stop": ["e", "an "], "repetition_penalty": 1.2}
        # Node's program draws nothing, and makes no automata.
        self.drawn = [drawn, {"temperature": 0, "forbidden": ["a", "er", "n b"], "max_length": 12}]
        self.drawn = self.drawn if "uniform" in self.ours.manifest.options else []

    def answer(self, record: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """seqpipe's answer, which several tests compare."""
        key = json.dumps([record, options])
        if key not in self.known:
            self.known[key] = self.ours(record, **options)
        return self.known[key]

    def differences(self) -> Iterator[str]:
        """Differences between the two, over inputs, options and documents."""
        for options, record in itertools.product([*self.options, *self.drawn], self.inputs):
            ours = self.answer(record, options)
            theirs = attempt(lambda record=record, options=options: self.theirs(record, **options))
            if not second_runtime.matches_golden(ours, theirs):
                yield f"{record} {options}: {ours} {theirs}"
        if self.ours.manifest.answer["kind"] in ("tags", "spans"):
            for text in texts(30, seed=2):
                theirs = attempt(lambda text=text: self.theirs.document(text))
                if not second_runtime.matches_golden(self.ours(text, documents=True), theirs):
                    yield f"document {text!r}: {theirs}"


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # a planted fault may end anyhow
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def pair_of(bundle_of: Callable[[str], Path]) -> Callable[[str], Pair]:
    return functools.cache(lambda kind: Pair(bundle_of(kind)))


# The page


@pytest.mark.parametrize(
    ("module", "packages"),
    [
        (second_runtime, {"PIL", "numpy", "onnxruntime", "second_tokenizer", "tokenizers"}),
        (second_tokenizer, {"regex"}),
    ],
)
def test_the_second_runtime_shares_no_line_with_seqpipe(module: ModuleType, packages: set[str]) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {a.name for node in imports for a in ([*node.names] if isinstance(node, ast.Import) else [])}
    names |= {str(node.module) for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == packages


def described(page: str, path: Path) -> list[str]:
    """Names of the bundle that the page lacks."""
    manifest = json.loads((path / "bundle.json").read_bytes())
    table = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    inner = {key for part in ("inputs", "options") for entry in manifest[part].values() for key in entry}
    inner |= {key for part in ("answer", "limits", "reader") for key in manifest[part]}
    inner |= {key for field in manifest["answer"].get("fields", []) if isinstance(field, dict) for key in field}
    inner |= {key for entry in manifest.get("cache", []) for key in entry}
    inner |= {key for example in manifest["golden"] for key in example}
    missing = [key for key in manifest if key not in table]
    return missing + [key for key in sorted(inner) if f"`{key}`" not in page]


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_fits_the_json_schema_of_its_kind(pair_of: Callable[[str], Pair], kind: str) -> None:
    model = pair_of(kind).ours
    schema = Draft202012Validator(model.predictor.kind.schema(model.manifest.options))
    for options in [*pair_of(kind).options, *pair_of(kind).drawn]:
        answers = model(pair_of(kind).inputs, **options)
        assert [answer for answer in answers if not schema.is_valid(answer)] == []
    inputs = Draft202012Validator(input_schema(model.predictor.featurizer))
    assert [record for record in pair_of(kind).inputs if not inputs.is_valid(record)] == []
    assert not inputs.is_valid({"other": "a"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_bundle_stands_in_the_page(bundle_of: Callable[[str], Path], kind: str) -> None:
    page = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert described(page, bundle_of(kind)) == []
    damaged = page.replace("| `limits` |", "| limits |").replace("`axes`", "axes")
    assert described(damaged, bundle_of(kind)) == ["limits", "axes"]


def test_every_kind_of_answer_and_of_input_has_its_place_in_the_page() -> None:
    page = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert {*second_runtime.OUTPUTS} == {*ANSWER_KINDS}
    for name, kind in ANSWER_KINDS.items():
        section = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
        shared = page.split("\n### text\n")[1].split("\n### ")[0] if issubclass(kind, Text | FillMask) else ""
        assert [output for output in kind.decided if f"`{output}`" not in section + shared] == []
    assert "\n### joint\n" in page
    kinds = ("chars", "column", "copy", "image", "matrix", "mel", "ngrams", "pieces", "segments", "sentences")
    assert {*feature_kinds()} == {*kinds}
    assert all(f"\n### {kind}\n" in page for kind in feature_kinds())


# The answers


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_runtime_answers_as_seqpipe_does(pair_of: Callable[[str], Pair], kind: str) -> None:
    assert [*pair_of(kind).differences()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_runtime_repeats_the_golden_examples(pair_of: Callable[[str], Pair], kind: str) -> None:
    theirs = pair_of(kind).theirs
    assert theirs.manifest["golden"]
    assert theirs.failed_golden_examples() == []


def test_the_second_runtime_continues_a_text_from_the_cache(pair_of: Callable[[str], Pair]) -> None:
    pair, lengths = pair_of("generation"), list[int]()
    for record in pair.inputs[:30]:
        whole = pair.theirs.generate_in_chunks(record, [7])
        assert pair.theirs.generate_in_chunks(record, [1, 2, 4]) == whole
        lengths.append(len(whole))
    assert min(lengths) > 1
    assert max(lengths) > 5


def test_gaps_are_filled_with_many_tokens(pair_of: Callable[[str], Pair]) -> None:
    pair = pair_of("fill-mask")
    words = [word for record in pair.inputs for word in pair.answer(record, {})["words"]]
    assert len(words) > 80
    assert len({*words}) > 3


def test_structured_answers_hold_values_of_every_type(pair_of: Callable[[str], Pair]) -> None:
    answers = [pair_of("structured").answer(record, {}) for record in pair_of("structured").inputs]
    words = [word for answer in answers for word in answer["words"]]
    assert len({word["tag"] for word in words}) > 2
    assert len({word["head"] for word in words}) > 3
    assert len({answer["mood"] for answer in answers}) == 3  # the empty text has none
    assert len({answer["length"] for answer in answers}) > 30
    assert {answer["name"] is None for answer in answers} == {True, False}
    assert any(answer["next"] for answer in answers)
    assert len({pair["value"] for answer in answers for pair in answer["weight"]}) > 3


def test_the_answers_compared_are_of_many_kinds(pair_of: Callable[[str], Pair]) -> None:
    def varied(kind: str) -> int:
        return len({json.dumps(pair_of(kind).answer(record, {})) for record in pair_of(kind).inputs})

    assert all(varied(kind) > 20 for kind in KINDS if kind not in ("label", "labels", "candidate", "plugin"))
    labels = {pair_of("label").answer(record, {})["label"] for record in pair_of("label").inputs}
    assert labels == {"bad", "fine", "good", None}
    found = [span for record in pair_of("spans").inputs for span in pair_of("spans").answer(record, {})]
    assert {span["entity_group"] for span in found} == {"PER", "LOC"}
    assert any(" " in span["word"] for span in found)


def test_a_word_of_characters_tagged_b_m_e_is_one_span(
    pair_of: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pair_of("segmentation")
    answers = {text: pair.answer({"text": text}, {}) for text in ("他喜欢研究生", "图书馆的大学生")}
    assert [span["word"] for span in answers["他喜欢研究生"]] == ["他", "喜欢", "研究生"]
    assert [span["word"] for span in answers["图书馆的大学生"]] == ["图书馆", "的", "大学生"]
    assert all(second_runtime.matches_golden(pair.theirs(text), answer) for text, answer in answers.items())
    read = second_runtime.split_tag
    monkeypatch.setattr(second_runtime, "split_tag", lambda tag: None if tag[0] == "M" else read(tag))
    assert [span["word"] for span in pair.theirs("他喜欢研究生")][2:] == ["研", "生"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_run_for_all_texts_answers_as_one_run_each(pair_of: Callable[[str], Pair], kind: str) -> None:
    theirs, inputs = pair_of(kind).theirs, pair_of(kind).inputs
    assert second_runtime.matches_golden(theirs.batch(inputs), [theirs(record) for record in inputs])


@pytest.mark.parametrize("longest", [1, 2, 5, 6, 20])
def test_the_second_runtime_makes_the_same_inputs(pair_of: Callable[[str], Pair], longest: int) -> None:
    ours, theirs = pair_of("spans").ours.predictor.featurizer, pair_of("spans").theirs
    records = [*({"text": text} for text in texts(40, seed=3)), *SPLIT]
    read = [theirs.sources[""].record(record) for record in records]
    docs, wholes, rows = ours.docs(records), [text for text, _ in read], [tokens for _, tokens in read]
    expected = [[*zip(doc.ids, doc.words, doc.offsets, strict=True)] for doc in docs]
    assert [[(t.id, t.word, (t.start, t.end)) for t in row] for row in rows] == expected
    feature = Chars(longest, "abcdeÀO你👩")
    size = (len(docs), max(map(len, docs)))
    expected = feature.array(docs, size[1])
    assert np.array_equal(second_runtime.chars(rows, size, longest, feature.alphabet), expected)
    made = theirs.sources[""].inputs(rows, wholes)
    assert all(np.array_equal(array, ours.collate(docs)[name]) for name, array in made.items())


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("words", "lengths"), [(2, (2, 5)), (3, None), (0, (1, 3)), (1, (4, 4))])
def test_the_second_runtime_reads_the_same_n_grams(words: int, lengths: tuple[int, int] | None, binary: bool) -> None:
    docs = [Doc(text, text.split(), [(0, 0)] * len(text.split()), []) for text in texts(40, seed=6)]
    feature = Ngrams(words, lengths, binary, max_size=300).fit(docs[:20])
    tokens = [[second_runtime.Token(4, word, 0, 0, None) for word in doc.words] for doc in docs]
    size = (len(docs), max(len(doc.words) for doc in docs))
    expected = feature.array(docs, size[1])
    assert len(np.unique(expected)) > 60
    assert np.array_equal(second_runtime.ngrams(tokens, size, feature.manifest()), expected)


def test_the_second_runtime_reads_any_tags_as_seqpipe_does() -> None:
    tags = ("O", *(f"{letter}-x" for letter in "BIMESLU"), "I-y", "B", "I", "B-", "I-x-y", "O-x", "NOUN", "Bx", "")
    for some in itertools.chain.from_iterable(itertools.product(tags, repeat=n) for n in range(4)):
        assert [(label, a, b + 1) for label, a, b in second_runtime.spans(some)] == schemes.spans(some)


def test_the_second_runtime_splits_documents_as_seqpipe_does() -> None:
    dice = random.Random(5)
    parts = [*'.!?…。！？"”’)]」』》）\n\r\t \u2028\x1c\x85\ufeff\u200b\u3000aB，', "'"]
    for _ in range(3000):
        text = "".join(dice.choices(parts, k=dice.randint(0, 12)))
        assert second_runtime.sentences(text) == splitting.sentence_offsets(text)


# Pictures and sounds


def pictures() -> Iterator[Any]:
    """Pictures of many sizes and forms, as JSON has them."""
    draw = np.random.default_rng(7)
    for rows, columns in ((6, 5), (1, 1), (3, 40), (50, 2), (31, 33), (6, 80), (7, 4)):
        colours = draw.integers(0, 256, (rows, columns, 3))
        yield colours.tolist()
        yield (draw.random((rows, columns)) * 255).tolist()
        yield in_base64(image_file(colours))
        yield in_base64(image_file(colours[..., 0]))
        yield f"data:image/png;base64,{in_base64(image_file(colours, mode='P'))}"
        yield in_base64(image_file(colours, mode="RGBA"))
        yield in_base64(image_file(colours, mode="LA"))
        yield in_base64(image_file(colours, mode="1"))
        exif = Image.Exif()
        exif[0x0112] = 6  # turned to the right
        yield in_base64(image_file(colours, "JPEG", exif=exif, quality=90))
        yield in_base64(image_file(colours, "JPEG", mode="CMYK"))


def sounds() -> Iterator[Any]:
    """Sounds of many lengths, rates and forms, as JSON has them."""
    draw = np.random.default_rng(8)
    for n in (1, 159, 160, 700, 1603):
        samples = draw.normal(0, 0.2, n).clip(-1, 1)
        yield samples.tolist()
        for bits in (8, 16, 24, 32):
            yield in_base64(wav(samples, bits=bits))
        yield in_base64(wav(samples, kind=3, bits=32))
        for rate in (8_000, 11_025, 16_001, 44_100, 192_000):
            yield in_base64(wav(samples, rate=rate))
        yield f"data:audio/wav;base64,{in_base64(wav([*samples, *samples], channels=2))}"
    yield (0.3 * np.sin(np.arange(2_000) / 5)).tolist()
    yield [0.0] * 2_000


MEDIA = {"picture": (IMAGE, pictures), "grey": (GREY, pictures), "sound": (MEL, sounds)}


@pytest.fixture(scope="module")
def media_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles that read pictures and sounds, each with golden examples."""
    folder = tmp_path_factory.mktemp("media")
    return {
        name: write_media_bundle(folder / name, entry, [*itertools.islice(values(), 4)])
        for name, (entry, values) in MEDIA.items()
    }


@pytest.mark.parametrize("kind", MEDIA)
def test_the_second_runtime_sees_and_hears_as_seqpipe_does(media_bundles: dict[str, Path], kind: str) -> None:
    ours, theirs = load(media_bundles[kind], "cpu", threads=1), Bundle(media_bundles[kind])
    source: Any = ours.predictor.featurizer
    values = [*(sounds() if kind == "sound" else pictures())]
    assert len(values) > 50
    entry = theirs.sources[""].entry
    vectors = []
    for value in values:
        (doc,) = source.docs([{"it": value}])
        expected = theirs.sources[""].rows(value)
        assert doc.rows.shape == np.shape(expected)
        assert np.abs(doc.rows - expected).max() < 1e-4
        vectors.append(ours({"it": value})["vector"])
        most = 2e-3 / min(entry["deviations"])
        assert theirs({"it": value})["vector"] == pytest.approx(vectors[-1], abs=most, rel=1e-3)
    assert len({*map(str, vectors)}) > 30
    assert theirs.failed_golden_examples() == []


MEDIA_FAULTS = {
    "pixels between two are dropped": ("picture", "resize_weights", lambda n, m: np.eye(n)[np.arange(m) * n // m]),
    "another mel scale": ("sound", "mel", lambda f: 2595 * np.log10(1 + f / 700)),
    "no resampling": ("sound", "resample", lambda x, rate, wanted: x),
}


@pytest.mark.parametrize("fault", MEDIA_FAULTS)
def test_a_runtime_that_sees_or_hears_otherwise_is_found(
    media_bundles: dict[str, Path], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, planted = MEDIA_FAULTS[fault]
    monkeypatch.setattr(second_runtime, name, planted)
    with pytest.raises(AssertionError):
        test_the_second_runtime_sees_and_hears_as_seqpipe_does(media_bundles, kind)


@pytest.mark.parametrize("name", [name for name in REFUSED_ENTRIES if not name.endswith("overflows")])
def test_absurd_pictures_and_sounds_are_refused_by_both(name: str, tmp_path: Path) -> None:
    entry, changes = REFUSED_ENTRIES[name]
    path = write_media_bundle(tmp_path / "bundle", entry)
    assert refusals(path) == set()
    change(path, lambda manifest: manifest["inputs"]["rows"].update(changes))
    assert refusals(path) == BOTH


# Faults that the comparisons above must see

original = {name: getattr(second_runtime, name) for name in ("chars", "polynomial", "spans")}
FAULTS: dict[str, tuple[str, str, Any]] = {
    "lone surrogates stay": ("text", "replace_surrogates", lambda text: text),
    "the end of a long word is dropped": ("spans", "shorten_word", lambda word, longest: word[:longest]),
    "the alphabet begins at 3": ("spans", "chars", lambda *arguments: original["chars"](*arguments) + 1),
    "n-grams of words are hashed from the left": (
        "ngrams",
        "polynomial",
        lambda start, values: original["polynomial"](start, values if start < 2 else [*values][::-1]),
    ),
    "n-grams are read as written": ("ngrams", "lowercase_code_points", lambda word: [*map(ord, word)]),
    "a span is its first token": ("spans", "spans", lambda tags: [(s[0], s[1], s[1]) for s in original["spans"](tags)]),
    "words are not normalised": ("spans", "TextSource.id", lambda self, word: self.tokenizer.token_to_id(word) or 1),
    "special tokens are words": ("text", "SPECIAL", ()),
    "words are searched from the start": ("spans", "TextSource.from_words", lambda *given: from_the_start(*given)),
    "scores are certain": ("tags", "score", lambda value: 1.0),
    "empty texts have no answer": ("label", "Bundle.empty", lambda self, several: []),
    "documents are one sentence": ("spans", "sentences", lambda text: [(0, len(text))]),
    "sentences are not shifted": ("tags", "Bundle.document", lambda self, text: unshifted(self, text)),
}


def from_the_start(theirs: second_runtime.TextSource, words: Sequence[str], text: str) -> list[second_runtime.Token]:
    places = [text.find(word) for word in words]
    found = [(w, at, at + len(w)) for w, at in zip(words, places, strict=True)]
    return [second_runtime.Token(theirs.id(word), word, a, b, (a, b)) for word, a, b in found]


def unshifted(theirs: Bundle, text: str) -> list[Any]:
    return [item for a, b in second_runtime.sentences(text) for item in theirs(text[a:b])]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_runtime_that_leaves_a_rule_of_the_page_is_found(
    pair_of: Callable[[str], Pair], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, planted = FAULTS[fault]
    monkeypatch.setattr(f"second_runtime.{name}", planted)
    assert next(pair_of(kind).differences(), None)


# What is refused


def refusals(path: Path) -> set[str]:
    """Who refuses this bundle."""
    found = set()
    try:
        load(path, "cpu", threads=1)
    except BundleError:
        found.add("seqpipe")
    try:
        Bundle(path)
    except RefusedError:
        found.add("the second runtime")
    return found


BOTH = {"seqpipe", "the second runtime"}


def test_a_damaged_bundle_is_refused_by_both(copy: Path) -> None:
    assert refusals(copy) == set()
    dice = random.Random(4)
    (copy / "README.md").write_text("# Completed by its author")
    assert refusals(copy) == set()
    for path in sorted(path for path in copy.iterdir() if path.name != "README.md"):
        whole = path.read_bytes()
        for _ in range(25):
            at = dice.randrange(len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :])
            assert refusals(copy) == BOTH
        path.write_bytes(whole[:-1])
        assert refusals(copy) == BOTH
        path.write_bytes(whole)
    assert refusals(copy) == set()


def renamed(manifest: dict[str, Any], name: str) -> None:
    manifest["files"][name] = manifest["files"].pop("tokenizer.json")


CACHE = {"input": "past.0", "output": "present.0", "dtype": "float32", "grows": True}
CACHE["axes"] = ["past_batch_size", "past_length", 2, 8]
FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "an older version": lambda m: m.update(version=1),
    "a newer version": lambda m: m.update(version=6),
    "further graphs": lambda m: m.update(graphs={}),
    "shared weights": lambda m: m.update(weights={}),
    "a cache that is no list": lambda m: m.update(cache={}),
    "a cache that the graph has not": lambda m: m.update(cache=[CACHE]),
    "format": lambda m: m.update(format="bundle"),
    **{f"without {key}": (lambda m, key=key: m.pop(key)) for key in second_runtime.KEYS},
    "an input of another kind": lambda m: m["inputs"]["chars"].update(kind="runes"),
    "an input more": lambda m: m["inputs"].update(more={"axes": [], "dtype": "int64"}),
    "an answer of another kind": lambda m: m["answer"].update(kind="picture"),
    "an output that is not there": lambda m: m["answer"].update(kind="label"),
    "no tokenizer": lambda m: m["files"].pop("tokenizer.json"),
    "a file elsewhere": lambda m: renamed(m, "../tokenizer.json"),
    "itself": lambda m: renamed(m, "bundle.json"),
    "another hash": lambda m: m["files"]["model.onnx"].update(sha256="0" * 64),
    "another size": lambda m: m["files"]["model.onnx"].update(bytes=1),
    "a key more of a file": lambda m: m["files"]["model.onnx"].update(mode=7),
}
WRITTEN = {
    "a key twice": (b'"name": "toy"', b'"name": "toy", "name": "toy"'),
    "no JSON": (b'"tokens": 1000', b'"tokens": NaN'),
}


@pytest.mark.parametrize("fault", [*FORGED, *WRITTEN])
def test_a_forged_bundle_is_refused_by_both(copy: Path, fault: str) -> None:
    change(copy, FORGED.get(fault, len), *WRITTEN.get(fault, ()))
    assert refusals(copy) == BOTH


def test_a_bundle_sealed_by_the_page_is_opened_by_both(copy: Path) -> None:
    change(copy, lambda manifest: manifest.update(more=1))
    assert refusals(copy) == set()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("spans", {"n_best": value}) for value in (0, 100_001, True, 1.0, "2", None)),
        ("spans", {"nbest": 2}),
        *(("text", {"length_penalty": value}) for value in (-0.1, 1e39)),
        *(("text", {"min_length": value}) for value in (2**63, 100)),
        *(("text", {"prefix": value}) for value in ([4, 1_000_000], [3])),
        *(("text", {"forbidden": value}) for value in ([3], "")),
        *(("text", {"seed": value}) for value in (-1, True)),
        *(("text", {"n_best": 3}), ("text", {"temperature": 0.5}), ("text", {"top_p": 0, "seed": 1})),
        ("text", {"min_length": 5, "max_length": 5}),
        ("text", {"prefix": [4] * 6, "max_length": 6}),
        ("label", {"n_best": 0}),
    ],
)
def test_decode_options_out_of_their_bounds_are_refused_by_both(
    pair_of: Callable[[str], Pair], kind: str, options: Mapping[str, Any]
) -> None:
    with pytest.raises(SeqpipeError):
        pair_of(kind).ours("in Rome", **options)
    with pytest.raises(RefusedError):
        pair_of(kind).theirs("in Rome", **options)


@pytest.mark.parametrize(("kind", "value"), [("float", 3), ("int", 5), ("bool", True)])
def test_options_of_every_type_are_fed_as_the_page_says(kind: str, value: Any) -> None:
    known = {"scale": {"type": kind, "default": 0, "minimum": None, "maximum": None}}
    ours, theirs = (feed(known, {"scale": value})["scale"] for feed in (option_arrays, second_runtime.option_inputs))
    assert (ours, ours.dtype, ours.shape) == (theirs, theirs.dtype, ())


OPTIONAL = {  # of options that are `null` by default
    "tokens": np.zeros((1, 0), np.int64),
    "texts": np.zeros((1, 0), np.int64),
    "automaton": np.zeros((1, 0, 3), np.int64),
    "trie": np.zeros((1, 0, 3), np.int64),
    "uniform": np.zeros((1, 1, 0), np.float32),
}


@pytest.mark.parametrize("kind", ["spans", "text", "generation", "multi-head"])
def test_a_graph_without_the_initializers_of_options_gets_their_defaults_as_inputs(
    pair_of: Callable[[str], Pair], kind: str
) -> None:
    pair = pair_of(kind)
    options, model = pair.theirs.manifest["options"], onnx.load(pair.path / "model.onnx")
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in options]
    assert len(model.graph.initializer) - len(kept) == len(options) > 0
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert {*options} <= {value.name for value in session.get_inputs()}
    defaults = {name: option["default"] for name, option in options.items()}
    nulls = {name: OPTIONAL[options[name]["type"]] for name, default in defaults.items() if default is None}
    plain = {name: {**option, "minimum": None, "maximum": None} for name, option in options.items()}
    feeds = (
        second_runtime.option_inputs(plain, {name: defaults[name] for name in defaults if name not in nulls}) | nulls
    )
    record = pair.inputs[60]
    text, tokens = pair.theirs.sources[""].record(record)
    inputs = pair.theirs.sources[""].inputs([tokens], [text], [record])
    expected = pair.theirs.session.run(None, inputs)
    for name, one, other in zip(pair.theirs.outputs, expected, session.run(None, inputs | feeds), strict=True):
        assert np.array_equal(one, other), name
    with pytest.raises(ValueError, match="Required inputs"):
        session.run(None, inputs)


# Node

NODE_PATHS = ("examples/node/*", "docs/internals/bundle-*.md", "tests/test_bundle_format.py")


def of_node(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.timeout(900)(pytest.mark.nightly(*NODE_PATHS)(test))


NODE_KINDS = ("spans", "tags", "text", "label", "structured", "other field", "ngrams", "segmentation")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_node_program(tmp_path_factory.mktemp("node"))


@of_node
@pytest.mark.parametrize("kind", NODE_KINDS)
def test_node_answers_as_seqpipe_does(node: Path, pair_of: Callable[[str], Pair], kind: str) -> None:
    pair = pair_of(kind)
    assert len(pair.inputs) >= 60
    theirs = in_node(node, pair.path, [[pair.inputs, options] for options in pair.options])
    for options, answered in zip(pair.options, theirs, strict=True):
        for record, answer in zip(pair.inputs, answered, strict=True):
            assert alike(pair.ours(record, **options), answer), (record, options)


@of_node
def test_a_node_program_that_counts_utf_16_units_is_found(node: Path, pair_of: Callable[[str], Pair]) -> None:
    program = (node / "bundle.mjs").read_text(encoding="utf-8")
    assert program.count("points: [...text]") == 1
    utf_16 = program.replace("points: [...text]", 'points: text.split("")')
    try:
        (node / "bundle.mjs").write_text(utf_16, encoding="utf-8")
        (theirs,) = in_node(node, pair_of("tags").path, [[pair_of("tags").inputs, {}]])
    finally:
        (node / "bundle.mjs").write_text(program, encoding="utf-8")
    assert not alike(pair_of("tags").ours(pair_of("tags").inputs), theirs)


@of_node
def test_the_commands_of_the_node_page_do_what_it_says(node: Path, pair_of: Callable[[str], Pair]) -> None:
    shutil.copytree(pair_of("spans").path, node / "bundle", dirs_exist_ok=True)
    answers = [json.loads(line) for line in shell(node_lines("node predict.mjs"), node).splitlines()]
    texts = (node / "texts.txt").read_text(encoding="utf-8").splitlines()
    ours = pair_of("spans").ours
    assert alike(ours(texts) + ours(texts, n_best=3), answers)


@of_node
def test_node_refuses_a_damaged_bundle(node: Path, copy: Path) -> None:
    model = copy / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"!")
    with pytest.raises(AssertionError, match="onnx is damaged"):
        in_node(node, copy, [])
