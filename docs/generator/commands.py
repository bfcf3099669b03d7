"""The page of commands, from the parsers that read them."""

import argparse
import contextlib
import importlib
import inspect
import io
import pkgutil

from prefect import Flow

import flows
from docs.generator.markdown import code, document, escaped, fence, table
from embodyflow.cli.main import _parser
from embodyflow.orchestration.request.usage import _meaning


def page(problems: list[str]) -> str:
    """Return the page.

    Args:
        problems: Takes a line for a command, an option or a parameter has no help.
    """
    root = _parser()
    [commands] = [each for each in root._actions if isinstance(each, argparse._SubParsersAction)]
    helps = {each.dest: each.help or "" for each in commands._choices_actions}
    parts = [_command(name, helps.get(name, ""), each, problems) for name, each in commands.choices.items()]
    return document(
        "Commands",
        "`embodyflow` runs and looks at experiments. `python -m flows.<name>` runs one flow in this process, without a "
        "server to start first. `prefect deployment run <flow>/<name>` runs one on the stack of `embodyflow up`.",
        *parts,
        *_flows(),
    )


def _command(name: str, summary: str, command: argparse.ArgumentParser, problems: list[str]) -> str:
    rows = []
    for action in command._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        meaning = (action.help or "") % {"default": action.default, "prog": command.prog}
        if not (summary and meaning):
            problems.append(f"embodyflow {name}: no help for {shown}")
        choices = f" One of {', '.join(map(code, action.choices))}." if action.choices else ""
        rows.append((code(shown), _sentence(meaning) + choices))
    with contextlib.redirect_stdout(io.StringIO()):
        usage = command.format_usage().removeprefix("usage: ").strip()
    parts = [f"## {code(f'embodyflow {name}')}", _sentence(summary), fence(" ".join(usage.split()))]
    return "\n\n".join([*parts, table(("Argument", "Meaning"), rows)] if rows else parts)


def _flows() -> list[str]:
    parts = []
    for module in sorted(each.name for each in pkgutil.iter_modules(flows.__path__)):
        for flow in vars(importlib.import_module(f"flows.{module}")).values():
            if isinstance(flow, Flow):
                rows = [
                    (code(name), _sentence(_meaning(parameter)))
                    for name, parameter in inspect.signature(flow.fn).parameters.items()
                    if name != "overrides"
                ]
                parts.append(
                    f"## {code(f'python -m flows.{module}')}\n\n{flow.description}\n\n"
                    + table(("Parameter", "Meaning"), rows)
                    + "\n\nEvery other `key=value` overrides the configuration."
                )
    return parts


def _sentence(text: str) -> str:
    return escaped(f"{text[:1].upper()}{text[1:]}.") if text else ""
