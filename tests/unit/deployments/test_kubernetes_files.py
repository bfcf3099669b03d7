"""The manifests of ``deployments/kubernetes``: valid by the schemas of Kubernetes, and consistent with each other."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
import yaml
from deployment_files import DEPLOYMENTS, ROOT, SECRET, check_command, commands_in, is_pinned, unknown_settings
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import BaseModel, ConfigDict

from embodyflow import __version__
from embodyflow.stack.services import WORK_POOL

Manifest = dict[str, Any]

FOLDER = DEPLOYMENTS / "kubernetes"
BASE = FOLDER / "base"
KUBERNETES = "1.34"
KUSTOMIZATION: Manifest = yaml.safe_load((BASE / "kustomization.yaml").read_text())
GPU: Manifest = yaml.safe_load((FOLDER / "gpu" / "kustomization.yaml").read_text())
FLOW_JOB: Manifest = json.loads((BASE / "flow-job.json").read_text())
JOB: Manifest = FLOW_JOB["job_configuration"]["job_manifest"]
MANIFESTS: list[Manifest] = [
    each for name in KUSTOMIZATION["resources"] for each in yaml.safe_load_all((BASE / name).read_text())
]


def named(kind: str, name: str) -> Manifest:
    [found] = [each for each in MANIFESTS if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod_specs() -> dict[str, Manifest]:
    """Return the specification of every pod, with its labels, by name."""
    ray = named("RayCluster", "ray")["spec"]
    return {
        "postgres": named("StatefulSet", "postgres")["spec"]["template"],
        "prefect-server": named("Deployment", "prefect-server")["spec"]["template"],
        "prefect-worker": named("Deployment", "prefect-worker")["spec"]["template"],
        "ray-head": ray["headGroupSpec"]["template"],
        "ray-worker": ray["workerGroupSpecs"][0]["template"],
        "flow-run": JOB["spec"]["template"],
    }


PODS = pod_specs()
CONTAINERS = [
    (name, each)
    for name, pod in PODS.items()
    for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
]


def test_every_file_is_a_resource() -> None:
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(KUSTOMIZATION["resources"])


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_is_valid(manifest: Manifest) -> None:
    if manifest["kind"] == "RayCluster":
        RayCluster.model_validate(manifest)
        return
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(manifest, KUBERNETES, strict=True)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PodTemplate(Strict):
    metadata: dict[str, dict[str, str]]
    spec: Manifest


class Group(Strict):
    rayStartParams: dict[str, str]
    template: PodTemplate


class WorkerGroup(Group):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int


class AuthOptions(Strict):
    mode: Literal["token"]


class RayClusterSpec(Strict):
    rayVersion: str
    authOptions: AuthOptions
    headGroupSpec: Group
    workerGroupSpecs: list[WorkerGroup]


class RayCluster(Strict):
    """The fields of KubeRay's RayCluster that we use; the whole file was checked against the definition of v1."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: dict[str, str]
    spec: RayClusterSpec


