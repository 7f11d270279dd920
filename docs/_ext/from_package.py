"""Directives that show what the package itself says: the fields of an Experiment, methods' options, commands' help."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedproc.cli.commands import build_parser
from fedproc.cli.parser import COMMON
from fedproc.experiment import Experiment
from fedproc.methods import METHODS
from fedproc.methods.robust import ROBUST
from fedproc.privacy.options import PrivacyOptions

HEAD = "| name | default | meaning |\n|---|---|---|"


def table(fields: Mapping[str, Any], prefix: str = "") -> str:
    """Fields as rows of a Markdown table."""
    rows = [HEAD]
    for name, field in fields.items():
        allowed = f"; one of {', '.join(f'`{one}`' for one in field.examples)}" if field.examples else ""
        default = field.get_default(call_default_factory=True)
        shown = "" if default in (None, ()) else f"`{default}`"
        text = f"{field.description or ''}{allowed}".replace("|", "\\|").replace("<", "\\<")
        rows.append(f"| `{prefix}{name}` | {shown} | {text} |")
    return "\n".join([*rows, ""])


class ExperimentFields(SphinxDirective):
    """A table for each group of fields, as the groups of flags."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for title, names in COMMON:
            text = f"**{title}**\n\n" + table({name: Experiment.model_fields[name] for name in names})
            found += self.parse_text_to_nodes(text)
        text = "**differential privacy**\n\n" + table(PrivacyOptions.model_fields, "privacy.")
        return [*found, *self.parse_text_to_nodes(text)]


class MethodOptions(SphinxDirective):
    """A table for each method and each robust merge that has options."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name, method in (*METHODS.items(), *ROBUST.items()):
            if method.options_type.model_fields:
                text = f"**{name}**: {method.summary}\n\n" + table(method.options_type.model_fields, f"{name}.")
                found += self.parse_text_to_nodes(text)
        return found


class CommandHelp(SphinxDirective):
    """What `fedproc COMMAND --help` prints, and that of the commands below it, without the flags of the Experiment."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        parser = _below(build_parser())[self.arguments[0]]
        return [nodes.literal_block("", _help(each), language="text") for each in (parser, *_below(parser).values())]


def _help(parser: argparse.ArgumentParser) -> str:
    usual = {title for title, _ in COMMON}
    parser._action_groups = [
        group
        for group in parser._action_groups
        if group.title not in usual and not str(group.title).startswith("options of ")
    ]
    formatter = argparse.RawDescriptionHelpFormatter(parser.prog, width=100)
    parser._get_formatter = lambda: formatter  # type: ignore[method-assign]  # as wide on every machine
    return parser.format_help()


def _below(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    def found() -> Iterator[tuple[str, argparse.ArgumentParser]]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices.items()

    return dict(found())


def plain_words(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain words with names in single backquotes: no other sign in them is markup."""

    def escaped(line: str) -> str:
        parts = line.split("`")
        return "`".join(re.sub(r"(?<=\w)_(?!\w)|[*|]", r"\\\g<0>", p) if n % 2 == 0 else p for n, p in enumerate(parts))

    lines[:] = map(escaped, lines)


def short_types(app: Sphinx, what: str, name: str, thing: object, options: object, signature: str, back: str) -> object:
    """Types by their last name, and defaults that are made anew as dots."""
    if not signature:
        return None
    return re.sub(r"~?\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", signature).replace("~", "").replace("<factory>", "..."), back


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("experiment-fields", ExperimentFields)
    app.add_directive("method-options", MethodOptions)
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-docstring", plain_words)
    app.connect("autodoc-process-signature", short_types)
    return {"parallel_read_safe": True}
