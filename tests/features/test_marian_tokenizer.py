"""Marian's SentencePiece tokenizers against enumeration and the package `sentencepiece`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pretrained import marian, rewrite, sentencepiece

from seqpipe.errors import DataError
from seqpipe.features.checkpoint_tokenizer import SIDES, Side, pretrained_tokenizer
from seqpipe.features.vocabulary import SPECIALS, vocabulary_of

SOURCE, TARGET = (
    ["the owl saw a fox", "a fox saw the owl , the owl"],
    ["ein Fuchs sah die Eule", "die Eule sah größer aus"],
)
TEXTS = (
    "the owl",
    "  the  owl saw a fox, the hole ",
    "a wolf",
    "the ölfox 漢字 größer",
    "fox ü üß 漢 fox漢字fox Müller Straße",
    "sah die Eule",
    "x",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marian(tmp_path_factory.mktemp("marian") / "marian", SOURCE, TARGET)


def splits(word: str, scores: dict[str, float], unknown: float) -> Iterator[tuple[float, list[str]]]:
    """Every way to split a word into pieces and unknown letters, with its score."""
    if not word:
        yield 0.0, []
    for end in range(1, len(word) + 1):
        piece = word[:end]
        if piece in scores or end == 1:
            for score, rest in splits(word[end:], scores, unknown):
                yield score + scores.get(piece, unknown), [piece, *rest]


def enumerated(folder: Path, side: Side, text: str) -> list[str]:
    """The pieces of the best split of each word, unknown letters in a row as one."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString((folder / f"{side}.spm").read_bytes())
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == 1}
    pieces: list[str] = []
    for word in text.split():
        best = max(splits(f"▁{word}", scores, min(scores.values()) - 10), key=lambda split: split[0])[1]
        for piece in best:
            if piece not in scores and pieces and pieces[-1] not in scores:
                pieces[-1] += piece
            else:
                pieces.append(piece)
    return pieces


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_best_split_in_the_checkpoints_vocabulary(folder: Path, side: Side, text: str) -> None:
    vocabulary: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    tokenizer, ids, _ = pretrained_tokenizer(folder, side)
    expected = [vocabulary.get(piece, vocabulary["<unk>"]) for piece in enumerated(folder, side, text)]
    assert [ids[i] for i in tokenizer.encode(text).ids] == expected


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_package_sentencepiece(folder: Path, text: str) -> None:
    original: Any = transformers.MarianTokenizer.from_pretrained(folder)
    for side, given in (("source", {"text": text}), ("target", {"text_target": text})):
        tokenizer, ids, _ = pretrained_tokenizer(folder, "source" if side == "source" else "target")
        theirs = original(**given, add_special_tokens=False)["input_ids"]
        assert [ids[i] for i in tokenizer.encode(text).ids] == theirs, side


@pytest.mark.filterwarnings("ignore:Recommended")
def test_letters_that_a_side_lacks_cost_more_than_pieces_that_compete(tmp_path: Path) -> None:
    """Two pieces at -16 together, and one piece with an unknown letter at -1 - 18: SentencePiece's penalty decides."""
    folder = marian(tmp_path / "marian", SOURCE, TARGET)
    sentencepiece(folder / "source.spm", [("▁x", -8.0), ("yz", -8.0), ("▁xy", -1.0), ("▁", -2.0)])
    sentencepiece(folder / "target.spm", [("▁", -2.0), ("z", -3.0)])  # the other side has the letter
    tokens = ["</s>", "<unk>", ">>fra<<", "▁x", "yz", "▁xy", "▁", "z", "<pad>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    rewrite(folder / "config.json", vocab_size=len(tokens), pad_token_id=len(tokens) - 1)
    original: Any = transformers.MarianTokenizer.from_pretrained(folder)
    tokenizer, ids, _ = pretrained_tokenizer(folder, "source")
    for text, pieces in (("xyz", ["▁x", "yz"]), ("xy z", ["▁xy", "▁", "z"])):
        found = [ids[i] for i in tokenizer.encode(text).ids]
        assert found == [vocabulary[piece] for piece in pieces]
        assert found == original(text, add_special_tokens=False)["input_ids"]


def test_both_sides_have_the_same_tokens_under_the_same_ids(folder: Path) -> None:
    (source, ids, _), (target, other, _) = (pretrained_tokenizer(folder, side) for side in SIDES)
    assert ids == other
    names = [[token.removeprefix(" ") for token in vocabulary_of(tokenizer)] for tokenizer in (source, target)]
    assert names[0] == names[1]
    assert tuple(names[0][:4]) == SPECIALS


def test_texts_of_each_side_are_decoded_as_they_were(folder: Path) -> None:
    for side, text in zip(SIDES, ("the owl saw a fox", "die Eule sah ein Fuchs"), strict=True):
        tokenizer = pretrained_tokenizer(folder, side).tokenizer
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    target, source = (pretrained_tokenizer(folder, side).tokenizer for side in ("target", "source"))
    fox = source.encode("fox").ids  # a model may write a word of its source
    assert target.decode(fox, skip_special_tokens=False) == "fox"


def test_a_target_language_is_one_token_at_the_beginning_of_a_text(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    tokenizer, ids, _ = pretrained_tokenizer(folder)
    tokens = [ids[i] for i in tokenizer.encode(">>fra<< the owl").ids]
    assert tokens == [vocabulary[">>fra<<"], vocabulary["▁the"], vocabulary["▁owl"]]


def test_a_model_that_is_no_unigram_model_is_refused(tmp_path: Path) -> None:
    folder = marian(tmp_path / "marian", SOURCE, TARGET)
    sentencepiece(folder / "target.spm", [("▁a", -1.0)], kind=2)
    with pytest.raises(DataError, match=r"target\.spm is not a unigram model of SentencePiece; choose"):
        pretrained_tokenizer(folder)


def test_a_checkpoint_without_its_second_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = marian(tmp_path / "marian", SOURCE, TARGET)
    rewrite(folder / "tokenizer_config.json", separate_vocabs=True)
    with pytest.raises(DataError, match=r"has separate_vocabs but no target_vocab\.json"):
        pretrained_tokenizer(folder)


def test_a_vocabulary_without_its_special_tokens_is_refused(tmp_path: Path) -> None:
    folder = marian(tmp_path / "marian", SOURCE, TARGET)
    rewrite(folder / "tokenizer_config.json", pad_token="<blank>")
    with pytest.raises(DataError, match=r"vocab\.json lacks the special token '<blank>'"):
        pretrained_tokenizer(folder)
