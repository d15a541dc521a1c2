"""Folders of sounds with transcripts through the reader sounds."""

from pathlib import Path

import pytest
from data_files import write_files

from seqpipe.errors import DataError
from seqpipe_plugins.readers.sounds import Sounds


def test_a_sound_has_its_transcript_beside_it_or_in_a_line_of_its_folder(tmp_path: Path) -> None:
    lines = "84-1-0000 GO ON\n84-1-0001  SHE SAID\n"
    librispeech = {"84/1/84-1-0000.flac": "", "84/1/84-1-0001.flac": "", "84/1/84-1.trans.txt": lines}
    beside = {"b.WAV": "", "b.txt": "seven\nthree\n", "a/x.y.wav": "", "a/x.y.txt": "né"}
    path = write_files(tmp_path, beside | librispeech)
    assert list(Sounds().read(path)) == [
        {"audio": path / "84/1/84-1-0000.flac", "target": "GO ON", "where": f"{path}/84/1/84-1.trans.txt:1"},
        {"audio": path / "84/1/84-1-0001.flac", "target": "SHE SAID", "where": f"{path}/84/1/84-1.trans.txt:2"},
        {"audio": path / "a/x.y.wav", "target": "né", "where": f"{path}/a/x.y.txt:1"},
        {"audio": path / "b.WAV", "target": "seven three", "where": f"{path}/b.txt:1"},
    ]
    assert {file.name for file in Sounds().files(path)} == {
        *("84-1-0000.flac", "84-1-0001.flac", "84-1.trans.txt", "x.y.wav", "x.y.txt", "b.WAV", "b.txt"),
    }


def test_anything_but_a_folder_of_sounds_is_an_error(tmp_path: Path) -> None:
    names = ("none/a.txt", "some/a.wav", "some/b.txt", "bad/a.wav", "bad/a.txt")
    path = write_files(tmp_path, dict.fromkeys(names, "x"))
    (path / "bad" / "a.txt").write_bytes(b"\xff")
    for name, words in {
        "none": "there is no sound in this folder (*.wav, *.flac, *.ogg, *.mp3); name a folder of sounds",
        "z": "there is no such folder; give the folder of the sounds",
        "some/a.wav": "is a file",
        "some": "a.wav: this sound has no transcript; write it to a.txt beside it, or as a line of a *.trans.txt",
        "bad": "a.txt:1: this line is not UTF-8",
    }.items():
        with pytest.raises(DataError) as caught:
            list(Sounds().read(path / name))
        assert words in str(caught.value)
