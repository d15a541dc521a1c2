"""The command `seqpipe`: its commands, its global options, its exit codes, and the report of an error that ends it.

Each command is a function with its options in this folder; the implementation is imported when the command runs, so
that `seqpipe --help` and the commands on bundles start without PyTorch.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from seqpipe.commands.bench import bench
from seqpipe.commands.candidates import candidates
from seqpipe.commands.check import check
from seqpipe.commands.convert import convert
from seqpipe.commands.deploy import app as deploy_app
from seqpipe.commands.doctor import doctor
from seqpipe.commands.evaluate import compare, evaluate, merge, minimal_pairs, report, robustness, runs
from seqpipe.commands.explain import explain
from seqpipe.commands.help import Command, Group
from seqpipe.commands.init import init
from seqpipe.commands.options import override_message
from seqpipe.commands.plugins import app as plugins_app
from seqpipe.commands.predict import predict, score
from seqpipe.commands.run import export, features, run, train
from seqpipe.commands.schema import schema
from seqpipe.commands.serve import serve
from seqpipe.commands.vectors import distill_vectors, vectors
from seqpipe.commands.verify import verify
from seqpipe.console import RED_CODE, printable, write_error
from seqpipe.errors import ConfigError, EnvError, SeqpipeError, UsageError, install_command
from seqpipe.version import VERSION

app = typer.Typer(
    name="seqpipe",
    cls=Group,
    help="Train a sequence model from one YAML; ship it as one ONNX bundle that needs no PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_GROUPS = {
    "Everyday": (init, check, run, train, evaluate, report, compare, runs, predict, serve),
    "Evaluation": (score, minimal_pairs, robustness, merge),
    "Data": (candidates, vectors),
    "Deploy": (export, convert, verify, bench, doctor),
    "Extend": (schema,),
    "Research": (explain, distill_vectors),
}
for group, commands in _GROUPS.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=group)(command)
app.add_typer(features, name="features", cls=Group, no_args_is_help=True, rich_help_panel="Data")
app.add_typer(deploy_app, name="deploy", cls=Group, no_args_is_help=True, rich_help_panel="Deploy")
app.add_typer(plugins_app, name="plugins", cls=Group, invoke_without_command=True, rich_help_panel="Extend")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seqpipe {VERSION}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None: ...


COMMAND_LINE_ERROR: Any = (
    typer.BadParameter.__base__
)  # click's UsageError; some versions of typer bundle their own click


class TerminatedError(BaseException):
    """The process ends with this exit code after half-written files are removed."""

    def __init__(self, exit_code: int):
        self.exit_code = exit_code


def _raise_terminated(number: int, frame: object) -> None:
    raise TerminatedError(128 + number)


def main() -> None:
    """Run the command that `sys.argv` names; end with its exit code."""
    # Imports and traces create millions of long-lived objects. With Python's default threshold of 700 objects, garbage
    # collection is a fifth of the time of `seqpipe check`.
    gc.set_threshold(50_000, 20, 50)
    # pydantic would look for plugins of its own in the metadata of all installed packages, 30 ms for 240 of them.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    as_json = "--json" in itertools.takewhile("--".__ne__, arguments)
    if debug:
        arguments.insert(0, "--debug")
    handler_before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        exit_code = app(args=arguments, prog_name="seqpipe", standalone_mode=False)
    except COMMAND_LINE_ERROR as error:
        message = override_message(error, arguments)
        if message:
            write_error(message, RED_CODE)
        else:
            with io.StringIO() as shown:
                error.show(shown)
                usage, _, fault = shown.getvalue().rstrip().rpartition("\n")
            write_error(usage)
            write_error(fault, RED_CODE)
        if as_json:
            _print_json(UsageError(), error.exit_code, message or error.format_message(), [])
        sys.exit(error.exit_code)
    except SeqpipeError as error:
        if debug:
            raise
        report_error(error, as_json)
        _end(error.exit_code)
    except ModuleNotFoundError as error:
        if debug or error.name not in ("torch", "onnx", "onnxscript", "safetensors", "torchcrf", "transformers"):
            raise
        missing = EnvError(f"this command needs {error.name}, which is not installed: {install_command('train')}")
        report_error(missing, as_json)
        sys.exit(EnvError.exit_code)
    except TerminatedError as error:
        _end(error.exit_code, at_once=True)  # Python would wait for threads, one of which may have been starting
    except KeyboardInterrupt:
        _end(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except (OSError, MemoryError) as error:
        if debug:
            raise
        report_system_error(error, EnvError.exit_code, as_json)
        _end(EnvError.exit_code)
    else:
        sys.exit(exit_code or 0)
    finally:
        signal.signal(signal.SIGTERM, handler_before or signal.SIG_DFL)
        drop_unwritable_output()


def _end(exit_code: int, at_once: bool = False) -> None:
    """End this process; one of several that train together at once, since Python would wait for its connections."""
    devices = sys.modules.get("seqpipe.training.devices")
    if at_once or (devices is not None and devices.current_processes().count > 1):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


# The report of an error that ends a command.


_SPACE = "free some space, or write to another path"
_FILE = "it is a file, not a folder; move it, or name another path"
_PERMISSION = "permission denied for this user; name another path, or change its permissions"
_FIXES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOTDIR: _FILE,
    errno.EEXIST: _FILE,
    errno.EISDIR: "it is a folder; name a file in it",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "it is read-only; name another path",
    errno.ENAMETOOLONG: "shorten it: most file systems allow 255 bytes",
}


def report_error(error: SeqpipeError, as_json: bool = False) -> None:
    """Write an error of seqpipe to standard error; with `--json` also to standard output."""
    text = str(error)
    if not _is_reporter(error.exit_code, text):
        return
    if as_json:
        problems = [asdict(problem) for problem in error.problems] if isinstance(error, ConfigError) else []
        _print_json(error, error.exit_code, text, problems)
    if isinstance(error, ConfigError):
        count = len(error.problems)
        text += f"\n{count} problem{'s' if count > 1 else ''}; nothing was run"
    write_error(printable(text), RED_CODE)  # messages quote files, which may be untrusted


def _is_reporter(exit_code: int, message: str) -> bool:
    """Return whether this process reports an error; of several processes of a training only one does."""
    devices = sys.modules.get("seqpipe.training.devices")
    if devices is None or devices.current_processes().count == 1:
        return True
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it once another process has ended, during a report
    return bool(devices.current_processes().is_reporter(exit_code, message))


def report_system_error(error: OSError | MemoryError, exit_code: int, as_json: bool = False) -> None:
    """Write to standard error what failed, where, and the fix; with `--json` also to standard output."""
    if isinstance(error, MemoryError):
        stage = f" in {error}" if str(error).strip() else ""
        message = f"out of memory{stage}; use shorter texts, a smaller train.batch_tokens, or fewer --threads"
    else:
        fix = _FIXES.get(error.errno or 0, "seqpipe --debug shows where it happened")
        message = f"{error.filename or 'standard output or error'}: {error.strerror or error}; {fix}"
    if not _is_reporter(exit_code, message):
        return
    write_error(message, RED_CODE)
    if as_json:
        _print_json(error, exit_code, message, [])


def _print_json(error: Exception, exit_code: int, message: str, problems: Sequence[Mapping[str, Any]]) -> None:
    """Write an error to standard output as one JSON object; each of the problems in a YAML also has its place."""
    content: dict[str, Any] = {"kind": type(error).__name__, "exit_code": exit_code, "message": message}
    if problems:
        content["problems"] = problems
    with contextlib.suppress(OSError):  # standard output is closed, and standard error has the message
        sys.stdout.write(json.dumps({"error": content}, indent=1) + "\n")


def drop_unwritable_output() -> None:
    """Discard output that standard output did not accept.

    The error was reported; Python would write again when it ends, and exit with code 120.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
