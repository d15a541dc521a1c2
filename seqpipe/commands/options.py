"""Options that several commands share, and the objects built from their values."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin, get_type_hints

import typer

from seqpipe.console import CallbackConsole, Console
from seqpipe.errors import UsageError

if TYPE_CHECKING:
    from seqpipe.api.pipeline import Pipeline


def complete_override(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the matching keys, each with its meaning, or after `=` the installed components."""
    key, equals, _ = incomplete.partition("=")
    words, before = context.params.get("overrides") or [], f"{key}="
    if words[-1:] == ["="]:  # bash splits words at "="
        key, equals, before = words[-2], "=", ""
    if not equals:
        keys = [(f"{name}=", meaning) for name, meaning in dotted_keys().items() if name.startswith(key)]
        # bash appends a space to the only match. A second match prevents it, and bash completes their common prefix.
        is_single = len(keys) == 1 and os.environ.get("_SEQPIPE_COMPLETE") == "complete_bash"
        return [*keys, (f"{keys[0][0]}…", "")] if is_single else keys
    from seqpipe.config.plugins import installed_names

    place = [part for part in key.split(".") if part != "use" and not part.isdigit()]
    names = installed_names().get(place[-1].removeprefix("target_"), []) if place else []
    return [(f"{before}{name}", "") for name in names]


Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N; a missing device is an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result, or the error, as JSON to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and results.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of a bundle.")]
FailOn = Annotated[
    Literal["cpu-in-loop"] | None,
    typer.Option("--fail-on", metavar="FAULT", help="cpu-in-loop: fail if a node within a loop runs on the CPU."),
]
PluginFiles = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="A Python file with a hook and components; may be repeated."),
]
DecodeOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A decode option, such as n_best=3.")
]


def with_options(options_class: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a command whose first parameter is an object of this dataclass.

    The command gets an option for each field of the dataclass that is annotated with one.
    """
    hints = get_type_hints(options_class, include_extras=True)
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hint,
        )
        for field in fields(options_class)
        if get_origin(hint := hints[field.name]) is Annotated
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            command(options_class(**{option.name: values.pop(option.name) for option in options}), **values)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + options
        vars(run)["__signature__"] = inspect.Signature(parameters)  # typer reads both
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def make_console(quiet: bool) -> Console:
    """Return a console with the verbosity of `--quiet`."""
    return Console(-1 if quiet else 0)


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """The options of commands that print a result."""

    as_json: Json = False
    quiet: Quiet = False

    @property
    def console(self) -> Console:
        """A console with the verbosity of `--quiet`; tables go to standard output, unless it has JSON."""
        return Console(-1 if self.quiet else 0, tables=not self.as_json)

    def print(self, result: Any) -> None:
        """Print a result as JSON to standard output, with `--json`."""
        print_json(result, self.as_json)


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(ResultOptions):
    """The options of commands that answer inputs and print a result."""

    device: Device = "auto"


@dataclass(frozen=True)
class PipelineOptions:
    """The arguments and options of commands that load a YAML."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML.")]
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as train.epochs=3.", autocompletion=complete_override),
    ] = None
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An override; may be repeated.")
    ] = None
    plugins: PluginFiles = None
    quiet: Quiet = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more messages.")] = False

    def make_console(self, silent: bool = False) -> Console:
        """Return a console of this verbosity; a silent one prints not even results."""
        return CallbackConsole(False) if silent else Console(-1 if self.quiet else int(self.verbose))

    def load(self, console: Console, seed: int | None = None) -> Pipeline:
        """Load the YAML with the overrides; report the versions that have changed since."""
        from seqpipe.api.pipeline import Pipeline

        items = [*(self.overrides or []), *(self.sets or [])]
        if seed is not None:
            items.append(f"train.seed={seed}")
        pipeline = Pipeline(self.file, items, plugins=self.plugins or ())
        for note in pipeline.notes:
            console.say(note)
        return pipeline


@dataclass(frozen=True)
class TrainingOptions(PipelineOptions):
    """The arguments and options of commands that train."""

    seed: Annotated[int | None, typer.Option("--seed", help="Short for --set train.seed=N.")] = None
    device: Device = "auto"
    devices: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Train on N devices of this machine, CUDA or as CPU processes."),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move an existing run of this name aside and start a new one.")
    ] = False


