import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openvla_models import new_config, new_policy
from PIL import Image

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.openvla.actions_openvla import ActionCodec
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.embodied.openvla.images_openvla import ImageProcessor, crop_center, resize
from embodyflow.policies.embodied.openvla.tokenizer_openvla import AFTER, BEFORE, build_tokenizer, prompt_ids
from embodyflow.policies.embodied.openvla.vision_openvla import TowerSizes

STATISTICS = {"q01": [-0.5, 0.0, 0.0], "q99": [0.5, 0.2, 1.0], "mask": [True, True, False]}


def tower(family: str, size: int = 28) -> TowerSizes:
    return TowerSizes(family, size, 14, 8, 16, 2, 2)  # type: ignore[arg-type]


def processor(strategy: str = "resize-naive", size: int = 28, crop: bool = False) -> ImageProcessor:
    return ImageProcessor([tower("dinov2", size), tower("siglip", size)], {}, strategy, "bicubic", crop)


def picture(height: int, width: int) -> np.ndarray:
    """Draw slopes, an edge and some noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([255 * x / width, 255 * y / height, 128 + 100 * np.sin(x / 5.0)], -1)
    return np.where((x > width // 2)[..., None], smooth, rng.integers(0, 256, (height, width, 3))).astype(np.uint8)


@pytest.mark.parametrize("name", ["lanczos", "bicubic"])
@pytest.mark.parametrize("shape", [(256, 256), (64, 64), (97, 131)])
def test_images_are_resized_as_pillow_does(name: str, shape: tuple[int, int]) -> None:
    image, pillow = picture(*shape), Image.Resampling[name.upper()]
    ours = resize(torch.from_numpy(image).movedim(-1, 0)[None].float(), 84, name)[0]  # type: ignore[arg-type]
    theirs = np.moveaxis(np.asarray(Image.fromarray(image).resize((84, 84), pillow)), -1, 0)
    assert np.abs(ours.numpy() - theirs).max() <= 1


def test_images_are_cropped_as_tensorflow_does() -> None:
    """Cropping leaves a slope a little less steep: TensorFlow's crop_and_resize aligns corners."""
    slope = torch.arange(101.0).expand(1, 3, 101, 101)
    cropped = crop_center(slope, 0.9)[0]
    ends = 50 * (1 - np.sqrt(0.9)), 50 * (1 + np.sqrt(0.9))
    expected = np.floor(np.linspace(*ends, 101) * 255.5 / 255)
    np.testing.assert_allclose(cropped[0, 7], expected, atol=0)
    assert torch.equal(crop_center(torch.full((1, 3, 9, 9), 255.0), 0.9), torch.full((1, 3, 9, 9), 255.0))


def test_each_tower_gets_its_own_colours() -> None:
    pixels = processor()(torch.full((2, 28, 28, 3), 255, dtype=torch.uint8))
    assert pixels.shape == (2, 6, 28, 28) and pixels.dtype == torch.float32
    imagenet = [(1 - mean) / std for mean, std in ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))]
    np.testing.assert_allclose(pixels[1, :, 5, 5], [*imagenet, 1, 1, 1], rtol=1e-6)
    own = {"means": [[0.0, 0.0, 0.0]] * 2, "stds": [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]]}
    given_by_checkpoint = ImageProcessor([tower("dinov2"), tower("siglip")], own, "resize-naive", "bicubic", False)
    pixels = given_by_checkpoint(torch.full((1, 28, 28, 3), 255, dtype=torch.uint8))
    np.testing.assert_allclose(pixels[0, :, 0, 0], [1, 1, 1, 2, 2, 2])


def test_a_letterbox_keeps_proportions_and_pads_with_the_mean() -> None:
    wide = torch.from_numpy(picture(14, 28))[None]
    pixels = processor("letterbox")(wide)
    np.testing.assert_allclose(pixels[0, 3:, [0, 6, 21, 27]], (127 / 255 - 0.5) / 0.5, rtol=1e-5)
    np.testing.assert_allclose(pixels[0, 3:, 7:21], wide[0].movedim(-1, 0) / 127.5 - 1.0, atol=1e-6)
    squeezed = processor()(wide)
    assert not torch.allclose(squeezed, pixels)


@pytest.mark.parametrize("keys", [{"strategy": "resize-crop"}, {"towers": [tower("dinov2"), tower("siglip", 42)]}])
def test_unknown_preparations_of_images_are_refused(keys: dict[str, object]) -> None:
    arguments = {"towers": [tower("siglip")], "strategy": "letterbox"} | keys
    with pytest.raises(ConfigError, match=r"policy.path: image_sizes=.* allowed are"):
        ImageProcessor(preprocessing={}, resample="bicubic", center_crop=False, **arguments)  # type: ignore[arg-type]


