"""The versions of the policy whose weights are published, as far as rollouts may still act with them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from embodyflow.config import RunConfig
from embodyflow.data.plans.row_plan import ShardRef, WeightsRef
from embodyflow.workers.calls import SHARED, WEIGHTS


class PublishedVersions:
    """References to published weights.

    Args:
        config: Run configuration.

    Attributes:
        newest: The newest version.
        digest: SHA-256 of its weights.
        refs: References by version.
    """

    def __init__(self, config: RunConfig) -> None:
        self.newest, self.digest = 0, ""
        self.refs: dict[int, WeightsRef] = {}
        self._max_staleness = config.rollout.max_staleness
        self._swaps = config.rollout.swaps_when_published
        self._shared: dict[str, ShardRef] = {}  # by digest
        self._held: dict[int, str] = {}  # digests of versions that are kept until they are released
        self._acting = Counter[int]()  # number of single groups that a version plays

    def shared(self, digest: str, version: int) -> ShardRef | None:
        """Return weights with this SHA-256 that other versions share; ``None`` if they must be published.

        Args:
            digest: The SHA-256.
            version: Version that needs them. If it was published before, its weights are lost, perhaps these.
        """
        return None if version in self.refs else self._shared.get(digest)

    def share(self, digest: str, shard: ShardRef) -> None:
        """Keep weights for later versions that have the same."""
        self._shared[digest] = shard

    def add(self, version: int, weights: WeightsRef, digest: str) -> list[str]:
        """Make a version the newest; return the beginnings of the ids of shards that no rollout needs any more."""
        self.refs[version], self.newest, self.digest = weights, version, digest
        return self._drop()

    def hold(self, version: int) -> None:
        """Keep the newest version until :meth:`release`; it may be held already."""
        if version not in self._held:
            assert version == self.newest, f"version {version} is not the newest, {self.newest}"
            self._held[version] = self.digest

    def held_digest(self, version: int) -> str | None:
        """Return the SHA-256 of a version that is held; ``None`` for others."""
        return self._held.get(version)

    def release(self, version: int) -> list[str]:
        """Let a version go that was held; see :meth:`add` for what is returned."""
        self._held.pop(version, None)
        return self._drop()

    @contextmanager
    def acting(self, version: int) -> Iterator[None]:
        """Keep a version within the block."""
        self._acting[version] += 1
        try:
            yield
        finally:
            self._acting[version] -= 1

    def clear(self) -> None:
        """Forget all weights, which the buffers no longer have."""
        self.refs.clear()
        self._shared.clear()
        self._held.clear()

    def _drop(self) -> list[str]:
        """Drop what no rollout may need; return the beginnings of the ids of its shards."""
        gone = [version for version in self.refs if not self._may_act(version)]
        for version in gone:
            del self.refs[version]
        used = {each.shared for each in self.refs.values()}
        unused = [digest for digest, shard in self._shared.items() if shard not in used]
        for digest in unused:
            del self._shared[digest]
        return [f"{WEIGHTS}{version}/" for version in gone] + [f"{SHARED}{digest}/" for digest in unused]

    def _may_act(self, version: int) -> bool:
        """Return True if a version is held, or groups that are played or may still start need it."""
        newest = range(self.newest - self._max_staleness, self.newest + 1)
        if version in newest or version in self._held or self._acting[version]:
            return True
        # A group whose worker is lost needs all versions since it began.
        acting = [each for each, number in self._acting.items() if number]
        return self._swaps and version > min(acting, default=version)