def join_devices(count: int | None, device: str) -> bool:
    """Run this command in a process for each device, or join these processes in one of them.

    Returns:
        Whether this process prints the results: the only one, or the first.
    """
    import seqpipe.runs  # noqa: F401 (sets how threads of training wait)
    from seqpipe.training import devices

    if count and count > 1 and not devices.is_started():
        raise typer.Exit(devices.launch(count, device))
    processes = devices.join()
    if count and count != processes.count and devices.LAUNCHED not in os.environ:
        raise UsageError(f"--devices {count}: torchrun has started {processes.count} processes; omit --devices")
    return not processes.rank


# Options of other tools, and the equivalent keys of the YAML.
_USUAL_OPTIONS = {
    **dict.fromkeys(("o", "out", "output", "output_dir"), "name"),
    **dict.fromkeys(("lr", "learning_rate"), "train.optimizer.lr"),
    **dict.fromkeys(("e", "max_epochs", "num_epochs", "num_train_epochs"), "train.epochs"),
    "data": "data.train",
    "train": "data.train",
    "hidden_size": "encoder.hidden",
}
# Commands in place of options that `seqpipe evaluate` had.
_FORMER_OPTIONS = {"perturb": "robustness TARGET", "swap": "robustness TARGET", "merge": "merge BUNDLE FOLDER"}
_FORMER_OPTIONS |= dict.fromkeys(("pairs", "normalize", "masking"), "minimal-pairs TARGET FILE")


def dotted_keys() -> dict[str, str]:
    """Return the dotted keys of a YAML, each with its meaning: those of the built-in components, from the wheel."""
    keys: dict[str, str] = json.loads(resources.files("seqpipe.commands").joinpath("keys.json").read_text("utf-8"))
    return keys


def override_message(error: Any, arguments: Sequence[str]) -> str:
    """Return a message with the override or command equivalent to an unknown option; "" for other errors."""
    option, context = getattr(error, "option_name", ""), error.ctx
    if not option or context is None:
        return ""
    name = option.lstrip("-").replace("-", "_")
    if context.command.name == "evaluate" and name in _FORMER_OPTIONS:
        return f"no option {option}; use seqpipe {_FORMER_OPTIONS[name]}"
    if "overrides" not in {parameter.name for parameter in context.command.params}:
        return ""
    if name in ("gpu", "cuda"):
        return f"no option {option}; use --device cuda"
    if name == "fsdp":
        return f"no option {option}: FSDP is not supported; each of several devices has all weights (--devices N)"
    usual = _USUAL_OPTIONS.get(name)
    keys = [usual] if usual else [key for key in dotted_keys() if name in (key, key.rpartition(".")[2])]
    place = next((i for i, argument in enumerate(arguments) if argument.partition("=")[0] == option), len(arguments))
    _, equals, value = "".join(arguments[place : place + 1]).partition("=")
    if not equals:
        value = next((text for text in arguments[place + 1 : place + 2] if text[0:1] != "-"), "VALUE")
    overrides = " or ".join(shlex.join([f"{key}={value}"]) for key in keys)
    return f"no option {option}; set keys of the YAML after the file: {overrides}" if keys else ""


def parse_decode_options(
    items: Sequence[str],
    shortcuts: Mapping[str, Any],
    declared: Mapping[str, Mapping[str, Any]],
    flag: str = "--option",
) -> dict[str, Any]:
    """Parse the KEY=VALUE items of a flag, with values read as YAML; `shortcuts` are options with a flag of their own.

    The value of an option that is declared as tokens or texts is plain text, unless it is quoted or a list.
    """
    options = {name: value for name, value in shortcuts.items() if value is not None}
    if items:
        from seqpipe.config.yaml import scalar
        from seqpipe.runtime.decode_options import is_text
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{flag} {item}: must be KEY=VALUE")
        is_plain = is_text(declared, name) and value[:1] not in ("[", '"', "'")
        options[name] = value if is_plain else scalar(value, f"{flag} {item}")
    return options


def print_json(result: Any, wanted: bool = True) -> None:
    """Print a result to standard output, with `--json`."""
    if wanted:
        from seqpipe.files import null_non_finite

        typer.echo(json.dumps(null_non_finite(result), ensure_ascii=False, indent=1))
