"""A pipeline for Python: check its YAML, run it to a bundle. The commands `check`, `train` and `run` use it too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqpipe.api.memory import file_of, with_files, write_records
from seqpipe.config.loader import Config, load_config
from seqpipe.console import CallbackConsole, Progress
from seqpipe.errors import UsageError
from seqpipe.features.parts import DataPart, paths_of
from seqpipe.files import Rows

if TYPE_CHECKING:
    from seqpipe.api.run import Run
    from seqpipe.runs.check import ExportCheck
    from seqpipe.runs.full_run import RunOptions, ScoreSpread
    from seqpipe.runs.results import RunFolder

Report = Callable[[Progress], None] | bool  # True: a progress bar; False: nothing


@dataclass(frozen=True)
class CheckResult:
    """The findings of a check without errors.

    Attributes:
        warnings: Probable mistakes, such as a tokenizer that splits texts differently from the data.
        needs: Missing folders that `run` creates first; the export is not checked before they exist.
        export: The comparison of the exported graph with PyTorch; None if the export was not checked.
    """

    warnings: tuple[str, ...]
    needs: tuple[str, ...]
    export: ExportCheck | None


class Pipeline:
    """One pipeline: a YAML file, or its content, with overrides. It is checked completely when the object is created.

    Nothing is printed; a notebook shows a progress bar. `check`, `train` and `run` call the function `progress` with a
    `Progress` for each line and each advance of a long task; an exception that it raises ends the work. `True` shows
    the bar anywhere, `False` nothing.

    Args:
        source: The YAML file, or its content as a dict. Paths in a dict are relative to the current folder, and its run
            is called `pipeline` if it has no `name`. Its data may be in memory: lists of dicts, data frames of pandas
            or polars, Arrow tables, a `datasets.Dataset`; they are written to the folder `runs/.data`.
        overrides: Values by key, such as `{"train.epochs": 5}`, or the texts of the command line: `["train.epochs=5"]`.
        plugins: Plugins of one Python file each, whose components are added to the installed ones.

    Raises:
        ConfigError: lists every mistake in the YAML and the overrides.
        PluginError: if a plugin file cannot be read or is broken; it names the line.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        overrides: Mapping[str, Any] | Sequence[str] = (),
        *,
        plugins: Sequence[str | Path] = (),
    ) -> None:
        if isinstance(plugins, str):
            raise UsageError(f"plugins: must be a list of files, such as [{plugins!r}]")
        self._source = with_files(source, Path("runs")) if isinstance(source, Mapping) else Path(source)
        if isinstance(overrides, Mapping):
            # JSON is YAML too, so a value from Python and one from the command line are read and refused alike.
            overrides = [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]
        self._overrides = list(overrides)
        self._plugin_files = [Path(file) for file in plugins]
        self.config = self._load()

    @classmethod
    def init(
        cls,
        data: str | Path | Iterable[Any],
        output: str | Path | None = None,
        *,
        task: str | None = None,
        target: str | None = None,
        text: str | Sequence[str] = (),
        header: bool | None = None,
        progress: Report | None = None,
    ) -> Pipeline:
        """Look at a data file, write a YAML for it as `seqpipe init` does, and return its pipeline.

        Args:
            data: The data file, a folder of texts by label, or data in memory.
            output: The YAML to write; None: the name of the file in the current folder, with the extension .yaml, for
                data in memory `pipeline.yaml`.
            task: The head to learn with, in place of what the data looks like.
            target: The column or key to learn, by its name, or its number from 1.
            text: The column or key of the text, or of both texts.
            header: Whether the first row of a table has the names of its columns; None: what it looks like.
            progress: Function that each line about what was seen, chosen and doubted is reported to.

        Raises:
            OpenChoiceError: if two readings of the file are equally good; `readings` holds the options for each.
            DataError: if nothing can be learned from the file.
            UsageError: if the YAML is there already.
        """
        from seqpipe.init import init_yaml

        texts = [text] if isinstance(text, str) else text
        say = CallbackConsole(progress).say
        if isinstance(data, (str, Path)):
            path = Path(data)
        else:
            path, output = write_records(data, Path("runs")), output or "pipeline.yaml"
        return cls(init_yaml(path, Path(output) if output else None, say, task, target, texts, header=header))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the pipeline, which is that of its run."""
        return self.config.name

    @property
    def notes(self) -> list[str]:
        """Warnings about components of other versions than the YAML names, and about probably misspelt members."""
        return self.config.notes

    def check(self, *, export: bool = True, progress: Report | None = None) -> CheckResult:
        """Build the pipeline from its data, take a step of training, export it, and compare the graph with PyTorch.

        Args:
            export: Check the export; otherwise only report missing needs, since the YAML is already checked.
            progress: Function that receives each line and each advance.

        Raises:
            DataError: for data that the run could not use.
            ExportError: if the pipeline does not export.
            SeqpipeError: any other error of the run.
        """
        console = CallbackConsole(progress)
        missing = []
        if self.config.needs:
            from seqpipe.config.init_from import relative_path
            from seqpipe.runs.full_run import missing_needs

            for step in missing_needs(self.config):
                console.say(f"needs {step}")
                missing.append(relative_path(step.need.path))
        if missing or not export:
            return CheckResult((), tuple(missing), None)
        from seqpipe.runs.check import check_export

        checked = check_export(self.config, console)
        return CheckResult(tuple(console.warnings), (), checked)

    def run(
        self,
        *,
        device: str = "auto",
        fresh: bool = False,
        runs: str | Path = "runs",
        more: int = 0,
        data_add: str | Path | Sequence[str | Path] | None = None,
        train: Any = None,
        dev: Any = None,
        test: Any = None,
        progress: Report | None = None,
        on_epoch: Callable[[Rows], Any] | None = None,
    ) -> Run:
        """Check, train, evaluate, export and verify; resume an interrupted run, and keep a finished one.

        Missing needs of the pipeline are created first.

        Args:
            device: `cpu`, `cuda`, `cuda:1`, or `auto`: CUDA if PyTorch finds a device.
            fresh: Move an existing run of this name aside, and start a new one.
            runs: Folder of all runs; this run is the folder in it with the pipeline's name.
            more: Train the finished run for this number of further epochs, from its last weights and optimizer state;
                the learning rate follows the schedule of all epochs.
            data_add: One or several files of further records. A new run, `NAME-2` or the override `name`, is trained on
                the old and new records; its weights are initialised from those of the finished run, its parent.
            train: Training records in memory, in place of those of the YAML.
            dev: Likewise dev records.
            test: Likewise test records, or those of several sets by name.
            progress: Function that receives each line and each advance.
            on_epoch: Function called with the history after each epoch. A true result ends the training, whose best
                weights are then exported; an exception ends the work, and the next call resumes.

        Raises:
            UsageError: if the run was made from another pipeline or data, another process writes to it, or it is not
                finished where it must be.
            DataError: for data that cannot be used.
            TrainingError: if training diverges.
            ExportError: if the bundle would not answer as PyTorch does.
            InterruptedRunError: if a signal ended training, after its state was saved.
        """
        from seqpipe.runs.full_run import run_all

        given = {"train": train, "dev": dev, "test": test}
        if given := {name: data for name, data in given.items() if data is not None}:
            options: dict[str, Any] = {"device": device, "fresh": fresh, "runs": runs, "more": more}
            options["data_add"] = data_add
            return self._with_data(given, Path(runs)).run(**options, progress=progress, on_epoch=on_epoch)
        if more and (fresh or data_add):
            raise UsageError("more: it continues a run, so it excludes `fresh` and `data_add`")
        console = self._prepare(progress, device, on_epoch)
        config, parent = self.config, None
        if data_add:
            files = [data_add] if isinstance(data_add, str | Path) else data_add
            config, parent = self._with_parent([Path(file).absolute() for file in files], Path(runs))
        run_options = replace(_run_options(device, fresh, runs), more=more, parent=parent)
        return _as_run(run_all(config, console, run_options))

    def run_seeds(
        self,
        seeds: int,
        *,
        device: str = "auto",
        fresh: bool = False,
        runs: str | Path = "runs",
        progress: Report | None = None,
    ) -> dict[str, ScoreSpread]:
        """Run the pipeline with the seeds 1 to `seeds`; return the scores of each test set.

        The name of each run ends in `-seed1`, `-seed2` and so on. Arguments and errors are those of `run`.
        """
        from seqpipe.runs.full_run import run_seeds

        console = self._prepare(progress, device)
        return run_seeds(self._load, self.name, seeds, console, _run_options(device, fresh, runs))

    def run_folds(
        self,
        folds: int,
        *,
        final: bool = False,
        device: str = "auto",
        fresh: bool = False,
        runs: str | Path = "runs",
        progress: Report | None = None,
    ) -> Run:
        """Cross-validate: run the pipeline once for each fold of its training data, which is the test set of that run.

        The runs are `NAME-fold1`, `NAME-fold2` and so on. The one returned, `NAME-folds`, has the answers to all
        records, each by the run that was not trained on it, and their scores, with mean and deviation over the folds. A
        share for dev comes from the other folds. Other arguments and errors are those of `run`.

        Args:
            folds: Number of folds, at least 2.
            final: Then train the pipeline on all data, under its own name, without shares for dev and test; if dev was
                a share, for the median number of epochs of the best weights of the folds.
        """
        from seqpipe.runs.full_run import run_folds

        if folds < 2:
            raise UsageError(f"folds must be at least 2, got {folds}")
        console = self._prepare(progress, device)
        return _as_run(run_folds(self._load, folds, final, console, _run_options(device, fresh, runs)))

    def train(
        self,
        *,
        device: str = "auto",
        fresh: bool = False,
        runs: str | Path = "runs",
        progress: Report | None = None,
        on_epoch: Callable[[Rows], Any] | None = None,
    ) -> Run:
        """Train to the end, or resume an interrupted training, without evaluation and export.

        Arguments and errors are those of `run`.
        """
        from seqpipe.runs.run_folder import start_run
        from seqpipe.runs.self_training import train_in_rounds

        console = self._prepare(progress, device, on_epoch)
        with start_run(self.config, console, fresh, Path(runs)) as run:
            train_in_rounds(run, console, device)
            for line in run.outcome_lines():
                console.say(f"  {line}")
        return _as_run(run)

    def _with_data(self, given: Mapping[str, Any], runs: Path) -> Pipeline:
        """Return the pipeline with data in memory in place of its files."""
        from seqpipe.batch.tables import reader_for
        from seqpipe.runtime.manifest import Reader

        data = self.config.data
        files = {name: file_of(records, runs) for name, records in given.items()}
        use, options = data.reader.use, data.reader.options
        reader = reader_for(Reader(use=use, options=options), Path("records.jsonl"))
        overrides = {f"data.{name}": file for name, file in files.items()}
        if reader.use != use:
            others = {"train": data.train, "dev": data.dev, "test": next(iter(data.tests.values()), None)}
            for name, path in others.items():
                if name not in given and path is not None and not (isinstance(path, DataPart) and "train" in given):
                    raise UsageError(f"{name}: the YAML has a file for the reader {use!r}; give it in memory too")
            overrides["data.reader"] = {"use": reader.use, **reader.options}
        texts = [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]
        return Pipeline(self._source, [*self._overrides, *texts], plugins=self._plugin_files)

    def _with_parent(self, data: Sequence[Path], runs: Path) -> tuple[Config, str]:
        """Return the pipeline with more data, initialised from the run of this one, and the name of that run."""
        from seqpipe.config.run_layout import OUTCOME

        unnamed = [text for text in self._overrides if not text.startswith("name=")]
        parent = load_config(self._source, unnamed, plugin_files=self._plugin_files)
        folder, train = (runs / parent.name).absolute(), parent.data.train
        if not (folder / OUTCOME).exists():
            raise UsageError(f"data_add: {runs / parent.name} is not a finished run; run {parent.file.name} first")
        if known := [str(path) for path in data if path in paths_of(train)]:
            raise UsageError(f"data_add: {known[0]} is in data.train already; name a file of other records")
        added = train.added if isinstance(train, DataPart) else ()
        stem, _, number = parent.name.rpartition("-")
        child = f"{stem}-{int(number) + 1}" if added and number.isdecimal() else f"{parent.name}-2"
        changes: dict[str, Any] = {"data.add": [*map(str, (*added, *data))]}
        changes |= {f"{stage.key}.init": str(folder) for stage in (*parent.stages, *parent.head)}
        texts = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        return self._load([*texts, f"name={child if parent.name == self.name else self.name}"]), parent.name

    def _load(self, more: Sequence[str] = ()) -> Config:
        return load_config(self._source, [*self._overrides, *more], plugin_files=self._plugin_files)

    def _prepare(
        self, progress: Report | None, device: str, on_epoch: Callable[[Rows], Any] | None = None
    ) -> CallbackConsole:
        """Create the missing needs of the pipeline; return the console of its run."""
        from seqpipe.training.devices import join

        progress = False if join().rank else progress  # the first of several processes reports
        console = CallbackConsole(progress)
        if self.config.needs:
            from seqpipe.runs.full_run import make_needs

            if make_needs(self.config, console, _run_options(device)):
                self.config = self._load()  # missing folders could not be checked before
        if on_epoch:  # only for the epochs of this pipeline
            console.on_epoch = lambda history: on_epoch(Rows(history))
        return console


def _run_options(device: str, fresh: bool = False, runs: str | Path = "runs") -> RunOptions:
    from seqpipe.report.collect import write_report
    from seqpipe.runs.full_run import RunOptions

    return RunOptions(device, fresh, Path(runs), write_report=write_report)


def _as_run(folder: RunFolder) -> Run:
    from seqpipe.api.run import Run

    return Run(folder.folder, folder.config)
