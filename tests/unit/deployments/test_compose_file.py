"""The Compose file, by a strict model of the parts of the format that it uses."""

import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Literal

import yaml
from deployment_files import DEPLOYMENTS, ROOT, SECRET, check_command, commands_in, is_pinned, unknown_settings
from pydantic import BaseModel, ConfigDict, Field

from embodyflow import __version__


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HealthCheck(Strict):
    test: list[str]
    interval: str
    retries: int


class Dependency(Strict):
    condition: Literal["service_healthy"]


class Deploy(Strict):
    replicas: int | str


class Service(Strict):
    image: str
    init: bool = False
    restart: Literal["unless-stopped"]
    command: list[str] = []
    env_file: str | list[str]
    environment: dict[str, str] = {}
    volumes: list[str] = []
    networks: list[str] = ["default"]
    ports: list[str] = []
    shm_size: str | None = None
    cpus: float | None = None
    stop_grace_period: str | None = None
    deploy: Deploy | None = None
    healthcheck: HealthCheck | None = None
    depends_on: dict[str, Dependency] = {}

    def env_files(self) -> list[str]:
        return [self.env_file] if isinstance(self.env_file, str) else self.env_file


class Network(Strict):
    internal: bool = False


class Compose(Strict):
    name: str
    services: dict[str, Service]
    networks: dict[str, Network | None]
    volumes: dict[str, None]
    common: object = Field(alias="x-embodyflow")
    ray: object = Field(alias="x-ray")


def with_defaults(text: str) -> str:
    """Replace ``${NAME:-default}`` by the default, as Compose does without the variable."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("$$", "$")


COMPOSE = Compose.model_validate(yaml.safe_load(with_defaults((DEPLOYMENTS / "compose" / "compose.yaml").read_text())))
SERVICES = COMPOSE.services


def test_services_use_what_is_declared() -> None:
    for name, service in SERVICES.items():
        assert set(service.networks) <= COMPOSE.networks.keys(), name
        assert {each.partition(":")[0] for each in service.volumes} <= COMPOSE.volumes.keys(), name
        for other in service.depends_on:
            assert SERVICES[other].healthcheck is not None, f"{name} waits for {other}"


def test_images_are_pinned_and_ours_is_of_this_version() -> None:
    assert all(is_pinned(service.image) for service in SERVICES.values())
    assert {each.image for each in SERVICES.values()} == {f"embodyflow:{__version__}", "postgres:17.6-bookworm"}


def test_ports_are_bound_to_the_loopback_interface() -> None:
    ports = [port for service in SERVICES.values() for port in service.ports]
    assert ports == ["127.0.0.1:4200:4200"]


def test_commands_and_settings_exist() -> None:
    for name, service in SERVICES.items():
        assert not unknown_settings(service.environment), name
        commands = commands_in(service.command[2]) if service.command[:2] == ["bash", "-c"] else [service.command]
        for command in filter(None, commands):
            check_command(command)
        if service.healthcheck is not None and service.healthcheck.test[1] == "ray":
            check_command(service.healthcheck.test[1:])
    assert [len(commands_in(SERVICES["prefect-worker"].command[2]))] == [2]


def test_addresses_name_services() -> None:
    environment = SERVICES["prefect-worker"].environment
    assert environment == {"PREFECT_API_URL": "http://prefect-server:4200/api", "RAY_ADDRESS": "ray-head:6379"}
    assert {"prefect-server", "ray-head"} <= SERVICES.keys()


def test_only_the_prefect_server_reaches_the_database() -> None:
    networks = COMPOSE.networks["database"]
    assert networks is not None and networks.internal
    assert {name for name, each in SERVICES.items() if "database" in each.networks} == {"postgres", "prefect-server"}
    assert SERVICES["postgres"].networks == ["database"]


def test_secrets_are_in_files_that_only_their_user_can_read(tmp_path: Path) -> None:
    for service in SERVICES.values():
        assert not [name for name in service.environment if SECRET.search(name)]
    subprocess.run(["bash", ROOT / "deployments" / "secrets.sh", tmp_path], check=True, capture_output=True)
    written = {f"secrets/{path.name}": path for path in (tmp_path / "secrets").iterdir()}
    assert written.keys() == {name for service in SERVICES.values() for name in service.env_files()}
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    values = {name: dict(line.split("=", 1) for line in path.read_text().split()) for name, path in written.items()}
    for name, path in written.items():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not unknown_settings(values[name]), name
    postgres, server = values["secrets/postgres.env"], values["secrets/prefect-server.env"]
    url = f"postgresql+asyncpg://prefect:{postgres['POSTGRES_PASSWORD']}@postgres/prefect"
    assert server["PREFECT_SERVER_DATABASE_CONNECTION_URL"] == url
    assert server["PREFECT_SERVER_API_AUTH_STRING"] == values["secrets/prefect-client.env"]["PREFECT_API_AUTH_STRING"]
    assert len(values["secrets/ray.env"]["RAY_AUTH_TOKEN"]) == 64


def test_each_service_has_only_its_own_secrets() -> None:
    assert {name: service.env_files() for name, service in SERVICES.items()} == {
        "postgres": ["secrets/postgres.env"],
        "prefect-server": ["secrets/prefect-server.env"],
        "ray-head": ["secrets/ray.env"],
        "ray-worker": ["secrets/ray.env"],
        "prefect-worker": ["secrets/ray.env", "secrets/prefect-client.env"],
    }


def test_secrets_that_exist_are_kept(tmp_path: Path) -> None:
    command = ["bash", ROOT / "deployments" / "secrets.sh", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    before = (tmp_path / "secrets" / "ray.env").read_text()
    assert subprocess.run(command, capture_output=True).returncode != 0
    assert (tmp_path / "secrets" / "ray.env").read_text() == before


def test_secrets_that_could_not_be_made_leave_nothing(tmp_path: Path) -> None:
    """A program must not start with an empty password, and the command can be given again."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "compose").mkdir()
    calls, program = tmp_path / "calls", tmp_path / "bin" / "openssl"
    program.write_text(f'#!/bin/bash\necho x >>{calls}\n[[ $(wc -l <{calls}) != "$FAILS" ]] && echo 0123456789\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    command = ["bash", ROOT / "deployments" / "secrets.sh", tmp_path / "compose"]
    for fails in ("1", "2", "3"):
        calls.unlink(missing_ok=True)
        assert subprocess.run(command, env={**env, "FAILS": fails}, capture_output=True).returncode != 0
        assert not list((tmp_path / "compose").iterdir()), fails
    subprocess.run(command, env={**env, "FAILS": "none"}, check=True, capture_output=True)
    assert [path.name for path in (tmp_path / "compose").iterdir()] == ["secrets"]


def test_all_that_plays_and_trains_shares_the_folder_of_runs() -> None:
    """Relative paths of a configuration begin at /app, the folder of the image."""
    for name in ("ray-head", "ray-worker", "prefect-worker"):
        assert SERVICES[name].volumes == ["runs:/app/runs"]
        assert SERVICES[name].shm_size
