"""An exported policy has a true model card, and goes to the hub with it."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from model_hub import model_hub
from picture_room import WORDS as ROOM

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.policies.policy_registry import build_policy
from embodyflow.record import model_card as module
from embodyflow.record.model_card import model_card, write_model_card

FACTS = {"seed": 1, "iterations": 3, "train_seconds": 12.5, "weights_digest": "ab" * 32}
SUCCESS = FACTS | {
    "success_rate_before": 0.25,
    "success_rate_after": 0.96875,
    "success_interval_before": [0.16, 0.37],
    "success_interval_after": [0.893, 0.991],
    "sampled_success_rate_before": 0.2,
    "sampled_success_rate_after": 0.9,
    "num_goals": 64,
}
RETURNS = FACTS | {
    "return_before": -40.0,
    "return_after": -4.5,
    "return_interval_before": [-50.0, -30.0],
    "return_interval_after": [-5.0, -4.0],
    "num_evaluation_episodes": 10,
}


@pytest.fixture
def config(tiny_config: Callable[..., RunConfig]) -> RunConfig:
    return tiny_config()


def exported(config: RunConfig, folder: Path) -> dict[str, np.ndarray]:
    """Export a policy of random weights with its card; return the weights."""
    policy = build_policy(config.policy, "cpu")
    weights = {name: tensor.numpy() for name, tensor in policy.model.state_dict().items()}
    policy.export(weights, folder)
    write_model_card(folder, config, RETURNS if config.job == "control" else SUCCESS)
    return weights


def code_in(card: ModelCard, folder: Path) -> str:
    """Return the card's Python with the folder in its place."""
    [code] = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    return code.replace('"…"', repr(str(folder)))


def test_the_card_states_task_result_seed_and_licence(config: RunConfig) -> None:
    card = model_card(config, SUCCESS)
    assert (card.data.library_name, card.data.pipeline_tag, card.data.license) == ("embodyflow", "robotics", None)
    [result] = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("success_rate", 0.96875)
    assert result.metric_name.startswith("success rate on 64 goals") and "[0.893, 0.991]" in result.metric_name
    assert "| success rate | 0.25 [0.16, 0.37] | 0.9688 [0.893, 0.991] |" in card.text
    assert "reach-v3" in card.text and f"| seed | `{config.seed}` |" in card.text and "Choose a licence" in card.text
    assert str(ModelCard(str(card)).data) == str(card.data)  # the text is a card that the hub can read


def test_a_control_job_states_its_return_or_that_it_was_not_evaluated() -> None:
    config = compose_config(["experiment=reacher", "run_id=reacher"])
    card = model_card(config, RETURNS)
    assert card.data.pipeline_tag == "reinforcement-learning"
    assert "| return | -40 [-50, -30] | -4.5 [-5, -4] |" in card.text and "10 evaluation episodes" in card.text
    card = model_card(config, FACTS | {"return_first": -40.0, "return_last": -4.5})
    assert card.data.eval_results is None and "was not evaluated" in card.text and "-4.5 in the last" in card.text


REACHER = ("experiment=reacher", "policy.state_dim=10", "policy.action_dim=2", "policy.hidden_size=8")
STEERED = (*(word for word in ROOM if not word.startswith("policy=")), "algorithm=dsrl", "policy.hidden_size=8")


@pytest.mark.parametrize("words", [(), REACHER, STEERED], ids=["tiny", "reacher", "steered"])
def test_the_cards_code_loads_the_policy(words: tuple[str, ...], config: RunConfig, tmp_path: Path) -> None:
    if words:
        config = compose_config([*words, "run_id=exported"])
    weights = exported(config, tmp_path)
    assert "policy.path=" not in (tmp_path / "README.md").read_text(), "it loads no such checkpoint"
    names: dict[str, object] = {}
    exec(code_in(ModelCard.load(tmp_path / "README.md"), tmp_path), names)
    loaded = names["policy"].model if "policy" in names else names["model"]
    found = loaded.state_dict()  # type: ignore[attr-defined]
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], torch.from_numpy(array)) for name, array in weights.items())


LICENSED = "---\nlicense: apache-2.0\n{base}---\n\nA model.\n"


@pytest.mark.parametrize(
    ("readme", "licence", "base"),
    [
        (LICENSED.format(base="base_model: someone/else\n"), "apache-2.0", "someone/else"),
        (LICENSED.format(base=""), "apache-2.0", None),
        ("No metadata.\n", None, None),
        ("---\nlicense: [\n---\n", None, None),
        (None, None, None),
    ],
)
def test_the_licence_of_a_base_model_in_a_folder_is_taken_from_its_card(
    tmp_path: Path, readme: str | None, licence: str | None, base: str | None
) -> None:
    if readme is not None:
        (tmp_path / "README.md").write_text(readme)
    config = compose_config(["experiment=math", "run_id=sums"])
    policy = config.policy.model_copy(update={"path": str(tmp_path), "scratch": None})
    card = model_card(config.model_copy(update={"policy": policy}), SUCCESS)
    assert (card.data.license, card.data.base_model, card.data.library_name) == (licence, base, "transformers")
    assert ("is not known here" in card.text) == (licence is None)


def test_an_unreachable_hub_leaves_the_licence_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(name: str) -> bool:
        raise ConnectionError("no network here")

    monkeypatch.setattr(module, "repo_exists", unreachable)
    config = compose_config(["experiment=math", "run_id=sums"])
    policy = config.policy.model_copy(update={"path": "no-such-owner/no-such-model", "scratch": None})
    card = model_card(config.model_copy(update={"policy": policy}), SUCCESS)
    assert (card.data.base_model, card.data.license) == ("no-such-owner/no-such-model", None)
    assert "licence of no-such-owner/no-such-model is not known: no network here" in caplog.text


def test_the_folder_goes_to_the_hub_with_its_card(config: RunConfig, tmp_path: Path) -> None:
    exported(config, tmp_path)
    with model_hub() as hub:
        api = HfApi(endpoint=hub.endpoint, token="hf_secret")
        api.create_repo("me/reach", exist_ok=True)
        api.upload_folder(repo_id="me/reach", folder_path=tmp_path)
    assert hub.files == {"me/reach": {path.name: path.read_bytes() for path in tmp_path.iterdir()}}
    assert hub.files["me/reach"].keys() == {"README.md", "config.json", "model.safetensors"}
    assert hub.tokens == ["Bearer hf_secret"]


def test_push_to_hub_of_a_loaded_policy_says_how_to_load_it(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(config, tmp_path)
    model = TinyVLA.from_pretrained(tmp_path)
    with model_hub() as hub:
        api = HfApi(endpoint=hub.endpoint)
        monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", lambda **_: api)
        model.push_to_hub("me/reach", token="hf_secret")
    files = hub.files["me/reach"]
    assert files.keys() == {"README.md", "config.json", "model.safetensors"}
    assert files["model.safetensors"] == (tmp_path / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert "TinyVLA.from_pretrained" in card and "More Information Needed" not in card
