"""Pieces of texts in several scripts: those of a checkpoint's own tokenizer, white space and the lone ▁ among them."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import second_runtime
import transformers
from tiny_checkpoints import modernbert_tokenizer, unigram_pieces

from seqpipe.features.checkpoint_tokenizer import CheckpointTokenizer, pretrained_tokenizer
from seqpipe.features.sources import TextSource

WORDS = ["hello", "world", "Zürich", "世界", "你好", "日本語です", "Привет", "สวัสดี", "(", ")", ",", "。"]
WORDS += ["👩🏽\u200d💻", "☃", "½", "▁x", "e\u0301"]
TEXTS = [
    "hello world (你好) , 世界",
    "世界 hello",
    "日本語です。hello 世界 ☃ Zürich!",
    " 世界 (hello, world)",
    "hello  世界\n\nПривет,\tสวัสดี",
    "👩🏽‍💻 👩🏽‍💻☃ ½ e\u0301",
    "a▁b ▁ ▁世界",
    "世\u3000界\u00a0世    x",
]
UNIGRAM = ("xlm-roberta", "deberta-v2", "deberta-v2 by punctuation")
LAYOUTS = (*UNIGRAM, "modernbert")
every = pytest.mark.parametrize("layout", LAYOUTS)


def trained(layout: str) -> Any:
    """The tokenizer of `transformers` with the layout of a family, trained on these texts."""
    texts = [*TEXTS, *WORDS] * 2
    if layout == "modernbert":
        return modernbert_tokenizer(texts)
    pieces = unigram_pieces(texts)
    if layout == "xlm-roberta":
        special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        return transformers.XLMRobertaTokenizer(vocab=[*special, *pieces, ("<mask>", 0.0)])
    special = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    by_punctuation = layout == "deberta-v2 by punctuation"
    return transformers.DebertaV2Tokenizer(vocab=[*special, *pieces], split_by_punct=by_punctuation)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CheckpointTokenizer, Any]]:
    """By layout our tokenizer and that of `transformers`, both read from the same folder."""
    found = {}
    for layout in LAYOUTS:
        folder = tmp_path_factory.mktemp("checkpoint") / layout
        trained(layout).save_pretrained(folder)
        transformers.AutoConfig.for_model(layout.split()[0]).save_pretrained(folder)
        found[layout] = pretrained_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    return found


def any_texts(count: int) -> list[str]:
    """TEXTS, and words of several scripts, with and without white space of several kinds before each."""
    dice = random.Random(7)
    blanks = ["", "", " ", " ", "  ", "\n", "\t ", "\u3000", "     "]
    rows = [[dice.choice(blanks) + dice.choice(WORDS) for _ in range(dice.randint(1, 9))] for _ in range(count)]
    return [*TEXTS, *map("".join, rows)]


@every
def test_a_text_has_the_pieces_of_the_checkpoints_own_tokenizer(tokenizers: Any, layout: str) -> None:
    ours, reference = tokenizers[layout]
    texts = any_texts(200)
    lone = 0
    for text, doc in zip(texts, TextSource(ours.tokenizer, {}).docs([{"text": text} for text in texts]), strict=True):
        expected = reference(text, add_special_tokens=False)["input_ids"]
        assert [ours.ids[i] for i in doc.ids] == expected, text
        lone += reference.convert_ids_to_tokens(expected).count("▁" if layout in UNIGRAM else "Ġ")
    assert lone > 100


@pytest.mark.parametrize("layout", UNIGRAM[:2])
def test_words_have_the_pieces_that_transformers_gives_words(tokenizers: Any, layout: str) -> None:
    ours, reference = tokenizers[layout]
    dice, lone = random.Random(8), 0
    for _ in range(100):
        words = dice.choices([word for word in WORDS if "▁" not in word], k=dice.randint(1, 8))
        expected = reference(words, is_split_into_words=True, add_special_tokens=False)
        (doc,) = TextSource(ours.tokenizer, {}).docs([{"words": words}])
        assert [ours.ids[i] for i in doc.ids] == expected["input_ids"], words
        assert doc.starts == [expected.word_ids().index(word) for word in range(len(words))]
        assert [doc.text[a:b] for a, b in doc.word_offsets] == words
        lone += expected.tokens().count("▁")
    assert lone > 50


@every
def test_a_sign_of_a_word_has_no_characters_and_belongs_to_the_word_behind_it(tokenizers: Any, layout: str) -> None:
    source = TextSource(tokenizers[layout][0].tokenizer, {})
    for text in any_texts(100):
        (doc,) = source.docs([{"text": text}])
        assert doc.starts is not None
        ends = [*doc.starts[1:], len(doc)]
        for first, end, (a, b) in zip(doc.starts, ends, doc.word_offsets, strict=True):
            assert text[a:b] == text[a:b].strip() != ""
            shown = [place for place in doc.offsets[first:end] if place[0] < place[1]]
            assert (shown[0][0], shown[-1][1]) == (a, b)
        for i, (a, b) in enumerate(doc.offsets):
            assert a < b or doc.offsets[i + 1][0] == a
        covered = {i for a, b in doc.word_offsets for i in range(a, b)}
        assert not "".join(text[i] for i in range(len(text)) if i not in covered).strip()


@pytest.mark.parametrize("layout", ["xlm-roberta", "deberta-v2", "modernbert"])
def test_words_of_a_text_have_the_pieces_of_the_text(tokenizers: Any, layout: str) -> None:
    source = TextSource(tokenizers[layout][0].tokenizer, {})
    for text in any_texts(100):
        (whole,) = source.docs([{"text": text}])
        begins = [a == 0 or text[a - 1].isspace() for a, _ in whole.word_offsets]
        if layout == "modernbert" or all(begins):  # the others put ▁ before every word that is given
            words = [text[a:b] for a, b in whole.word_offsets]
            assert source.docs([{"text": text, "words": words}]) == [whole]


@every
def test_white_space_behind_the_last_word_is_no_piece(tokenizers: Any, layout: str) -> None:
    texts = ("hello 世界", "hello 世界 \n  ", " \n ")
    bare, followed, blank = TextSource(tokenizers[layout][0].tokenizer, {}).docs([{"text": text} for text in texts])
    assert bare.ids == followed.ids
    assert blank.ids == []


@every
def test_a_reader_of_the_format_alone_finds_the_same_pieces(tokenizers: Any, layout: str) -> None:
    tokenizer = tokenizers[layout][0].tokenizer
    reference = second_runtime.TextSource("text", tokenizer.to_str().encode(), {}, {"tokens": 9999})
    texts = any_texts(100)
    records: list[dict[str, Any]] = [*({"text": text} for text in texts), *({"words": text.split()} for text in texts)]
    for record, doc in zip(records, TextSource(tokenizer, {}).docs(records), strict=True):
        text, tokens = reference.record(record)
        assert text == doc.text
        expected = [*zip(doc.ids, doc.words, doc.offsets, strict=True)]
        assert [(token.id, token.word, (token.start, token.end)) for token in tokens] == expected
        assert [token.place for token in tokens if token.place] == doc.word_offsets


def test_added_tokens_that_are_not_special_are_read_whole(tokenizers: Any, tmp_path: Path) -> None:
    ours, reference = tokenizers["modernbert"]
    text = "x    [unused0] |||IP_ADDRESS||| [CLS] [MASK] <|endoftext|>"
    (doc,) = TextSource(ours.tokenizer, {}).docs([{"text": text}])
    read = reference.convert_ids_to_tokens([ours.ids[i] for i in doc.ids])
    assert read[:3] == ["x", "    ", "[unused0]"]
    assert not {"[CLS]", "[MASK]", "<|endoftext|>"} & {*read}  # no token of a text is special
    added = json.loads(ours.tokenizer.to_str())["added_tokens"]
    assert {token["content"] for token in added} == {"    ", "   ", "  ", "[unused0]"}
