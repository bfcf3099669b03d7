"""How node functions are called: ``batch`` and ``config`` reach them by position or by name."""

import inspect
from collections.abc import Callable
from typing import Any


def bind(function: Callable[..., Any], batch: Any, config: Any, **keywords: Any) -> inspect.BoundArguments:
    """Return the arguments to call a node function with.

    Parameters named ``batch`` and ``config`` get these, at any position. Without such names, the first two parameters
    do. Arguments without a parameter go to ``**kwargs``.

    Args:
        function: ``f(batch, config=None, **kwargs)``, ``f(rows, settings)``, ``f(batch, **kwargs)``, …
        batch: Rows.
        config: Configuration of the node.
        keywords: Arguments that are always passed by name: ``worker`` and ``call``.

    Raises:
        TypeError: The function does not take these arguments.
    """
    parameters = inspect.signature(function).parameters.values()
    # *args would take batch and config without their names; **kwargs takes them with their names.
    signature = inspect.Signature([each for each in parameters if each.kind is not each.VAR_POSITIONAL])
    own = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((batch, config), {}),
        ((batch,), {"config": config}),
        ((), {"batch": batch, "config": config}),
    ]
    refusals = []
    for in_front, named in ways:
        try:
            bound = signature.bind(*in_front, **named, **keywords)
        except TypeError as error:
            refusals.append(error)
            continue
        if all(bound.arguments.get(name) is value for name, value in ways[-1][1].items() if name in own):
            return bound
    raise refusals[0]
