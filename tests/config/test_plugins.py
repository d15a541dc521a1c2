"""Toy distributions on the path, sound and broken, through the table of plugins."""

import re
import subprocess
import sys

import pytest
from conftest import Install
from packaging.requirements import Requirement

from seqpipe.config.plugins import KINDS, Plugins
from seqpipe.errors import PluginError, install_command
from seqpipe.plugin import PLUGIN_API

HOOK = "from seqpipe.plugin import hookimpl\n\n@hookimpl\n"
TABLE = HOOK + "def register_heads():\n    return "


def offering(name: str, target: str, rest: str = "") -> str:
    """The code of a plugin with one encoder."""
    return HOOK + f"def register_encoders():\n    return {{{name!r}: {target}}}\n\n{rest}"


SOUND = offering("mean", "'seqpipe_sound:Mean'", "class Mean:\n    pass\n")

BROKEN = {
    "import error": ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    "syntax error": ("def (", "SyntaxError: "),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "exits silently": ("import sys; sys.exit()", "SystemExit"),
    "recursion": ("def f(): f()\nf()", "RecursionError: maximum recursion depth"),
    "misspelt hook": (HOOK + "def register_encodes():\n    return {}", "unknown hook 'register_encodes'"),
    "hook with a parameter": (HOOK + "def register_encoders(table):\n    return table", "'table'"),
    "no hook": ("def register_encoders():\n    return {}", "it has no hook; decorate register_readers"),
    "hook fails": (TABLE + "HEADS", "NameError: name 'HEADS' is not defined"),
    "hook exits": (HOOK + "def register_heads():\n    raise SystemExit", "SystemExit"),
    "nothing returned": (TABLE + "None", "register_heads must return a dict of names, not NoneType"),
    "a list": (TABLE + "['a']", "register_heads must return a dict of names, not list"),
    "an instance": (TABLE + "{'a': object()}", "must map names to classes or 'module:Class'"),
    "a number as name": (TABLE + "{1: int}", "must map names to classes or 'module:Class', not 1"),
    "a module alone": (TABLE + "{'a': 'os'}", "not 'a': 'os'"),
    "half of it fails": (offering("half", "int", "@hookimpl\ndef register_heads():\n    return 5\n"), "not int"),
}


def test_built_in_components_have_an_entry_point_and_can_be_loaded() -> None:
    plugins = Plugins()
    assert plugins.broken == []
    assert {"conll", "jsonl"} <= set(plugins.names("reader"))
    assert {"words", "chars"} <= set(plugins.names("tokenizer"))
    words = plugins.find("tokenizer", "words")
    assert (words.distribution, words.load().__name__) == ("seqpipe-nlp", "WordsTokenizer")
    assert all(isinstance(offer.load(), type) for offer in plugins.offers)


def test_a_component_of_another_distribution_is_offered_under_its_name(install: Install) -> None:
    install("seqpipe-sound", SOUND, version="2.5")
    plugins = Plugins()
    offer = plugins.find("encoder", "mean")
    assert (offer.distribution, offer.version, offer.load().__name__) == ("seqpipe-sound", "2.5", "Mean")
    assert plugins.find("encoder", "seqpipe-sound/mean") == offer
    assert "lstm" in plugins.names("encoder")


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_named_and_everything_else_works(fault: str, install: Install) -> None:
    code, reason = BROKEN[fault]
    install("seqpipe-broken", code, version="0.3")
    install("seqpipe-sound", SOUND)
    plugins = Plugins()
    (broken,) = plugins.broken
    assert (broken.distribution, broken.version, broken.entry_point) == ("seqpipe-broken", "0.3", "toy")
    assert reason in broken.reason
    assert plugins.find("encoder", "mean").load().__name__ == "Mean"
    assert plugins.find("tokenizer", "words").load().__name__ == "WordsTokenizer"
    with pytest.raises(PluginError, match=r"seqpipe-broken 0.3 is broken: "):
        plugins.find("encoder", "half")


ALLOWED = [
    (None, ""),
    (["seqpipe-sound"], ""),
    (["Seqpipe.Sound>=2,<3"], ""),
    (["seqpipe-sound==2.5", "others"], ""),
    (["seqpipe-sound<2"], "plugins.allow requires 'seqpipe-sound<2'"),
    ([], "plugins.allow does not list it"),
]


@pytest.mark.parametrize(("allow", "reason"), ALLOWED)
def test_a_plugin_that_is_not_allowed_is_never_imported(allow: list[str] | None, reason: str, install: Install) -> None:
    install("seqpipe-sound", SOUND, version="2.5")
    plugins = Plugins(allow=None if allow is None else [Requirement(requirement) for requirement in allow])
    assert "lstm" in plugins.names("encoder")
    assert ("mean" in plugins.names("encoder")) == (not reason)
    assert ("seqpipe_sound" in sys.modules) == (not reason)
    if reason:
        with pytest.raises(PluginError, match=f"seqpipe-sound 2.5 is left out: {reason}"):
            plugins.find("encoder", "mean")


def test_a_plugin_that_imports_slowly_or_prints_is_named(install: Install) -> None:
    install("seqpipe-slow", "import time; time.sleep(0.6)\n" + SOUND.replace("sound", "slow"))
    install("seqpipe-loud", "print('hello,', 'world')\n" + SOUND.replace("sound", "loud").replace("mean", "max"))
    plugins = Plugins()
    assert plugins.broken == []
    texts = {note.split()[0]: note.partition(": ")[2] for note in plugins.notes}
    assert re.match(r"its import slows every command down by (0\.[6-9]|[1-9]\d*\.\d) s", texts["seqpipe-slow"])
    assert "it prints when it is imported: hello, world" in texts["seqpipe-loud"]


