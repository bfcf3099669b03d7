"""Fixtures that tests share: a tiny run with the real environment and policy, a Prefect server and a Ray cluster."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import os
import pickle
import tarfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from hydra._internal.defaults_list import DefaultsList
    from ray_head import RayHead
    from servers import PrefectServer

    from embodyflow.config import RunConfig
    from embodyflow.training.fsdp_trainer import FSDPTrainer

ROOT = Path(__file__).resolve().parents[1]

# Examples have no deadline, since machines differ, and no randomness, so that a commit always has the same verdict.
settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.load_profile("reproducible")


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which would scan them again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart() -> None:
    """Cache what Hydra composes of files and parses: some five hundred tests compose some twenty files each.

    Hydra still checks and applies the values that a test overrides. Modules compose while they are collected.
    """
    from hydra._internal import config_loader_impl, defaults_list
    from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
    from hydra._internal.defaults_list import Overrides
    from hydra.core.override_parser.overrides_parser import OverridesParser

    loader = config_loader_impl.ConfigLoaderImpl
    choose, merge = config_loader_impl.create_defaults_list, loader._compose_config_from_defaults_list
    read, name_choices = ConfigRepository.load_config, defaults_list._create_interpolation_map
    parse = OverridesParser.parse_rule
    parsed: dict[tuple[str, str], bytes] = {}
    chosen: dict[Any, DefaultsList] = {}
    merged: dict[int, bytes] = {}
    own: dict[str, bytes] = {}

    def parse_rule(self: Any, text: str, rule: str) -> Any:
        if (text, rule) not in parsed:
            parsed[text, rule] = pickle.dumps(parse(self, text, rule))
        return pickle.loads(parsed[text, rule])

    def create_defaults_list(repo: Any, config_name: Any, overrides_list: list[Any], **how: Any) -> DefaultsList:
        values = Overrides(repo, overrides_list).config_overrides
        files = [each.input_line for each in overrides_list if each not in values]
        key = (config_name, *files, *(source.path for source in repo.get_sources()))
        if key not in chosen:
            chosen[key] = choose(repo=repo, config_name=config_name, overrides_list=overrides_list, **how)
        return replace(chosen[key], config_overrides=values)

    def compose(self: Any, defaults: list[Any], repo: Any) -> Any:
        key = id(defaults)  # of a list that ``chosen`` keeps alive
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults=defaults, repo=repo))
        return pickle.loads(merged[key])

    def load_config(self: Any, config_path: str) -> Any:
        if not config_path.startswith("hydra/"):
            return read(self, config_path)
        if config_path not in own:  # Hydra's own files do not change
            own[config_path] = pickle.dumps(read(self, config_path))
        return pickle.loads(own[config_path])

    def copy_repository(self: Any, delegate: Any) -> None:
        """Copy the repository of files alone: Hydra replaces its sources and does not change them."""
        self.delegate, self.cache = copy.copy(delegate), {}

    def create_interpolation_map(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
        """Skip the names of all choices where no default refers to one: that is a sixth of the time."""
        needed = any(default.is_interpolation() for default in defaults)
        return name_choices(overrides, defaults, self_added) if needed else None

    OverridesParser.parse_rule = parse_rule
    defaults_list._create_interpolation_map = create_interpolation_map
    config_loader_impl.create_defaults_list = create_defaults_list
    loader._compose_config_from_defaults_list = compose
    ConfigRepository.load_config = load_config
    CachingConfigRepository.__init__ = copy_repository


# Two groups of two episodes of 20 steps (four decisions), a policy of 32 units.
TINY = (
    "experiment=embodied",
    "iterations=1",
    "run_id=tiny",
    "env.max_steps=20",
    "policy.hidden_size=32",
    "policy.num_layers=1",
    "rollout.num_workers=1",
    "rollout.envs_per_worker=2",
    "rollout.num_groups=2",
    "rollout.group_size=2",
    "trainer.epochs=1",
    "trainer.num_minibatches=1",
    "warm_start.num_demos=2",
    "warm_start.steps=3",
    "warm_start.batch_size=4",
    "evaluation.num_goals=2",
    "tracking.tensorboard=false",
)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., RunConfig]:
    """Return a function that composes the tiny run with more overrides; later ones win."""

    from embodyflow.config.composition.compose import (
        compose_config,  # takes seconds to import, and most tests do not need it
    )

    @functools.cache  # the result is frozen, and many tests need the same one
    def compose(*overrides: str) -> RunConfig:
        chosen = {override.partition("=")[0]: override for override in (*TINY, *overrides)}
        return compose_config(list(chosen.values()))

    return compose


@pytest.fixture(scope="session")
def shared_services() -> list[RayHead | PrefectServer]:
    """Return the servers that tests share, which :func:`shared_services_answer` starts again."""
    return []


@pytest.fixture(autouse=True)
def shared_services_answer(shared_services: list[RayHead | PrefectServer]) -> None:
    """Start a shared server again, with a warning, that stopped answering during an earlier test."""
    for each in shared_services:
        if problem := each.problem():
            warnings.warn(problem, stacklevel=1)
            each.stop()
            each.start()


@contextmanager
def _shared(service: RayHead | PrefectServer, services: list[RayHead | PrefectServer]) -> Iterator[None]:
    """Run a server for the block, among those that tests share."""
    try:
        service.start()
        services.append(service)
        yield
        services.remove(service)
    finally:
        service.stop()


@pytest.fixture(scope="session")
def prefect_api(
    tmp_path_factory: pytest.TempPathFactory, shared_services: list[RayHead | PrefectServer]
) -> Iterator[str]:
    """Yield the address of a Prefect server that tests share, since each run would take seconds to start its own."""
    from servers import PrefectServer

    server = PrefectServer(tmp_path_factory.mktemp("server"))
    with _shared(server, shared_services):
        yield server.url


@pytest.fixture(scope="session")
def ray_env(
    tmp_path_factory: pytest.TempPathFactory, missing_assets: str, shared_services: list[RayHead | PrefectServer]
) -> Iterator[dict[str, str]]:
    """Yield the environment of a Ray cluster for tests that do not start or lose one.

    Tests that look for leftover processes must not use it, since its own processes stay. Its workers have the
    environment variables that are set when it starts, so it starts after those of LIBERO's assets.
    """
    from ray_head import RayHead

    head = RayHead(tmp_path_factory.mktemp("ray"))
    with _shared(head, shared_services):
        yield head.environment


@pytest.fixture(scope="session")
def missing_assets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Provide LIBERO's assets from LIBERO_ASSETS or the unpacked test assets; yield why there are none, or ""."""
    if importlib.util.find_spec("libero") is None:
        yield "the extra libero is not installed: make install EXTRAS=dev,libero"
        return
    if os.environ.get("LIBERO_ASSETS"):
        yield ""
        return
    import pyarrow

    packed = Path(os.environ.get("EMBODYFLOW_SHARED", ROOT.parent / "shared")) / "data" / "libero" / "assets.tar.zst"
    if not packed.is_file():
        yield f"no assets: neither LIBERO_ASSETS nor {packed}"
        return
    folder = tmp_path_factory.mktemp("libero")
    with pyarrow.input_stream(packed, compression="zstd") as stream, tarfile.open(fileobj=stream, mode="r|") as files:
        files.extractall(folder, filter="data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBERO_ASSETS", str(folder / "assets"))
        yield ""


@pytest.fixture(scope="session")
def libero_assets(missing_assets: str) -> None:
    """Skip without LIBERO's assets."""
    if missing_assets:
        pytest.skip(missing_assets)


@pytest.fixture
def close() -> Iterator[list[FSDPTrainer]]:
    """Yield a list of trainers to close after the test."""
    trainers: list[FSDPTrainer] = []
    yield trainers
    for trainer in trainers:
        trainer.close()
