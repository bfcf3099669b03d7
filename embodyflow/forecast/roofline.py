"""The costs of a model's nodes on accelerators, by roofline formulas.

For N parameters, T of them trained, B rows with P prompt and R response tokens, D devices of the group and t ranks per
copy of the rollout model, with the peaks F (FLOP/s), M (memory bytes/s) and L (link bytes/s) of a device and the shares
f, m and l of them that are reached:

====================  ===============================================================================================
generation            max(memory, compute) + prefill, with n = B t / D rows per copy of the model, in whole groups
… memory              (2 N · S + n · c · R (P + R / 2)) / (t m M): each of S decoding steps reads the weights in
                      16 bits, and each token reads the keys and values before it, c bytes per token
… steps               S = R_max + (⌈n / n₁⌉ − 1) R, if n₁ rows fit the memory at once; R in place of R_max in
                      streaming, where no batch waits for its longest row
… compute, prefill    2 N · n · R / (t f F), 2 N · n · P / (t f F)
keys and values       c = 4 · l · d / g bytes, with N = 12 l d², d = 128 l and g heads of queries per head of keys
decisions (robots)    steps · max(2 N / (t m M), 2 N · n · q / (t f F)) with q tokens per decision, and the recorded CPU
                      seconds of the environments, on all cores of the machines
log-probs             2 N · B (P + R) / (D f F)
training              e · ((4 N + 2 T) · B (P + R) / (D f F) + u · 3 (D − 1) / D · 2 N / (l L)) for e epochs of u steps
                      of 6 N FLOP per token, if all weights are trained: 2 N forward, 2 N for the gradients of
                      activations and 2 T for those of weights. Sharded weights are gathered forward and backward, and
                      gradients are reduced and scattered, in 16 bits: each moves (D − 1) / D · 2 N bytes as a ring does
weights               (D − 1) / D · 4 N / (l L) to gather them in fp32, and 4 N / (l L) to each machine that rolls out
====================  ===============================================================================================

Communication is not overlapped with computation, so these times are upper bounds of it. Sources: 2 N and 6 N per token
are of Kaplan et al. (2020, arXiv:2001.08361); the roofline of decoding is of Pope et al. (2022, arXiv:2211.05102); a
ring's (D − 1) / D is of Patarasuk and Yuan (2009); sharding of Rajbhandari et al. (2019, arXiv:1910.02054).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from embodyflow.config import RunConfig
from embodyflow.config.changed_values import with_values
from embodyflow.config.grouped import GroupedConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError
from embodyflow.forecast.record import Cost, RunRecord, Sample
from embodyflow.forecast.scaling import scaled
from embodyflow.forecast.schedule import Shape
from embodyflow.graph.node import NodeRole
from embodyflow.graph.node_groups import group_of
from embodyflow.graph.planning.memory_estimate import ModelSize

HALF, FULL = 2.0, 4.0
"""Bytes of a parameter in 16 bits and in fp32."""
LAYER_PARAMS, HEAD_WIDTH = 12.0, 128.0
"""A transformer of l layers of width d has N = 12 l d² weights and d = 128 l, as GPT-3 and Llama 7B have."""
MEMORY_SHARE = 0.9
"""Share of a device's memory for weights, keys and values in rollouts."""


