"""Run a module whose driver attaches to the Ray node of its own machine.

``python -m on_own_node <address> <module> <words>`` takes the address of the machine. Ray attaches a driver to a node
whose process it sees, the head's if there are several, and on these machines it sees the processes of all of them.
"""

import functools
import runpy
import sys

import ray


def main(address: str, module: str, *words: str) -> None:
    """Run a module as ``python -m`` does."""
    ray.init = functools.partial(ray.init, _node_ip_address=address)  # type: ignore[assignment]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
