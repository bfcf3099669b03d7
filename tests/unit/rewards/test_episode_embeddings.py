"""Embeddings of episodes from states and from a small V-JEPA 2 with random weights."""

from pathlib import Path

import pytest
import torch
from other_device import NAME, other_device
from tensordict import TensorDict

from embodyflow.rewards.progress.episode_embeddings import build_embedding
from embodyflow.rewards.progress.progress_config import StateEmbeddingConfig, VJEPA2EmbeddingConfig


def episodes(columns: dict[str, torch.Tensor], num_actions: list[int]) -> TensorDict:
    """Return episodes with the given numbers of actions, two actions per decision."""
    length = next(iter(columns.values())).shape[1]
    mask = torch.arange(2 * length) < torch.tensor(num_actions).unsqueeze(1)
    return TensorDict({**columns, "loss_mask": mask.unflatten(1, (-1, 2))}, batch_size=[len(num_actions)])


def test_states_are_resampled_from_start_to_end() -> None:
    states = torch.tensor([[[0.0, 5], [1, 6], [4, 7], [9, 9]], [[2.0, 1], [4, 3], [0, 0], [0, 0]]])
    final = torch.tensor([[5.0, 1], [8, 7]])
    rows = {"state": states, "final_state": final}
    embed = build_embedding(StateEmbeddingConfig(start=0, num_points=3), "cpu")
    # Times 0, 2 and 4 of four decisions, and 0, 1 and 2 of two; values after an episode's end are ignored.
    assert embed(episodes(rows, [8, 4])).tolist() == [[0, 5, 4, 7, 5, 1], [2, 1, 4, 3, 8, 7]]
    later = build_embedding(StateEmbeddingConfig(start=0.5, num_points=2), "cpu")
    # The last decision is half complete: times 1.75 and 3.5 of four decisions, and 0.75 and 1.5 of two.
    assert later(episodes(rows, [7, 3])).tolist() == [[3.25, 6.75, 5, 1], [3.5, 2.5, 8, 7]]
    # Time 3.0625 of four decisions: an eighth of the way from the last decision's state to the final one.
    within = build_embedding(StateEmbeddingConfig(start=0.875, num_points=1), "cpu")
    assert within(episodes(rows, [7, 1])).tolist()[0] == [9 - 4 / 8, 9 - 8 / 8]
    last = build_embedding(StateEmbeddingConfig(start=1, num_points=1), "cpu")
    assert last(episodes(rows, [5, 1])).tolist() == final.tolist()
    chosen = build_embedding(StateEmbeddingConfig(start=0, num_points=2, entries=(1,)), "cpu")
    assert chosen(episodes(rows, [5, 1])).tolist() == [[5, 1], [1, 7]]
    none = {name: column[:0] for name, column in rows.items()}
    assert embed(episodes(none, [])).shape == (0, 6)


def test_the_last_point_is_bit_identical_to_the_final_state() -> None:
    random = torch.Generator().manual_seed(0)
    rows = {"state": torch.randn(15, 5, 2, generator=random), "final_state": torch.randn(15, 2, generator=random)}
    mask = (torch.arange(15) < torch.arange(1, 16).unsqueeze(1)).unflatten(1, (5, 3))  # thirds are not exact in binary
    embed = build_embedding(StateEmbeddingConfig(start=0.3, num_points=4), "cpu")
    embedded = embed(TensorDict({**rows, "loss_mask": mask}, batch_size=[15]))
    assert torch.equal(embedded[:, -2:], rows["final_state"])


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import VJEPA2Config, VJEPA2Model

    sizes = {"patch_size": 8, "crop_size": 16, "frames_per_clip": 4, "hidden_size": 24, "num_attention_heads": 2}
    predictor = {"pred_hidden_size": 24, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}
    config = VJEPA2Config(num_hidden_layers=2, mlp_ratio=2, **sizes, **predictor)
    folder = tmp_path_factory.mktemp("vjepa2")
    torch.manual_seed(0)
    VJEPA2Model(config).save_pretrained(folder)
    return folder


def test_videos_are_encoded_one_by_one_and_to_their_end(model_folder: Path) -> None:
    embed = build_embedding(VJEPA2EmbeddingConfig(path=str(model_folder)), "cpu")
    videos = torch.randint(256, (3, 7, 20, 28, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    columns = {"image": videos[:, :6], "final_image": videos[:, 6]}
    rows = episodes(columns, [12, 3, 8])
    embedded = embed(rows)
    assert embedded.shape == (3, 24) and embedded.isfinite().all()
    assert len(embedded.unique(dim=0)) == 3
    for row in range(3):  # bit-identical without the other rows
        assert torch.equal(embed(rows[row : row + 1])[0], embedded[row])
    later = videos[:, :6].clone()
    later[1, 2:] = 0
    assert torch.equal(embed(episodes({**columns, "image": later}, [12, 3, 8])), embedded)
    final = torch.stack([videos[0, 6], videos[1, 0], videos[2, 6]])
    changed = embed(episodes({**columns, "final_image": final}, [12, 3, 8])) != embedded
    assert changed.any(dim=1).tolist() == [False, True, False]
    assert embed(rows[:0]).shape == (0, 24)


def test_embeddings_are_the_same_on_another_device(model_folder: Path) -> None:
    config = VJEPA2EmbeddingConfig(path=str(model_folder))
    video = torch.arange(3360).view(1, 2, 20, 28, 3).to(torch.uint8)
    rows = episodes({"image": video, "final_image": video[:, 0]}, [4])
    with other_device():
        embedded = build_embedding(config, NAME)(rows)
    assert embedded.device.type == "cpu"
    torch.testing.assert_close(embedded, build_embedding(config, "cpu")(rows), atol=1e-5, rtol=1e-5)


def test_frames_are_center_cropped_and_normalised(model_folder: Path) -> None:
    embed = build_embedding(VJEPA2EmbeddingConfig(path=str(model_folder)), "cpu")
    grey = embed._preprocess(torch.full((2, 40, 80, 3), 128, dtype=torch.uint8))
    assert grey.shape == (2, 3, 16, 16)
    expected = (128 / 255 - 0.485) / 0.229
    torch.testing.assert_close(grey[:, 0], torch.full((2, 16, 16), expected), atol=1e-5, rtol=0)
    stripes = torch.zeros(1, 18, 36, 3, dtype=torch.uint8)
    stripes[:, :, 18:] = 255  # black and white halves, also in the crop
    seen = embed._preprocess(stripes)[0, 0]
    assert (seen[:, :7] < 0).all() and (seen[:, 9:] > 0).all()


def test_a_folder_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        VJEPA2EmbeddingConfig(path=str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="a model of type vit; allowed is vjepa2"):
        VJEPA2EmbeddingConfig(path=str(tmp_path))