@pytest.mark.parametrize("name", ["ray-head", "ray-worker"])
def test_the_pods_of_ray_are_valid(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    pod = {"apiVersion": "v1", "kind": "Pod", **PODS[name]}
    validator.validate(pod, KUBERNETES, strict=True)


def test_prefect_makes_a_valid_job_of_the_template() -> None:
    """By the code of Prefect's worker, which also refuses a manifest that it cannot use."""
    worker = pytest.importorskip("prefect_kubernetes.worker")
    validator = pytest.importorskip("kubernetes_validate")
    with temporary_settings({PREFECT_API_URL: "http://prefect.example.org/api"}):  # nothing is asked of it
        configuration = asyncio.run(worker.KubernetesWorkerJobConfiguration.from_template_and_values(FLOW_JOB, {}))
    configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="my run"))
    job = configuration.job_manifest
    validator.validate(job, KUBERNETES, strict=True)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["prefect", "flow-run", "execute"]
    names = [each["name"] for each in container["env"]]
    assert {"PREFECT__FLOW_RUN_ID", "RAY_ADDRESS", "RAY_AUTH_TOKEN"} <= set(names)
    assert "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR" not in names, "Prefect would start a second job"
    assert "prefect.io/flow-run-id" in job["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("overlay", ["base", "gpu"])
def test_kustomize_renders_it(overlay: str, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    subprocess.run(["bash", DEPLOYMENTS / "secrets.sh", tmp_path / "kubernetes" / "base"], check=True)
    command = ["kubectl", "kustomize", tmp_path / "kubernetes" / overlay]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(rendered)}
    [image] = {re.sub("^.*(?=registry)", "", each) for each in re.findall(r"image: (registry\S+)", rendered)}
    assert found["ConfigMap", "flow-image"]["data"] == {"EMBODYFLOW_IMAGE": image}
    assert image.endswith("-cu130") == (overlay == "gpu")
    limits = found["RayCluster", "ray"]["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]
    assert limits["limits"].get("nvidia.com/gpu") == (1 if overlay == "gpu" else None)


def test_flow_runs_have_the_image_of_the_rest() -> None:
    [image] = KUSTOMIZATION["images"]
    assert image["name"] == "embodyflow" and image["newTag"] == __version__
    literal = f"EMBODYFLOW_IMAGE={image['newName']}:{image['newTag']}"
    assert KUSTOMIZATION["configMapGenerator"][0]["literals"] == [literal]
    [gpu] = GPU["images"]
    assert gpu["name"] == image["newName"]
    assert GPU["configMapGenerator"][0]["literals"] == [f"EMBODYFLOW_IMAGE={image['newName']}:{gpu['newTag']}"]
    assert FLOW_JOB["variables"]["properties"]["image"]["default"] == "EMBODYFLOW_IMAGE"


def test_images_are_pinned() -> None:
    found = {container["image"] for _, container in CONTAINERS}
    assert found == {"embodyflow", "postgres:17.6-bookworm", "{{ image }}"}
    assert all(is_pinned(image) for image in found if ":" in image)


@pytest.mark.parametrize(("name", "container"), CONTAINERS, ids=[f"{name}-{each['name']}" for name, each in CONTAINERS])
def test_a_container_has_no_privileges_and_says_what_it_needs(name: str, container: Manifest) -> None:
    pod = PODS[name]["spec"]["securityContext"]
    assert pod["runAsNonRoot"] and pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys() and "memory" in container["resources"][
        "limits"
    ]


@pytest.mark.parametrize("name", [name for name in PODS if name != "prefect-worker"])
def test_only_the_worker_can_ask_kubernetes(name: str) -> None:
    assert PODS[name]["spec"]["automountServiceAccountToken"] is False


def test_services_have_probes() -> None:
    for name in ("postgres", "prefect-server"):
        assert {"readinessProbe", "livenessProbe"} <= PODS[name]["spec"]["containers"][0].keys()
    assert "livenessProbe" in PODS["prefect-worker"]["spec"]["containers"][0]  # KubeRay probes Ray


def test_settings_exist_and_hold_no_secrets() -> None:
    for name, container in CONTAINERS:
        settings = {each["name"]: each for each in container.get("env", ())}
        assert not unknown_settings(settings), name
        secret = [each for each in settings if SECRET.search(each) and not each.startswith("PREFECT_INTEGRATIONS_")]
        assert all("valueFrom" in settings[each] for each in secret), name


def test_settings_of_the_integration_exist() -> None:
    settings = pytest.importorskip("prefect_kubernetes.settings").KubernetesSettings
    names = [each["name"] for each in PODS["prefect-worker"]["spec"]["containers"][0]["env"]]
    for name in names:
        if name.startswith(prefix := "PREFECT_INTEGRATIONS_KUBERNETES_"):
            group, _, field = name.removeprefix(prefix).lower().partition("_")
            assert field in settings.model_fields[group].annotation.model_fields, name


def test_what_is_referred_to_exists() -> None:
    secrets = {each["name"] for each in KUSTOMIZATION["secretGenerator"]} | {"ray"}  # KubeRay makes that one
    maps = {each["name"] for each in KUSTOMIZATION["configMapGenerator"]}
    for _, container in CONTAINERS:
        for source in container.get("envFrom", ()):
            assert source.get("secretRef", {}).get("name", "ray") in secrets
            assert source.get("configMapRef", {}).get("name", "flow-job") in maps
        for setting in container.get("env", ()):
            assert setting.get("valueFrom", {}).get("secretKeyRef", {}).get("name", "ray") in secrets
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for pod in PODS.values()
        for volume in pod["spec"].get("volumes", ())
        if "persistentVolumeClaim" in volume
    ]
    assert set(claims) == {"runs"} and len(claims) == 3
    assert named("PersistentVolumeClaim", "runs")["spec"]["accessModes"] == ["ReadWriteMany"]
    for _, container in CONTAINERS:
        mounts = {each["name"]: each["mountPath"] for each in container.get("volumeMounts", ())}
        assert mounts.get("runs", "/app/runs") == "/app/runs"


def test_secrets_are_those_that_the_script_writes(tmp_path: Path) -> None:
    subprocess.run(["bash", DEPLOYMENTS / "secrets.sh", tmp_path], check=True, capture_output=True)
    for each in KUSTOMIZATION["secretGenerator"]:
        assert [(tmp_path / path).is_file() for path in each["envs"]] == [True]
    ignored = subprocess.run(["git", "check-ignore", "-q", BASE / "secrets" / "postgres.env"], cwd=ROOT)
    assert ignored.returncode == 0, "secrets could be committed"


def test_addresses_name_services() -> None:
    assert named("Service", "prefect-server")["spec"]["ports"] == [{"port": 4200}]
    assert named("Service", "postgres")["spec"]["ports"] == [{"port": 5432}]
    for container in (*PODS["prefect-worker"]["spec"]["initContainers"], *PODS["prefect-worker"]["spec"]["containers"]):
        settings = {each["name"]: each["value"] for each in container["env"]}
        assert settings["PREFECT_API_URL"] == "http://prefect-server:4200/api"
    head = f"{named('RayCluster', 'ray')['metadata']['name']}-head-svc"  # KubeRay's name for it
    [container] = JOB["spec"]["template"]["spec"]["containers"]
    assert {"name": "RAY_ADDRESS", "value": f"{head}:6379"} in container["env"]


def test_network_policies_let_clients_pass_and_no_one_else() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in MANIFESTS if each["kind"] == "NetworkPolicy"}
    assert policies["deny-ingress"] == {"podSelector": {}, "policyTypes": ["Ingress"]}

    def reaches(target: str) -> set[str]:
        passing: set[str] = set()
        for policy in policies.values():
            if policy.get("ingress") and _matches(policy["podSelector"], target):
                sources = [peer["podSelector"] for rule in policy["ingress"] for peer in rule["from"]]
                passing |= {name for name in PODS for source in sources if _matches(source, name)}
        return passing

    assert reaches("postgres") == {"prefect-server"}
    assert reaches("prefect-server") == {"prefect-worker", "flow-run"}
    assert reaches("ray-head") == reaches("ray-worker") == {"ray-head", "ray-worker", "flow-run"}
    assert reaches("flow-run") == {"ray-head", "ray-worker", "flow-run"}
    assert reaches("prefect-worker") == set()


