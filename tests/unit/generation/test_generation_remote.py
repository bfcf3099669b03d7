"""Failures between the remote engine and its server."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generation_engines import completions_server
from language_models import save_model
from pydantic import ValidationError

from embodyflow.config.generation import HFConfig, RemoteConfig
from embodyflow.errors import ConfigError
from embodyflow.generation import http_client
from embodyflow.generation.interface import GenerationError, Request, Sampling
from embodyflow.generation.remote import RemoteEngine
from embodyflow.generation.transformers_engine.engine import HFEngine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def served(folder: Path) -> HFEngine:
    return HFEngine(HFConfig(), folder, "cpu")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_PAUSE", 0.01)


def test_responses_that_end_early_are_retried(folder: Path, served: HFEngine) -> None:
    requests, sampling = [Request((1, 2), seed) for seed in range(4)], Sampling(6)
    with completions_server(served, failures=3) as address:
        engine = RemoteEngine(RemoteConfig(base_url=address, max_retries=3, max_concurrency=1), folder)
        completions = engine.generate(requests, sampling)
        engine.close()
    assert [one.token_ids for one in completions] == [one.token_ids for one in served.generate(requests, sampling)]


def test_retries_are_bounded(folder: Path, served: HFEngine) -> None:
    with (
        completions_server(served, failures=100) as address,
        pytest.raises(
            GenerationError, match="/v1/completions: attempt 3: RemoteProtocolError the response ended early"
        ),
    ):
        RemoteEngine(RemoteConfig(base_url=address, max_retries=2), folder)


def test_a_server_that_cannot_be_reached_is_named(folder: Path) -> None:
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(GenerationError, match=f"{address}/v1/models: attempt 2: ConnectError"):
            RemoteEngine(RemoteConfig(base_url=address, max_retries=1), folder)


def test_log_probs_of_another_distribution_are_refused_at_the_start(folder: Path, served: HFEngine) -> None:
    with (
        completions_server(served, raw_log_probs=True) as address,
        pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"),
    ):
        RemoteEngine(RemoteConfig(base_url=address), folder)


def test_a_model_that_is_not_served_is_named(folder: Path, served: HFEngine) -> None:
    with (
        completions_server(served, model="other") as address,
        pytest.raises(ConfigError, match=r"model=mine: .* allowed is other"),
    ):
        RemoteEngine(RemoteConfig(base_url=address, model="mine"), folder)


def test_weight_updates_are_refused_without_a_method(folder: Path, served: HFEngine) -> None:
    with completions_server(served) as address:
        engine = RemoteEngine(RemoteConfig(base_url=address), folder)
        with pytest.raises(ConfigError, match="weight_update=refused"):
            engine.update_weights({"model.norm.weight": np.ones(32)}, 1)
        engine.close()


def test_a_key_that_is_not_set_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="api_key_env=NO_SUCH_KEY"):
        RemoteEngine(RemoteConfig(base_url="http://127.0.0.1", api_key_env="NO_SUCH_KEY"), folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "127.0.0.1:8000"}, "base_url"),
        ({"weight_update": "reload_weights"}, "weights_folder=None: must be a folder that the server can read too"),
        ({"weights_folder": "/tmp"}, "weights_folder='/tmp': must be null with weight_update=refused"),
        ({"temperature": 1.0}, "temperature"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RemoteConfig(**({"base_url": "http://127.0.0.1"} | settings))
