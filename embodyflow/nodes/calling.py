"""How a node's function is called: ``batch`` and ``config`` reach it whichever way it takes them."""

import inspect
from collections.abc import Callable
from typing import Any


def bind(function: Callable[..., Any], batch: Any, config: Any, **keywords: Any) -> inspect.BoundArguments:
    """Return the arguments to call a node's function with.

    A parameter named ``batch`` or ``config`` gets that, wherever it stands; under other names they are the first two.
    What has no parameter is a keyword, for ``**kwargs``.

    Args:
        function: ``f(batch, config=None, **kwargs)``, ``f(rows, settings)``, ``f(batch, **kwargs)``, …
        batch: the rows.
        config: of the node.
        keywords: what is always given by name: ``worker``, ``call``.

    Raises:
        TypeError: it cannot be called with these.
    """
    parameters = inspect.signature(function).parameters.values()
    # What *args would swallow has no name there, and **kwargs beside it gives it one.
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