def test_an_entry_point_to_nothing_is_broken(install: Install) -> None:
    install("seqpipe-lost", "", entry="seqpipe_lost:plugin")
    (broken,) = Plugins().broken
    assert "AttributeError: module 'seqpipe_lost' has no attribute 'plugin'" in broken.reason


UNLOADABLE = [
    ("nothing_there:Mean", "ModuleNotFoundError: No module named 'nothing_there'"),
    ("seqpipe_late:Median", "AttributeError: module 'seqpipe_late' has no attribute 'Median'"),
    ("seqpipe_late:number", "seqpipe_late:number is not a class"),
    ("seqpipe_late_exit:Mean", "SystemExit: 4"),
]


@pytest.mark.parametrize(("target", "reason"), UNLOADABLE)
def test_a_component_that_cannot_be_loaded_names_its_distribution(target: str, reason: str, install: Install) -> None:
    install("seqpipe-late", offering("late", repr(target), "number = 5\n"))
    install("seqpipe-late-exit", "raise SystemExit(4)", entry=None)
    with pytest.raises(PluginError) as raised:
        Plugins().find("encoder", "late").load()
    assert str(raised.value).startswith("encoder 'late' of seqpipe-late 1.0 cannot be loaded: ")
    assert reason in str(raised.value)


def test_a_component_that_lacks_torch_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom seqpipe.config.plugins import Plugins\n"
    code += "try: Plugins().find('encoder', 'lstm').load()\nexcept Exception as error: sys.exit(str(error))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("encoder 'lstm' of seqpipe-nlp ")
    assert f"(it needs the extra `train`: {install_command('train')})" in done.stderr


def test_a_name_that_two_distributions_offer_must_be_written_in_full(install: Install) -> None:
    install("seqpipe-one", offering("lstm", "One", "class One:\n    pass\n"))
    plugins = Plugins()
    with pytest.raises(PluginError, match="write 'seqpipe-nlp/lstm' or 'seqpipe-one/lstm'"):
        plugins.find("encoder", "lstm")
    assert plugins.find("encoder", "seqpipe-one/lstm").load().__name__ == "One"
    assert plugins.find("encoder", "seqpipe-nlp/lstm").distribution == "seqpipe-nlp"
    assert plugins.names("encoder").count("lstm") == 1


UNKNOWN = [
    ("encoder", "lstn", r"no encoder named 'lstn'; did you mean 'lstm'\? \(there is: bag, bilm, cnn, compare, "),
    ("encoder", "crf", "no encoder named 'crf'; 'crf' is a component of another kind: head"),
    ("encoder", "elsewhere/lstm", 'the package elsewhere is not installed; install it with pip install "elsewhere"$'),
    ("head", "parts.py/lstm", r"the plugin file is not loaded; give it with --plugin parts\.py$"),
    ("encoder", "numpy/lstn", r"no encoder named 'numpy/lstn' \(there is: "),
    ("encoder", "seqpipe-nlp/lstn", r"no encoder named 'seqpipe-nlp/lstn'; did you mean 'lstm'\?"),
    ("reader", "", "no reader named ''"),
]


@pytest.mark.parametrize(("kind", "use", "message"), UNKNOWN)
def test_an_unknown_name_is_an_error_with_a_hint(kind: str, use: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        Plugins().find(kind, use)
    ranges = [Requirement("elsewhere>=1,<2"), Requirement("numpy")]
    with pytest.raises(PluginError, match=message.replace('"elsewhere"', '"elsewhere<2,>=1"')):
        Plugins(allow=ranges).find(kind, use)


def test_plugins_can_be_switched_off(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("seqpipe-loud", "raise SystemExit('never imported')")
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    plugins = Plugins()
    assert plugins.broken == []
    assert {offer.distribution for offer in plugins.offers} == {"seqpipe-nlp"}
    monkeypatch.setenv("SEQPIPE_PLUGINS", "on")
    assert len(Plugins().broken) == 1


def test_without_entry_points_there_are_no_components() -> None:
    plugins = Plugins([])
    assert (plugins.offers, plugins.broken, [plugins.names(kind) for kind in KINDS]) == ([], [], [[]] * len(KINDS))
    with pytest.raises(PluginError, match=r"there is: none"):
        plugins.find("head", "crf")


def test_a_plugin_prints_to_stderr(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    table = "def register_encoders():\n    print('hook')\n    return {'loud': 'seqpipe_loud_part:Loud'}\n"
    install("seqpipe-loud", "print('import')\n" + HOOK + table)
    install("seqpipe-loud-part", "print('part')\nclass Loud:\n    pass\n", entry=None)
    Plugins().find("encoder", "loud").load()
    out, err = capsys.readouterr()
    assert (out, err.split()) == ("", ["import", "hook", "part"])


@pytest.mark.parametrize("version", [PLUGIN_API, PLUGIN_API + 1, PLUGIN_API - 1])
def test_a_plugin_for_another_version_of_the_plugin_api_is_broken(version: int, install: Install) -> None:
    install("seqpipe-stated", f"SEQPIPE_PLUGIN_API = {version}\n" + SOUND)
    plugins = Plugins()
    message = f"it is written for plugin API {version}, and this seqpipe has {PLUGIN_API}; install"
    assert ("mean" in plugins.names("encoder")) == (version == PLUGIN_API)
    assert [message in broken.reason for broken in plugins.broken] == ([] if version == PLUGIN_API else [True])


def test_an_interruption_while_a_plugin_is_imported_is_raised(install: Install) -> None:
    install("seqpipe-ended", "class Ended(BaseException):\n    pass\n\n\nraise Ended\n")
    with pytest.raises(BaseException, match=r"^$") as caught:
        Plugins()
    assert type(caught.value).__name__ == "Ended"
