"""Weights that versions share: published once, kept as long as a version needs them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from embodyflow.config import RunConfig
from embodyflow.data.plans.row_plan import ShardRef
from embodyflow.workers.calls import Published
from embodyflow.workers.session import Session


class Trainer:
    """A group that publishes its weights; those that it leaves alone have a digest."""

    def __init__(self) -> None:
        self.digest: str | None = "a"
        self.shared: list[str] = []

    async def call(self, method: str, argument: Any) -> list[Any]:
        if method == "share_weights":
            self.shared.append(argument)
            return [ShardRef(f"weights/shared/{argument}/0", "host", 1), None]
        return [Published(ShardRef(f"weights/{argument}/0", "host", 1), f"digest {argument}", self.digest), None]


class Publisher:
    """A session with a fake trainer and without buffers."""

    def __init__(self, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trainer, self.freed = Trainer(), list[str]()
        self.session = Session(config, {"trainer": self.trainer}, {})  # type: ignore[dict-item]

        async def free(prefix: str) -> None:
            self.freed.append(prefix)

        monkeypatch.setattr(self.session, "free", free)

    def publish(self, version: int) -> str | None:
        """Publish a version; return the id of the weights that it shares."""
        asyncio.run(self.session.publish_weights(version))
        shared = self.session._versions.refs[version].shared
        return None if shared is None else shared.shard_id


@pytest.fixture
def publisher(tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> Publisher:
    config = tiny_config("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")
    return Publisher(config, monkeypatch)


def test_shared_weights_are_published_once(publisher: Publisher) -> None:
    assert [publisher.publish(version) for version in range(4)] == 4 * ["weights/shared/a/0"]
    assert publisher.trainer.shared == ["a"] and publisher.freed == ["weights/0/", "weights/1/"]


def test_other_weights_are_shared_after_a_change_and_the_old_ones_stay_while_a_version_has_them(
    publisher: Publisher,
) -> None:
    publisher.publish(0)
    publisher.trainer.digest = "b"  # as after a warm start of what is frozen later
    assert publisher.publish(1) == "weights/shared/b/0" and publisher.freed == []
    publisher.publish(2)
    assert publisher.freed == ["weights/0/", "weights/shared/a/"] and publisher.trainer.shared == ["a", "b"]
    publisher.trainer.digest = None
    assert publisher.publish(3) is None
    publisher.publish(4)
    assert publisher.freed[2:] == ["weights/1/", "weights/2/", "weights/shared/b/"]


def test_a_version_that_is_published_again_shares_its_weights_again(publisher: Publisher) -> None:
    """A buffer has lost weights of the version, perhaps those that it shares."""
    publisher.publish(0)
    publisher.publish(0)
    assert publisher.trainer.shared == ["a", "a"] and publisher.freed == []
