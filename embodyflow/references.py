"""References to functions: ``"module:function"``, which every process of a run can resolve."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def resolve(reference: str) -> Any:
    """Return the object that ``"module:attribute.path"`` names.

    Raises:
        ImportError: The module cannot be imported, or it has no such attribute.
    """
    module, _, path = reference.partition(":")
    target: Any = _import(module)
    for name in path.split("."):
        if not hasattr(target, name):
            raise ImportError(f"{getattr(target, '__name__', target)!r} has no attribute {name!r}")
        target = getattr(target, name)
    return target


def check_function(reference: str, prefix: str = "") -> None:
    """Check that a reference names something that can be called.

    Args:
        reference: Reference ``"module:function"``.
        prefix: Text that a configuration has before the reference, for the message.

    Raises:
        ValueError: It does not; one line says why.
    """
    if ":" not in reference:
        raise ValueError(f"names no module; write '{prefix}module:function'")
    try:
        found: object = resolve(reference)
    except ImportError as error:
        raise ValueError(str(error)) from error
    if not callable(found):
        raise ValueError(f"is a {type(found).__name__}; allowed is a function")


def reference_to(function: str | Callable[..., Any]) -> str:
    """Return the reference ``"module:attribute.path"`` of a function.

    Args:
        function: A callable, or a reference to one, in which a dot may replace the colon.

    Raises:
        ValueError: Another process could not find the callable by its name.
        ImportError: The module of a dotted path cannot be imported.
    """
    if isinstance(function, str):
        return function if ":" in function else _with_colon(function)
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or path is None:
        raise ValueError(f"{function!r} has no name to import it by; wrap it in a function of a module")
    if "<" in path:
        kind = "a lambda" if path.endswith("<lambda>") else "defined inside another function"
        raise ValueError(f"{path} is {kind}, which workers cannot import; define it at the top of a module")
    if module == "__main__":
        raise ValueError(
            f"{path} is defined in the script that was started, which workers cannot import; move it to a module"
        )
    reference = f"{module}:{path}"
    if resolve(reference) != function:
        raise ValueError(f"{reference} names another object than the one given, and workers would run that one")
    return reference


def source_files(reference: str) -> tuple[str, ...]:
    """Return the Python files of the module in ``"module:anything"``; of a package, all files.

    Only the packages above it are imported. A module that has no file gives an empty tuple.
    """
    module = reference.partition(":")[0]
    loaded = sys.modules.get(module)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        found = importlib.util.find_spec(module)
        origin = found.origin if found is not None else None
    if origin is None:
        return ()
    path = Path(origin)
    return tuple(map(str, sorted(path.parent.rglob("*.py")))) if path.name == "__init__.py" else (str(path),)


def _with_colon(dotted: str) -> str:
    """Replace the dot after the longest part of ``dotted`` that is a module with a colon."""
    parts = dotted.split(".")
    if len(parts) < 2:
        raise ValueError(f"{dotted!r} names no module; write 'module:function'")
    cut = 1
    while cut < len(parts) - 1 and _has_submodule(".".join(parts[:cut]), parts[cut]):
        cut += 1
    return f"{'.'.join(parts[:cut])}:{'.'.join(parts[cut:])}"


def _has_submodule(module: str, name: str) -> bool:
    is_package = hasattr(_import(module), "__path__")
    return is_package and importlib.util.find_spec(f"{module}.{name}") is not None


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything while it is imported
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        hidden = _hidden(module) if is_missing else ""
        raise ImportError(f"cannot import module {module!r}: {type(error).__name__}: {error}{hidden}") from error


def _hidden(module: str) -> str:
    """Return a note if a file of the module is on the import path, but a package elsewhere has its first name.

    Python prefers a package with ``__init__.py`` to a folder without one, wherever both are on the path.
    """
    first, *rest = module.split(".")
    winner = getattr(sys.modules.get(first), "__file__", None)
    for entry in sys.path if winner is not None and rest else ():
        folder = Path(entry, first)
        is_plain = folder.is_dir() and not (folder / "__init__.py").exists()
        if is_plain and folder.joinpath(*rest).with_suffix(".py").exists():
            return f"; {winner} hides {folder}, which has no __init__.py: add an empty one"
    return ""
