"""The deployments and the commands that start them."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml

from deployments import services
from deployments.folder import StackFolder
from deployments.run import run_experiment
from deployments.services import WORK_POOL, ray_command, server_command, uses_own_database
from embodyflow.errors import ConfigError
from flows.fit import PIPELINES

ROOT = Path(__file__).resolve().parents[3]
DEPLOYMENTS = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())["deployments"]


def test_every_deployment_names_a_flow_of_ours_and_our_work_pool() -> None:
    for deployment in DEPLOYMENTS:
        path, _, function = deployment["entrypoint"].partition(":")
        module = import_module(path.removesuffix(".py").replace("/", "."))
        assert getattr(module, function).name == function
        assert deployment["work_pool"]["name"] == WORK_POOL
        assert (ROOT / "configs" / "experiment" / f"{deployment['parameters']['experiment']}.yaml").is_file()


def test_every_training_flow_has_a_deployment() -> None:
    names = {(each["entrypoint"].rpartition(":")[2], each["name"]) for each in DEPLOYMENTS}
    assert {flow for flow, _ in names} == {*PIPELINES, "evaluate"}
    assert {flow for flow, name in names if name == "embodied"} == {"grpo", "ppo", "dapo", "srpo", "evaluate"}
    assert {flow for flow, name in names if name == "libero"} == {"grpo", "srpo", "evaluate"}
    assert {flow for flow, name in names if name == "math"} == {"grpo", "ppo", "dapo", "gspo", "cpgd"}


def test_the_nightly_run_states_its_time_zone_and_what_a_collision_does() -> None:
    [nightly] = [each for each in DEPLOYMENTS if each["name"] == "embodied-nightly"]
    (schedule,) = nightly["schedules"]
    assert schedule["cron"] == "0 2 * * *"
    ZoneInfo(schedule["timezone"])
    assert nightly["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}


def test_servers_listen_on_this_machine_alone() -> None:
    assert "--host=127.0.0.1" in server_command(4200)
    assert "--node-ip-address=127.0.0.1" in ray_command(6379, 10001, "/tmp/ray")
    assert "--disable-usage-stats" in ray_command(6379, 10001, "/tmp/ray")


def test_a_database_of_the_users_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(name, raising=False)
    assert uses_own_database()
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://localhost/prefect")
    assert not uses_own_database()


def test_our_own_database_forgets_and_the_users_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*services.RETENTION, "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = StackFolder(tmp_path)
    assert services.RETENTION.items() <= services.environment(folder).items()
    monkeypatch.setenv("PREFECT_SERVER_EVENTS_RETENTION_PERIOD", "P9D")
    assert services.environment(folder)["PREFECT_SERVER_EVENTS_RETENTION_PERIOD"] == "P9D"
    monkeypatch.delenv("PREFECT_SERVER_EVENTS_RETENTION_PERIOD")
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://localhost/prefect")
    assert not services.RETENTION.keys() & services.environment(folder).keys()


def test_prefect_takes_the_retention_as_it_is_meant() -> None:
    program = (
        "from prefect.settings import get_current_settings as settings\n"
        "server = settings().server\n"
        "vacuum = server.services.db_vacuum\n"
        "print(server.events.retention_period.days, vacuum.retention_period.days, *sorted(vacuum.enabled_vacuum_types))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | services.RETENTION, capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == ["1", "30", "events", "flow_runs"]


def test_empty_addresses_count_as_none() -> None:
    assert services.attached({"PREFECT_API_URL": "", "RAY_ADDRESS": "auto"}) == (None, "auto")


@pytest.mark.parametrize(
    ("flow", "experiment", "named"),
    [
        ("grpo", "embodyed", ["grpo/embodyed", "grpo/embodied", "grpo/embodied-nightly"]),
        ("grop", "embodied", ["grop/embodied", "grpo/embodied"]),
    ],
)
def test_an_unknown_deployment_is_refused_with_those_that_exist(
    flow: str, experiment: str, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError) as refusal:
        run_experiment(flow, [f"experiment={experiment}"])
    (line,) = str(refusal.value).splitlines()
    assert all(name in line for name in named)
