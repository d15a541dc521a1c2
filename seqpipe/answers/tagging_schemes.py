"""Conversion of tags to labelled spans and back: IOB1, IOB2, BIOES, BILOU and BMES, read leniently or strictly.

A tag is `O` or prefix, hyphen, label (`B-PER`); a label may contain hyphens. A bare prefix (`B`) has the label `_`.
BMES (Xue 2003) is BIOES with M for I. In word segmentation each token is part of a span, and a model of BMES has no
`O`; files of entities have one.

Files use further schemes: IO has the labels alone, and IOE1 and IOE2 (Sang and Veenstra 1999) mark the ends of spans as
IOB1 and IOB2 mark their beginnings. `canonical` reads other spellings of a tag, such as `PER_b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

Scheme = Literal["IOB1", "IOB2", "BIOES", "BILOU", "BMES"]
FileScheme = Literal[Scheme, "IOE1", "IOE2"]
Span = tuple[str, int, int]  # label, first word, end (exclusive)
Role = tuple[str, str]  # prefix and label of a tag

SCHEMES: tuple[Scheme, ...] = ("IOB1", "IOB2", "BIOES", "BILOU", "BMES")
# In the order of `tag_set`.
_PREFIXES = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "IOE1": "IE", "IOE2": "IE"}
_COMMON = {"L": "E", "U": "S", "M": "I"}  # BILOU's last and unit, and BMES's middle, in the letters of BIOES
OUTSIDE = ("O", "")


@lru_cache(maxsize=1_000)
def parts(tag: str) -> tuple[str, str]:
    """Return a tag's prefix (one of B I M E S L U O) and label; a plain tag, such as `NOUN`, has the prefix ""."""
    if tag[:1] == "O" and tag[1:2] in ("", "-"):
        return OUTSIDE
    if tag[:1] in tuple("BIMESLU") and tag[1:2] in ("", "-"):
        return tag[0], tag[2:] or "_"
    return "", tag


@lru_cache(maxsize=1_000)
def belongs(tag: str, scheme: FileScheme) -> bool:
    """Return True if the tag is one of this scheme."""
    if tag == "O":
        return True
    return parts(tag)[0] in tuple(_PREFIXES[scheme]) and tag[1:] != "-"


@lru_cache(maxsize=100)
def tag_pattern(tag_format: str) -> re.Pattern[str] | None:
    """Return the pattern of tags that are spelled like this one of the label PER; None if it is not such a tag.

    A format is `B-PER` or `PER-B`, with any character except letters and digits instead of the hyphen, or none, and
    with `b` if prefixes are in lower case.
    """
    match = re.fullmatch(r"([Bb])([\W_]?)PER|PER([\W_]?)([Bb])", tag_format)
    if not match:
        return None
    begin, sign_after, sign_before, end = match.groups()
    letters = "[BIMESLU]" if "B" in (begin, end) else "[bimeslu]"
    prefix, sign = f"(?P<prefix>{letters})", re.escape(sign_after or sign_before or "")
    return re.compile(f"{prefix}(?:{sign}(?P<label>.+))?" if begin else f"(?:(?P<label>.+){sign})?{prefix}")


@lru_cache(maxsize=10_000)
def canonical(tag: str, tag_format: str, outside: str) -> str:
    """Return a tag of another spelling as `O` or prefix, hyphen, label, or after `?` if it is not of that spelling."""
    if tag == outside:
        return "O"
    pattern = None if tag_format == "B-PER" else tag_pattern(tag_format)
    match = pattern.fullmatch(tag) if pattern else None
    if match:
        return match["prefix"].upper() + (f"-{match['label']}" if match["label"] else "")
    # If a file has another spelling, the usual one means nothing: `B-PER` where `b-PER` is usual, or `O` where `_` is.
    return f"?{tag}" if pattern or tag == "O" else tag


def spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of any tags, well-formed or not, by the rules of conlleval (Tjong Kim Sang and Buchholz, 2000).

    A span opens at B and S, after O, E and S, and where the label changes. Plain tags count as O.
    """
    spans: list[Span] = []
    before = OUTSIDE
    for i, tag in enumerate(tags):
        if tag == "O":  # most tags
            before = OUTSIDE
            continue
        role = role_of(tag)
        if opens(before, role):
            spans.append((role[1], i, i + 1))
        elif role != OUTSIDE:
            spans[-1] = (role[1], spans[-1][1], i + 1)
        before = role
    return spans


@lru_cache(maxsize=1_000)
def role_of(tag: str) -> Role:
    """Return the meaning of a tag for spans: a prefix of BIOES and the label; of plain tags `OUTSIDE`."""
    prefix, label = parts(tag)
    prefix = _COMMON.get(prefix, prefix)
    return OUTSIDE if prefix in ("O", "") else (prefix, label)


def opens(before: Role, role: Role) -> bool:
    """Return True if a span opens at a tag, after another one or, at the beginning, `OUTSIDE`."""
    return role != OUTSIDE and (role[0] in ("B", "S") or before[0] in ("O", "E", "S") or before[1] != role[1])


def from_scheme(tags: Sequence[str], scheme: Scheme) -> list[Span]:
    """Return the spans of tags in this scheme; ill-formed ones are read like conlleval.

    Raises ValueError for a tag that the scheme does not have.
    """
    for tag in tags:
        if not belongs(tag, scheme):
            raise ValueError(f"{tag!r} is not a tag of {scheme}")
    return spans(tags)


def to_tags(spans: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """Return the tags of `length` words with these spans.

    Raises:
        ValueError: Spans overlap, are empty or outside of the words, or a word is in no span and the scheme is BMES.
    """
    tags = ["O"] * length
    last: Span = ("", -1, 0)
    for span in sorted(spans, key=lambda span: span[1]):
        label, start, end = span
        if not last[2] <= start < end <= length:
            where = f"overlaps {last}" if 0 <= start < last[2] else f"is empty or outside of the {length} words"
            raise ValueError(f"the span {span} {where}")
        tags[start:end] = [
            f"{prefix}-{label}" for prefix in _shape(end - start, scheme, last == (label, last[1], start))
        ]
        last = span
    if scheme == "BMES" and "O" in tags:
        raise ValueError(f"word {tags.index('O')} is in no span, and BMES has no tag for it")
    return tags


def _shape(length: int, scheme: Scheme, touches: bool) -> str:
    """Return the prefixes of one span; `touches`: a span of its label ends just before it."""
    if scheme in ("IOB1", "IOB2"):
        return ("B" if touches or scheme == "IOB2" else "I") + "I" * (length - 1)
    begin, middle, end, single = tuple(_PREFIXES[scheme])
    return single if length == 1 else begin + middle * (length - 2) + end


def strict_problem(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """Return the first position at which the tags violate the scheme, and the reason; None if they do not."""
    before = OUTSIDE
    if {*tags} == {"O"}:  # most texts
        return None
    for i, tag in enumerate(tags):
        if not belongs(tag, scheme):
            return i, f"{tag!r} is not a tag of {scheme}"
        role = role_of(tag)
        if not _may_follow(before, role, scheme):
            return i, f"{tag!r} cannot {f'follow {tags[i - 1]!r}' if i else 'begin a sentence'} in {scheme}"
        before = role
    if tags and scheme in ("BIOES", "BILOU", "BMES") and before[0] in ("B", "I"):
        return len(tags) - 1, f"{tags[-1]!r} cannot end a sentence in {scheme}"
    return None


def _may_follow(before: Role, role: Role, scheme: Scheme) -> bool:
    inside = before[0] in ("B", "I")
    same = inside and before[1] == role[1]
    if scheme in ("IOB1", "IOB2"):
        return same or role[0] != ("B" if scheme == "IOB1" else "I")
    span_continues = role[0] in ("I", "E")
    return same and span_continues if inside else not span_continues


def tag_set(labels: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return every tag of these labels: O first, if the scheme has it, then label by label in alphabetical order."""
    tags = [f"{prefix}-{label}" for label in sorted(set(labels)) for prefix in _PREFIXES[scheme]]
    return tuple(tags) if scheme == "BMES" else ("O", *tags)


def allowed(tags: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the legal starts (L,), ends (L,) and steps (L, L) from row to column of IOB2, BIOES or BMES tags, as bool.

    The prefixes determine the scheme; among plain tags everything is legal.
    """
    opened, span_continues, single = _roles(tags)
    if not single.any():  # IOB2 or plain
        return ~span_continues, np.ones_like(opened), continues(tags) | ~span_continues[None, :]
    steps = np.where(opened[:, None], continues(tags), ~span_continues[None, :])  # (L, L)
    return ~span_continues, ~opened, steps


def continues(tags: Sequence[str]) -> np.ndarray:
    """Return (L, L): whether tag j right after tag i extends the span of i (never for plain tags)."""
    opened, span_continues, _ = _roles(tags)
    labels = np.array([parts(tag)[1] for tag in tags], dtype=object)  # (L,)
    same: np.ndarray = labels[:, None] == labels[None, :]
    return same & opened[:, None] & span_continues[None, :]


def _roles(tags: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three masks (L,): a span may continue after this tag; this tag continues a span; IOB2 lacks this tag."""
    tagged = all(belongs(tag, "BIOES") or belongs(tag, "BMES") for tag in tags)
    prefixes = np.array([role_of(tag)[0] if tagged else "" for tag in tags], dtype="U1")
    return np.isin(prefixes, ("B", "I")), np.isin(prefixes, ("I", "E")), np.isin(prefixes, ("E", "S"))
