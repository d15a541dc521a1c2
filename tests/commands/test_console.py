"""Output for a person: bars that fit into a line, lines at tenths of a step without a terminal, relative paths."""

import io
import re
from pathlib import Path

import pytest

from seqpipe import console
from seqpipe.console import Console, with_relative_paths

NOTE = "epoch 12/300, loss 0.0509, best accuracy 92.94, 8,610 tokens/s"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_bar_keeps_percent_and_time_and_cuts_nothing(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with Console().progress("training", 1_860) as tick:
        tick(1_026, NOTE)
    lines = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", line).strip() for line in re.split(r"[\r\n]", screen.getvalue())]
    (bar,) = {line for line in lines if "epoch" in line or " 55%" in line} or {""}
    shown = re.fullmatch(r"training \S+ +55% \S+(?: (.*))?", bar)
    assert shown, lines
    assert len(bar) <= columns
    assert NOTE.startswith(shown[1] or "")
    assert (shown[1] or "") == "" or NOTE[len(shown[1]) :][:2] in ("", ", ")
    assert (shown[1] == NOTE) == (columns == 120)


def test_a_step_without_a_terminal_prints_at_most_ten_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "EVERY", 0.0)
    with Console().progress("training", 300) as tick:
        for done in range(1, 301):
            tick(done)
    lines = capsys.readouterr().err.splitlines()
    assert [int(line.split()[1].replace(",", "")) for line in lines] == [*range(30, 301, 30)]


def test_places_in_the_working_folder_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside, outside, command = f"{tmp_path}/data/a.csv:30", f"{tmp_path}-other/a.csv:3", f"-v {tmp_path}/a:/models"
    assert with_relative_paths(f"dev: {inside} is {inside}, not {outside}: {command}") == (
        f"dev: data/a.csv:30 is data/a.csv:30, not {outside}: {command}"
    )
