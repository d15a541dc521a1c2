"""Reader of spreadsheets, one row a record as in CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from seqpipe.plugin import DataError, EnvError, install_command

from . import DEFAULT_TAGS, TagSpec
from .csv import Csv, TableOptions


class Excel(Csv):
    """Reads a sheet of an Excel or OpenDocument file (.xlsx, .xls, .ods): one record a row, one field a named column.

    The options have the same meaning as those of the reader `csv`. It needs python-calamine: the
    extra `excel`.

    Args:
        sheet: Name of the sheet; null: the first.
        encoding: Not used, since a spreadsheet states its encoding.
    """

    use = "excel"
    empty_message = "there is no row below the first in this sheet; name another with `sheet`"

    def __init__(self, *, table: TableOptions, tagging: TagSpec = DEFAULT_TAGS, sheet: str | None = None):
        super().__init__(table=table, tagging=tagging)
        self.sheet, self.sheets = sheet, list[str]()

    def lines(self, path: Path) -> Iterator[str]:
        """The rows of the sheet as lines of CSV: whole numbers without a fraction, line breaks in cells as blanks."""
        try:
            from python_calamine import CalamineError, CalamineWorkbook
        except ImportError as error:
            raise EnvError(f"{path}: spreadsheets need python-calamine: {install_command('excel')}") from error
        try:
            workbook = CalamineWorkbook.from_path(str(path))
            self.sheets = workbook.sheet_names
            if self.sheet is not None and self.sheet not in self.sheets:
                raise DataError(f"{path}: no sheet is named {self.sheet!r} (there is: {', '.join(self.sheets)})")
            sheet = workbook.get_sheet_by_name(self.sheet or self.sheets[0])
            rows = sheet.to_python(skip_empty_area=True)
        except (CalamineError, OSError, IndexError) as error:
            raise DataError(f"{path}: cannot be read as a spreadsheet ({error}); save it again, or as CSV") from error
        for row in rows:
            cells = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in row]
            line = io.StringIO()
            csv.writer(line, lineterminator="\n").writerow(" ".join(str(cell).splitlines()) for cell in cells)
            yield line.getvalue()
