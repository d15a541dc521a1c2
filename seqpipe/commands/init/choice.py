"""Choose the columns of a table that are learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqpipe.commands.init.label_lists import are_lists, separator_of
from seqpipe.commands.init.names import KEYS, MEASURED, OTHERS, SECOND, SOURCES, TARGETS, USUAL
from seqpipe.commands.init.profile import Column
from seqpipe.commands.init.roles import HEADS, Kind, Roles, Task, describe
from seqpipe.errors import DataError

LIST_CURE = 'write them as JSON, `{"text": …, "labels": ["a", "b"]}` on each line'


def find_roles(columns: list[Column], named: bool, task: Task | None, where: str, must: bool) -> Roles | None:
    """Return what the columns are for; None if there is nothing to learn and the file may be no table (not `must`).

    Raises:
        DataError: if the columns leave a choice open, or the task lacks something.
    """
    names = [column.first for column in columns] if named else None
    kinds = [_kind(column, column.first.strip().lower() if named else "") for column in columns]
    separators = _separators(columns, kinds, names)
    for i in separators:
        kinds[i] = "classes"
    if "texts" not in kinds:
        _take_text_from_labels(columns, kinds, names)
    roles = _Choice(columns, names, kinds, where).roles(task)
    if roles is None and (must or task):
        raise DataError(_nothing(columns, names, kinds, where, task))
    if roles and roles.learns == "Labels":
        if are_lists(columns[roles.target]):
            raise DataError(f"{where}: the cells of {roles.title} are lists; {LIST_CURE}")
        roles.separator = separators.get(roles.target)
    return roles


def _separators(columns: Sequence[Column], kinds: Sequence[Kind], names: Sequence[str] | None) -> dict[int, str]:
    """Return the separators of labels by the columns that hold several in a cell."""
    found = {}
    for i, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        name = names[i].strip().lower() if names else ""
        separator = separator_of(column, name) if kind in ("classes", "texts") else None
        if separator and (kind == "classes" or name in USUAL or separator == "|"):
            found[i] = separator
    return found


def _nothing(
    columns: Sequence[Column], names: Sequence[str] | None, kinds: Sequence[Kind], where: str, task: Task | None
) -> str:
    wanted = {
        "Labels": "a column of few values beside one of texts",
        "Numbers": "a column of numbers beside one of texts",
        "Texts": "two columns of texts",
    }
    seen = describe(kinds, names)
    if task:
        return f"{where}: --task {HEADS[task]} needs {wanted[task]}, and the columns are: {seen}"
    cure = "give texts with a column of labels (few values), of numbers, or of texts to write"
    if columns and "texts" in kinds and any(column.is_key and column.is_numeric for column in columns):
        cure += "; numbers that differ in every row are taken as identifiers unless their column is named score"
    return f"{where}: nothing to learn in it: the columns are {seen}; {cure}"


def _kind(column: Column, name: str) -> Kind:
    if column.is_numeric and name in MEASURED and len(column.values) > 1:
        return "numbers" if column.is_measured else "classes"
    if not column.many and len(column.values) == 1:
        return "constant"
    if column.empty > column.cells / 2:
        return "empty"
    if column.is_notice:
        return "notice"
    if column.is_date:
        return "key" if name in KEYS else "date"
    if column.is_key or name in KEYS or name.endswith(("_id", " id", ".id")):
        return "key"
    if column.is_measured:
        return "numbers"
    if column.is_repeated:
        return "classes"
    return "texts" if column.is_text else "word"


def _take_text_from_labels(columns: Sequence[Column], kinds: list[Kind], names: Sequence[str] | None) -> None:
    """Take the column with most different long values as the text, in a table of few texts that repeat."""
    usual = USUAL | MEASURED
    candidates = [i for i, kind in enumerate(kinds) if kind == "classes" and columns[i].is_spaced]
    candidates = [i for i in candidates if not names or names[i].strip().lower() not in usual]
    if candidates and kinds.count("classes") > 1:
        longest = max(candidates, key=lambda i: columns[i].characters)
        if columns[longest].characters == max(column.characters for column in columns):
            kinds[longest] = "texts"


@dataclass
class _Choice:
    """The choice of columns."""

    columns: list[Column]
    names: list[str] | None
    kinds: list[Kind]
    where: str

    def roles(self, task: Task | None) -> Roles | None:
        texts = self._sentences([i for i, kind in enumerate(self.kinds) if kind == "texts"])
        if not texts:
            return None
        targets = self._targets(task)
        if task == "Texts" or (not targets and not task):
            return self._pairs([i for i, kind in enumerate(self.kinds) if kind in ("texts", "date") or i in texts])
        if not targets:
            return None
        target = targets[0]
        if len(texts) > 1:
            if not task and self._leaves_open(target):
                return self._ask_or_pairs(texts, target)
            texts = self._texts_of_label(texts)
        learns: Task = "Numbers" if self.kinds[target] == "numbers" and task != "Labels" else "Labels"
        learns = task or learns
        self._refuse_empty(target)
        rest = [self._title(i) for i in targets[1:]]
        why = f"{self._title(target)} has {self._size(target, learns)}"
        if rest:
            why += f"; it could also be {' or '.join(rest)}"
        return Roles(self.columns, self.names, learns, texts, target, self.kinds, why)

    def _size(self, target: int, learns: Task) -> str:
        column = self.columns[target]
        if learns == "Numbers":
            return f"numbers from {column.low:g} to {column.high:g}"
        return f"{len(column.values):,} values in {column.cells:,} rows"

    def _title(self, index: int) -> str:
        return f"column {self.names[index]!r}" if self.names else f"column {index + 1}"

    def _name(self, index: int) -> str:
        return self.names[index].strip().lower() if self.names else ""

    def _sentences(self, texts: list[int]) -> list[int]:
        """Return the columns of texts with words, if there are any: the others are names of something."""
        spaced = [
            i for i in texts if self.columns[i].words > 1.5 * self.columns[i].cells or not self.columns[i].is_ascii
        ]
        named = [i for i in texts if self._name(i) in SOURCES | TARGETS | SECOND | OTHERS]
        return sorted({*spaced, *named}) or texts

    def _targets(self, task: Task | None) -> list[int]:
        """Return the columns that can be the label or number, the likeliest first."""
        usual = {"Labels": {"classes"}, "Numbers": {"numbers"}, "Texts": set()}
        wanted = {"classes", "numbers"} if task is None else usual[task]
        found = [i for i, kind in enumerate(self.kinds) if kind in wanted]
        if task == "Numbers":
            found += [i for i, kind in enumerate(self.kinds) if kind == "classes" and self.columns[i].is_numeric]
        if task == "Labels":
            found += [i for i, kind in enumerate(self.kinds) if kind == "numbers" and not self.columns[i].many]

        def rank(i: int) -> tuple[bool, bool, int]:
            return (self._name(i) not in USUAL | MEASURED, self.kinds[i] == "numbers", len(self.columns[i].values))

        return sorted(found, key=rank)

    def _leaves_open(self, target: int) -> bool:
        """Return whether two texts and few values are a labelled pair or texts to write, with a remark."""
        return self._name(target) not in USUAL | MEASURED

    def _ask_or_pairs(self, texts: list[int], target: int) -> Roles | None:
        column = self.columns[target]
        if self.kinds[target] == "classes" and sum(map(_is_remark, column.values)) > len(column.values) / 2:
            return self._pairs(texts)
        ask = (
            f"{self._title(target)} may label the texts, or be a remark on a text and the one to write for it; "
            "say which with --task label or --task seq2seq"
            if self.kinds[target] == "classes"
            else f"{self._title(target)} may be learned, or the second text; say which with --task score or seq2seq"
        )
        raise DataError(f"{self.where}: {describe(self.kinds, self.names)}; {ask}")

    def _texts_of_label(self, texts: list[int]) -> list[int]:
        """Return the text, or the pair of texts, that a label belongs to."""
        first = next((i for i in texts if self._name(i) == "text"), None)
        paired = any(self._name(i) in SECOND for i in texts)
        if first is not None and not paired:
            return [first]
        if len(texts) > 2:
            raise DataError(
                f"{self.where}: {describe(self.kinds, self.names)}: {len(texts)} columns of texts; "
                "remove those that nothing is to be learned from, or name the one to learn from 'text'"
            )
        if first is not None and texts[0] != first:
            texts = [first, texts[0]]
        return texts

    def _pairs(self, texts: list[int]) -> Roles | None:
        if len(texts) > 2:
            texts = self._sentences(texts)
        if len(texts) > 2 and self.names:
            known = [i for i in texts if self._name(i) in SOURCES | TARGETS]
            texts = known if len(known) == 2 else texts
        if len(texts) > 2:
            raise DataError(
                f"{self.where}: {describe(self.kinds, self.names)}: {len(texts)} columns of texts; "
                "keep two, the text and the one to write, for instance with `cut -f1,2`"
            )
        if len(texts) < 2:
            return None
        source, target = texts
        first, second = self._name(source), self._name(target)
        if first in TARGETS or (second in SOURCES and first not in SOURCES):
            source, target = target, source
        self._refuse_empty(target)
        why = f"{self._title(target)} is written from {self._title(source)}: both are different texts"
        return Roles(self.columns, self.names, "Texts", [source], target, self.kinds, why)

    def _refuse_empty(self, target: int) -> None:
        empty = self.columns[target].empty
        if empty:
            rows = "1 row" if empty == 1 else f"{empty:,} rows"
            cure = "fill it in, or remove the row"
            raise DataError(f"{self.where}: {self._title(target)} is to be learned and empty in {rows}; {cure}")


def _is_remark(value: str) -> bool:
    return value.count(" ") > 1 or not value.strip()
