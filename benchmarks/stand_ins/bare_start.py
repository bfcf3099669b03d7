"""The least that a flow on Ray needs to start: Prefect's own server, Ray, and actors that import what workers import.

``python -m benchmarks.stand_ins.bare_start <number of actors> <file>`` writes the file when all actors are ready.
"""

import sys
from importlib import import_module
from pathlib import Path

import ray
from prefect import flow


class Worker:
    """An actor without work."""

    def imports(self) -> int:
        """Import the libraries of a worker of control and embodied jobs; return the number of the process's modules."""
        import_module("tensordict")
        import_module("torch.distributed.fsdp")
        return len(sys.modules)


@flow
def bare(num_workers: int, ready: str) -> None:
    """Start the actors and say that they are ready."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False)
    actor = ray.remote(num_cpus=0)(Worker)
    workers = [actor.remote() for _ in range(num_workers)]
    ray.get([worker.imports.remote() for worker in workers])
    Path(ready).write_text("ready")


if __name__ == "__main__":
    bare(int(sys.argv[1]), sys.argv[2])
