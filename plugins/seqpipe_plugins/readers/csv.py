"""Reader of comma-separated values, one row a record."""

from __future__ import annotations

from .tables import Table


class Csv(Table):
    """Reads comma-separated values (RFC 4180): one record a row, one field for each named column.

    The first line names the columns, unless `columns` does. A quoted cell may contain commas, quotes and line breaks.

    Args:
        text: Column of the text.
        label: Column that becomes the field `label`; null if the columns already have the right names.
        labels: Column that becomes the field `labels`: several labels, separated by `separator`.
        separator: Separator of several labels in one cell.
        numbers: Numeric columns.
        columns: Names of all columns, in order, for a file without a header line; _ skips a column.
        delimiter: Separator of cells: one character, or "tab".
        quote: Quote character; null: quotes have no meaning.
    """

    use = "csv"

    def __init__(
        self,
        *,
        text: str = "text",
        label: str | None = None,
        labels: str | None = None,
        separator: str = "|",
        numbers: list[str] = [],  # noqa: B006 (never changed)
        columns: list[str] | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
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
