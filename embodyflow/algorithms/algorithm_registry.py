"""Advantage estimators and policy losses by name, built in or from other packages.

An entry has the reference ``"module:function"`` of its function, which is imported where it is used, such as in a Ray
worker. So a configuration is checked without importing torch. A function of another package needs no change here: name
it ``"module:function"`` in the configuration, or decorate it with :func:`register_advantage` or :func:`register_loss`
and use its name.
"""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from embodyflow.errors import ConfigError
from embodyflow.references import resolve


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator.

    Attributes:
        function: ``"module:function"`` of ``(inputs, config) -> (advantages, returns)``, both [B, L] and zero outside
            the mask.
        per_row: Whether all tokens of a row get the same advantage.
        needs_values: Whether it needs a critic.
        needs_whole_batch: Whether it takes sums over the rows of all ranks.
        needs_baseline: Whether it needs the reward of a greedy response or episode of each group.
        needs_siblings: Whether it compares the rows of a group, which then needs at least two.
        losses: Losses it can be combined with; ``None`` allows all.
        reads_turns: Whether it knows an agent's turns, so that ``turn_discount`` and ``per_turn`` have a meaning.
        chains_agents: Whether an agent's advantage depends on the turns of the others, so that ``per_agent`` has none.
        keeps_baselines: Whether it needs the running baselines of the agents, so that ``per_agent`` must be true.
    """

    function: str
    per_row: bool = False
    needs_values: bool = False
    needs_whole_batch: bool = False
    needs_baseline: bool = False
    needs_siblings: bool = True
    losses: tuple[str, ...] | None = None
    reads_turns: bool = False
    chains_agents: bool = False
    keeps_baselines: bool = False


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss.

    Attributes:
        function: ``"module:function"`` of ``(inputs, config) -> (loss [B, L], metrics)``; the loss outside the mask is
            not read.
        per_row: Whether it has one ratio per row. It then needs one advantage per row, an aggregation that weights rows
            equally, and whole rows.
        selection: ``"module:function"`` that selects the tokens it treats differently
            (:mod:`embodyflow.algorithms.covariance`).
    """

    function: str
    per_row: bool = False
    selection: str | None = None


Entry = TypeVar("Entry", Estimator, PolicyLoss)


