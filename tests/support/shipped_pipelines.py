"""The pipelines of the folder `pipelines`, on little data."""

import itertools
import json
import re
from pathlib import Path

from repository_scripts import ROOT
from tiny_checkpoints import checkpoint

from seqpipe.config.loader import load_config
from seqpipe.training.tiny_bert import checkpoint_texts

PIPELINES = sorted((ROOT / "pipelines").glob("*.yaml"))
RECORDS = {"train": 60, "dev": 10, "test": 12}


def paths_of(path: Path) -> list[str]:
    """The YAML of a pipeline, its data and the files of the components that it names, as patterns of paths."""
    words = {*re.findall(r"[\w-]+", text := path.read_text(encoding="utf-8"))}
    components = (ROOT / "plugins" / "seqpipe_plugins").glob("*/*.py")
    used = [file.relative_to(ROOT).as_posix() for file in components if file.stem.replace("_", "-") in words]
    data = [f"pipelines/{folder}/*" for folder in {*re.findall(r"data/[\w-]+", text)}]
    return [f"pipelines/{path.name}", "tests/test_pipelines.py", *sorted(data), *sorted(used)]


def first_records(path: Path, count: int, folder: Path) -> Path:
    """Write the first records of a file into another folder."""
    target = folder / path.name
    if path.suffix == ".json":
        content = json.loads(path.read_text(encoding="utf-8"))
        fewer = {"records": count} if "records" in content else {"data": content["data"][: -(-count // 4)]}
        target.write_text(json.dumps(content | fewer), encoding="utf-8")  # each passage has four questions
        return target
    is_lines = path.suffix in (".jsonl", ".csv") or path.parent.name in ("points", "minimal-pairs")
    with path.open(encoding="utf-8") as file:
        if is_lines:
            text = "".join(itertools.islice(file, count + (path.suffix == ".csv")))
        else:
            text = "\n\n".join(file.read().split("\n\n")[:count]) + "\n"
    target.write_text(text, encoding="utf-8")
    return target


def small(path: Path, folder: Path) -> list[str]:
    """Return overrides that train this pipeline on little data for one epoch; a checkpoint is made for it."""
    config = load_config(path, runs=False)
    data = config.data
    train = first_records(data.train, RECORDS["train"], folder)
    overrides = [f"data.train={train}", "train.epochs=1", "train.threads=1"]
    overrides += ["train.epoch_steps=5"] if config.train.epoch_steps else []
    if data.dev:
        overrides.append(f"data.dev={first_records(data.dev, RECORDS['dev'], folder)}")
    if data.tests:
        tests = {name: str(first_records(file, RECORDS["test"], folder)) for name, file in data.tests.items()}
        overrides.append(f"data.test={json.dumps(tests)}")
    source = config.inputs[0]
    if source.tokenizer and source.tokenizer.use == "pretrained":
        texts = checkpoint_texts(config, source.tokenizer.options["checkpoint"])
        model = checkpoint(folder / "checkpoint", "bert", texts, most=600)
        key = "encoder.0" if len(source.encoder) > 1 else "encoder"
        overrides += [f"tokenizer.checkpoint={model}", f"{key}.checkpoint={model}"]
        overrides += [f"{key}.first=30"] if source.pairs else []
    return overrides