def test_tokens_decode_by_the_papers_formula() -> None:
    codec = ActionCodec(STATISTICS, 256, "as_predicted")
    tokens = torch.tensor([[0, 127, 254], [255, 10, 0]])
    edges = np.linspace(-1, 1, 256)
    centres = (edges[:-1] + edges[1:]) / 2
    values = centres[np.minimum(tokens.numpy(), 254)]
    expected = values.copy()
    expected[:, 0] = 0.5 * (values[:, 0] + 1) * (0.5 - -0.5) - 0.5
    expected[:, 1] = 0.5 * (values[:, 1] + 1) * 0.2
    actions = codec.actions(tokens)
    assert actions.shape == (2, 1, 3) and actions.dtype == torch.float32
    np.testing.assert_allclose(actions[:, 0], expected, atol=1e-6)


def test_the_gripper_is_inverted_once() -> None:
    codec = ActionCodec(STATISTICS, 256, "binary_inverted")
    opened, closed = (int((value + 1) / 2 * 255) for value in (0.99, 0.01))  # 1 opens in the data
    actions = codec.actions(torch.tensor([[127, 127, opened], [127, 127, closed]]))
    assert actions[:, 0, 2].tolist() == [-1.0, 1.0]  # -1 opens in LIBERO
    positions = codec.positions(actions)
    assert codec.actions(positions.round().long())[:, 0, 2].tolist() == [-1.0, 1.0]
    np.testing.assert_allclose(positions[:, 2], [254, 127], atol=0.6)


@given(st.lists(st.integers(0, 254), min_size=6, max_size=6))
def test_every_token_survives_decoding_and_encoding(tokens: list[int]) -> None:
    codec = ActionCodec(STATISTICS, 256, "as_predicted")
    row = torch.tensor([tokens])
    np.testing.assert_allclose(codec.positions(codec.actions(row)), row, atol=1e-3)


def test_actions_beyond_the_quantiles_get_the_outermost_bins() -> None:
    codec = ActionCodec({**STATISTICS, "mask": [True] * 3}, 256, "as_predicted")
    far = torch.tensor([[[9.0, -9.0, 1.0]]])
    assert codec.positions(far).tolist() == [[254.0, 0.0, 254.0]]
    constant = ActionCodec({"q01": [0.3], "q99": [0.3]}, 256, "as_predicted")  # a dimension that never moved
    assert constant.positions(torch.tensor([[[0.3]]])).isfinite().all()
    np.testing.assert_allclose(constant.actions(torch.tensor([[17]])), 0.3, rtol=1e-6)


def test_the_prompt_ends_with_the_token_before_actions() -> None:
    tokenizer = build_tokenizer()
    ids = prompt_ids(tokenizer, "Pick UP?", 20)
    words = tokenizer.convert_ids_to_tokens(ids.tolist())
    assert words == ["<unk>"] * 9 + [BEFORE, *"pick up?", AFTER, "▁"] and (ids[:9] == 0).all()
    assert "".join([BEFORE, "pick up", AFTER]) == "In: What action should the robot take to pick up?\nOut:"
    with pytest.raises(ConfigError, match=r"policy.max_prompt_tokens=10: must be at least 11 for 'Pick UP\?'"):
        prompt_ids(tokenizer, "Pick UP?", 10)


def test_actions_are_the_last_words_before_the_padding() -> None:
    model = new_policy(decoding="parallel", chunk_size=2).model
    num_words = len(build_tokenizer())
    assert model.language_model.config.vocab_size == num_words + 256 + 64
    hidden = torch.randn(1, 1, 64)
    words, bins = model.language_model.lm_head(hidden)[0, 0], model.action_logits(hidden)[0, 0]
    assert torch.equal(bins[[0, 1, 255]], words[[num_words + 255, num_words + 254, num_words]])
    embedded = model.embed_tokens(torch.tensor([[3]]))
    assert torch.equal(embedded[0, 0], model.language_model.model.embed_tokens.weight[num_words + 255 - 3])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "somewhere"}, "exactly one of path and scratch must be set"),
        ({"scratch": None}, "exactly one of path and scratch must be set"),
        ({"tokenizer": None}, "scratch needs a tokenizer"),
        ({"tokenizer": "nowhere:build"}, "tokenizer=nowhere:build: cannot import module 'nowhere'"),
        ({"cameras": ("image", "image")}, r"cameras=\['image', 'image'\]: must name each camera once"),
        ({"cameras": ()}, "at least 1 item"),
        ({"chunk_size": 0}, "greater than or equal to 1"),
        ({"scratch": {"image_size": 30}}, "image_size=30 must be a multiple of patch_size=14"),
        ({"scratch": {"hidden_size": 30}}, "hidden_size=30 must be a multiple of num_attention_heads=4"),
    ],
)
def test_a_mistake_is_refused_by_name(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OpenVLAConfig.model_validate(new_config().model_dump() | keys)