class Registry(Generic[Entry]):
    """Entries by name.

    Args:
        kind: Word for an entry in messages.
        make: Function that makes the entry of an unregistered ``"module:function"``.
        built_in: Initial entries.

    Attributes:
        entries: Entries by name.
        built_in: Names of the initial entries.
    """

    def __init__(self, kind: str, make: Callable[[str], Entry], built_in: dict[str, Entry]) -> None:
        self.entries: dict[str, Entry] = dict(built_in)
        self.built_in: tuple[str, ...] = tuple(built_in)
        self._kind = kind
        self._make: Callable[[str], Entry] = make

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry.

        Raises:
            ConfigError: The name is taken.
        """
        if name in self.entries:
            raise ConfigError(f"{self._kind} {name!r} exists; choose a name not in {', '.join(self.entries)}")
        self.entries[name] = entry

    def resolve(self, name: object) -> Entry:
        """Return the entry of a registered name or of a ``"module:function"``.

        An unregistered function gets an entry without restrictions, with ``per_row`` false.

        Raises:
            ConfigError: No such entry or function exists.
        """
        if isinstance(name, str) and name in self.entries:
            return self.entries[name]
        if not isinstance(name, str) or ":" not in name:
            near = difflib.get_close_matches(str(name), self.entries, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"unknown {self._kind} {name!r}; allowed are {', '.join(self.entries)} or 'module:function'{hint}"
            )
        try:
            function = resolve(name)
        except ImportError as error:
            raise ConfigError(f"{self._kind} {name!r} cannot be imported: {error}") from error
        if not callable(function):
            raise ConfigError(f"{self._kind} {name!r} is not a function")
        if not _takes_two(function):
            raise ConfigError(f"{self._kind} {name!r} must be a function of (inputs, config)")
        registered = (entry for entry in self.entries.values() if entry.function == name)
        return next(registered, None) or self._make(name)


_ADVANTAGES = "embodyflow.algorithms.advantages"
_LOSSES = "embodyflow.algorithms.losses"
_COVARIANCE = "embodyflow.algorithms.covariance"

ADVANTAGES: Registry[Estimator] = Registry(
    "advantage",
    Estimator,
    {
        "grpo": Estimator(f"{_ADVANTAGES}:grpo", per_row=True, reads_turns=True),
        "dr_grpo": Estimator(f"{_ADVANTAGES}:dr_grpo", per_row=True, reads_turns=True),
        "rloo": Estimator(f"{_ADVANTAGES}:rloo", per_row=True, reads_turns=True),
        "cpgd": Estimator(f"{_ADVANTAGES}:cpgd", per_row=True, losses=("cpgd",)),
        "gae": Estimator(f"{_ADVANTAGES}:gae", needs_values=True, needs_siblings=False, reads_turns=True),
        "marft": Estimator(
            f"{_ADVANTAGES}:marft", needs_values=True, needs_siblings=False, reads_turns=True, chains_agents=True
        ),
        "reinforce_plus_plus": Estimator(
            f"{_ADVANTAGES}:reinforce_plus_plus", needs_whole_batch=True, needs_siblings=False
        ),
        "reinforce_plus_plus_baseline": Estimator(
            f"{_ADVANTAGES}:reinforce_plus_plus_baseline", per_row=True, needs_whole_batch=True
        ),
        "remax": Estimator(f"{_ADVANTAGES}:remax", needs_baseline=True, needs_siblings=False),
        "rae": Estimator(f"{_ADVANTAGES}:rae", needs_siblings=False, keeps_baselines=True),
        "opo": Estimator(f"{_ADVANTAGES}:opo", per_row=True),
        "pass_at_k": Estimator(f"{_ADVANTAGES}:pass_at_k", per_row=True),
    },
)
LOSSES: Registry[PolicyLoss] = Registry(
    "loss",
    PolicyLoss,
    {
        "ppo": PolicyLoss(f"{_LOSSES}:ppo"),
        "gspo": PolicyLoss(f"{_LOSSES}:gspo", per_row=True),
        "gmpo": PolicyLoss(f"{_LOSSES}:gmpo", per_row=True),
        "cispo": PolicyLoss(f"{_LOSSES}:cispo"),
        "cpgd": PolicyLoss(f"{_LOSSES}:cpgd"),
        "clip_cov": PolicyLoss(f"{_LOSSES}:clip_cov", selection=f"{_COVARIANCE}:random_in_band"),
        "kl_cov": PolicyLoss(f"{_LOSSES}:kl_cov", selection=f"{_COVARIANCE}:highest_covariance"),
        "gpg": PolicyLoss(f"{_LOSSES}:gpg"),
        "sapo": PolicyLoss(f"{_LOSSES}:sapo"),
    },
)

Function = TypeVar("Function", bound=Callable[..., Any])


def register_advantage(
    name: str,
    *,
    per_row: bool = False,
    needs_values: bool = False,
    needs_whole_batch: bool = False,
    needs_baseline: bool = False,
    needs_siblings: bool = True,
    losses: tuple[str, ...] | None = None,
    reads_turns: bool = False,
) -> Callable[[Function], Function]:
    """Return a decorator that registers an advantage estimator; see :class:`Estimator`.

    Raises:
        ConfigError: The name is taken.
    """

    def register(function: Function) -> Function:
        reference = _reference(function)
        ADVANTAGES.add(
            name,
            Estimator(
                reference,
                per_row,
                needs_values,
                needs_whole_batch,
                needs_baseline,
                needs_siblings,
                losses,
                reads_turns,
            ),
        )
        return function

    return register


def register_loss(name: str, *, per_row: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that registers a policy loss; see :class:`PolicyLoss`.

    Raises:
        ConfigError: The name is taken.
    """

    def register(function: Function) -> Function:
        LOSSES.add(name, PolicyLoss(_reference(function), per_row))
        return function

    return register


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # functions that are not written in Python may have no signature
        return True
    return True


def _reference(function: Callable[..., Any]) -> str:
    # embodyflow.references.reference_to would fail: a decorator runs before its module has the function.
    return f"{function.__module__}:{function.__qualname__}"
