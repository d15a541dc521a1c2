"""The folder of a run: its fingerprint, starting and opening a run, and its trained pipeline."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seqpipe import files
from seqpipe.config.contract import build_component, has_member
from seqpipe.config.init_from import run_problem
from seqpipe.config.loader import Config, load_config, resolved
from seqpipe.config.run_layout import (
    BUNDLE,
    CHECKPOINTS,
    CONTEXTS,
    LAST,
    LEARNED,
    LOCK,
    LOCK_HOLDER,
    SCORES_FILE,
    SELF_TRAINING,
    STATE,
    TEACHER,
    TOKENS_DIR,
    YAML,
    refuse_other_format,
)
from seqpipe.config.yaml import dump, flatten
from seqpipe.console import Console
from seqpipe.errors import ConfigError, UsageError
from seqpipe.features.parts import DataPart, DataPath, paths_of
from seqpipe.runs.lock import run_lock
from seqpipe.runs.results import RUNS, RunFolder
from seqpipe.training import checkpoint, devices
from seqpipe.training.data_forms import features_mode
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.training.optim import rate_factor


def fingerprint(config: Config, run: Path | None = None) -> dict[str, Any]:
    """Return the inputs of a run: the resolved YAML without its folders, the sha256 of every file and run, versions."""
    data, keyed = config.data, list(zip(config.versions, config.components, strict=True))
    flat = ((f"{key}.{where}", value) for key, component in keyed for where, value in flatten(component.options))
    options = {where: value for where, value in flat if isinstance(value, Path)}
    sources = {f"{key}.init": folder for key, component in keyed if (folder := component.common_keys.get("init"))}
    if config.train.teacher:
        sources["train.teacher"] = Path(config.train.teacher.path)
    names = {path.as_posix(): path.name for path in (*options.values(), *sources.values())}
    content = _without_folders(resolved(config), names)
    for role in ("train", "dev", "test", "unlabelled", "candidates", "add"):
        if not isinstance(content["data"].get(role), float):  # a share
            content["data"].pop(role, None)
    content.pop("plugins")  # the components' versions are added below
    tests = {name if name == "test" else f"test.{name}": path for name, path in data.tests.items()}
    hashes: dict[str, Any] = {}
    paths: dict[str, DataPath | None] = {
        "train": data.train,
        "dev": data.dev,
        **tests,
        "unlabelled": data.unlabelled,
        "candidates": data.candidates,
    }
    if isinstance(data.train, DataPart):
        paths |= {f"add.{number}": path for number, path in enumerate(data.train.added)}
    for role, source in paths.items():
        source = source.file if isinstance(source, DataPart) else source
        if source is None:
            continue
        listed = [*paths_of(source)]
        if has_member(data.reader.cls, "files"):  # the reader knows which files belong together
            listed = [file for path in listed for file in build_component(data.reader).files(path)]
        hashes[role] = [files.sha256_file(file) for file in listed]
        if listed == [source]:
            (hashes[role],) = hashes[role]
    inputs: dict[str, Any] = {
        "yaml": content,
        "data": hashes,
        "components": {f"{s.kind} {s.use}": f"{s.offer.distribution} {s.offer.version}" for s in config.components},
    }
    if options:
        inputs["files"] = {key: _sha256(path) for key, path in options.items()}
    if sources:
        inputs["sources"] = {}
        for key, folder in sources.items():
            if key == "train.teacher":  # one that is missing counts as unchanged if the run has its answers
                if run and (run / TEACHER).exists() and not folder.exists():
                    inputs["sources"][key] = files.read_json(run / STATE)["fingerprint"]["sources"][key]
                    continue
                if (folder / BUNDLE).is_file():
                    inputs["sources"][key] = {"bundle": files.sha256_file(folder / BUNDLE)}
                    continue
                if problem := run_problem(folder):
                    raise UsageError(f"{key}: {problem}, or a bundle")
            artifacts = [folder / LEARNED, *sorted(folder.glob("*tokenizer*.json"))]
            fitted = {path.name: files.sha256_file(path) for path in artifacts}
            inputs["sources"][key] = {"weights": checkpoint.best(folder / CHECKPOINTS)[1], **fitted}
    return inputs


def _sha256(path: Path) -> str | dict[str, str]:
    """Hash a file, the manifest of a run's bundle (it has the sha256 of the other files), or each file in a folder."""
    manifest = path / "bundle" / BUNDLE
    if (path / STATE).is_file() and manifest.is_file():
        path = manifest
    if not path.is_dir():
        return files.sha256_file(path)
    return {file.name: files.sha256_file(file) for file in sorted(path.iterdir()) if file.is_file()}


