"""Tokenizers of `transformers` checkpoints, with our ids of special tokens."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from typing_extensions import TypedDict

from seqpipe.errors import LFS_FIX, LFS_POINTER, DataError, EnvError, UsageError
from seqpipe.features.encoding import is_library_error
from seqpipe.features.vocabulary import MASK, SPECIALS

# The two SentencePiece tokenizers of a Marian checkpoint, with our ids; needs neither PyTorch nor `sentencepiece`.

Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = ("source", "target")
NO_CHECKPOINT_ID = -1
_UNIGRAM, _NORMAL, _USER_DEFINED = 1, 1, 4  # numbers of SentencePiece's format
_UNKNOWN_PENALTY = 10.0  # difference of the score of an unknown piece in `tokenizers` from the least score
_MARIAN_ROLES = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}  # and their defaults
_LANGUAGE = re.compile(r">>.+<<")  # the first token of a text for a multilingual checkpoint
_ANEW = "download the checkpoint again"
_UNUSED_PREFIX = " "  # prefix of pieces that this side never produces: Metaspace replaces every space


class _Pieces(NamedTuple):
    """A SentencePiece model: each piece's score, and how texts are normalised."""

    scores: dict[str, float]
    normalization: Any


def marian_tokenizer(files: Mapping[str, Path], checkpoint: object, side: Side) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer of one side, and the checkpoint's id for each of ours.

    Both sides have the same tokens with the same ids, unless the checkpoint has a vocabulary for each. Pieces missing
    from its vocabulary, which are unknown to the model, come last and have the id of the unknown token.

    Args:
        files: vocab.json, source.spm and target.spm, and, if they exist, tokenizer_config.json and target_vocab.json.
        checkpoint: Its name in errors.
        side: The texts that the tokenizer is for.
    """
    settings = checked_json(files["tokenizer_config.json"]) if "tokenizer_config.json" in files else {}
    separate = settings.get("separate_vocabs", False)
    if separate and "target_vocab.json" not in files:
        raise DataError(f"{checkpoint}: has separate_vocabs but no target_vocab.json; download the whole checkpoint")
    vocabulary = checked_json(files["target_vocab.json" if separate and side == "target" else "vocab.json"])
    model = _pieces(files[f"{side}.spm"], checkpoint)
    models = [model] if separate else [_pieces(files[f"{name}.spm"], checkpoint) for name in SIDES]
    roles = {role: settings.get(role) or token for role, token in _MARIAN_ROLES.items()}
    tokens = {role: token["content"] if isinstance(token, dict) else token for role, token in roles.items()}
    if lacking := [token for token in tokens.values() if token not in vocabulary]:
        raise DataError(f"{checkpoint}: vocab.json lacks the special token {lacking[0]!r}; download it again")
    pad, unknown, end = (vocabulary[token] for token in tokens.values())
    others = sorted({*vocabulary} - {*tokens.values()}, key=vocabulary.__getitem__)
    extra = dict.fromkeys(piece for each in models for piece in each.scores if piece not in vocabulary)
    if doubled := [special for special in SPECIALS if special in vocabulary or special in extra]:
        problem = f"its token {doubled[0]!r} is a special token of seqpipe"
        raise DataError(f"{checkpoint}: {problem}; choose another checkpoint")
    ids = [pad, unknown, NO_CHECKPOINT_ID, end] + [vocabulary[token] for token in others] + [unknown] * len(extra)
    return _tokenizer(model, others, list(extra)), ids


def _tokenizer(model: _Pieces, others: list[str], extra: list[str]) -> Tokenizer:
    """Return a unigram model that uses only pieces of this side, and single letters of the other one."""
    least = min(model.scores.values())

    def entry(token: str) -> tuple[str, float]:
        if token in model.scores:
            return token, model.scores[token]
        if len(token) == 1:
            return token, least - _UNKNOWN_PENALTY  # unknown to SentencePiece, so the model looks it up unchanged
        return (token if _LANGUAGE.fullmatch(token) else _UNUSED_PREFIX + token), least

    specials = [(special, least) for special in SPECIALS]
    known, unknown = [entry(token) for token in others], [entry(token) for token in extra]
    unknown = [(_UNUSED_PREFIX + piece if piece not in model.scores else piece, score) for piece, score in unknown]
    tokenizer = Tokenizer(Unigram([*specials, *known, *unknown], unk_id=1))
    spec = model.normalization
    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if any(len(token) == 1 and token not in model.scores for token in others):
        # SentencePiece treats a run of letters that this side does not know as one unknown piece, so such a run becomes
        # one character that no piece has. The pattern is short, since known letters are written as ranges.
        letters = {ord(letter) for piece in model.scores for letter in piece} | {ord(" "), ord("▁")}
        starts = [code for code in sorted(letters) if code - 1 not in letters]
        ends = [code for code in sorted(letters) if code + 1 not in letters]
        ranges = "".join(rf"\x{{{start:x}}}-\x{{{end:x}}}" for start, end in zip(starts, ends, strict=True))
        sign = next(letter for letter in map(chr, range(0xE000, 0xF900)) if letter not in {*others, *model.scores})
        steps.append(normalizers.Replace(Regex(f"[^{ranges}]{{2,}}"), sign))
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    words = not any("▁" in piece[1:] for piece in model.scores)  # else pieces may hold several words
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=words)
    spaces = decoders.Metaspace(prepend_scheme=scheme, split=words)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_UNUSED_PREFIX, ""), spaces])
    content = json.loads(tokenizer.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    languages = ((i, token) for i, (token, _) in enumerate(known, len(SPECIALS)) if _LANGUAGE.fullmatch(token))
    content["added_tokens"] = [{"id": i, "content": token, **flags} for i, token in languages]
    return Tokenizer.from_str(json.dumps(content))


def _pieces(file: Path, checkpoint: object) -> _Pieces:
    """Read a SentencePiece model; DataError if it is not a unigram model."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(file.read_bytes())
    if proto.trainer_spec.model_type != _UNIGRAM:
        problem = f"{file.name} is not a unigram model of SentencePiece"
        raise DataError(f"{checkpoint}: {problem}; choose a checkpoint with one, or with a tokenizer.json")
    kept = (piece for piece in proto.pieces if piece.type in (_NORMAL, _USER_DEFINED))
    return _Pieces({piece.piece: piece.score for piece in kept}, proto.normalizer_spec)


