"""Recognise tags of entities in a column or list of tags: their spelling, their scheme, and those that do not fit."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqpipe.answers.tagging_schemes import SCHEMES, canonical, parts, strict_problem, tag_pattern
from seqpipe.init.summary import DataSummary

FITS = 0.95  # of the tags of words in entities; the others are faults of the file
NEARLY = 0.5  # of them: other tags, and a doubt
OUTSIDE = ("O", "o", "OTHER", "Other", "other", "0", "_", "-", "NONE", "None", "none")
ALONE = OUTSIDE[:6]  # tags of which most others are labels without a prefix
FEW_LABELS = 50
MOST_TAGS = 1_000  # different ones; words are more
LETTERS = {"IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "IOB1": "BI", "IOE2": "IE", "IOE1": "IE"}
# The usual spelling first: of spellings that fit as well, the first is taken.
FORMATS = [
    form.replace("-", sign)
    for sign in ("-", "_", ":", ".", "/", "|", "#", "+")
    for form in ("B-PER", "b-PER", "PER-B", "PER-b")
]


@dataclass(frozen=True)
class Tagging:
    """The spelling of tags of entities.

    Attributes:
        tag_format: Spelling of the tag that begins an entity PER; empty for labels without a prefix.
        outside: Tag of words outside of entities.
        share: Share of the other tags that are spelled so.
        entities: Number of entities, about; without a prefix, of their words.
    """

    tag_format: str
    outside: str
    share: float
    entities: int

    @property
    def fits(self) -> bool:
        """True if the tags are those of entities."""
        return self.share >= FITS


def find_tagging(tags: Counter[str]) -> Tagging | None:
    """Return the spelling that most tags have; None if they are no tags of entities."""
    outside = max(OUTSIDE, key=lambda tag: tags[tag])
    inside = Counter({tag: number for tag, number in tags.items() if tag != outside})
    if not tags[outside] or not (inside or outside == "O") or len(inside) > MOST_TAGS:
        return None
    if not inside:
        return Tagging(FORMATS[0], outside, 1.0, 0)
    best: Tagging | None = None
    for form in FORMATS:
        pattern, letters = tag_pattern(form), Counter[str]()
        for tag, number in inside.items():
            match = pattern.fullmatch(tag) if pattern else None
            if match and tag[1:] != "-":
                letters[match["prefix"].upper()] += number
        share = letters.total() / inside.total()
        # A letter in front of a plain tag is none of a scheme; where an entity begins or ends is in every one.
        begin = sum(letters[letter] for letter in "BSU")
        is_usual = form == FORMATS[0]
        if not is_usual and (len(letters) < 2 or not (begin or letters["E"]) or letters["B"] + letters["I"] == 0):
            continue
        if share > max(best.share if best else 0, 0 if is_usual else NEARLY):
            best = Tagging(form, outside, share, begin or letters["E"] or letters["I"])
    if best and best.share >= NEARLY:
        return best
    is_plain = all(tag[:1].isalpha() for tag in inside)
    if outside in ALONE and is_plain and 2 * tags[outside] >= tags.total() and len(inside) <= FEW_LABELS:
        return Tagging("", outside, 1.0, inside.total())
    return best


def choose_scheme(
    summary: DataSummary,
    sentences: Sequence[Sequence[str]],
    counts: Counter[str],
    head: str | None = None,
    locate: Callable[[str], str] | None = None,
) -> int:
    """Set the scheme and the spelling of tags: those of entities, or plain tags if they do not fit.

    Returns the number of sentences whose tags break the scheme, and are repaired.

    Args:
        summary: Of the file.
        sentences: The tags as they stand, of pieces of a large file.
        counts: How often each occurs.
        head: The task that is asked for: `crf` takes tags that nearly fit as those of entities, `tags` as plain ones.
        locate: Returns the file and the line in which a tag stands first.
    """
    tagging = None if head == "tags" else find_tagging(counts)
    if tagging and not (tagging.fits or head == "crf"):
        form = f"{tagging.share:.0%} of the tags other than {tagging.outside} are like {tagging.tag_format}"
        summary.doubt(
            f"{form}, tags of entities; they are taken as plain tags, one a word. To learn entities", "--task", "crf"
        )
        tagging = None
    if tagging is None:
        summary.options["scheme"], summary.label_kind = "none", "Tags"
        return 0
    summary.label_kind = "Entities"
    if tagging.outside != "O":
        summary.options["outside"] = tagging.outside
    if not tagging.tag_format:
        summary.options["scheme"] = "IO"
        share = f"{counts[tagging.outside] / counts.total():.0%} of the words are {tagging.outside}"
        summary.doubt(
            f"no tag begins with B- or I-, and {share}: equal tags in a row are one entity. For a tag a word",
            "--task",
            "tags",
        )
        return 0
    if tagging.tag_format != "B-PER":
        summary.options["tag_format"] = tagging.tag_format
    usual = [[canonical(tag, tagging.tag_format, tagging.outside) for tag in tags] for tags in sentences]
    faults = {scheme: sum(_breaks(tags, scheme) for tags in usual) for scheme in LETTERS}
    best = min(LETTERS, key=lambda scheme: faults[scheme])
    if best != "IOB2":
        summary.options["scheme"] = best
    known = {tag for tag in {*itertools.chain.from_iterable(usual)} if fits_letters(tag, best)}
    # Sentences with tags of no spelling are faults of their own, which the reader names.
    broken = sum(_breaks(tags, best) for tags in usual if known.issuperset(tags))
    if broken:
        summary.options["ill_formed"] = "repair"
        sentences_break = "1 sentence breaks" if broken == 1 else f"{broken:,} sentences break"
        summary.notes.append(f"{sentences_break} {best}'s rules; they are repaired as conlleval reads them")
    _doubt_spellings(summary, counts, tagging, locate)
    return broken


def fits_letters(tag: str, scheme: str) -> bool:
    """Return whether a tag of the usual spelling is one of the scheme."""
    return tag == "O" or (parts(tag)[0] in tuple(LETTERS[scheme]) and tag[1:] != "-")


def _breaks(tags: Sequence[str], scheme: str) -> bool:
    if scheme in ("IOE1", "IOE2"):
        if not all(fits_letters(tag, scheme) for tag in tags):
            return True
        mirrored = ["B" + tag[1:] if tag[0] == "E" else tag for tag in reversed(tags)]
        return strict_problem(mirrored, "IOB1" if scheme == "IOE1" else "IOB2") is not None
    return strict_problem(tags, next(name for name in SCHEMES if name == scheme)) is not None


def _doubt_spellings(
    summary: DataSummary, counts: Counter[str], tagging: Tagging, locate: Callable[[str], str] | None
) -> None:
    """Doubt labels that are others but for case and signs, as `PER.` beside `PER`."""
    spelled: dict[str, Counter[str]] = {}
    tags: dict[str, str] = {}
    for tag, number in counts.items():
        usual = canonical(tag, tagging.tag_format, tagging.outside)
        if usual != "O" and parts(usual)[0] not in ("", "O"):
            label = parts(usual)[1]
            tags.setdefault(label, tag)
            key = "".join(filter(str.isalnum, label)).casefold()
            spelled.setdefault(key, Counter())[label] += number
    for labels in spelled.values():
        (often, _), *others = labels.most_common()
        for label, number in others:
            times = "once" if number == 1 else f"{number:,} times"
            place = f" ({locate(tags[label])})" if locate else ""
            summary.doubt(
                f"the label {label!r} stands {times}{place} beside {often!r}; correct it. For plain tags",
                "--task",
                "tags",
            )
