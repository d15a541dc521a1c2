"""Reader of folders of sounds with their transcripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seqpipe.plugin import DataError, file_lines

from . import Record, check_encoding, number_lines

ENDINGS = (".wav", ".flac", ".ogg", ".mp3")
_TRANSCRIPTS = "*.trans.txt"


class Sounds:
    """Reads folders of sounds with transcripts: of `17.wav` it is the file `17.txt`, or a line of a `*.trans.txt`.

    A line of `*.trans.txt` is the name of a sound in its folder without ending, a space and the transcript, as in
    LibriSpeech (Panayotov et al. 2015). A record has the `audio`, a path, and the `target`. WAV needs no package; FLAC,
    OGG and MP3 need soundfile. Sounds that a table names, as in Common Voice, are read by `tsv`, `csv` or `jsonl` with
    the option `files`.

    Args:
        encoding: Encoding of the transcripts, such as cp1252 or utf-16.
    """

    fields = ("audio", "target", "where")
    folder = True

    def __init__(self, *, encoding: str = "utf-8"):
        self.encoding = check_encoding(encoding)

    def files(self, path: Path) -> list[Path]:
        """Every file that is read; DataError if there is none."""
        path = Path(path)
        if not path.is_dir():
            state = "is a file" if path.exists() else "there is no such folder"
            raise DataError(f"{path}: {state}; give the folder of the sounds and their transcripts")
        sounds = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in ENDINGS and file.is_file()]
        if not sounds:
            problem = f"there is no sound in this folder (*{', *'.join(ENDINGS)})"
            raise DataError(f"{path}: {problem}; name a folder of sounds, each with a text file of its name")
        beside = [text for text in (sound.with_suffix(".txt") for sound in sounds) if text.is_file()]
        return [*sounds, *beside, *sorted(path.rglob(_TRANSCRIPTS))]

    def read(self, path: Path) -> Iterator[Record]:
        """Each sound with its transcript, one at a time; DataError names the sound and the fix."""
        lines: dict[Path, tuple[str, str]] = {}  # a sound's path without ending: its transcript and place
        folder = None
        for sound in self.files(path):
            if sound.suffix.lower() not in ENDINGS:
                break
            if sound.parent != folder:
                folder, lines = sound.parent, {}
                for file in sorted(folder.glob(_TRANSCRIPTS)):
                    for number, line in number_lines(file_lines(file, self.encoding), str(file)):
                        name, _, text = line.strip().partition(" ")
                        lines[folder / name] = text.strip(), f"{file}:{number}"
            beside, stem = sound.with_suffix(".txt"), sound.with_suffix("")
            if beside.is_file():
                text, where = " ".join("".join(file_lines(beside, self.encoding)).split()), f"{beside}:1"
            elif stem in lines:
                text, where = lines[stem]
            else:
                fix = f"write it to {beside.name} beside it, or as a line of a {_TRANSCRIPTS}"
                raise DataError(f"{sound}: this sound has no transcript; {fix}")
            yield {"audio": sound, "target": text, "where": where}
