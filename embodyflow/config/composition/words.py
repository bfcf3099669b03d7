"""Words ``key=value`` of a command line that change a configuration which a run has recorded.

They have Hydra's grammar, as the words that compose a new configuration do.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from embodyflow.config.composition.compose import group_files
from embodyflow.config.composition.mistakes import explain_hydra_error, explain_several, in_one_line
from embodyflow.errors import ConfigError

_BARE = re.compile(r"[A-Za-z_][\w-]*|[\w.-]*/[\w./-]*", re.ASCII)
"""Texts that need no quotes: a name, or a path without special characters."""


def word_of(key: str, text: str) -> str:
    """Return the word ``key=value`` that gives a key a text, in quotes if Hydra would read it otherwise.

    That holds for the letters of most languages, for commas, brackets and numbers. ``${`` begins a reference all the
    same.
    """
    if _BARE.fullmatch(text) and text.lower() not in ("true", "false", "null", "nan", "inf"):
        return f"{key}={text}"
    quoted = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"{key}='{quoted}'"


def changed_by(values: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the plain values of a configuration with the changes of words, without validating them.

    Args:
        values: Plain values.
        words: Words in Hydra's grammar; the last one of a key counts, and the keys of a section are merged.

    Raises:
        ConfigError: A word is not in the grammar, removes a key, has several values, leads into something that is no
            section, or refers to a key that does not exist; one line.
    """
    merged = OmegaConf.create(dict(values))
    for word in words:
        try:
            merged = OmegaConf.merge(merged, _section_of(word))  # type: ignore[assignment]
        except HydraException as error:
            raise ConfigError(explain_hydra_error(error, [word], group_files)) from error
        except OmegaConfBaseException as error:
            raise ConfigError(in_one_line(f"{word}: leads into something that is no section")) from error
    try:  # a recorded configuration has no interpolations, so the words have brought them
        resolved = OmegaConf.to_container(merged, resolve=any("${" in word for word in words))
    except OmegaConfBaseException as error:
        raise ConfigError(explain_hydra_error(error, words, group_files)) from error
    return resolved  # type: ignore[return-value]


def _section_of(word: str) -> dict[str, Any]:
    """Return a word as nested sections with one value.

    Raises:
        ConfigError: The word removes a key or has several values.
    """
    [override] = OverridesParser.create().parse_overrides([word])
    if override.is_delete():
        raise ConfigError(f"{word}: removes a key; allowed for the configuration of a run is key=value")
    if override.is_sweep_override():
        raise ConfigError(explain_several(word))
    first, *inner = override.key_or_group.split(".")
    value: Any = override.value()
    for part in reversed(inner):
        value = {part: value}
    return {first: value}
