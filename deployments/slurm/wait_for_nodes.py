"""Wait until all nodes of a job have joined its Ray cluster, because a run places its workers when it starts.

``python wait_for_nodes.py <number of nodes> <id of the process that runs Ray>``
"""

import os
import sys
import time

import ray

from embodyflow.process.ports import answers


def wait(num_nodes: int, step: int) -> None:
    """Wait for the nodes of the cluster at ``RAY_ADDRESS``.

    Args:
        num_nodes: Number of nodes.
        step: Process that runs Ray.

    Raises:
        ProcessLookupError: That process has ended.
    """
    while not answers(os.environ["RAY_ADDRESS"]):
        os.kill(step, 0)
        time.sleep(1.0)
    ray.init(log_to_driver=False, configure_logging=False)
    while sum(node["Alive"] for node in ray.nodes()) < num_nodes:
        os.kill(step, 0)
        time.sleep(1.0)


if __name__ == "__main__":
    wait(*map(int, sys.argv[1:]))