@dataclass(frozen=True)
class Assumptions:
    """What a device reaches, and the tokens of rows.

    Attributes:
        tflops: Dense 16-bit TFLOP/s of a device; 989 is NVIDIA's figure for H100 SXM.
        memory_gb: Memory GB/s of a device; 3350 is NVIDIA's figure for H100 SXM.
        link_gb: GB/s of a device's link to devices of other machines; 50 is InfiniBand NDR at 400 Gbit/s.
        flops_share: Share of the FLOP/s that matrix products reach.
        memory_share: Share of the memory's GB/s that decoding reaches.
        link_share: Share of the link's GB/s that collectives reach.
        prompt_tokens: Tokens of a prompt.
        response_tokens: Tokens of a response, as a mean; 0 takes the recorded mean.
        longest_ratio: Tokens of the longest response, relative to the mean.
        device_gib: Memory of a device in GiB.
        key_sharing: Heads of queries that share keys and values.
        decision_tokens: Tokens of a robot policy's decision, images and instruction among them.
    """

    tflops: float = 989.0
    memory_gb: float = 3350.0
    link_gb: float = 50.0
    flops_share: float = 0.4
    memory_share: float = 0.7
    link_share: float = 0.7
    prompt_tokens: float = 512.0
    response_tokens: float = 0.0
    longest_ratio: float = 4.0
    device_gib: float = 80.0
    key_sharing: float = 4.0
    decision_tokens: float = 300.0

    @property
    def flops(self) -> float:
        """FLOP/s that are reached."""
        return 1e12 * self.tflops * self.flops_share

    @property
    def memory(self) -> float:
        """Bytes of memory per second that are reached."""
        return 1e9 * self.memory_gb * self.memory_share

    @property
    def link(self) -> float:
        """Bytes per second of a link that are reached."""
        return 1e9 * self.link_gb * self.link_share


def assumed(words: Mapping[str, str]) -> Assumptions:
    """Return the assumptions with other values.

    Raises:
        ConfigError: There is no such assumption, or a value is no positive number.
    """
    names = [field.name for field in fields(Assumptions)]
    values = {}
    for name, text in words.items():
        if name not in names:
            raise ConfigError(f"--assume {name}={text}: allowed are {', '.join(names)}")
        try:
            values[name] = float(text)
        except ValueError:
            values[name] = math.nan
        if not 0 < values[name] < math.inf:
            raise ConfigError(f"--assume {name}={text}: must be a number above 0")
    return replace(Assumptions(), **values)


@dataclass(frozen=True)
class Target:
    """The machines and the model to forecast for.

    Attributes:
        machines: Number of machines.
        cpus: Cores of a machine, which step environments.
        model: Size of the policy.
        critic: Size of its critic, if the graph has one.
        tensor: Ranks that share one copy of the rollout model, t.
        assumptions: Figures of its devices and tokens of its rows.
    """

    machines: int
    cpus: int
    model: ModelSize
    critic: ModelSize
    tensor: int = 1
    assumptions: Assumptions = Assumptions()


def on_devices(record: RunRecord, config: RunConfig, target: Target, shape: Shape) -> list[Sample]:
    """Return the costs of the record's iterations with another model on a target's devices.

    Nodes without a model keep their recorded costs, scaled by the rows of a rank.

    Args:
        record: Run whose iterations are scaled.
        config: Configuration to scale them to.
        target: Machines and model.
        shape: How many of the devices roll out and train, and how.

    Raises:
        ConfigError: The formulas do not know the kind of job, or the model does not fit the devices that roll out.
    """
    if not isinstance(config, GroupedConfig):
        raise ConfigError(f"{record.name}: formulas for devices know robot and language jobs, not job={config.kind}")
    spread = with_values(config, {"rollout.num_workers": shape.workers, "trainer.num_ranks": shape.ranks})
    costs = _DeviceCosts(record, config, target, shape)
    return [costs.of(sample) for sample in scaled(record, spread)]


