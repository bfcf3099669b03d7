"""Secrets of Prefect that Ray, and so the programs and environments in its workers, does not get."""

from types import SimpleNamespace
from typing import Any

from embodyflow.stack.stack import Stack

SECRETS = (
    *("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"),
    *("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_PASSWORD", "PREFECT_API_DATABASE_PASSWORD"),
)


def test_ray_gets_no_secret_of_prefect() -> None:
    launched: list[dict[str, str]] = []

    def launch(name: str, command: Any, env: dict[str, str]) -> None:
        launched.append(env)

    stack = SimpleNamespace(
        state=SimpleNamespace(ray_address="127.0.0.1:6379", ray_temp_dir="/tmp/x"),
        env={**dict.fromkeys(SECRETS, "secret"), "RAY_ADDRESS": "elsewhere", "PATH": "/bin"},
        _client_port=10001,
        _num_ray_starts=0,
        _launch=launch,
    )
    Stack._start_ray(stack)  # type: ignore[arg-type]
    assert launched == [{"PATH": "/bin"}]
