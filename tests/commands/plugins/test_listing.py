"""The tables of `seqpipe plugins`."""

import re

import pytest
from conftest import Install

from seqpipe.commands.plugins import list_components, show_component
from seqpipe.config.plugins import KINDS, Plugins
from seqpipe.errors import PluginError
from seqpipe.version import VERSION

CODE = '''
from seqpipe.plugin import hookimpl

@hookimpl
def register_tokenizers():
    return {"halves": Halves}

class Halves:
    """Cuts a text in two.

    It has a second paragraph.

    Args:
        where: The place to cut at,
            counted in percent.
    """

    def __init__(self, *, where: float = 50.0):
        pass
'''


def test_every_component_stands_on_a_line_with_its_distribution() -> None:
    lines = [line.split() for line in list_components().splitlines()]
    assert lines[0] == ["kind", "use", "from"]
    assert ["tokenizer", "words", "seqpipe-nlp", VERSION] in lines
    assert ["head", "crf", "seqpipe-nlp", VERSION] in lines
    kinds = [line[0] for line in lines if line and line[0] in KINDS]
    assert kinds == sorted(kinds, key=KINDS.index)
    assert lines[-1] == ["next:", "seqpipe", "plugins", "show", "NAME"]


def test_a_broken_plugin_and_a_name_offered_twice_are_listed_with_reason_and_cure(install: Install) -> None:
    assert "more than once" not in list_components()
    install("seqpipe-broken", "1 / 0")
    install("seqpipe-toy", CODE.replace("halves", "words"))
    listing = list_components()
    assert "broken: seqpipe-broken 1.0 (toy): ZeroDivisionError: division by zero" in listing
    assert "'words' is offered more than once: write `use: distribution/words`" in listing


def test_options_are_shown_with_type_default_and_meaning(install: Install) -> None:
    install("seqpipe-toy", CODE)
    lines = show_component("halves").splitlines()
    assert lines[:2] == ["tokenizer halves (seqpipe-toy 1.0)", "Cuts a text in two."]
    assert lines[3].split() == ["option", "type", "default"]
    assert re.fullmatch("where .*50.0 .* The place to cut at, counted in percent.", lines[4])


def test_all_components_of_a_name_are_shown_or_the_one_that_is_meant(install: Install) -> None:
    install("seqpipe-toy", CODE.replace("halves", "chars"))
    assert show_component("chars").count("tokenizer chars (") == 2
    assert show_component("seqpipe-toy/chars").count("tokenizer chars (") == 1
    assert show_component("tokenizer/chars") == show_component("chars")
    assert "(seqpipe-nlp " in show_component("seqpipe-nlp/chars")
    assert show_component("tokenizer/words") != show_component("words")  # an encoder is called so too


def test_output_at_import_and_plugins_left_out_are_listed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("seqpipe-loud", "print('hello')\n" + CODE, version="1.5")
    assert "\nnote: seqpipe-loud 1.5: it prints when it is imported: hello\n" in list_components()
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    assert "\nseqpipe-loud 1.5 is left out: SEQPIPE_PLUGINS is off\n" in list_components()


def test_every_installed_component_can_be_shown() -> None:
    for offer in Plugins().offers:
        first = f"{offer.kind} {offer.name} (seqpipe-nlp {VERSION})\n"
        assert show_component(f"{offer.kind}/{offer.name}").startswith(first)


@pytest.mark.parametrize("name", ["lstn", "head/lstm", "elsewhere/lstm"])
def test_an_unknown_name_is_an_error(name: str) -> None:
    suggestion = r".*did you mean 'lstm'\?" if name == "lstn" else ""
    with pytest.raises(PluginError, match=f"no component named '{name}'{suggestion}"):
        show_component(name)
