"""Reader of tab-separated values, one row a record."""

from __future__ import annotations

from .tables import Table


class Tsv(Table):
    """Reads tab-separated values: a line a record, every named column a field of it.

    The first line names the columns, or `columns` does. Quotes are part of the text, unless `quote` says otherwise.

    Args:
        text: Column of the text.
        label: Column that becomes the field `label`; null where the columns have the names that the head asks for.
        labels: Column that becomes the field `labels`: several labels, parted by the separator.
        separator: What stands between two labels of one cell.
        numbers: Columns whose cells are numbers.
        columns: Names of all columns, in order, for a file whose first line is data; _ leaves a column out.
        delimiter: What stands between two cells: one character, or "tab".
        quote: What stands around a cell that holds a delimiter; null where quotes mean nothing.
    """

    use = "tsv"

    def __init__(
        self,
        *,
        text: str = "text",
        label: str | None = None,
        labels: str | None = None,
        separator: str = "|",
        numbers: list[str] = [],  # noqa: B006 (never changed)
        columns: list[str] | None = None,
        delimiter: str = "tab",
        quote: str | None = None,
    ):
        super().__init__(
            text=text,
            label=label,
            labels=labels,
            separator=separator,
            numbers=numbers,
            columns=columns,
            delimiter=delimiter,
            quote=quote,
        )
