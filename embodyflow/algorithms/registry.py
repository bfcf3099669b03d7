"""Estimators and losses by name: the built-in ones and those of other packages.

A new one needs no change here: decorate a function with :func:`register_advantage` or :func:`register_loss`
and name it in the configuration, or name it ``"module:function"``, which is imported where it is used, Ray
workers included.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor

from embodyflow.algorithms.masked import AllReduce, Metrics
from embodyflow.errors import ConfigError

if TYPE_CHECKING:
    from embodyflow.algorithms.advantages import AdvantageInputs
    from embodyflow.algorithms.configuration import AlgorithmConfig, CovarianceConfig
    from embodyflow.algorithms.losses import LossInputs

EstimatorFunction = Callable[["AdvantageInputs", "AlgorithmConfig"], tuple[Tensor, Tensor]]
LossFunction = Callable[["LossInputs", "AlgorithmConfig"], tuple[Tensor, Metrics]]
SelectFunction = Callable[[Tensor, Tensor, Tensor, Tensor, "CovarianceConfig", AllReduce], Tensor]


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator.

    Attributes:
        compute: ``(inputs, config) -> (advantages, returns)``, both [B, L] and zero outside the mask.
        per_row: all tokens of a row get the same advantage.
        needs_values: it needs a critic.
        losses: the only losses it belongs with; ``None`` for any.
    """

    compute: EstimatorFunction
    per_row: bool = False
    needs_values: bool = False
    losses: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss.

    Attributes:
        compute: ``(inputs, config) -> (loss [B, L], metrics)``; what it says outside the mask is not read.
        per_row: its ratio is that of the whole row, so it needs one advantage per row, an aggregation that
            weighs rows alike, and uncut rows.
        select: chooses the tokens it treats apart (:mod:`embodyflow.algorithms.covariance`).
    """

    compute: LossFunction
    per_row: bool = False
    select: SelectFunction | None = None


Entry = TypeVar("Entry", bound=Estimator | PolicyLoss)


class Registry(Generic[Entry]):
    """Entries by name.

    Attributes:
        entries: name to entry.
    """

    def __init__(self, kind: str, wrap: Callable[[Any], Entry]) -> None:
        """Start empty.

        Args:
            kind: what an entry is called in messages.
            wrap: makes an entry of a function that was never registered.
        """
        self.entries: dict[str, Entry] = {}
        self._kind = kind
        self._wrap = wrap

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry.

        Raises:
            ConfigError: the name is taken.
        """
        if name in self.entries:
            raise ConfigError(f"{self._kind} {name!r} exists; choose a name not in {', '.join(self.entries)}")
        self.entries[name] = entry

    def resolve(self, name: str) -> Entry:
        """Return the entry of a name, or of the function ``"module:function"`` names.

        A function that was never registered is taken as it is: ``per_row`` false, no restriction.

        Raises:
            ConfigError: there is none.
        """
        if name in self.entries:
            return self.entries[name]
        module, colon, attribute = name.partition(":")
        if not colon:
            raise ConfigError(
                f"unknown {self._kind} {name!r}; allowed are {', '.join(self.entries)} or 'module:function'"
            )
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{self._kind} {name!r} cannot be imported: {error}") from error
        if not callable(function):
            raise ConfigError(f"{self._kind} {name!r} is not a function")
        registered = (entry for entry in self.entries.values() if entry.compute is function)
        return next(registered, None) or self._wrap(function)


ADVANTAGES: Registry[Estimator] = Registry("advantage", Estimator)
LOSSES: Registry[PolicyLoss] = Registry("loss", PolicyLoss)


def register_advantage(
    name: str, *, per_row: bool = False, needs_values: bool = False, losses: tuple[str, ...] | None = None
) -> Callable[[EstimatorFunction], EstimatorFunction]:
    """Return a decorator that registers an advantage estimator; see :class:`Estimator`.

    Raises:
        ConfigError: the name is taken.
    """

    def register(function: EstimatorFunction) -> EstimatorFunction:
        ADVANTAGES.add(name, Estimator(function, per_row, needs_values, losses))
        return function

    return register


def register_loss(
    name: str, *, per_row: bool = False, select: SelectFunction | None = None
) -> Callable[[LossFunction], LossFunction]:
    """Return a decorator that registers a policy loss; see :class:`PolicyLoss`.

    Raises:
        ConfigError: the name is taken.
    """

    def register(function: LossFunction) -> LossFunction:
        LOSSES.add(name, PolicyLoss(function, per_row, select))
        return function

    return register
