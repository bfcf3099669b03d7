"""LIBERO's arm: robosuite's operational space controller and gripper, without repeated computations.

At each of the 25 physics steps of an action robosuite runs ``mj_forward`` three times, once within ``mj_step``, and
looks up names. Here ``mj_step1`` computes the inputs of the controller, the controller sets torques and ``mj_step2``
integrates. The tests check that trajectories are bit-identical to robosuite's.
"""

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from robosuite.utils import transform_utils
from robosuite.utils.control_utils import nullspace_torques, opspace_matrices, orientation_error

Floats = NDArray[np.float64]

NUM_SUBSTEPS = 25
"""Number of physics steps of 2 ms per action, which gives 20 actions per second."""
ACTION_SCALE = np.array([0.05, 0.05, 0.05, 0.5, 0.5, 0.5])
"""Displacement in metres and turn in radians of an action of 1."""
STIFFNESS = 150.0
DAMPING = 2.0 * np.sqrt(STIFFNESS)  # critical
GRIPPER_SPEED = 0.01


@dataclass
class ArmState:
    """State of the controller between actions, in addition to the simulator's state.

    Attributes:
        goal_rotation: Goal rotation of the gripper, float64 ``[3, 3]``; an action without a turn keeps it.
        fingers: Set points of the gripper, float64 ``[2]`` in [-1, 1].
    """

    goal_rotation: Floats
    fingers: Floats


class Arm:
    """A Panda that follows displacements of its gripper (OSC_POSE of robosuite 1.4).

    Args:
        robot: Robot of robosuite, which provides joints, actuators and rest pose.
        model: Model of the scene.
        period: Number of physics steps per computation of the torques. 1 is robosuite's; a larger one is cheaper but
            gives other trajectories.
    """

    def __init__(self, robot: Any, model: mujoco.MjModel, period: int = 1) -> None:
        self._model, self._period = model, period
        self._site = int(robot.eef_site_id)
        self._hand = model.body(robot.robot_model.eef_name).id
        self._positions = np.array(robot._ref_joint_pos_indexes)
        self._velocities = np.array(robot._ref_joint_vel_indexes)
        self._motors = np.array(robot._ref_joint_actuator_indexes)
        self._finger_motors = np.array(robot._ref_joint_gripper_actuator_indexes)
        self.finger_joints = np.array(robot._ref_gripper_joint_pos_indexes)
        self._rest = np.array(robot.controller.initial_joint)
        self._low, self._high = model.actuator_ctrlrange[self._motors].T
        finger_range = model.actuator_ctrlrange[self._finger_motors]
        self._finger_bias, self._finger_weight = finger_range.mean(axis=1), np.diff(finger_range, axis=1)[:, 0] / 2
        self._jacobian = np.zeros((2, 3, model.nv))
        self._mass = np.zeros((model.nv, model.nv))

    def at_rest(self, data: mujoco.MjData) -> ArmState:
        """Return the controller's state for an arm at rest in its current pose."""
        return ArmState(self._rotation(data), np.zeros(2))

    def execute(self, data: mujoco.MjData, state: ArmState, action: Floats) -> None:
        """Execute one action, float64 ``[7]`` in [-1, 1]: displacement, axis-angle turn and gripper (1 closes)."""
        for substep in range(NUM_SUBSTEPS):
            mujoco.mj_step1(self._model, data)
            if substep == 0:
                goal = self._goal(data, state, action)
            if substep % self._period == 0:
                data.ctrl[self._motors] = self._torques(data, goal, state.goal_rotation)
            state.fingers = np.clip(state.fingers + np.array([-1.0, 1.0]) * GRIPPER_SPEED * np.sign(action[6]), -1, 1)
            data.ctrl[self._finger_motors] = self._finger_bias + self._finger_weight * state.fingers
            mujoco.mj_step2(self._model, data)

    def position(self, data: mujoco.MjData) -> Floats:
        """Return the position of the gripper, float64 ``[3]``, in metres."""
        return np.array(data.site_xpos[self._site])

    def turn(self, data: mujoco.MjData) -> Floats:
        """Return the rotation of the hand, axis times angle, float64 ``[3]``, in radians."""
        turn: Floats = transform_utils.quat2axisangle(transform_utils.convert_quat(data.xquat[self._hand], to="xyzw"))
        return turn

    def _rotation(self, data: mujoco.MjData) -> Floats:
        return np.array(data.site_xmat[self._site]).reshape(3, 3)

    def _goal(self, data: mujoco.MjData, state: ArmState, action: Floats) -> Floats:
        """Return the goal position; set the goal rotation if the action has a turn."""
        scaled = np.clip(action[:6], -1, 1) * ACTION_SCALE
        if scaled[3:].any():
            turn = transform_utils.quat2mat(transform_utils.axisangle2quat(scaled[3:]))
            state.goal_rotation = np.dot(turn, self._rotation(data))
        return self.position(data) + scaled[:3]

    def _torques(self, data: mujoco.MjData, goal: Floats, goal_rotation: Floats) -> Floats:
        """Return the arm's torques (Khatib, 1987), with position and rotation uncoupled, float64 ``[7]``, in Nm."""
        linear, angular = self._jacobian
        mujoco.mj_jacSite(self._model, data, linear, angular, self._site)
        mujoco.mj_fullM(self._model, self._mass, data.qM)
        joints = self._velocities
        mass, arm_linear, arm_angular = self._mass[joints][:, joints], linear[:, joints], angular[:, joints]
        both = np.vstack([arm_linear, arm_angular])
        turned = orientation_error(goal_rotation, self._rotation(data))
        force = (goal - self.position(data)) * STIFFNESS - np.dot(linear, data.qvel) * DAMPING
        torque = turned * STIFFNESS - np.dot(angular, data.qvel) * DAMPING
        _, inertia, turning_inertia, null_space = opspace_matrices(mass, both, arm_linear, arm_angular)
        wrench = np.concatenate([np.dot(inertia, force), np.dot(turning_inertia, torque)])
        torques = np.dot(both.T, wrench) + data.qfrc_bias[joints]
        torques += nullspace_torques(
            mass, null_space, self._rest, data.qpos[self._positions], np.array(data.qvel[joints])
        )
        return np.clip(torques, self._low, self._high)