class _DeviceCosts:
    """Costs of nodes by the formulas of the module, in its symbols."""

    def __init__(self, record: RunRecord, config: GroupedConfig, target: Target, shape: Shape) -> None:
        self._record, self._config, self._target, self._shape = record, config, target, shape
        given = target.assumptions
        self._prompt, self._response = given.prompt_tokens, given.response_tokens or record.row_length
        self._rows = config.rollout.num_groups * config.rollout.group_size

    def of(self, sample: Sample) -> Sample:
        """Return the cost of an iteration; ``sample`` has that of the recorded model."""
        nodes = {node_id: self._node(node_id, cost) for node_id, cost in sample.nodes.items()}
        published = self._weights_seconds()
        return Sample(nodes, sample.between, replace(sample.commit, seconds=sample.commit.seconds + published))

    def _node(self, node_id: str, cost: Cost) -> Cost:
        node = self._record.graph.nodes[node_id]
        match group_of(node):
            case None:
                return cost
            case "rollout" if isinstance(self._config, EmbodiedConfig):
                return Cost(self._decisions(self._config) + self._environments(cost))
            case "rollout":
                return Cost(self._generation())
            case _:
                model = self._target.critic if node.node_role is NodeRole.CRITIC else self._target.model
                return Cost(self._training(model) if node.changes_weights else self._log_probs(model))

    @property
    def _rows_per_copy(self) -> int:
        """Rows of a copy of the rollout model, n; it plays whole groups."""
        copies = max(self._shape.workers // self._target.tensor, 1)
        return math.ceil(self._config.rollout.num_groups / copies) * self._config.rollout.group_size

    @property
    def _tokens(self) -> float:
        """Tokens of all rows, B (P + R)."""
        if isinstance(self._config, EmbodiedConfig):
            return self._rows * self._config.num_decisions * self._target.assumptions.decision_tokens
        return self._rows * (self._prompt + self._response)

    def _generation(self) -> float:
        given, params, cut = self._target.assumptions, self._target.model.num_params, self._target.tensor
        rows = self._rows_per_copy
        bytes_of_token = cache_bytes(params, given.key_sharing)
        longest = self._response if self._shape.num_groups else self._response * given.longest_ratio
        at_once = self._rows_at_once(bytes_of_token * (self._prompt + self._response))
        steps = longest + (math.ceil(rows / at_once) - 1) * self._response
        read = HALF * params * steps + rows * bytes_of_token * self._response * (self._prompt + self._response / 2)
        computed = 2 * params * rows * self._response / given.flops
        prefill = 2 * params * rows * self._prompt / given.flops
        return (max(read / given.memory, computed) + prefill) / cut

    def _rows_at_once(self, bytes_of_row: float) -> int:
        """Return how many rows fit beside the weights of a copy.

        Raises:
            ConfigError: Not one fits.
        """
        given, cut = self._target.assumptions, self._target.tensor
        left = MEMORY_SHARE * given.device_gib * 2**30 * cut - HALF * self._target.model.num_params
        if left < bytes_of_row:
            raise ConfigError(
                f"--tensor-parallel={cut}: {self._target.model.num_params:.3g} parameters in 16 bits and the keys and "
                f"values of a row do not fit {cut} × {given.device_gib:g} GiB; raise it"
            )
        return int(left / bytes_of_row)

    def _decisions(self, config: EmbodiedConfig) -> float:
        given, params, cut = self._target.assumptions, self._target.model.num_params, self._target.tensor
        rows = self._rows_per_copy
        computed = 2 * params * rows * given.decision_tokens / given.flops
        return config.num_decisions * max(HALF * params / given.memory, computed) / cut

    def _environments(self, cost: Cost) -> float:
        """Return the seconds of the environments on all cores, which the recorded policy's own time counts to.

        ``cost`` is that of one of the shape's workers.
        """
        return cost.computing * self._shape.workers / (self._target.machines * self._target.cpus)

    def _log_probs(self, model: ModelSize) -> float:
        return 2 * model.num_params * self._tokens / (self._shape.ranks * self._target.assumptions.flops)

    def _training(self, model: ModelSize) -> float:
        trainer, given, ranks = self._config.trainer, self._target.assumptions, self._shape.ranks
        flops = (4 * model.num_params + 2 * model.trained) * self._tokens
        moved = 3 * (ranks - 1) / ranks * HALF * model.num_params
        return trainer.epochs * (flops / (ranks * given.flops) + trainer.num_minibatches * moved / given.link)

    def _weights_seconds(self) -> float:
        ranks, link = self._shape.ranks, self._target.assumptions.link
        full = FULL * self._target.model.num_params
        return ((ranks - 1) / ranks + (self._target.machines > 1)) * full / link


def cache_bytes(num_params: float, key_sharing: float) -> float:
    """Return the bytes of a token's keys and values in 16 bits, c; see the module."""
    layers = (num_params / (LAYER_PARAMS * HEAD_WIDTH**2)) ** (1 / 3)
    return 2 * HALF * layers * (HEAD_WIDTH * layers) / key_sharing
