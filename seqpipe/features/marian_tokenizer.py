"""The two SentencePiece tokenizers of a Marian checkpoint, with our ids; needs neither PyTorch nor `sentencepiece`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram

from seqpipe.errors import DataError
from seqpipe.features.vocabulary import SPECIALS

Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = ("source", "target")
LACKING = -1
_UNIGRAM, _NORMAL, _USER_DEFINED = 1, 1, 4  # numbers of SentencePiece's format
_UNKNOWN_PENALTY = 10.0  # how much less likely than the least likely piece `tokenizers` takes an unknown one to be
_ROLES = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}  # and what they are where it is not said
_LANGUAGE = re.compile(r">>.+<<")  # what a text for a checkpoint of several languages begins with
_HIDDEN = " "  # before the name of a piece that the side's text never has: no text has a blank behind Metaspace


class _Pieces(NamedTuple):
    """A SentencePiece model: each piece's score, and how texts are normalised."""

    scores: dict[str, float]
    normalization: Any


def marian_tokenizer(files: Mapping[str, Path], checkpoint: object, side: Side) -> tuple[Tokenizer, list[int]]:
    """The tokenizer of one side, and of each of our ids the checkpoint's own.

    Both sides have the same tokens under the same ids, unless the checkpoint has a vocabulary for each. Pieces that
    its vocabulary lacks, which are unknown to the model, come last and have the id of the unknown token.

    Args:
        files: vocab.json, source.spm and target.spm, tokenizer_config.json and target_vocab.json where there are any.
        checkpoint: What errors call it.
        side: Which texts it is for.
    """
    settings = _json(files["tokenizer_config.json"]) if "tokenizer_config.json" in files else {}
    separate = settings.get("separate_vocabs", False)
    if separate and "target_vocab.json" not in files:
        raise DataError(f"{checkpoint}: holds no target_vocab.json, though it has separate_vocabs; get it whole")
    vocabulary = _json(files["target_vocab.json" if separate and side == "target" else "vocab.json"])
    model = _pieces(files[f"{side}.spm"], checkpoint)
    models = [model] if separate else [_pieces(files[f"{name}.spm"], checkpoint) for name in SIDES]
    roles = {role: settings.get(role) or token for role, token in _ROLES.items()}
    tokens = {role: token["content"] if isinstance(token, dict) else token for role, token in roles.items()}
    if lacking := [token for token in tokens.values() if token not in vocabulary]:
        raise DataError(f"{checkpoint}: vocab.json lacks the special token {lacking[0]!r}; get the checkpoint again")
    pad, unknown, end = (vocabulary[token] for token in tokens.values())
    others = sorted({*vocabulary} - {*tokens.values()}, key=vocabulary.__getitem__)
    extra = dict.fromkeys(piece for each in models for piece in each.scores if piece not in vocabulary)
    if doubled := [special for special in SPECIALS if special in vocabulary or special in extra]:
        problem = f"its token {doubled[0]!r} is a special one in seqpipe"
        raise DataError(f"{checkpoint}: {problem}; choose another checkpoint")
    ids = [pad, unknown, LACKING, end] + [vocabulary[token] for token in others] + [unknown] * len(extra)
    return _tokenizer(model, others, list(extra)), ids


def _tokenizer(model: _Pieces, others: list[str], extra: list[str]) -> Tokenizer:
    """A unigram model in which only pieces of this side, and single letters of the other one, are found in texts."""
    least = min(model.scores.values())

    def entry(token: str) -> tuple[str, float]:
        if token in model.scores:
            return token, model.scores[token]
        if len(token) == 1:
            return token, least - _UNKNOWN_PENALTY  # unknown to SentencePiece, which then is looked up as it is
        return (token if _LANGUAGE.fullmatch(token) else _HIDDEN + token), least

    specials = [(special, least) for special in SPECIALS]
    known, unknown = [entry(token) for token in others], [entry(token) for token in extra]
    unknown = [(_HIDDEN + piece if piece not in model.scores else piece, score) for piece, score in unknown]
    tokenizer = Tokenizer(Unigram([*specials, *known, *unknown], unk_id=1))
    spec = model.normalization
    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if any(len(token) == 1 and token not in model.scores for token in others):
        steps.append(_unknown_runs(model, others))
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    words = not any("▁" in piece[1:] for piece in model.scores)  # else pieces may hold several words
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=words)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_HIDDEN, ""), decoders.Metaspace(prepend_scheme=scheme, split=words)]
    )
    content = json.loads(tokenizer.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    languages = ((i, token) for i, (token, _) in enumerate(known, len(SPECIALS)) if _LANGUAGE.fullmatch(token))
    content["added_tokens"] = [{"id": i, "content": token, **flags} for i, token in languages]
    return Tokenizer.from_str(json.dumps(content))


def _unknown_runs(model: _Pieces, others: list[str]) -> normalizers.Replace:
    """Two letters and more in a row that this side does not know are one unknown piece to SentencePiece."""
    known = {ord(letter) for piece in model.scores for letter in piece} | {ord(" "), ord("▁")}
    starts = [code for code in sorted(known) if code - 1 not in known]
    ends = [code for code in sorted(known) if code + 1 not in known]
    ranges = "".join(rf"\x{{{start:x}}}-\x{{{end:x}}}" for start, end in zip(starts, ends, strict=True))
    sign = next(letter for letter in map(chr, range(0xE000, 0xF900)) if letter not in {*others, *model.scores})
    return normalizers.Replace(Regex(f"[^{ranges}]{{2,}}"), sign)


def _pieces(file: Path, checkpoint: object) -> _Pieces:
    """A SentencePiece model; DataError if it is not a unigram model."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(file.read_bytes())
    if proto.trainer_spec.model_type != _UNIGRAM:
        problem = f"{file.name} is no unigram model of SentencePiece"
        raise DataError(f"{checkpoint}: {problem}; choose a checkpoint with one, or with a tokenizer.json")
    kept = (piece for piece in proto.pieces if piece.type in (_NORMAL, _USER_DEFINED))
    return _Pieces({piece.piece: piece.score for piece in kept}, proto.normalizer_spec)


def _json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content
