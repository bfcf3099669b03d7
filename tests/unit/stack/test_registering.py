"""A running stack learns of the experiments and deployments that a project has gained since its start."""

import sys
from typing import Any

import psutil
import pytest

from embodyflow.process.files.private_files import write_private
from embodyflow.stack import deployments as module
from embodyflow.stack.deployments import accepts, deploy_again
from embodyflow.stack.diagnosis import StackError
from embodyflow.stack.prefect_api import PrefectApi
from embodyflow.stack.stack_folder import StackFolder, StackState

STATE = StackState(1, 0.0, True, "http://unused/api", "127.0.0.1:6379", None, {})
FORM = {"experiment": {"enum": ["embodied", "push"]}, "algorithm": {"enum": ["grpo", None]}, "seed": {"minimum": 0}}


class Api(PrefectApi):
    """A server with one deployment."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        super().__init__("http://unused/api")
        self._schema = schema

    def deployment(self, name: str) -> dict[str, Any] | None:
        return {"parameter_openapi_schema": self._schema} if name == "grpo/embodied" else None


@pytest.mark.parametrize(
    ("deployment", "parameters", "answer"),
    [
        ("grpo/embodied", {"experiment": "push", "algorithm": None, "seed": 3, "run_id": "mine"}, True),
        ("grpo/embodied", {"experiment": "mine", "algorithm": None}, False),
        ("grpo/embodied", {"experiment": "push", "algorithm": "mine"}, False),
        ("mine/embodied", {"experiment": "push"}, False),
    ],
)
def test_a_server_accepts_what_its_forms_list(deployment: str, parameters: dict[str, object], answer: bool) -> None:
    assert accepts(Api({"properties": FORM}), deployment, parameters) is answer


@pytest.mark.parametrize("schema", [None, {}])
def test_a_deployment_without_a_form_accepts_anything(schema: dict[str, Any] | None) -> None:
    assert accepts(Api(schema), "grpo/embodied", {"experiment": "mine"})


def test_a_refused_deployment_names_its_log(folder: StackFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.prepare()
    write_private(folder.prefect_auth, "me:password")
    for code in (0, 1):
        program = f"import os; print(os.environ['PREFECT_API_URL'], os.getcwd()); raise SystemExit({code})"
        monkeypatch.setattr(module, "deploy_command", lambda _, program=program: [sys.executable, "-c", program])
        if code == 0:
            deploy_again(folder, STATE)
        else:
            with pytest.raises(StackError) as refusal:
                deploy_again(folder, STATE)
            log = folder.log("prefect-deploy")
            assert str(refusal.value) == f"Prefect refused {folder.prefect_yaml}: see {log}"
            assert log.read_text() == f"{STATE.api_url} {folder.root}\n"


def test_a_deployment_that_hangs_is_stopped(folder: StackFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.prepare()
    write_private(folder.prefect_auth, "me:password")
    monkeypatch.setattr(module, "DEPLOY_TIMEOUT", 0.2)
    monkeypatch.setattr(module, "deploy_command", lambda _: [sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(StackError, match=r"^prefect-deploy did not end within 0 s"):
        deploy_again(folder, STATE)
    running = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    assert not [each for each in running if "import time; time.sleep(60)" in each.cmdline()]
