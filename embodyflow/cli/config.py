"""``embodyflow config``: all keys of a configuration, with their values and meanings."""

from collections.abc import Sequence

from embodyflow.config.composition.described import describe
from embodyflow.orchestration.request.request import check, parse_arguments


def show_config(flow: str | None, words: Sequence[str]) -> int:
    """Print the configuration of a run with these words as YAML.

    Args:
        flow: Name of the training flow; ``None`` is the one of the chosen algorithm.
        words: Words ``key=value``, as for the flow.

    Raises:
        ConfigError: One line per mistake, as for a run.
    """
    request = parse_arguments(words, flow)
    config = check(request)
    if request.run_id is None:
        config = config.model_copy(update={"run_id": None})  # each run gets its own
    print(describe(config), end="")
    return 0
