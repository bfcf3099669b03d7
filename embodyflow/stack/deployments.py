"""Deployments of a running stack that follow the project's files."""

from collections.abc import Mapping

import psutil

from embodyflow.stack.diagnosis import StackError
from embodyflow.stack.prefect_api import PrefectApi
from embodyflow.stack.processes import start_process, stop_processes
from embodyflow.stack.services import deploy_command, environment
from embodyflow.stack.stack_folder import StackFolder, StackState

DEPLOY_TIMEOUT = 180.0
"""Seconds within which Prefect must register the deployments."""


def accepts(api: PrefectApi, deployment: str, parameters: Mapping[str, object]) -> bool:
    """Return True if the server has a deployment, and its form offers the choices among the parameters.

    A form lists the experiments and algorithms that the project had when the deployment was registered, and Prefect
    refuses all others.

    Args:
        api: Client for the server.
        deployment: Deployment, ``<flow>/<name>``.
        parameters: Parameters of the flow.
    """
    found = api.deployment(deployment)
    if found is None:
        return False
    form = (found.get("parameter_openapi_schema") or {}).get("properties", {})
    return all(value in form[key]["enum"] for key, value in parameters.items() if "enum" in form.get(key, {}))


def deploy_again(folder: StackFolder, state: StackState) -> None:
    """Register the deployments of the project's ``prefect.yaml`` with the server of a running stack.

    Raises:
        StackError: Prefect refuses a deployment, or takes too long; the message names its log.
    """
    log = folder.log("prefect-deploy")
    log.unlink(missing_ok=True)
    process = start_process(deploy_command(folder), log=log, env=environment(folder, state), cwd=folder.root)
    try:
        code = process.wait(timeout=DEPLOY_TIMEOUT)
    except psutil.TimeoutExpired as error:
        raise StackError(f"prefect-deploy did not end within {DEPLOY_TIMEOUT:.0f} s", log) from error
    finally:
        stop_processes([process], grace=1.0)
    if code != 0:
        raise StackError(f"Prefect refused {folder.prefect_yaml}", log)
