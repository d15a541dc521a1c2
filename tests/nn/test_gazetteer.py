"""Gazetteers: decisions, scores and alternatives against all sequences of tags, without those that a list forbids."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import export, ragged_mask

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe.features.kinds import ngrams
from seqpipe.features.kinds.ngrams import Ngrams, hash_of_word, read_names
from seqpipe.features.sources import TextSource
from seqpipe.runtime import bundle
from seqpipe_plugins.heads.crf import CRF
from seqpipe_plugins.heads.tags import TagsHead
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.words import WordsTokenizer

# Names that contain one another and overlap, with labels x and z; y is not listed.
NAMES = "a\tx\nb c\tx\nc d\tx\nb c d\tx\nD a\tx\tz\nA\tz\n"
ONE_LABEL = "a\tx\nb c\tx\nc d\tx\nb c d\tx\nD a\tx\n"
LEXICON = "a\tN\tV\nb\tV\nC\tN\n"
TEXTS = ("b c d a", "c d b c", "d d b", "a")
D = 6
WORDS = WordsTokenizer().train(["a"])
CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "crf": (CRF, {"scheme": "BIOES"}, ONE_LABEL),
    "crf, IOB2": (CRF, {"scheme": "IOB2"}, NAMES),
    "crf without constraints": (CRF, {"scheme": "IOB2", "constraints": False}, NAMES),
    "tags": (TagsHead, {"scheme": "BIOES"}, ONE_LABEL),
    "tags, IOB2": (TagsHead, {"scheme": "IOB2"}, NAMES),
    "lexicon, crf": (CRF, {"scheme": "none"}, LEXICON),
    "lexicon, tags": (TagsHead, {"scheme": "none"}, LEXICON),
}


def build(folder: Path, case: str, content: str = "") -> tuple[Any, TextSource, tuple[str, ...]]:
    """Return a head with random weights, the source of its inputs, and its tags."""
    cls, options, names = CASES[case]
    path = folder / "names.tsv"
    path.write_text(content or names, encoding="utf-8")
    labels = ("x", "y", "z") if names == NAMES else ("x", "y")
    tags = ("A", "N", "V") if options["scheme"] == "none" else schemes.tag_set(labels, options["scheme"])
    tokenizer = WordsTokenizer().train(["a b c"])  # d is not in the vocabulary
    declared = cls.features({"gazetteer": path}).items()
    features = {
        name: feature.with_tokenizer(tokenizer, TextSource(tokenizer, {}).words).fit([]) for name, feature in declared
    }
    torch.manual_seed(3)
    head = cls(D, tags, {name: feature.size for name, feature in features.items()}, gazetteer=path, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
        head.temperature.fill_(0.7)
    return head, TextSource(tokenizer, features), tags


def is_permitted(sequence: Sequence[str], words: Sequence[str], names: dict[str, set[str]], scheme: str) -> bool:
    """Return whether each entity of a listed label is well-formed and a listed name, or each word has a listed tag."""
    if scheme == "none":
        return all(tag in names.get(word, {tag}) for tag, word in zip(sequence, words, strict=True))
    listed = set[str]().union(*names.values())
    spans = schemes.spans(sequence)
    well_formed = schemes.to_tags(spans, len(words), scheme)  # type: ignore[arg-type]
    return all(
        tag == right for tag, right in zip(sequence, well_formed, strict=True) if schemes.parts(tag)[1] in listed
    ) and all(label not in listed or label in names.get(" ".join(words[i:j]), ()) for label, i, j in spans)


@pytest.mark.parametrize("case", CASES)
def test_a_decision_is_the_best_of_all_permitted_sequences(case: str, tmp_path: Path) -> None:
    (head, source, tags), scheme = build(tmp_path, case), CASES[case][1]["scheme"]
    head.double()
    names: dict[str, set[str]] = {}
    for name, labels in read_names(tmp_path / "names.tsv").items():
        names.setdefault(name.lower(), set()).update(labels)
    continues, changed = schemes.continues(tags) & (scheme != "none"), 0
    for text in TEXTS:
        docs = source.docs([{"text": text.upper()}, {"text": "a b c d a b c"}])  # the longer one pads the other
        arrays = {name: torch.from_numpy(array) for name, array in source.collate(docs).items()}
        T, longest = len(docs[0]), len(docs[1])
        arrays["gazetteer"][0, T:] = 1  # the padding does not count
        given = {"x": torch.randn(2, longest, D).double(), "mask": arrays["mask"], "gazetteer": arrays["gazetteer"]}
        every = np.array(list(itertools.product(range(len(tags)), repeat=T)))
        logits = head.emissions(given["x"]) / 0.7
        scores = logits[0, :T].detach().numpy()[np.arange(T), every].sum(1)
        if isinstance(head, CRF):
            chain = head._chain(0.7).detach().numpy()
            around = np.pad(every, ((0, 0), (1, 1)), constant_values=len(tags))
            scores += chain[around[:, :-1], around[:, 1:]].sum(1)
        permitted = [is_permitted([tags[i] for i in row], text.split(), names, scheme) for row in every]
        changed += not permitted[scores.argmax()]
        kept = np.array(permitted) & (scores > -1000)
        every, scores = every[kept], scores[kept]
        order = np.argsort(-scores, kind="stable")
        every, log_p = every[order], (scores - np.logaddexp.reduce(scores))[order]
        best = every[0]
        made = {name: rows.detach().numpy() for name, rows in head.decide(**given).items()}
        assert made["tags"][0, :T].tolist() == best.tolist()
        of_tags = [np.exp(log_p[every[:, t] == best[t]]).sum() for t in range(T)]
        assert made["scores"][0, :T] == pytest.approx(of_tags, abs=1e-6)
        spans = [span[1:] for span in schemes.spans([tags[i] for i in best])]
        for i, j in [(t, t + 1) for t in range(T)] if scheme == "none" else spans:
            ends = (j == T) | ~continues[every[:, j - 1], every[:, min(j, T - 1)]]
            same = (every[:, i:j] == best[i:j]).all(1) & ends
            p = np.exp(made["opens"][0, i] + made["closes"][0, j - 1])
            assert p == pytest.approx(np.exp(log_p[same]).sum(), abs=1e-6)
        first, last = (np.pad(row, (0, longest - T)) for row in (best, every[-1]))
        rows = {"x": given["x"][:1].expand(2, -1, -1), "mask": given["mask"][:1].expand(2, -1)}
        gap = head.score(**rows, tags=torch.from_numpy(np.stack([first, last]))).diff()
        assert gap.item() == pytest.approx(log_p[-1] - log_p[0], abs=1e-6)
        if isinstance(head, CRF):
            more = head.decide(**given, n_best=4)
            n = min(4, len(every))
            assert more["paths"][0, :n, :T].tolist() == every[:n].tolist()
            assert more["path_scores"][0, :n].tolist() == pytest.approx(log_p[:n], abs=1e-6)
            assert (more["path_scores"][0, n:] < -1e8).all()
    assert changed  # the list changes some answers


@pytest.mark.parametrize("batches", [20, pytest.param(100, marks=pytest.mark.long)])  # of 100 texts
def test_no_answer_of_the_graph_is_outside_the_list(batches: int, tmp_path: Path) -> None:
    head, source, tags = build(tmp_path, "crf, IOB2")
    example = {
        "x": torch.randn(3, 5, D),
        "mask": ragged_mask(5, 2, 4),
        "gazetteer": torch.zeros(3, 5, 7, dtype=torch.int64),
    }
    axes = {"x": ("b", "t"), "mask": ("b", "t"), "gazetteer": ("b", "t", "k")}
    graph = export(tmp_path / "g.onnx", head, head.decide, axes, **example)
    random, count = np.random.default_rng(1), 0
    names = {name.lower() for name in NAMES.replace("\tz", "").replace("\tx", "").split("\n")}
    for batch in range(batches):
        texts = [" ".join(random.choice([*"abcd", "e"], 1 + batch % 9)) for _ in range(100)]
        docs = source.docs([{"text": text} for text in texts])
        arrays = {name: torch.from_numpy(array) for name, array in source.collate(docs).items()}
        inputs = {"x": 3 * torch.randn(*arrays["mask"].shape, D)} | {n: arrays[n] for n in ("mask", "gazetteer")}
        with torch.no_grad():
            expected = head.decide(**inputs)
        K = 1 + int(np.flatnonzero(inputs["gazetteer"].numpy().any((0, 1))).max(initial=0))
        made = graph(**inputs | {"gazetteer": inputs["gazetteer"][..., :K]})  # a runtime may leave out zeros
        assert np.array_equal(made["tags"], expected["tags"].numpy())
        assert all(np.abs(made[name] - expected[name].numpy()).max() < 1e-4 for name in ("scores", "opens", "closes"))
        for doc, row in zip(docs, made["tags"], strict=True):
            spans = schemes.spans([tags[i] for i in row[: len(doc)]])
            entities = [" ".join(doc.words[i:j]) for label, i, j in spans if label != "y"]
            assert {*entities} <= names
            count += len(entities)
    assert count > 500


def test_names_are_split_as_by_the_tokenizer_and_as_by_white_space(tmp_path: Path) -> None:
    path = tmp_path / "names.tsv"
    path.write_text("\ufeffSt. Gallen\tcity\r\n\r\nBÂLE\tcity\tport\n")
    tokenizer = WordsTokenizer().train(["a"])
    feature = Ngrams(1, None, names_file=path).with_tokenizer(tokenizer, TextSource(tokenizer, {}).words)
    assert (feature.words, len(feature.hashes)) == (3, 3)
    assert feature.counts == (3, 1, 1, 1, 1, 0, 0, 1)  # city and port: names, then those that each name has
    source = TextSource(tokenizer, {"names": feature})
    records: list[Any] = [{"text": "in st. GALLEN"}, {"words": ["St.", "Gallen"]}, {"text": "bâle gallen"}]
    numbers = [array[array > 0].tolist() for array in source.collate(source.docs(records))["names"]]
    assert numbers == [[1], [2], [3]]


def test_names_are_split_in_groups_and_each_word_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, groups, hashed, docs = tmp_path / "names.tsv", list[int](), list[str](), TextSource.docs
    path.write_text("".join(f"w{i} v{j}\tx\n" for i in range(40) for j in range(40)))
    monkeypatch.setattr(TextSource, "docs", lambda self, rows: groups.append(len(rows)) or docs(self, rows))
    monkeypatch.setattr(ngrams, "hash_of_word", lambda word: hashed.append(word) or hash_of_word(word))
    feature = Ngrams(1, None, names_file=path).with_tokenizer(WORDS, TextSource(WORDS, {}).words)
    assert (len(feature.hashes), sum(groups), len(hashed)) == (1_600, 1_600, 80)
    assert max(groups) <= 512


def test_more_names_than_a_bundle_may_contain_are_refused_before_they_are_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams, "MOST_ENTRIES", 8)
    message = r"names.tsv: 3 names are over the limit of 2 with so many labels \(3\); list fewer of one of them"
    with pytest.raises(DataError, match=message):
        build(tmp_path, "crf", "a\tx\nb\ty\nb\tx\nc\tz\n")


@pytest.mark.nightly("seqpipe/features/kinds/ngrams.py", "seqpipe/nn/crf.py", "tests/nn/test_gazetteer.py")
@pytest.mark.timeout(1_800)
def test_a_million_names_are_a_gazetteer(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "names.tsv", WordsTokenizer().train(["a"])
    with path.open("w") as file:
        file.writelines(f"w{i % 1_009} v{i}\t{'xyzt'[i % 4]}\n" for i in range(1_000_000))
    fitted = Ngrams(1, None, names_file=path).with_tokenizer(tokenizer, TextSource(tokenizer, {}).words)
    manifest = fitted.manifest()
    assert len(json.dumps(manifest)) < bundle.MOST_MANIFEST / 2
    source = TextSource(tokenizer, {"names": Ngrams.from_manifest(manifest, {})})
    numbers = source.collate(source.docs([{"text": f"in w{777_777 % 1_009} V777777 v3"}]))["names"][0]
    assert (numbers > 0).tolist() == [[False, False], [False, False], [False, True], [False, False]]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("Bern city\n", DataError, r"names.tsv:1: 'Bern city' must be a name, a tab and a label"),
        ("\n", DataError, r"there is no name; write a name, a tab and a label in each line"),
        ("a b c d e f g h i j k\tx\n", DataError, r"has 11 words, not 1 to 10; remove it"),
        ("a\tX\n", UsageError, r"gazetteer: the training data has no label 'X'; remove it from .*names.tsv"),
    ],
)
def test_a_faulty_file_is_refused(content: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        build(tmp_path, "crf", content)


def test_pieces_of_words_and_word_segmentation_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "names.tsv"
    path.write_text("a\tx\n")
    feature = Ngrams(1, None, names_file=path)
    with pytest.raises(UsageError, match="names are compared word by word; use the tokenizer words, chars or lexicon"):
        feature.with_tokenizer(construct(BPE, max_size=40).train(["a b c"]), TextSource(WORDS, {}).words)
    size = feature.with_tokenizer(WORDS, TextSource(WORDS, {}).words).size
    with pytest.raises(UsageError, match="in BMES every word is in a span, listed or not; use the scheme BIOES"):
        CRF(D, schemes.tag_set(["x"], "BMES"), {"gazetteer": size}, gazetteer=path, scheme="BMES")
