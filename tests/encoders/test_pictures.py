"""Convolutional encoders of pictures: places in the order of rows, plain convolutions; the bundle of a pipeline."""

import base64
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tiny_pipelines import fail_with, seqpipe, succeed, write_jsonl, write_yaml
from torch import nn
from torch.nn import functional as F

import seqpipe as package
from seqpipe.config.loader import load_config
from seqpipe.errors import DataError, UsageError
from seqpipe.runs.run_folder import fingerprint
from seqpipe_plugins.encoders.pictures import LeNet, Pictures, ResNet

KEYS = ("bar", "dot")


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize(("cls", "options"), [(LeNet, {"filters": [3, 4]}), (ResNet, {"filters": [3, 4, 5]})])
@pytest.mark.parametrize(("height", "width"), [(8, 12), (7, 5), (1, 1)])
def test_places_are_a_grid_in_the_order_of_rows(
    cls: type[Pictures], options: dict[str, list[int]], height: int, width: int, positions: bool
) -> None:
    torch.manual_seed(1)
    encoder = cls(width * 3, {"channels": 3}, positions=positions, **options).eval()  # type: ignore[arg-type]
    x = torch.randn(2, height + 3, width * 3)
    mask = torch.arange(height + 3) < torch.tensor([[height], [height + 3]])
    rows, columns = encoder.grid(options, height, width)
    padded, alone = encoder(x, mask), encoder(x[:1, :height], mask[:1, :height])
    assert alone["x"].shape == (1, rows * columns, encoder.dim)
    assert padded["mask"].sum(1).tolist() == [rows * columns, np.prod(encoder.grid(options, height + 3, width))]
    torch.testing.assert_close(padded["x"][:1, : rows * columns], alone["x"], atol=1e-5, rtol=0)
    torch.testing.assert_close(padded["state"][:1], alone["x"].mean(1), atol=1e-5, rtol=0)


def test_a_lenet_is_convolutions_and_means() -> None:
    torch.manual_seed(2)
    encoder = LeNet(12 * 3, {"channels": 3}, filters=[4, 5]).eval()
    x = torch.randn(2, 8, 36)
    planes = x.reshape(2, 8, 12, 3).permute(0, 3, 1, 2)
    for layer in encoder.convolutions:
        planes = F.avg_pool2d(torch.tanh(F.conv2d(planes, layer.weight, layer.bias, padding=2)), 2)
    mask, expected = torch.ones(2, 8, dtype=torch.bool), planes.permute(0, 2, 3, 1).reshape(2, 2 * 3, 5)
    torch.testing.assert_close(encoder(x, mask)["x"], expected / math.sqrt(1 + 1e-5), atol=1e-6, rtol=0)
    # In training places are normalized as by PyTorch, whose running variance is that of a sample.
    norm = nn.BatchNorm1d(5)
    expected = norm(expected.flatten(0, 1)).reshape(2, 6, 5)
    torch.testing.assert_close(encoder.train()(x, mask)["x"], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.norm.mean, norm.running_mean)
    torch.testing.assert_close(encoder.norm.variance, (norm.running_var - 0.9) * 11 / 12 + 0.9)


def test_rows_that_are_no_pixels_are_refused() -> None:
    with pytest.raises(UsageError, match="rows of 7 numbers are no pixels of 3 channels; put the encoder directly"):
        LeNet(7, {"channels": 3})


def picture(key: str, number: int) -> np.ndarray:
    """A bar or a dot on a grey ground."""
    pixels = np.full((12, 9), 40 + number % 50, np.uint8)
    row, column = number % 7 + 2, number % 4 + 2
    pixels[row, :: 1 if key == "bar" else 99] = 250
    pixels[row : row + 2, column : column + 2] = 250
    return pixels


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained pipeline whose data files name pictures."""
    folder = tmp_path_factory.mktemp("pictured")
    (folder / "files").mkdir()
    for name, count in (("train", 60), ("dev", 10), ("test", 10)):
        rows = []
        for i in range(count):
            key = KEYS[i % 2]
            Pillow.fromarray(picture(key, i)).save(folder / "files" / f"{name}-{i}.png")
            rows.append({"image": f"files/{name}-{i}.png", "label": key})
        write_jsonl(folder / f"{name}.jsonl", rows)
    reader = {"use": "jsonl", "text": None, "files": ["image"]}
    embedding = {"use": "image", "height": 6, "width": 7, "colour": True}
    image = {"field": "image", "embedding": embedding, "encoder": {"use": "resnet", "filters": [4, 8]}}
    content = {
        "data": {"reader": reader, "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "inputs": {"image": image},
        "head": {"use": "label"},
        "train": {"epochs": 6, "batch_size": 10, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
    }
    succeed("run", write_yaml(folder, "pictured", **content), "--device", "cpu", folder=folder)
    return folder


def test_a_bundle_answers_every_form_of_a_picture(pictured: Path) -> None:
    bundle = pictured / "runs/pictured/bundle"
    assert seqpipe("verify", bundle).code == 0
    model = package.load(bundle, "cpu")
    file = pictured / "files" / "test-3.png"
    answer = model(file)
    pixels = np.asarray(Pillow.open(file))
    assert answer["label"] == "dot"
    forms = [file.read_bytes(), pixels, {"image": pixels.tolist()}, base64.b64encode(file.read_bytes()).decode()]
    assert [model(form) for form in forms] == [answer] * 4
    assert model([file, pixels]) == [answer] * 2
    with pytest.raises(DataError, match="is a text that is not base64"):
        model(str(file))
    golden = [example.record["image"] for example in model.manifest.golden]
    assert {base64.b64decode(str(text))[:4] for text in golden} == {b"\x89PNG"}


def test_predict_answers_files_folders_and_data_files(pictured: Path, tmp_path: Path) -> None:
    bundle, files = pictured / "runs/pictured/bundle", pictured / "files"
    one, other = files / "test-2.png", files / "test-3.png"
    done = succeed("predict", bundle, "-i", one, other)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [(line["image"], line["answer"]["label"]) for line in lines] == [(str(one), "bar"), (str(other), "dot")]
    assert len(seqpipe("predict", bundle, "-i", files).out.splitlines()) == 80
    named = seqpipe("predict", bundle, "-i", pictured / "test.jsonl")
    labels = [json.loads(line)["answer"]["label"] for line in named.out.splitlines()]
    assert labels == ["bar", "dot"] * 5
    # Standard input and a server read no file: a name is a damaged picture there.
    fail_with(3, "is a text that is not base64", "predict", bundle, stdin=json.dumps({"image": str(one)}).encode())
    (tmp_path / "data.jsonl").write_text(json.dumps({"image": "nowhere.png"}))
    fail_with(3, "data.jsonl:1: there is no file", "predict", bundle, "-i", tmp_path / "data.jsonl")


def test_a_changed_picture_changes_the_fingerprint_of_a_run(pictured: Path) -> None:
    before = fingerprint(load_config(pictured / "pictured.yaml"))
    file = pictured / "files" / "train-5.png"
    content = file.read_bytes()
    Pillow.new("L", (3, 3)).save(file)
    after = fingerprint(load_config(pictured / "pictured.yaml"))
    file.write_bytes(content)
    assert before["data"]["train"] != after["data"]["train"]
    assert before["data"]["test"] == after["data"]["test"]
