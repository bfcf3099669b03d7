"""One node of a graph: its function, its dependencies and the worker group that runs it."""

from collections.abc import Set
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    StrictBool,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from embodyflow.durations import MOST_SECONDS

NodeId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
Reference = Annotated[
    str,
    # Files may write a dot for the colon; it is replaced before this check.
    Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        json_schema_extra={"pattern": r"^[A-Za-z_][\w.]*[.:][A-Za-z_][\w.]*$"},
    ),
]


class _Name(StrEnum):
    """Members equal their upper-case names; lookup ignores case."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    @classmethod
    def _missing_(cls, value: object) -> "_Name | None":
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return a schema that also lists the lower-case names, for editors."""
        described = handler(schema)
        handler.resolve_ref_schema(described)["enum"] = [*cls.__members__, *map(str.lower, cls.__members__)]
        return described


class NodeType(_Name):
    """Kind of work that a node does, which decides where it runs.

    ``COMPUTE`` runs where its rows are, ``MODEL_INFERENCE`` and ``MODEL_TRAIN`` run on the worker group of the node's
    role, and ``DATA_LOAD`` loads rows.
    """

    COMPUTE = "COMPUTE"
    DATA_LOAD = "DATA_LOAD"
    MODEL_INFERENCE = "MODEL_INFERENCE"
    MODEL_TRAIN = "MODEL_TRAIN"

    @property
    def is_model(self) -> bool:
        """True for types that need a model's weights."""
        return self in (NodeType.MODEL_INFERENCE, NodeType.MODEL_TRAIN)


class NodeRole(_Name):
    """Part of the algorithm that a node implements; for a model node it selects the weights."""

    DEFAULT = "DEFAULT"
    ACTOR = "ACTOR"
    ADVANTAGE = "ADVANTAGE"
    CRITIC = "CRITIC"
    DYNAMIC_SAMPLING = "DYNAMIC_SAMPLING"
    REFERENCE = "REFERENCE"
    REWARD = "REWARD"
    ROLLOUT = "ROLLOUT"


class Node(BaseModel):
    """One node of names and numbers only; its JSON is also its YAML form."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    node_id: NodeId
    """Name of the node, unique in the graph."""
    executable_ref: Reference
    """Function of the node, `module:function` or `module:Class.method`."""
    node_type: NodeType
    """Kind of work, which decides where the node runs."""
    node_role: NodeRole = Field(default=NodeRole.DEFAULT, validate_default=True)
    """Part of the algorithm; for a model node it selects the weights."""
    dependencies: tuple[str, ...] = ()
    """Nodes whose output this node reads; it runs after all of them."""
    only_forward_compute: StrictBool = False
    """True if the node uses weights and never changes them."""
    config: dict[str, JsonValue] = {}
    """Values that the function gets as `config`."""
    retries: Annotated[int, Field(ge=0, le=1000, strict=True)] = 0
    """Retries after a failure; must be 0 for a node that trains."""
    timeout_seconds: Annotated[float, Field(gt=0, le=MOST_SECONDS, strict=True)] | None = None
    """Seconds that the node may take; null means the cluster's node_timeout."""
    reads: tuple[str, ...] | None = None
    """Columns that the node needs; null means those that the function declares."""
    writes: tuple[str, ...] | None = None
    """Columns that the node adds; null means those that the function declares."""

    @property
    def changes_weights(self) -> bool:
        """True if running the node twice would train twice."""
        return _trains(self.node_type, self.node_role, self.only_forward_compute)

    @property
    def only_uses_weights(self) -> bool:
        """True if the node declares that it never changes weights, so that a retry is safe."""
        return (
            self.only_forward_compute
            or self.node_type is NodeType.MODEL_INFERENCE
            or self.node_role is NodeRole.REFERENCE
        )

    @field_validator("dependencies", mode="before")
    @classmethod
    def _refuse_sets(cls, dependencies: Any) -> Any:
        if isinstance(dependencies, Set):
            raise ValueError("must be a list, since its first node determines the order of rows")
        return dependencies

    @field_validator("node_role")
    @classmethod
    def _check_role(cls, role: NodeRole, info: ValidationInfo) -> NodeRole:
        if role is not NodeRole.DEFAULT and info.data.get("node_type") is NodeType.DATA_LOAD:
            raise ValueError(f"is not allowed with node_type={NodeType.DATA_LOAD}; allowed is {NodeRole.DEFAULT}")
        return role

    @field_validator("retries")
    @classmethod
    def _refuse_retries_of_training(cls, retries: int, info: ValidationInfo) -> int:
        settings = (info.data.get(key) for key in ("node_type", "node_role", "only_forward_compute"))
        if retries and _trains(*settings):
            raise ValueError("must be 0 for a node that trains; recovery resumes from the last commit")
        return retries


def _trains(node_type: NodeType | None, role: NodeRole | None, only_forward_compute: bool | None) -> bool:
    """Return True if such a node changes weights; the reference's never change. ``None`` is an unknown value."""
    return node_type is NodeType.MODEL_TRAIN and role is not NodeRole.REFERENCE and only_forward_compute is False
