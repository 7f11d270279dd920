"""The commands that README and docs show are understood, and what the tutorial shows is what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedproc.cli.commands import COMMANDS, build_parser
from fedproc.errors import InputError

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import run_tutorial

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [*sorted((ROOT / "docs" / "methods").glob("*.md")), *sorted((ROOT / "docs" / "results").glob("*.md"))]
PAGES += [ROOT / "docs" / "results" / "leaderboard" / "README.md"]
COMMAND = re.compile(r"^    (fedproc [a-z].*(?:(?<=\\)\n.*)*)", re.M)


def commands(page: Path) -> list[list[str]]:
    """The words of every command that stands alone on its line."""
    found = COMMAND.findall(page.read_text(encoding="utf-8"))
    return [shlex.split(text.replace("\\\n", " "), comments=True)[1:] for text in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands(page):
        plugins = [Path(words[place + 1]) for place, word in enumerate(words) if word == "--plugin"]
        parser = build_parser(plugins, words[0])
        try:
            parser.parse_strictly(words, lambda: build_parser(plugins))  # noqa: B023
        except InputError as error:
            pytest.fail(f"fedproc {shlex.join(words)}: {error}")


def test_commands_are_found() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 40


def test_every_command_is_on_the_page_of_commands() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    names = {name for summaries in COMMANDS.values() for name in summaries}
    assert set(re.findall(r"{command-help} (\S+)", text)) == names


def worded(text: str) -> set[str]:
    """The words of an output. Numbers, verdicts, predictions and the lines of progress depend on the machine."""
    lines = [line for line in text.splitlines() if ".png," not in line and not run_tutorial.PROGRESS.fullmatch(line)]
    words = re.sub(r"[-+<]?[\d.,:]+|[^\w\s/%-]|[─-╿]", " ", " ".join(lines)).split()
    return set(words) - {"no", "difference", "seen", "better", "worse", "not", "after", "Holm", "equal", "within"}


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    text = run_tutorial.PAGE.read_text(encoding="utf-8")
    for block, shown in zip(run_tutorial.commands(text), run_tutorial.outputs(text), strict=True):
        assert worded(run_tutorial.printed(block, tmp_path)) == worded(shown), block


@pytest.mark.slow
def test_readmes_python_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "both" / "comparison.json").is_file()
