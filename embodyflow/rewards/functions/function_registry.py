"""The reward function of each configuration."""

from functools import partial
from typing import Any, assert_never

from embodyflow.references import resolve
from embodyflow.rewards.borrowed import load_borrowed, split_origin
from embodyflow.rewards.by_source import BySource
from embodyflow.rewards.functions import answer_matching
from embodyflow.rewards.reward_config import (
    BySourceConfig,
    CodeConfig,
    CustomConfig,
    ExactMatchConfig,
    FunctionConfig,
    GSM8KConfig,
    MathConfig,
    RegexConfig,
)


def build_reward_function(config: FunctionConfig) -> Any:
    """Return the function, which takes a sample; with the manager ``batch``, a custom function takes many samples."""
    match config:
        case ExactMatchConfig():
            return partial(answer_matching.exact_match, config=config)
        case RegexConfig():
            return partial(answer_matching.regex, config=config)
        case GSM8KConfig():
            return answer_matching.gsm8k
        case MathConfig():
            from embodyflow.rewards.functions import mathematics  # takes seconds to import

            return mathematics.verify_boxed
        case CodeConfig():
            from embodyflow.rewards.functions import program_tests

            return partial(program_tests.score_program, config=config)
        case BySourceConfig():
            functions = {source: build_reward_function(each) for source, each in config.functions.items()}
            default = None if config.default is None else build_reward_function(config.default)
            return BySource(functions, default)
        case CustomConfig() if split_origin(config.function)[0] is not None:
            return load_borrowed(config.function, config.correct_above, config.kwargs)
        case CustomConfig():
            return partial(resolve(config.function), **config.kwargs)
        case _:
            assert_never(config)
