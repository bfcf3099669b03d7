"""Wait until all nodes of a job have joined its Ray cluster, because a run places its workers when it starts.

``python wait_for_nodes.py <number of nodes> <id of the process that runs Ray>``
"""

import os
import subprocess
import sys
import time

from embodyflow.process.ports import answers

# In a process of its own: Ray ends a process that joins a node which does not answer in time, as on a busy machine.
COUNT = """
import ray
ray.init(log_to_driver=False, configure_logging=False)
print(sum(node["Alive"] for node in ray.nodes()))
"""


def wait(num_nodes: int, step: int) -> None:
    """Wait for the nodes of the cluster at ``RAY_ADDRESS``.

    Args:
        num_nodes: Number of nodes.
        step: Process that runs Ray.

    Raises:
        ProcessLookupError: That process has ended.
    """
    while num_alive() < num_nodes:
        os.kill(step, 0)
        time.sleep(1.0)


def num_alive() -> int:
    """Return the number of nodes that are up, or 0 if the cluster does not answer yet."""
    if not answers(os.environ["RAY_ADDRESS"]):
        return 0
    found = subprocess.run([sys.executable, "-c", COUNT], stdout=subprocess.PIPE, text=True, check=False)
    return int(found.stdout) if found.returncode == 0 else 0


if __name__ == "__main__":
    wait(*map(int, sys.argv[1:]))
