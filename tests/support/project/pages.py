"""Pages of the documentation as tests read them: files to write and commands to run, in their order.

A fenced block with a ``title`` is a file, a block of ``sh`` is commands. An HTML comment above commands, which does not
render, says how a test runs them:

- ``<!-- test: words -->``: every run takes these words besides;
- ``<!-- test: old => new -->``: this text is replaced;
- ``<!-- test: check -->``: configurations are checked, and no run is started;
- ``<!-- no-test: reason -->``: no test runs them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(path for folder in ("tutorials", "how-to") for path in (DOCS / folder).glob("*.md"))

_BLOCK = re.compile(
    r"(?:<!-- (?P<kind>no-test|test): (?P<note>.*?) -->\n)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)

SHORT = {
    "embodied": (
        *("iterations=2", "rollout.num_workers=1", "rollout.num_groups=4", "rollout.group_size=4"),
        *("rollout.envs_per_worker=8", "env.max_steps=40", "policy.hidden_size=64", "warm_start.num_demos=4"),
        *("warm_start.steps=60", "evaluation.num_goals=2", "evaluation.video=false", "tracking.tensorboard=false"),
    ),
    "language": (
        *("iterations=2", "rollout.num_workers=1", "rollout.num_groups=8", "rollout.group_size=4"),
        *("policy.scratch.hidden_size=32", "policy.scratch.num_hidden_layers=1", "warm_start.num_demos=64"),
        *("warm_start.steps=20", "warm_start.until=null", "evaluation.num_prompts=8"),
        *("trainer.num_minibatches=1", "filter.drop_uniform=false"),
        *("trainer.schedule.warmup_iterations=0", "tracking.tensorboard=false"),
    ),
    "control": (
        *("iterations=2", "rollout.num_workers=1", "rollout.envs_per_worker=2", "rollout.num_steps=64"),
        *("trainer.epochs=2", "critic.epochs=2", "trainer.num_minibatches=2", "tracking.tensorboard=false"),
    ),
}
"""Words that make a run of each kind of job last seconds."""

KINDS = {
    **dict.fromkeys(
        ("babyai", "calculator", "gemma_sums", "gsm8k", "kuhn", "math", "reasoning_gym", "self_correct"), "language"
    ),
    **dict.fromkeys(("adroit_door", "cart_pole", "fetch_reach", "half_cheetah", "reacher"), "control"),
}
"""Kind of job of the experiments that are not embodied."""

_RUN = re.compile(r"^(python -m flows\.(?!evaluate)(?P<flow>\w+)|embodyflow run)\b")
_EVALUATION = re.compile(r"^python -m flows\.evaluate\b")


@dataclass(frozen=True)
class File:
    """A file that a page shows.

    Attributes:
        path: Place in the reader's folder.
        text: Content.
    """

    path: str
    text: str


@dataclass(frozen=True)
class Commands:
    """A block of commands.

    Attributes:
        lines: Commands as the page shows them, continued lines joined.
        reason: Why no test runs them; empty for a block that is run.
        words: Words that every run in the block takes besides.
        replaced: Text to replace, old to new.
        only_checks: Whether runs are checked and not started.
    """

    lines: tuple[str, ...]
    reason: str = ""
    words: tuple[str, ...] = ()
    replaced: dict[str, str] = field(default_factory=dict)
    only_checks: bool = False

    def script(self) -> str:
        """Return the commands as a test runs them."""
        lines = [_checked(line) if self.only_checks else _shortened(line, self.words) for line in self.lines]
        script = "\n".join(lines)
        for old, new in self.replaced.items():
            assert old in script, f"{old!r} is not in the block"
            script = script.replace(old, new)
        return script

    def starts_runs(self) -> bool:
        """Return True if a test that runs the commands starts a run."""
        return not (self.reason or self.only_checks) and any(_RUN.match(line) for line in self.lines)


def blocks(page: Path) -> Iterator[File | Commands]:
    """Yield the files and commands of a page."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if found["title"]:
            yield File(found["title"], found["text"])
        elif found["language"] == "sh":
            yield _commands(found["text"], found["kind"], found["note"] or "")


def _commands(text: str, kind: str | None, note: str) -> Commands:
    joined = re.sub(r" *\\\n *", " ", text)
    lines = tuple(line.partition("  #")[0].rstrip() for line in joined.splitlines() if line.strip())
    if kind == "no-test":
        return Commands(lines, reason=note)
    if note == "check":
        return Commands(lines, only_checks=True)
    if " => " in note:
        old, new = note.split(" => ")
        return Commands(lines, replaced={old: new})
    return Commands(lines, words=tuple(note.split()))


def _shortened(line: str, words: tuple[str, ...]) -> str:
    """Return a command with the words that make it short; those that it has already are replaced."""
    if _EVALUATION.match(line):
        return _with(line, ("evaluation.num_goals=2", "evaluation.video=false"))
    if not _RUN.match(line) or " resume=" in line:
        return line
    experiment = re.search(r" experiment=(\w+)", line)
    kind = KINDS.get(experiment[1], "embodied") if experiment else "embodied"
    return _with(line, (*SHORT[kind], *words))


def _checked(line: str) -> str:
    """Return the command that checks a run and prints its configuration; other commands stay."""
    found = _RUN.match(line)
    if found is None:
        return line
    flow = f" --flow {found['flow']}" if found["flow"] else ""
    return f"embodyflow config{flow}{line[found.end() :]} > /dev/null"


def _with(line: str, words: tuple[str, ...]) -> str:
    for word in words:
        key = word.partition("=")[0]
        section = key.rpartition(".")[0]
        if re.search(rf" {re.escape(key)}=\S+", line):
            line = re.sub(rf" {re.escape(key)}=\S+", f" {word}", line)
        elif not section or f" {section}=" not in line:  # a section that the page chooses has other keys
            line = f"{line} {word}"
    return line
