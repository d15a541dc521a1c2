"""Readers of comma-separated and of tab-separated values, one row a record."""

from __future__ import annotations

from .tables import Table, TableOptions


class Csv(Table):
    """Reads comma-separated values (RFC 4180): one record a row, one field for each named column.

    The first line names the columns, unless `columns` does. A quoted cell may contain commas, quotes and line breaks.

    Args:
        delimiter: Separator of cells: one character, or "tab".
        quote: Quote character; null: quotes have no meaning.
    """

    use = "csv"

    def __init__(self, *, table: TableOptions, delimiter: str = ",", quote: str | None = '"'):
        super().__init__(table, delimiter, quote)


class Tsv(Table):
    """Reads tab-separated values: one record a line, one field for each named column.

    The first line names the columns, unless `columns` does. Quotes are part of the text, unless `quote` is set.

    Args:
        delimiter: Separator of cells: one character, or "tab".
        quote: Quote character; null: quotes have no meaning.
    """

    use = "tsv"

    def __init__(self, *, table: TableOptions, delimiter: str = "tab", quote: str | None = None):
        super().__init__(table, delimiter, quote)
