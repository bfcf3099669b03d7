"""Models of transformers whose weights all come from their checkpoint.

transformers draws weights at random that a checkpoint lacks or has in another shape, and only prints a table.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.weight_files import has_pickles, weight_names

logger = logging.getLogger(__name__)


def load_whole(kind: Any, path: Any, key: str, unused: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a model all of whose weights come from its checkpoint.

    Args:
        kind: Class of transformers with ``from_pretrained``.
        path: Folder, or name on the hub.
        key: Key and value that name the checkpoint.
        unused: Beginnings of the names of weights that may be missing.
        options: Further arguments of ``from_pretrained``.

    Raises:
        ConfigError: The checkpoint lacks a weight, or has one in another shape.
    """
    model, found = kind.from_pretrained(path, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    _check(model, found, key, unused)
    return model


def check_whole(kind: Any, folder: Path, key: str, unused: tuple[str, ...] = ()) -> None:
    """Refuse a local checkpoint that :func:`load_whole` refuses, from its description and headers.

    transformers loads the model onto the meta device, with tensors of the headers' shapes in place of the weights.
    Quantised models and pickles are not checked, nor are models that it cannot load there, which a warning names.

    Args:
        kind: Class of transformers that chooses the model's, such as ``AutoModelForCausalLM``.
        folder: Folder with the description and whole weights (:func:`.weight_files.check_weights`).
        key: Key and value that name the checkpoint.
        unused: Beginnings of the names of weights that may be missing.

    Raises:
        ConfigError: The checkpoint lacks a weight, has one in another shape, or has a description of no model.
    """
    from embodyflow.policies.pretrained.checkpoints import read_header  # imports torch

    config = read_config(folder, key)
    built = kind._model_mapping.get(type(config), None)
    if built is None or getattr(config, "quantization_config", None) is not None or has_pickles(folder):
        return
    headers = [read_header(folder / name) for name in weight_names(folder, key)]
    state = {name: value for header in headers for name, value in header.items()}
    asked = {"output_loading_info": True, "ignore_mismatched_sizes": True, "device_map": "meta"}
    with _silence():
        try:
            model, found = built.from_pretrained(None, config=config, state_dict=state, **asked)
        except (ImportError, RuntimeError) as error:  # such as a model that computes with its weights
            first = str(error).strip().partition("\n")[0]
            logger.warning("%s: the worker checks whether the weights are those of its config.json: %s", key, first)
            return
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ConfigError(f"{key}: transformers cannot build the model of its config.json: {first}") from error
    _check(model, found, key, unused)


def read_config(folder: Path, key: str) -> Any:
    """Return the description of a local checkpoint's model, as transformers reads it.

    Args:
        folder: Folder with ``config.json``.
        key: Key and value that name the checkpoint.

    Raises:
        ConfigError: transformers cannot read it.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig  # takes seconds to import, and not all runs load a model

    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        first = " ".join(str(error).split())
        raise ConfigError(f"{key}: transformers cannot read its config.json: {first}") from error


def _check(model: Any, found: Mapping[str, Any], key: str, unused: tuple[str, ...]) -> None:
    kind = type(model).__name__
    lacking = sorted(name for name in found["missing_keys"] if not name.startswith(unused))
    if lacking:
        raise ConfigError(
            f"{key}: lacks {len(lacking)} of the weights of a {kind}, such as {lacking[0]}, which would be random"
        )
    for name, stored, own in sorted(found["mismatched_keys"]):
        if not name.startswith(unused):
            raise ConfigError(f"{key}: has {name} of shape {list(stored)}; that of this {kind} has {list(own)}")


@contextmanager
def _silence() -> Iterator[None]:
    """Let transformers print neither progress nor tables within the block."""
    from transformers.utils import logging as output

    verbosity, shows_progress = output.get_verbosity(), output.is_progress_bar_enabled()
    output.set_verbosity_error()
    output.disable_progress_bar()
    try:
        yield
    finally:
        output.set_verbosity(verbosity)
        if shows_progress:
            output.enable_progress_bar()