def _without_folders(value: Any, names: Mapping[str, str]) -> Any:
    """Return plain data with file names in place of paths: a run may move together with its files."""
    if isinstance(value, dict):
        return {key: _without_folders(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Return the differences between two fingerprints, one line each."""
    inner: list[tuple[str, Any, Any]] = []
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        inner = [(f"{key}.{name}" if key else name, old.get(name), new.get(name)) for name in names]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        inner = [(f"{key}.{i}", *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    if inner:
        return [line for name, before, after in inner for line in differences(before, after, name)]
    if old == new:
        return []
    if key.startswith("sources."):
        name, _, what = key.removeprefix("sources.").partition(".init.")
        return [f"{name}.init: the {what} of the run changed" if what else f"{name}: was {old}, is {new}"]
    name = key.removeprefix("yaml.").removeprefix("files.")
    is_content = key.startswith(("data.", "files."))
    return [f"{name}: the file's content changed" if is_content else f"{name}: {old} -> {new}"]


@contextmanager
def start_run(
    config: Config, console: Console, fresh: bool = False, runs: Path = RUNS, more: int = 0, parent: str | None = None
) -> Iterator[RunFolder]:
    """Yield the run of this config, its folder locked until the block ends.

    The folder is new, or the existing one if it was made from the same inputs. One without a checkpoint has nothing to
    keep: its run starts again. With `fresh` an old run of this name is moved aside. With `more`, the finished run is
    extended by this number of epochs, which the config of the yielded run includes. `parent` is the name of the run
    from which a new one continues with more data. Of several processes the first prepares and locks the folder.

    Raises:
        ConfigError: if a component's `init` names this folder.
        UsageError: if the folder is not a run, was made from other inputs, or is locked; for `more`, if it is not
            finished; for an unknown `SEQPIPE_FEATURES`.
    """
    folder, processes = runs / config.name, devices.current_processes()
    if processes.rank:  # the first process has the lock
        epochs = processes.by_first(lambda: config.train.epochs)
        yield RunFolder(folder, replace(config, train=config.train.model_copy(update={"epochs": epochs})))
        return
    features_mode()  # a wrong one is reported before an old run is moved
    for component in config.components:
        source = component.common_keys.get("init")
        if source and source.resolve() == folder.resolve():
            message = f"`init` names this run's own folder, {folder}; give the YAML another name:"
            raise ConfigError([replace(component.problem(message), key=f"{component.key}.init")])
    if config.train.teacher and Path(config.train.teacher.path).resolve() == folder.resolve():
        raise UsageError(f"train.teacher names this run's own folder, {folder}; give the YAML another name:")
    if more and not (folder / CHECKPOINTS / LAST).exists():
        raise UsageError(f"--more: {folder} is not trained yet; train it first: seqpipe run {config.file.name}")
    try:
        names = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        names = {STATE}  # nothing to protect, or the lock reports the problem
    others = (name for name in names - {YAML, LOCK, LOCK_HOLDER} if not name.endswith(".part"))
    if STATE not in names and any(others):
        raise UsageError(f"{folder} exists and is not a run; give the YAML another name: or move the folder")
    with ExitStack() as locks:
        locks.enter_context(run_lock(folder))
        locks.callback(torch.set_num_threads, torch.get_num_threads())  # training sets another number
        if more:
            config = _add_epochs(config, folder, more, console)
        current = fingerprint(config, folder)
        if fresh and (folder / STATE).exists():
            if os.name == "nt":
                locks.close()  # Windows cannot move a folder with an open file, so not another process's run either
            console.say(f"the old run is now {files.move_aside(folder)}")
            locks.enter_context(run_lock(folder))
        _prepare_folder(config, folder, current, parent)
        epochs = config.train.epochs  # `more` has changed them
        processes.by_first(lambda: epochs)
        yield RunFolder(folder, config)


def refuse_changes(folder: Path, current: Mapping[str, Any], but: Sequence[str] = ()) -> bool:
    """Return whether a run has other inputs than these, except for the keys `but`; UsageError if it was trained."""
    state = files.read_json(folder / STATE) if (folder / STATE).exists() else {"fingerprint": current}
    lines = [line for line in differences(state["fingerprint"], current) if line.partition(":")[0] not in but]
    is_trained = any(path.exists() for path in (folder / CHECKPOINTS / LAST, folder / SELF_TRAINING))
    if lines and (is_trained or "folds" in state):
        listed = "".join(f"\n  {line}" for line in lines)
        fix = "run with --fresh to move it aside, or give the YAML another name:"
        if lines[0].startswith("train.epochs:") and "more" in state:
            epochs = state["fingerprint"]["yaml"]["train"]["epochs"]
            fix = f"`--more` has trained it longer: set train.epochs={epochs}; or {fix}"
        raise UsageError(f"{folder} was made from other inputs:{listed}\n{fix}")
    return bool(lines)


def _add_epochs(config: Config, folder: Path, more: int, console: Console) -> Config:
    """Return the config with further epochs, after the state of its finished run was changed to resume with them."""
    command = f"seqpipe run {config.file.name}"
    refuse_changes(folder, fingerprint(config, folder), ("train.epochs",))
    state, last = files.read_json(folder / STATE), checkpoint.load(folder / CHECKPOINTS / LAST)
    progress, added = last["progress"], state.get("more")
    if added and not (folder / SCORES_FILE).exists():  # interrupted
        if added["epochs"] != more:
            raise UsageError(f"--more: {folder} was interrupted; finish it first: {command} --more {added['epochs']}")
    elif not progress["done"]:
        raise UsageError(f"--more: {folder} is not finished; finish it first: {command}")
    else:
        added = {"epochs": more, "after": progress["epoch"]}
    after, total = added["after"], added["after"] + more
    config = replace(config, train=config.train.model_copy(update={"epochs": total}))
    state |= {"fingerprint": fingerprint(config, folder), "more": added}
    files.write(folder / STATE, json.dumps(state, indent=1))
    files.write(folder / YAML, dump(resolved(config, folder)))
    for name in (SCORES_FILE, CONTEXTS):
        (folder / name).unlink(missing_ok=True)
    if progress["epoch"] == after:
        last["progress"] |= {"done": False, "plateau": 0}
        last["steps_weigh_items"] = True  # the further epochs are trained by this rule, whatever those before
        checkpoint.save(folder / CHECKPOINTS / LAST, last)
    settings, group = config.train, last["optimizer"]["param_groups"][0]
    rate = group["base_lr"] * rate_factor(settings, after / total) * progress["factor"]
    schedule = f"the schedule {settings.schedule.use} of {total} epochs"
    console.say(f"training continues after epoch {after}, to epoch {total}: the learning rate follows {schedule}")
    console.say(f"  it was {group['lr']:.3g} at the end of epoch {after}, and is {rate:.3g} now")
    return config


def _prepare_folder(config: Config, folder: Path, current: Mapping[str, Any], parent: str | None) -> None:
    """Write the initial files of a run, the fingerprint last: until then the old one is valid."""
    is_trained = (folder / CHECKPOINTS / LAST).exists()
    if refuse_changes(folder, current):  # the run was never trained: artifacts fitted to other data are useless
        for path in (folder / LEARNED, folder / TEACHER, *folder.glob("*tokenizer*.json")):
            path.unlink(missing_ok=True)
        if (folder / TOKENS_DIR).exists():
            shutil.rmtree(folder / TOKENS_DIR)
    _refuse_older_run(folder)
    if not is_trained:
        files.write(folder / YAML, dump(resolved(config, folder)))
        state = {"fingerprint": current} | ({"parent": parent} if parent else {})
        files.write(folder / STATE, json.dumps(state, indent=1, ensure_ascii=False))


def _refuse_older_run(folder: Path) -> None:
    """Raise UsageError for a run whose fitted artifacts have another format than this seqpipe reads."""
    if (folder / LEARNED).exists():
        refuse_other_format(folder / LEARNED, files.read_json(folder / LEARNED).get("form", 1))


def open_run(
    folder: Path, console: Console, need_data: bool = True, sets: Sequence[str] = (), plugins: Sequence[Path] = ()
) -> RunFolder:
    """Return the run in a folder, its YAML with these overrides; report changed versions.

    The runs that it was initialised from may be missing.
    """
    folder = RunFolder(folder).folder  # refuses a folder that is not a run
    _refuse_older_run(folder)
    if names := RunFolder(folder).folds:
        message = f"has the answers of {len(names)} runs, and no model; name one of them, such as {names[0]}"
        raise UsageError(f"{folder} {message}")
    config = load_config(folder / YAML, sets, files=need_data, runs=False, plugin_files=plugins)
    for note in config.notes:
        console.say(note)
    return RunFolder(folder, config)


def load_trained(run: RunFolder) -> TrainedPipeline:
    """Return the pipeline of a run with its best weights; UsageError if it was not trained."""
    return TrainedPipeline.load(run.config, run.folder)
