"""One node of a graph: a function, what it waits for and which worker group it runs on."""

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

NodeId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
Reference = Annotated[
    str,
    # In a file a dot may stand for the colon; what is checked here has had it replaced.
    Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        json_schema_extra={"pattern": r"^[A-Za-z_][\w.]*[.:][A-Za-z_][\w.]*$"},
    ),
]


class _Name(StrEnum):
    """Members are their own upper-case names and are found in any case."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    @classmethod
    def _missing_(cls, value: object) -> "_Name | None":
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tell editors of lower case too."""
        described = handler(schema)
        handler.resolve_ref_schema(described)["enum"] = [*cls.__members__, *map(str.lower, cls.__members__)]
        return described


class NodeType(_Name):
    """What a node does, and so where it runs.

    ``COMPUTE`` runs where its rows already are; ``MODEL_INFERENCE`` and ``MODEL_TRAIN`` on the worker group
    of the node's role; ``DATA_LOAD`` brings rows in.
    """

    COMPUTE = "COMPUTE"
    DATA_LOAD = "DATA_LOAD"
    MODEL_INFERENCE = "MODEL_INFERENCE"
    MODEL_TRAIN = "MODEL_TRAIN"

    @property
    def is_model(self) -> bool:
        """Whether nodes of this type need a model's weights."""
        return self in (NodeType.MODEL_INFERENCE, NodeType.MODEL_TRAIN)


class NodeRole(_Name):
    """Which part of the algorithm a node plays; of a model node, whose weights it uses."""

    DEFAULT = "DEFAULT"
    ACTOR = "ACTOR"
    ADVANTAGE = "ADVANTAGE"
    CRITIC = "CRITIC"
    DYNAMIC_SAMPLING = "DYNAMIC_SAMPLING"
    REFERENCE = "REFERENCE"
    REWARD = "REWARD"
    ROLLOUT = "ROLLOUT"


class Node(BaseModel):
    """One node, as names and numbers: it travels as JSON and is written the same in YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    node_id: NodeId
    """Unique in the graph."""
    executable_ref: Reference
    """The node's function, `module:function` or `module:Class.method`."""
    node_type: NodeType
    """What the node does, and so where it runs."""
    node_role: NodeRole = Field(default=NodeRole.DEFAULT, validate_default=True)
    """Which part of the algorithm it plays; of a model node, whose weights it uses."""
    dependencies: tuple[str, ...] = ()
    """Nodes whose output it reads; all of them reach it."""
    only_forward_compute: StrictBool = False
    """The node uses weights and never changes them."""
    config: dict[str, JsonValue] = {}
    """Given to the function as its `config`."""
    retries: Annotated[int, Field(ge=0, strict=True)] = 0
    """How often it is run again after it fails; a node that trains never is."""
    timeout_seconds: Annotated[float, Field(gt=0, strict=True)] | None = None
    """How long it may take; null means as long as the cluster's node_timeout."""
    reads: tuple[str, ...] | None = None
    """Columns it needs; null means those that the function declares."""
    writes: tuple[str, ...] | None = None
    """Columns it adds; null means those that the function declares."""

    @property
    def changes_weights(self) -> bool:
        """Whether running the node twice would train twice."""
        return _trains(self.node_type, self.node_role, self.only_forward_compute)

    @property
    def only_uses_weights(self) -> bool:
        """Whether the node says that it leaves weights as they are: it may be run again."""
        return (
            self.only_forward_compute
            or self.node_type is NodeType.MODEL_INFERENCE
            or self.node_role is NodeRole.REFERENCE
        )

    @field_validator("dependencies", mode="before")
    @classmethod
    def _in_order(cls, dependencies: Any) -> Any:
        if isinstance(dependencies, Set):
            raise ValueError("must be a list: its first node gives rows their order, and a set has none")
        return dependencies

    @field_validator("node_role")
    @classmethod
    def _role_fits_type(cls, role: NodeRole, info: ValidationInfo) -> NodeRole:
        if role is not NodeRole.DEFAULT and info.data.get("node_type") is NodeType.DATA_LOAD:
            raise ValueError(f"{role} is not allowed on {NodeType.DATA_LOAD}; allowed there is {NodeRole.DEFAULT}")
        return role

    @field_validator("retries")
    @classmethod
    def _trains_once(cls, retries: int, info: ValidationInfo) -> int:
        what = (info.data.get(key) for key in ("node_type", "node_role", "only_forward_compute"))
        if retries and _trains(*what):
            raise ValueError("a node that trains is applied once, and allows 0; recovery goes back to the last commit")
        return retries


def _trains(node_type: NodeType | None, role: NodeRole | None, only_forward_compute: bool | None) -> bool:
    """Say whether such a node changes weights; ``None`` is what is not known. Those of the reference never change."""
    return node_type is NodeType.MODEL_TRAIN and role is not NodeRole.REFERENCE and only_forward_compute is False
