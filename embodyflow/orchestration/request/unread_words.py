"""Refusal of words for settings that nothing reads in the run, such as those of a critic without a critic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError


@dataclass(frozen=True)
class _Setting:
    """A section or key that only some runs read.

    Attributes:
        key: Its key.
        is_read: Function that returns True for a run that reads it.
        allowed: Runs that read it, for the message.
    """

    key: str
    is_read: Callable[[RunConfig], bool]
    allowed: str


def _has_critic(config: RunConfig) -> bool:
    return config.algorithm.needs_critic or getattr(config, "off_policy", None) is not None


_OF_PIPELINE = (
    _Setting("critic", _has_critic, "algorithms with a critic, such as ppo and sac"),
    _Setting("classifier", lambda config: _runs(config, "embodied_classifier"), "algorithm=success_classifier"),
    _Setting("progress", lambda config: _runs(config, "embodied_srpo"), "algorithm=srpo"),
)
_OF_ALGORITHM = (
    _Setting("algorithm.lam", lambda config: config.algorithm.needs_critic, "algorithms with a critic, such as ppo"),
    _Setting(
        "algorithm.value_clip", lambda config: config.algorithm.needs_critic, "algorithms with a critic, such as ppo"
    ),
    _Setting("algorithm.pass_k", lambda config: config.algorithm.advantage == "pass_at_k", "algorithm=pass_at_k"),
    _Setting("algorithm.baseline_decay", lambda config: config.algorithm.keeps_baselines, "algorithm=rae"),
    _Setting("algorithm.cpgd", lambda config: config.algorithm.loss == "cpgd", "algorithm=cpgd"),
    _Setting(
        "algorithm.covariance",
        lambda config: config.algorithm.loss in ("clip_cov", "kl_cov"),
        "algorithm=clip_cov and kl_cov",
    ),
    _Setting("algorithm.sapo", lambda config: config.algorithm.loss == "sapo", "algorithm=sapo"),
)


def refuse_unread(words: Sequence[str], config: RunConfig) -> None:
    """Refuse words of a command line that set what the run does not read; a function of the user's may read anything.

    Args:
        words: Words ``key=value``.
        config: Configuration that they lead to.

    Raises:
        ConfigError: One line with the word and what is allowed.
    """
    has_own_graph = bool(config.pipeline.custom_fn or config.pipeline.yaml)
    has_own_terms = ":" in config.algorithm.loss or ":" in config.algorithm.advantage
    settings = (*(() if has_own_graph else _OF_PIPELINE), *(() if has_own_graph or has_own_terms else _OF_ALGORITHM))
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        for each in settings:
            if f"{key}.".startswith(f"{each.key}.") and value not in ("null", "{}") and not each.is_read(config):
                raise ConfigError(
                    f"{word}: has no effect with algorithm={config.algorithm_name}; only used with {each.allowed}"
                )


def _runs(config: RunConfig, pipeline: str) -> bool:
    return config.pipeline.source() == {"name": pipeline}
