"""A checkpoint is read back to the bit, and one that was damaged is refused."""

import resource
from pathlib import Path

import pytest
import torch

from seqpipe.errors import DataError, EnvError
from seqpipe.training import checkpoint

STATE = {"progress": {"epoch": 3, "best": None, "name": "é"}, "weights": {"w": torch.arange(6.0).reshape(2, 3)}}


def test_what_was_saved_is_read_again_to_the_bit(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "last.ckpt", STATE)
    state = checkpoint.load(tmp_path / "last.ckpt")
    assert state["progress"] == STATE["progress"]
    assert torch.equal(state["weights"]["w"], STATE["weights"]["w"])  # type: ignore[index,arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_checkpoint_with_any_byte_changed_or_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    checkpoint.save(path, STATE)
    whole = path.read_bytes()
    torn = [whole[:n] for n in (0, 1, 20, 60, len(whole) // 2, len(whole) - 1)]
    flipped = [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(0, len(whole), 37)]
    for data in (*torn, *flipped, whole + b"\0"):
        path.write_bytes(data)
        with pytest.raises(DataError, match="damaged checkpoint; remove it to train from the start, or run with --fr"):
            checkpoint.load(path)


def test_a_pickle_in_a_rightly_sealed_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> object:
            return (Path.touch, (tmp_path / "ran",))

    checkpoint.save(tmp_path / "last.ckpt", {"weights": Hostile()})
    with pytest.raises(DataError, match="has more than tensors and plain values"):
        checkpoint.load(tmp_path / "last.ckpt")
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_the_disk_does_not_take_is_explained_and_the_former_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    checkpoint.save(path, STATE)
    former, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(EnvError, match=r"last.ckpt: cannot grow: .*what was there is unchanged"):
            checkpoint.save(path, {"weights": {name: torch.randn(50_000) for name in "ab"}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    assert path.read_bytes() == former


def test_weights_also_tied_ones_are_read_again_only_with_their_sha256(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    tied = torch.randn(3)
    weights = {"w": torch.randn(3, 4).T, "b": torch.zeros(0), "tied": tied, "too": tied}
    digest = checkpoint.save_weights(path, weights)
    loaded = checkpoint.load_weights(path, digest)
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in loaded.items())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match="damaged weights; run with --fresh"):
        checkpoint.load_weights(path, digest)
    path.unlink()
    with pytest.raises(DataError, match="no such weights; run with --fresh"):
        checkpoint.load_weights(path, digest)


def test_best_weights_that_are_replaced_meanwhile_are_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(epoch: int) -> None:
        name = f"best-{epoch}.safetensors"
        sha256 = checkpoint.save_weights(tmp_path / name, {"epoch": torch.tensor(epoch)})
        checkpoint.save(tmp_path / "last.ckpt", {"progress": {"best_file": name, "best_sha256": sha256}})

    def later(path: Path, digest: str) -> dict[str, torch.Tensor]:
        """The training goes on between the checkpoint's and the weights' being read."""
        monkeypatch.undo()
        commit(2)
        path.unlink()
        return checkpoint.load_weights(path, digest)

    commit(1)
    monkeypatch.setattr(checkpoint, "load_weights", later)
    assert checkpoint.load_best(tmp_path)["epoch"] == 2
    (tmp_path / "best-2.safetensors").unlink()
    with pytest.raises(DataError, match="no such weights"):
        checkpoint.load_best(tmp_path)