def _matches(selector: Manifest, pod: str) -> bool:
    return selector["matchLabels"].items() <= PODS[pod]["metadata"]["labels"].items()


def test_commands_exist() -> None:
    scripts = [" ".join(PODS["prefect-worker"]["spec"]["initContainers"][0]["args"])]
    scripts.append(JOB["spec"]["template"]["spec"]["containers"][0]["command"][2])
    commands = [words for script in scripts for words in commands_in(script)]
    commands += [PODS[name]["spec"]["containers"][0]["args"] for name in ("prefect-server", "prefect-worker")]
    commands.append(FLOW_JOB["variables"]["properties"]["command"]["default"].split())
    assert [words[:2] for words in commands] == [
        ["prefect", "work-pool"],
        ["prefect", "--no-prompt"],
        ["ray", "start"],
        ["prefect", "server"],
        ["prefect", "worker"],
        ["prefect", "flow-run"],
    ]
    for words in commands:
        check_command(words)


def test_the_work_pool_is_that_of_the_deployments() -> None:
    deployments = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())["deployments"]
    assert {each["work_pool"]["name"] for each in deployments} == {WORK_POOL}
    [worker] = PODS["prefect-worker"]["spec"]["containers"]
    assert f"--pool={WORK_POOL}" in worker["args"]


def test_ray_has_the_version_that_was_tested() -> None:
    [pin] = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray==")]
    assert named("RayCluster", "ray")["spec"]["rayVersion"] == pin.removeprefix("ray==")
    assert named("RayCluster", "ray")["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_kubernetes_starts_another_pod_after_an_eviction() -> None:
    """One at a time, and without an end to evictions: a crash of the flow itself is Prefect's."""
    job = JOB["spec"]
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert job["podFailurePolicy"] == {"rules": [rule]}
    assert job["podReplacementPolicy"] == "Failed" and job["backoffLimit"] == 3
    assert job["template"]["spec"]["restartPolicy"] == "Never"