# The files of a checkpoint, which may be a stranger's: they are checked before any library opens one of them.

MAX_JSON_BYTES = 1 << 28
MAX_IDS, MAX_POSITIONS = 10_000_000, 1 << 24
MANY_LAYERS, MAX_UNKNOWN_SIZE = 100, 1_000_000  # layers may share tensors, as those of ALBERT do; sizes without weights
_LAYERS, _POSITIONS = re.compile(r"(.*_)?layers?"), re.compile(r".*(positions?|buckets?|window).*")
_NAME_PARTS = "type|vocab|hidden|intermediate|embedding|encoder|decoder|attention|num|n|key|value|ffn|pooler|head"
_SIZES = re.compile(rf"(({_NAME_PARTS})_)*(size|dim|heads?)|n_embd|d_model|d_ff|d_kv|num_labels")
_READ_SUFFIXES = (".json", ".model", ".safetensors", ".spm", ".txt")  # other files, such as pickles, are not opened
_Id = Annotated[int, Field(ge=0, lt=MAX_IDS)]


class _Config(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[Annotated[str, Field(pattern=r"^\d{1,7}$")], str | int | float] | None


class _TokenizerModel(TypedDict, total=False):
    vocab: dict[str, _Id] | list[Any]


class _Tokenizer(TypedDict, total=False):
    model: _TokenizerModel


class _TokenizerConfig(TypedDict, total=False):
    model_max_length: Annotated[float, Field(ge=3)] | None


class _Shards(TypedDict):
    weight_map: dict[str, Annotated[str, Field(pattern=r"^[^/\\]+\.safetensors$")]]


class _Module(TypedDict):
    type: str
    path: Annotated[str, Field(pattern=r"^[^\x00]{0,255}$")]


class _Sentences(TypedDict, total=False):
    max_seq_length: Annotated[int, Field(ge=3)] | None


class _SetFit(TypedDict, total=False):
    labels: list[str] | None
    normalize_embeddings: bool


class _Classifier(TypedDict):
    weight: list[list[float]]
    bias: list[float]


_FORMS: dict[str, Any] = {
    "config": _Config,
    "tokenizer": _Tokenizer,
    "tokenizer_config": _TokenizerConfig,
    "model.safetensors.index": _Shards,
    "modules": list[_Module],
    "sentence_bert_config": _Sentences,
    "config_setfit": _SetFit,
    "model_head": _Classifier,
    **dict.fromkeys(("special_tokens_map", "generation_config", "config_sentence_transformers"), dict[str, Any]),
    **dict.fromkeys(("vocab", "target_vocab", "added_tokens"), dict[str, _Id]),
}


def checked_json(file: Path) -> Any:
    """Return the content of a JSON file of a checkpoint, whose name determines the types of its values.

    Raises:
        DataError: It is too large, not JSON, or has a value of another type; the message names the file and the key.
    """
    if (size := file.stat().st_size) > MAX_JSON_BYTES:
        raise DataError(f"{file}: {size:,} bytes exceed the limit of {MAX_JSON_BYTES:,}; {_ANEW}")
    try:
        return TypeAdapter(_FORMS[file.stem]).validate_json(file.read_bytes(), strict=True, extra="allow")
    except ValidationError as error:
        (problem, *_) = error.errors(include_url=False)
        # Between the keys pydantic names the types of a union, and that a key is wrong, not its value.
        steps = [str(step) for step in problem["loc"] if not re.match(r"dict\[|list\[|\[key\]", str(step))]
        place = ": ".join([str(file), *[".".join(steps)[:100]][: len(steps)]])
        is_stated = problem["type"] not in ("json_invalid", "missing")
        stated = f", not {json.dumps(problem['input'])[:80]}" if is_stated else ""
        raise DataError(f"{place}: {problem['msg'][:200]}{stated}; correct it, or {_ANEW}") from error


def check_checkpoint(folder: Path) -> None:
    """Check the files in the folder of a checkpoint before a library reads them. No weights are read.

    Raises:
        DataError: config.json is missing, a file is malformed, a pipe or a pointer of Git LFS, or config.json states
            more layers or greater sizes than the tensors have; the message names the file and the key.
    """
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: no config.json; a checkpoint is a folder that save_pretrained wrote")
    shapes: list[list[int]] = []
    for file in sorted(path for path in folder.iterdir() if path.suffix in _READ_SUFFIXES and path.exists()):
        if not file.is_file():
            raise DataError(f"{file}: is not a regular file, but a pipe, device or folder; {_ANEW}")
        with file.open("rb") as content:
            if content.read(len(LFS_POINTER)) == LFS_POINTER:
                raise DataError(f"{file}: {LFS_FIX}")
        if file.suffix == ".json" and file.stem in _FORMS:
            checked_json(file)
        if file.suffix == ".safetensors":
            shapes += _tensor_shapes(file)
    largest = max((size for shape in shapes for size in shape), default=MAX_UNKNOWN_SIZE)
    limits = ((_LAYERS, 0, max(len(shapes), MANY_LAYERS)), (_SIZES, -1, largest), (_POSITIONS, -1, MAX_POSITIONS))
    parts = [checked_json(folder / "config.json")]
    for part in parts:  # and the objects in it, which are appended
        parts += [value for key, value in part.items() if isinstance(value, dict) and key != "label2id"]
        for key, value in part.items():
            bounds = [(least, most) for pattern, least, most in limits if pattern.fullmatch(key)]
            if type(value) is int and any(not least <= value <= most for least, most in bounds):
                problem = f"{value:,} is not between {bounds[0][0]} and {bounds[0][1]:,}, the limits for these weights"
                raise DataError(f"{folder / 'config.json'}: {key}: {problem}; correct it, or {_ANEW}")


def _tensor_shapes(file: Path) -> list[list[int]]:
    """Return the shapes of the tensors in the header of a .safetensors file; DataError if they exceed the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as tensors:
            return [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    except SafetensorError as error:
        raise DataError(f"{file}: is cut short or damaged ({error}); {_ANEW}") from error


# The tokenizer of a checkpoint in the format of `transformers`, with our ids; needs no PyTorch.

_MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json", "tokenizer_config.json")
_DECODER_ROLES = ("pad_token", "unk_token", "bos_token", "eos_token")  # the same in a checkpoint without an encoder
_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token")  # a checkpoint's tokens for SPECIALS


class CheckpointTokenizer(NamedTuple):
    """A checkpoint's tokenizer with our ids, the checkpoint's id for each, and the number of separators of a pair.

    A generative checkpoint may lack tokens that seqpipe has; they have the id NO_CHECKPOINT_ID.
    """

    tokenizer: Tokenizer
    ids: list[int]
    separators: int


def pretrained_tokenizer(checkpoint: str | Path, side: Side = "source") -> CheckpointTokenizer:
    """Return the checkpoint's tokenizer with the special tokens as ids 0 to 3.

    Its tokens for padding, unknown pieces, the beginning and the end of a text become `SPECIALS`, its mask token, if it
    has one, becomes `MASK`, and all others keep their order. A text cannot contain special tokens. Added tokens that
    are not special, such as the runs of spaces of ModernBERT, are matched as a whole.

    `side` selects the tokenizer of a checkpoint that has one for its input and one for its output (Marian). Both have
    the same tokens with the same ids; pieces that are unknown to the model may follow.

    Raises:
        DataError: It is not a checkpoint, or its tokenizer is not supported; the message names the fix.
        EnvError: The hub cannot be reached, or has no checkpoint of this name.
    """
    from transformers import AutoTokenizer

    with reading(checkpoint, "tokenizer"):
        if is_folder(checkpoint):
            check_checkpoint(Path(checkpoint))
        files = _marian_files(checkpoint)
    if files:
        return CheckpointTokenizer(*marian_tokenizer(files, checkpoint, side), 1)
    with reading(checkpoint, "tokenizer"):
        original = AutoTokenizer.from_pretrained(**where(checkpoint), trust_remote_code=False)
    if not getattr(original, "is_fast", False):
        message = f"its tokenizer {type(original).__name__} is written in Python, which a bundle cannot contain"
        raise DataError(f"{checkpoint}: {message}; choose a checkpoint that has a tokenizer.json")
    if {*original.get_vocab()} <= {*original.all_special_tokens}:  # without a file, transformers creates an empty one
        raise DataError(f"{checkpoint}: has no tokenizer (tokenizer.json); download the whole checkpoint")
    content = json.loads(original.backend_tokenizer.to_str())
    content |= {"post_processor": None, "truncation": None, "padding": None}
    names: dict[str, str] = {}
    if original.cls_token is None and original.eos_token is not None:
        return CheckpointTokenizer(*_decoder_tokenizer(original, content, checkpoint), 1)
    for role, special in zip(_ROLES, SPECIALS, strict=True):
        token = getattr(original, role, None)
        if token is None or token in names:
            message = "none" if token is None else f"{token!r}, which has another role too"
            problem = f"the tokenizer has {message} for its {role}"
            raise DataError(f"{checkpoint}: {problem}; choose a checkpoint of an encoder")
        names[token] = special
    ids = _renumber_tokens(content, names, getattr(original, "mask_token", None), checkpoint)
    separators = max(1, original.num_special_tokens_to_add(pair=True) - 2)  # all but the first and the last token
    return CheckpointTokenizer(Tokenizer.from_str(json.dumps(content)), ids, separators)


def _decoder_tokenizer(original: Any, content: dict[str, Any], checkpoint: str | Path) -> tuple[Tokenizer, list[int]]:
    """Return tokenizer and ids of a generative checkpoint, which may lack some of our special tokens.

    Other special tokens of a unigram model, such as T5's `<extra_id_0>`, keep their meaning in a text.
    """
    names: dict[str, str] = {original.eos_token: SPECIALS[-1]}
    for role, special in zip(_DECODER_ROLES, SPECIALS, strict=True):
        if (token := getattr(original, role, None)) is not None:
            names.setdefault(token, special)
    model, marks = content["model"], []
    scores: dict[str, float] | None = None
    if not isinstance(model["vocab"], dict):
        scores = dict(map(tuple, model["vocab"]))
        marks = [token for token in content["added_tokens"] if token["special"] and token["content"] not in names]
    held = [*(model["vocab"] if scores is None else scores), *(token["content"] for token in marks)]
    old: dict[str, int] = {token: original.convert_tokens_to_ids(token) for token in (*names, *held)}
    if doubled := [special for special in SPECIALS if special in old and special not in names]:
        raise DataError(f"{checkpoint}: its token {doubled[0]!r} has another role in seqpipe; choose another")
    known = {special: old[token] for token, special in names.items()}
    others = sorted((token for token in old if token not in names), key=old.__getitem__)
    order = (*SPECIALS, *others)
    if scores is None:
        model["vocab"] = {token: i for i, token in enumerate(order)}
    else:
        model |= {"vocab": [[token, scores.get(token, 0.0)] for token in order], "unk_id": 1}
    if model.get("unk_token") is not None:
        model["unk_token"] = SPECIALS[1]
    content["added_tokens"] = [token | {"id": order.index(token["content"])} for token in marks]
    ids = [known.get(special, NO_CHECKPOINT_ID) for special in SPECIALS] + [old[token] for token in others]
    return Tokenizer.from_str(json.dumps(content)), ids


def _renumber_tokens(
    content: dict[str, Any], names: Mapping[str, str], mask: str | None, checkpoint: str | Path
) -> list[int]:
    """Move the tokens of these names to the front, under their new names; return the old id of each new one.

    Added tokens of these names and the mask token are moved into the model; other special tokens are dropped.
    """
    model, vocabulary = content["model"], content["model"]["vocab"]
    entries = vocabulary.items() if isinstance(vocabulary, dict) else ((t, i) for i, (t, _) in enumerate(vocabulary))
    old: dict[str, int] = dict(entries)
    roles = {*names, mask}
    read_whole = [token for token in content["added_tokens"] if not token["special"] and token["content"] not in roles]
    for token in content["added_tokens"]:
        if token["content"] in roles or token in read_whole:
            old.setdefault(token["content"], token["id"])
    old = dict(sorted(old.items(), key=lambda entry: entry[1]))
    if lacking := [token for token in names if token not in old]:
        raise DataError(f"{checkpoint}: the tokenizer lacks its special token {lacking[0]!r}; download it again")
    if doubled := [new for token, new in names.items() if new in old and new not in names]:
        raise DataError(f"{checkpoint}: its token {doubled[0]!r} has another role in seqpipe; choose another")
    order = [*names, *(token for token in old if token not in names)]
    if mask is not None and MASK not in old and mask not in names:
        names = {**names, mask: MASK}
    new = {names.get(token, token): i for i, token in enumerate(order)}
    if isinstance(vocabulary, dict):
        model["vocab"] = new
    else:
        scores = dict(map(tuple, vocabulary))
        model["vocab"] = [[names.get(token, token), _exact(scores.get(token, 0.0))] for token in order]
    content["added_tokens"] = [token | {"id": new[token["content"]]} for token in read_whole]
    unknown = list(names.values())[1]
    if "unk_id" in model:
        model["unk_id"] = new[unknown]
    else:
        model["unk_token"] = unknown
    return [old[token] for token in order]


def _exact(score: float) -> float:
    """Return the score of a piece, or its neighbour in steps of 2^-26, that `tokenizers` reads from JSON as written.

    Its parser is off by the last bit for some numbers of 17 digits. Scores are float32, whose sums are exact here, so
    that of two ways to split a text with the same pieces the first wins; a wrong bit would decide otherwise.
    """
    steps = (score + sign * step * 2.0**-26 for step in range(1_000) for sign in (1, -1))
    digits = ((step, repr(step).lstrip("-").replace(".", "")) for step in steps)
    return next((step for step, text in digits if not text.isdecimal() or int(text) < 2**53), score)


def language_tokens(checkpoint: str | Path, language: str | None) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens before and after a text in a language; None: the tokenizer's default.

    Raises:
        DataError: Its tokenizer has no languages.
        UsageError: It does not have this language.
    """
    from transformers import AutoTokenizer

    with reading(checkpoint, "tokenizer"):
        original = AutoTokenizer.from_pretrained(**where(checkpoint), trust_remote_code=False)
    codes: dict[str, int] | None = getattr(original, "lang_code_to_id", None)
    if codes is None:
        problem = f"its tokenizer {type(original).__name__} has no languages"
        raise DataError(f"{checkpoint}: {problem}; use the checkpoint's own tokenizer (MBartTokenizer)")
    codes = {code: i for code, i in codes.items() if i != original.unk_token_id}
    if language is not None:
        if language not in codes:
            raise UsageError(f"language: {checkpoint} has no {language!r}; it has {', '.join(sorted(codes))}")
        original.src_lang = language
    return list(original.prefix_tokens), list(original.suffix_tokens)


def _marian_files(checkpoint: str | Path) -> dict[str, Path]:
    """Return the tokenizer files of a Marian checkpoint by name; {} for others, or if it has a tokenizer.json."""
    from transformers import PreTrainedConfig
    from transformers.utils.hub import cached_file

    place = where(checkpoint)
    name = place.pop("pretrained_model_name_or_path")
    content, _ = PreTrainedConfig.get_config_dict(name, **place)
    if content.get("model_type") != "marian":
        return {}
    place |= {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}  # as None
    paths = {file: cached_file(name, file, **place) for file in _MARIAN_FILES}
    files = {file: Path(path) for file, path in paths.items() if path is not None}
    return files if {*_MARIAN_FILES[:3]} <= {*files} else {}


def is_folder(checkpoint: str | Path) -> bool:
    """Return whether a checkpoint is a folder, not a name on the hub."""
    return isinstance(checkpoint, Path) or Path(checkpoint).is_dir()


def where(checkpoint: str | Path) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a folder, or for a name with a revision."""
    if is_folder(checkpoint):
        return {"pretrained_model_name_or_path": str(checkpoint), "local_files_only": True}
    name, _, revision = str(checkpoint).partition("@")
    return {"pretrained_model_name_or_path": name, "revision": revision or "main"}


@contextlib.contextmanager
def reading(checkpoint: str | Path, what: str) -> Iterator[None]:
    """Convert errors of `transformers` to messages with a fix, and suppress its progress bars and warnings."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except BaseException as error:  # transformers, tokenizers and huggingface_hub raise many kinds
        if not is_library_error(error):
            raise
        reason = " ".join(str(error).split())[:300]
        if is_folder(checkpoint):
            raise DataError(f"{checkpoint}: its {what} cannot be read: {reason}") from error
        offline = os.environ.get("HF_HUB_OFFLINE") == "1"
        fix = "HF_HUB_OFFLINE is set: unset it, or name a folder" if offline else "name a folder, or check the name"
        problem = f"no such folder, and its {what} cannot be downloaded from the hub"
        raise EnvError(f"{checkpoint}: {problem} ({fix}): {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
