"""``embodyflow config``: all keys of a configuration, with their values and what they mean."""

from collections.abc import Sequence

from embodyflow.config.described import describe
from embodyflow.orchestration.request.request import check, parse_arguments


def show_config(flow: str | None, words: Sequence[str]) -> int:
    """Print the configuration that a run of these words would have, as YAML.

    Args:
        flow: Name of the training flow; ``None`` is the one of the chosen algorithm.
        words: ``key=value``, as the flow takes them.

    Raises:
        ConfigError: one line per mistake, as a run would tell them.
    """
    request = parse_arguments(words, flow)
    config = check(request)
    if request.run_id is None:
        config = config.model_copy(update={"run_id": None})  # it is chosen anew for each run
    print(describe(config), end="")
    return 0
