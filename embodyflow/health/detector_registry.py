"""Detectors of health by name, built in or from other packages.

An entry has the reference ``"module:function"`` of a pure function of ``(history, config)`` to a finding or ``None``:
the :class:`~embodyflow.health.history.History` of the run, and the detector's section of the configuration.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from embodyflow.errors import ConfigError
from embodyflow.references import resolve


@dataclass(frozen=True)
class Detector:
    """A built-in detector.

    Attributes:
        function: ``"module:function"`` of ``(history, config)``.
        timed: Whether it reads metrics under ``perf/``, which a repeated iteration does not repeat.
    """

    function: str
    timed: bool = False


_TRAINING, _ROLLOUT, _RESULT, _MACHINE = (
    f"embodyflow.health.{name}_signs" for name in ("training", "rollout", "result", "machine")
)

DETECTORS: Mapping[str, Detector] = MappingProxyType(
    {
        **{name: Detector(f"{_TRAINING}:{name}") for name in ("nan", "spike", "entropy_collapse", "kl_runaway")},
        **{name: Detector(f"{_ROLLOUT}:{name}") for name in ("dead_groups", "length_drift", "staleness")},
        **{name: Detector(f"{_RESULT}:{name}") for name in ("result_drop", "reward_hacking")},
        **{name: Detector(f"{_MACHINE}:{name}", timed=True) for name in ("env_faults", "throughput_drop")},
    }
)
"""The built-in detectors, by their keys in the section ``health``."""


def check_detector(reference: str) -> None:
    """Check that a reference names a function of ``(history, config)``.

    Raises:
        ConfigError: It cannot be imported, or is no such function.
    """
    if ":" not in reference:
        raise ConfigError(f"function={reference}: must be module:function")
    try:
        function = resolve(reference)
    except ImportError as error:
        raise ConfigError(f"function={reference}: cannot be imported: {error}") from error
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(f"function={reference}: must be a function of (history, config)") from error
