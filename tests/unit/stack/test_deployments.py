"""The deployments and the commands that start them."""

import os
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.settings import Settings

from embodyflow.cli import up
from embodyflow.cli.run import run_experiment
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import PIPELINES
from embodyflow.process.ports import listen_on
from embodyflow.stack import services
from embodyflow.stack.database import is_named
from embodyflow.stack.services import WORK_POOL, ray_command
from embodyflow.stack.stack_folder import StackFolder, StackState

ROOT = Path(__file__).resolve().parents[3]
DEPLOYMENTS = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())["deployments"]


def settings_under(environment: Mapping[str, str]) -> Settings:
    """Return the settings that a process of Prefect has under these environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("PREFECT_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        return Settings()


def test_every_deployment_names_a_flow_of_ours_and_our_work_pool() -> None:
    for deployment in DEPLOYMENTS:
        path, _, function = deployment["entrypoint"].partition(":")
        module = import_module(path.removesuffix(".py").replace("/", "."))
        assert getattr(module, function).name == function
        assert deployment["work_pool"]["name"] == WORK_POOL
        experiment = deployment.get("parameters", {}).get("experiment", "embodied")
        assert (ROOT / "configs" / "experiment" / f"{experiment}.yaml").is_file()


def test_every_training_flow_has_a_deployment() -> None:
    names = {(each["entrypoint"].rpartition(":")[2], each["name"]) for each in DEPLOYMENTS}
    assert {flow for flow, _ in names} == {*PIPELINES, "evaluate", "sweep"}
    assert {flow for flow, name in names if name == "embodied"} == {"grpo", "ppo", "dapo", "srpo", "evaluate"}
    assert {flow for flow, name in names if name == "libero"} == {"grpo", "srpo", "evaluate"}
    assert {flow for flow, name in names if name == "math"} == {"grpo", "ppo", "dapo", "gspo", "cpgd"}


def test_the_nightly_run_sets_its_time_zone_and_collision_strategy() -> None:
    [nightly] = [each for each in DEPLOYMENTS if each["name"] == "embodied-nightly"]
    (schedule,) = nightly["schedules"]
    assert schedule["cron"] == "0 2 * * *"
    ZoneInfo(schedule["timezone"])
    assert nightly["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}


def test_servers_listen_only_on_this_machine() -> None:
    with listen_on(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    assert "--node-ip-address=127.0.0.1" in ray_command(6379, 10001, "/tmp/ray")
    assert "--disable-usage-stats" in ray_command(6379, 10001, "/tmp/ray")


STATE = StackState(1, 0.0, True, "http://127.0.0.1:4200/api", "127.0.0.1:6379", None, {})
PARTS = {"DRIVER": "postgresql+asyncpg", "HOST": "db", "USER": "me", "NAME": "prefect"}


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder, in an environment without settings of a Prefect server."""
    for name in os.environ:
        if name.startswith(("PREFECT_SERVER_", "PREFECT_API_DATABASE_", "PREFECT_PROFILE")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "named",
    [
        {"PREFECT_API_DATABASE_CONNECTION_URL": "postgresql+asyncpg://db/prefect"},
        {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql+asyncpg://db/prefect"},
        {f"PREFECT_SERVER_DATABASE_{key}": value for key, value in PARTS.items()},
        {f"PREFECT_API_DATABASE_{key}": value for key, value in PARTS.items()},
    ],
    ids=["url", "new-url", "parts", "old-parts"],
)
def test_a_users_database_is_detected(
    no_settings: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    assert not is_named()
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "")
    assert not is_named()
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    assert is_named()


def test_a_users_database_is_detected_in_files_but_not_in_a_profile(
    no_settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack has its own Prefect home, so our server does not read the user's profile."""
    url = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
    (no_settings / "home").mkdir()
    profile = f'active = "mine"\n[profiles.mine]\n{url} = "postgresql+asyncpg://db/prefect"\n'
    (no_settings / "home" / "profiles.toml").write_text(profile)
    monkeypatch.setenv("PREFECT_HOME", str(no_settings / "home"))
    assert not is_named()
    (no_settings / ".env").write_text(f"{url}=postgresql+asyncpg://db/prefect\n")
    assert is_named()
    (no_settings / ".env").unlink()
    (no_settings / "pyproject.toml").write_text('[tool.prefect.server.database]\nconnection_url = "postgresql://db"\n')
    assert is_named()


def test_an_unsupported_database_is_refused_in_one_line(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_DATABASE_DRIVER", "mysql")
    with pytest.raises(ConfigError, match=r"^PREFECT_SERVER_DATABASE_DRIVER=mysql: Input should be 'postgresql\+"):
        is_named()


@pytest.mark.parametrize("key", ["password", "connection_url"])
def test_a_wrong_secret_of_a_database_is_not_shown(key: str, no_settings: Path) -> None:
    """The end of a stack is recorded and shown too."""
    (no_settings / "prefect.toml").write_text(f"[server.database]\n{key} = 271828\n")
    with pytest.raises(ConfigError, match=rf"^PREFECT_SERVER_DATABASE_{key.upper()}: Input should be a valid") as wrong:
        is_named()
    assert "271828" not in "".join(traceback.format_exception(wrong.value))


def test_our_database_has_a_url_and_the_users_retention(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StackFolder(no_settings)
    services.create_auth_string(folder)
    database = services.database_environment(folder)
    assert services.RETENTION.items() <= database.items()
    url = settings_under(services.environment(folder, STATE) | database).server.database.connection_url
    assert url is not None
    assert url.get_secret_value() == f"sqlite+aiosqlite:///{no_settings}/.embodyflow/prefect/prefect.db"
    monkeypatch.setenv("PREFECT_SERVER_EVENTS_RETENTION_PERIOD", "P9D")
    assert services.database_environment(folder)["PREFECT_SERVER_EVENTS_RETENTION_PERIOD"] == "P9D"


def test_prefect_parses_the_retention_settings() -> None:
    server = settings_under(os.environ | services.RETENTION).server
    vacuum = server.services.db_vacuum
    assert (server.events.retention_period.days, vacuum.retention_period.days) == (1, 30)
    assert sorted(vacuum.enabled_vacuum_types) == ["events", "flow_runs"]


def test_empty_addresses_count_as_unset() -> None:
    assert services.attached({"PREFECT_API_URL": "", "RAY_ADDRESS": "auto"}) == (None, "auto")
    with pytest.raises(ConfigError, match=r"^PREFECT_API_URL: must have no user name .* PREFECT_API_AUTH_STRING"):
        services.attached({"PREFECT_API_URL": "http://me:secret@127.0.0.1:4200/api"})


def test_an_evaluation_deployment_accepts_runs_of_any_experiment() -> None:
    """A deployment with an experiment refuses runs of all others."""
    assert any("parameters" not in each for each in DEPLOYMENTS if each["entrypoint"].endswith(":evaluate"))


@pytest.mark.parametrize(
    ("flow", "experiment", "deployment"),
    [("ppo", "math", "ppo/math"), ("grpo", "push", "grpo/embodied"), ("gspo", "mine", "gspo/math")],
)
def test_an_experiment_uses_its_own_deployment_or_the_flows_first(flow: str, experiment: str, deployment: str) -> None:
    assert StackFolder(ROOT).deployment(flow, experiment) == deployment


@pytest.mark.parametrize(
    ("flow", "experiment", "answer"),
    [
        ("grpo", "embodyed", "experiment=embodyed: allowed are adroit_door, aloha, babyai, calculator, cart_pole, "),
        (
            "grop",
            "embodied",
            "flow=grop: has no deployment; allowed are grpo, ppo, dapo, srpo, evaluate, sac, gspo, cpgd, sweep",
        ),
        ("evaluate", "embodied", "flow=evaluate: allowed are cpgd, dapo, grpo, gspo, ppo, sac, srpo"),
    ],
)
def test_an_unknown_experiment_or_flow_is_refused_with_the_known_ones(
    flow: str, experiment: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError) as refusal:
        run_experiment(flow, [f"experiment={experiment}"])
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(answer)


@pytest.mark.parametrize(
    ("flow", "experiment", "command"),
    [
        ("ppo", "embodied", "prefect deployment run ppo/embodied -p experiment=embodied -p resume=mine"),
        ("grpo", "push", "prefect deployment run grpo/embodied -p experiment=push -p resume=mine"),
        ("own", "push", "python -m flows.own resume=mine"),
    ],
)
def test_the_offer_to_resume_a_run_names_a_command_that_can(
    tmp_path: Path, flow: str, experiment: str, command: str
) -> None:
    (tmp_path / "deployments").mkdir()
    shutil.copy(ROOT / "deployments" / "prefect.yaml", tmp_path / "deployments")
    run = tmp_path / "runs" / "mine"
    (run / "checkpoints" / "iteration-000002").mkdir(parents=True)
    (run / "ledger.jsonl").touch()
    config = {"flow": flow, "experiment": experiment, "iterations": 9, "job": "embodied"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert up._resume_commands(StackFolder(tmp_path)) == [f"to resume   {command}  (2 of 9 iterations)", ""]


def test_the_server_streams_logs_to_watchers(tmp_path: Path) -> None:
    """By default `prefect deployment run --watch` shows events alone; Prefect must know the settings by these names."""
    env = services.environment(StackFolder(tmp_path), replace(STATE, owns_server=False))
    logs = settings_under(env).server.logs
    assert logs.stream_out_enabled and logs.stream_publishing_enabled
