"""The page of commands, from the application that runs them."""

import importlib
import inspect
import pkgutil
from typing import Any, Literal, get_args, get_origin

import typer
from prefect import Flow

import flows
from docs.generator.markdown import code, document, escaped, fence, table
from embodyflow.cli.main import app
from embodyflow.orchestration.request.usage import _meaning


def page(problems: list[str]) -> str:
    """Return the page.

    Args:
        problems: Takes a line for a command, an option or a parameter has no help.
    """
    root: Any = typer.main.get_command(app)
    context = root.context_class(root, info_name="embodyflow")
    parts = [_command(context, name, each, problems) for name, each in root.commands.items()]
    return document(
        "Commands",
        "`embodyflow` runs and looks at experiments. `python -m flows.<name>` runs one flow in this process, without a "
        "server to start first. `prefect deployment run <flow>/<name>` runs one on the stack of `embodyflow up`. "
        "`embodyflow --install-completion` makes the shell complete commands, options, flows, experiments and runs.",
        *parts,
        *_flows(),
    )


def _command(root: Any, name: str, command: Any, problems: list[str]) -> str:
    rows = []
    for parameter in command.params:
        shown = parameter.metavar or ", ".join(parameter.opts)
        if parameter.param_type_name == "option":
            shown = ", ".join(parameter.opts)
        if not (command.help and parameter.help):
            problems.append(f"embodyflow {name}: no help for {shown}")
        rows.append((code(shown), _sentence(_described(parameter)) + _choices(parameter)))
    usage = command.get_usage(command.context_class(command, info_name=name, parent=root)).removeprefix("Usage: ")
    parts = [f"## {code(f'embodyflow {name}')}", _sentence(command.help or ""), fence(" ".join(usage.split()))]
    return "\n\n".join([*parts, table(("Argument", "Meaning"), rows)] if rows else parts)


def _described(parameter: Any) -> str:
    shows_default = parameter.default is not None and not getattr(parameter, "is_flag", False)
    return f"{parameter.help or ''} (default: {parameter.default})" if shows_default else parameter.help or ""


def _choices(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    return f" One of {', '.join(map(code, get_args(annotation)))}." if get_origin(annotation) is Literal else ""


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
