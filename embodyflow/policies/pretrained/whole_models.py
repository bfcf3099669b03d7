"""Loading of models of transformers, which draws weights at random that a checkpoint lacks and only prints a table."""

from typing import Any

from embodyflow.errors import ConfigError


def load_whole(kind: Any, path: Any, key: str, unused: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a model all of whose weights come from its checkpoint.

    Args:
        kind: Class of transformers with ``from_pretrained``.
        path: Folder, or name on the hub.
        key: Key and value that name the checkpoint.
        unused: Beginnings of the names of weights that may be missing.
        options: Further arguments of ``from_pretrained``.

    Raises:
        ConfigError: The checkpoint lacks a weight.
    """
    model, found = kind.from_pretrained(path, output_loading_info=True, **options)
    lacking = sorted(name for name in found["missing_keys"] if not name.startswith(unused))
    if lacking:
        raise ConfigError(
            f"{key}: lacks {len(lacking)} of the weights of a {type(model).__name__}, such as {lacking[0]}, which "
            "would be random"
        )
    return model
