"""Sounds and pictures that lie in folders of their own: LJSpeech, Common Voice, Flickr8k."""

import wave
from pathlib import Path

import pytest
from PIL import Image

from seqpipe.config.contract import build_component
from seqpipe.config.loader import load_config
from seqpipe.errors import DataError, UsageError
from seqpipe.features.parts import read_part
from seqpipe.init import init_yaml
from seqpipe_plugins.readers.csv import Csv, TableOptions

TEXTS = [
    f"the {animal} runs over the {place}"
    for animal in ("dog", "cat", "horse", "bird")
    for place in ["hill", "river", "road"]
]


def write_sounds(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    for name in names:
        with wave.open(str(folder / name), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(1600))


def first_files(yaml: Path) -> list[Path]:
    """Files that the first records of the written YAML name."""
    data = load_config(yaml).data
    records = [*read_part(build_component(data.reader), data.train)]
    return [value for record in records[:3] for value in record.values() if isinstance(value, Path)]


def test_identifiers_of_sounds_are_found_in_their_folder(tmp_path: Path) -> None:
    ids = [f"LJ001-{number:04d}" for number in range(len(TEXTS))]
    write_sounds(tmp_path / "wavs", [f"{name}.wav" for name in ids])
    rows = [f"{name}|{text}|{text.capitalize()}" for name, text in zip(ids, TEXTS, strict=True)]
    (tmp_path / "metadata.csv").write_text("\n".join(rows) + "\n")
    yaml = init_yaml(tmp_path / "metadata.csv", tmp_path / "speech.yaml")
    assert first_files(yaml) == [tmp_path / "wavs" / f"{name}.wav" for name in ids[:3]]


def test_names_of_clips_are_found_in_their_folder(tmp_path: Path) -> None:
    names = [f"common_voice_en_{number}.wav" for number in range(len(TEXTS))]
    write_sounds(tmp_path / "en" / "clips", names)
    rows = ["client_id\tpath\tsentence\tage"]
    rows += [
        f"{number % 3:016x}\t{name}\t{text}\t" for number, (name, text) in enumerate(zip(names, TEXTS, strict=True))
    ]
    (tmp_path / "en" / "train.tsv").write_text("\n".join(rows) + "\n")
    yaml = init_yaml(tmp_path / "en" / "train.tsv", tmp_path / "voice.yaml")
    assert first_files(yaml) == [tmp_path / "en" / "clips" / name for name in names[:3]]
    assert "{use: mel" in yaml.read_text()


def captions_of(folder: Path, pictures: int, texts: int) -> Path:
    """The YAML for a file of so many pictures with so many texts each, whose names end in the number of the text."""
    (folder / "Images").mkdir()
    rows = []
    for number in range(pictures):
        Image.new("RGB", (4, 4)).save(folder / "Images" / f"a{number}.png")
        for place in range(texts):
            rows.append(f"a{number}.png#{place}\t{TEXTS[(7 * number + place) % len(TEXTS)]} {number}")
    (folder / "tokens.txt").write_text("\n".join(rows) + "\n")
    return init_yaml(folder / "tokens.txt", folder / "captions.yaml")


def test_texts_of_a_picture_are_records_of_their_own(tmp_path: Path) -> None:
    yaml = captions_of(tmp_path, pictures=6, texts=2)
    assert [path.name for path in first_files(yaml)] == ["a0.png", "a0.png", "a1.png"]


def test_many_texts_of_pictures_are_divided_by_picture(tmp_path: Path) -> None:
    assert load_config(captions_of(tmp_path, pictures=100, texts=5)).data.group == "file"


def test_files_that_are_nowhere_are_named(tmp_path: Path) -> None:
    rows = [f"a{number}.wav,{text}" for number, text in enumerate(TEXTS)]
    (tmp_path / "data.csv").write_text("file,text\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match=r"names files that are not there, such as a0\.wav; put the data file into"):
        init_yaml(tmp_path / "data.csv", tmp_path / "x.yaml")


@pytest.mark.parametrize("options", [{"path": "wavs/{}.wav"}, {"files": ["id"], "path": "wavs/x.wav"}])
def test_a_path_needs_a_column_and_a_place_for_its_cell(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"csv\.path: .* is no path of files; name the column in `files`"):
        Csv(table=TableOptions(**options))  # type: ignore[arg-type]
